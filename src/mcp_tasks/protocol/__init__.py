"""The rules of the wire, for any door: who calls, in which era, what may be asked for, and what is answered.

Nothing here knows how a request came in. An adapter (see `mcp_tasks.server`) builds a `Caller`, calls a method of
`TasksProtocol`, and sends on what comes back. What differs between eras is a `Dialect`.
"""
