"""`python -m mcp_tasks`: the `mcp-tasks` command."""

from mcp_tasks.cli import main

if __name__ == "__main__":
    main()
