"""`python -m mcp_tasks.cli`."""

from mcp_tasks.cli import main

if __name__ == "__main__":
    main()
