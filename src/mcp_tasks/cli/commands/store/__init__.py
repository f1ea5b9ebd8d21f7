"""Commands of an operator, on the store itself: `mcp-tasks ls --store URL` and the others. What they do is in
`runtime.operator`; here it is asked for and printed."""
