"""The older era at a server."""
