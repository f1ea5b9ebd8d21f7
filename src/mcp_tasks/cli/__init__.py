"""The `mcp-tasks` command: call tools, come back to their tasks, and look at what a server does with tasks.

`app` has the table of commands, one file each in `commands`. Below them: `terminal` draws, reads keys and says how a
command ends, `forms` asks at the prompt. What is done with servers and tasks is `mcp_tasks.client`.
"""

from __future__ import annotations

import sys
from importlib import import_module

__all__ = ["main"]

NEEDED = ("click", "rich")
"""What the extra brings; anything else that is missing is a defect."""


def main() -> None:
    """Run the command line and end the process with its exit code."""
    try:
        # Now, and not in the middle of a command: most of it is imported when it is used.
        for name in NEEDED:
            import_module(name)
        from mcp_tasks.cli.app import run_app
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] not in NEEDED:
            raise
        sys.exit(f"mcp-tasks: the command line needs {exc.name}, which is not installed: pip install 'mcp-tasks[cli]'")
    except KeyboardInterrupt:
        # Before there is a command that would say something.
        sys.exit(130)
    sys.exit(run_app())
