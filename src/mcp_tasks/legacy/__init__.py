"""The tasks of 2025-11-25, an era older than the extension: passed in at one place of the server and one of the client.

`legacy.server` and `legacy.client` never meet, and nothing is imported here, so that neither side needs the other.
"""
