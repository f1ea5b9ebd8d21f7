"""The protocol of tasks, for every transport: who calls, in which version, what may be asked for, and the answers.

Nothing here knows how a request came in. An entry point (see `mcp_tasks.server`) builds a `Caller`, calls a method of
`TasksProtocol`, and sends the result. The differences between versions are one table (`versions`).
"""
