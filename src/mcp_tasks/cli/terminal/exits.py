"""How a command ends: its exit code, and the problem it names."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import click
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

from mcp_tasks import errors
from mcp_tasks.cli.terminal.text import clean, one_line
from mcp_tasks.client import CallLost
from mcp_tasks.client.messages import ACCESS_REFUSED


class Exit(IntEnum):
    """Exit codes, for scripts. Documented in docs/cli.md; a number never changes its meaning."""

    OK = 0
    TOOL_ERROR = 1
    """The tool ran and says that it failed (`isError`). Of `doctor`: something is wrong with the server."""
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
    STORE = 10
    """The store of a server's tasks, or its engine, cannot be used."""
    SERVER_CODE = 11
    """The code of a server raised while it was imported, started or stopped."""
    DEFECT = 70
    OUTPUT = 74
    """What there is to print cannot be written: the disk is full."""
    INTERRUPTED = 130


WHAT_BECAME: Final[Mapping[errors.Fate, str]] = {
    "left": "",
    "cancelled": "; it was cancelled",
    "not cancelled": "; it could not be cancelled",
}
"""What became of a task that was given up, to be added to why."""


class Problem(Exception):
    """Something that ends a command, in words for who typed it.

    Attributes:
        code: The exit code it ends the command with.
        hint: What to do about it, if there is something.
        is_error: False if somebody chose to end it so.
    """

    def __init__(self, message: str, code: Exit, *, hint: str | None = None, is_error: bool = True) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.is_error = is_error

    def show(self) -> None:
        """Print it to stderr."""
        if self.is_error:
            click.secho("error: ", fg="red", bold=True, nl=False, err=True)
        if self.message or self.is_error:
            # Here, because most of what goes wrong is said by a server, and passes through a dozen places.
            click.secho(one_line(self.message), fg=None if self.is_error else "yellow", err=True)
        for line in (self.hint or "").splitlines():
            click.echo(f"  {clean(line)}", err=True)


class Detached(Problem):
    """Somebody stopped waiting, and was told how to come back; the task goes on."""

    def __init__(self) -> None:
        super().__init__("", Exit.INTERRUPTED, is_error=False)


def problem_of(exc: BaseException) -> Problem:
    """What an exception of the library means to who typed a command, with what its options can do about it."""
    if isinstance(exc, Problem):
        return exc
    code, hint, what = Exit.USAGE, getattr(exc, "hint", ""), exc.what if isinstance(exc, errors.Explained) else str(exc)
    match exc:
        case errors.ServerUnreachable():
            code, hint = Exit.UNREACHABLE, f"{hint}\n{_TO_REACH_IT.get(exc.reason, '').format(exc.scheme)}"
        case errors.TaskNotRemembered():
            ways = "`mcp-tasks ls` lists those in the ledger; `wait` or `show` any other by its whole id and --server."
            code, hint = Exit.UNKNOWN_TASK, f"{hint}\n{ways}"
        case errors.InvalidAddress() if hint:
            hint = "Name its server with --server, and give the whole ID."
        case errors.UnknownServer():
            ways = "`mcp-tasks servers` lists the servers with names, and `mcp-tasks servers add NAME SERVER` adds one."
            ways += "\nIf another mcp.json has it, name that file: --config FILE."
            hint = f"{hint}\n{ways}"
        case errors.AmbiguousAnswer():
            what = f"{what}; choose one with --question"
        case errors.QuestionUnseen():
            code = Exit.FAILED
        case errors.UnknownTask():
            what = "the server does not know this task: it may have expired, or belong to another user"
            code, what, hint = Exit.UNKNOWN_TASK, f"{what}; {hint}" if hint else what, ""
        case errors.WaitTimedOut():
            code, noun = Exit.TIMEOUT, "task" if exc.task_id else "call"
            what = f"the {noun} did not end within {exc.seconds:.15g} s{WHAT_BECAME[exc.fate]}"
        case CallLost():
            made = "may have been made" if exc.may_have_run else "was not made"
            code, what = Exit.UNREACHABLE, f"the call got no answer: {exc.message}. It {made}"
        case MCPError():
            gone = exc.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT, ACCESS_REFUSED)
            code, what = Exit.UNREACHABLE if gone else Exit.FAILED, f"the server answers: {exc}"
        case errors.StoreError():
            # The ledger is the only store here.
            what = what if "ledger" in what else f"the ledger cannot be used: {what}"
            code, hint = Exit.LEDGER, "\n".join([*getattr(exc, "__notes__", []), "--ledger names another."])
        case OSError():
            code = Exit.UNREACHABLE
        case errors.Explained() | errors.BadValue() | errors.InvalidOption():
            pass
        case _:
            code = Exit.FAILED
    return Problem(what, code, hint=hint.strip())


_TO_REACH_IT: Final[Mapping[errors.UnreachableReason, str]] = {
    "credentials": "--header 'Authorization:{} ...'; a bearer token with --token-file FILE, --token - for a prompt, or "
    "MCP_TASKS_TOKEN.",
    "exited": "-v says more.",
    "other": "-v says more.",
}
"""What the options of a command can do about a server that cannot be used, by why it cannot be."""
