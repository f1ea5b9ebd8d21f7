"""Servers by name: the command that lists and gives names, and what a name means to all others."""
