"""Tasks of 2025-11-25: `server` serves them, `client` drives them.

Only `server.calls` and `client.transport` import it, so that it can be deleted together with those lines. Nothing of the
two sides is imported here: a client must not import a server.
"""
