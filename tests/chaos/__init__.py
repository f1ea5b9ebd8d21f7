"""Servers in processes of their own that are killed, or asked to stop, in the middle of their work."""
