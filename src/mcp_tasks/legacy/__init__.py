"""Tasks of 2025-11-25: `server` serves them, `client` drives them.

Passed in by `server.calls` and `client.transport`, and known to nothing else, so that the whole room can
be deleted together with those lines. Nothing of the two sides is named here: a client must not import a server.
"""
