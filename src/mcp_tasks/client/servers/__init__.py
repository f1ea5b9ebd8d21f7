"""Servers as people name them: their addresses, connections to them, and why one cannot be used."""
