"""Tasks of 2025-11-25: `server` serves them, `client` uses them.

Only `server.calls` and `client.transport` import this package, so it can be deleted together with those lines. Nothing
of the two sides is imported here: a client must not import a server.
"""
