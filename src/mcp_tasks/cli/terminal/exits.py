"""How a command ends: its exit code, and the problem it names."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import click

from mcp_tasks.cli.terminal.text import clean, one_line
from mcp_tasks.errors import UnknownTask


class Exit(IntEnum):
    """Exit codes, for scripts. Documented in docs/cli.md; a number never changes its meaning."""

    OK = 0
    TOOL_ERROR = 1
    """The tool ran and says that it failed (`isError`)."""
    USAGE = 2
    FAILED = 3
    """The call or its task failed with a JSON-RPC error."""
    CANCELLED = 4
    TIMEOUT = 5
    UNREACHABLE = 6
    """The server cannot be used: it is not there, refuses the credentials, or is not an MCP server."""
    INPUT_REQUIRED = 7
    """The task asks something and there is no terminal to ask at."""
    UNKNOWN_TASK = 8
    LEDGER = 9
    """The ledger cannot be used."""
    STORE = 10
    """The store of a server's tasks, or its engine, cannot be used."""
    SERVER_CODE = 11
    """The code of a server raised while it was imported, started or stopped."""
    DEFECT = 70
    INTERRUPTED = 130


TASK_NOT_KNOWN: Final = "the server does not know this task: it may have expired, or belong to another user"
"""In words, what a server means by an unknown task."""


def task_not_known(exc: UnknownTask) -> str:
    """What a server means by an unknown task, and what else a server of this kind may mean."""
    return f"{TASK_NOT_KNOWN}; {exc.hint}" if exc.hint else TASK_NOT_KNOWN


DOCTOR_FOUND_FAULTS = 1
"""What `doctor` ends with when a probe failed."""


class Problem(Exception):
    """Something that ends a command, in words for who typed it.

    Attributes:
        code: The exit code it ends the command with.
        hint: What to do about it, if there is something.
    """

    def __init__(self, message: str, code: Exit, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint

    def show(self) -> None:
        """Print it to stderr."""
        click.secho("error: ", fg="red", bold=True, nl=False, err=True)
        # Here, because most of what goes wrong is said by a server, and passes through a dozen places.
        click.echo(one_line(self.message), err=True)
        if self.hint:
            for line in self.hint.splitlines():
                click.echo(f"  {clean(line)}", err=True)


class Detached(Problem):
    """Somebody stopped waiting; the task goes on."""

    def __init__(self) -> None:
        super().__init__("", Exit.INTERRUPTED)

    def show(self) -> None:
        """Nothing: whoever detached has said how to come back."""
