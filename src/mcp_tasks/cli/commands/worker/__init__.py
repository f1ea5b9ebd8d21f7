"""`mcp-tasks worker` and `mcp-tasks backlog`."""
