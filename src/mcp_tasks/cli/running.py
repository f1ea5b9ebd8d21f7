"""From the command line to an exit code: nothing that goes wrong ends in a traceback, unless one is asked for.

The SDK takes longer to import than `--help` and completion should: here it is when something has gone wrong, or runs.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TextIO, cast

import click

from mcp_tasks.errors import TasksError
from mcp_tasks.quiet import get_logger

logger: Final = get_logger(__name__)

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What a file says that takes no more."""


def run_app(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` (or the process's own) name; gives the exit code."""
    from mcp_tasks.cli.app import app

    _open_what_is_closed()
    try:
        code = app.main(args=arguments, prog_name="mcp-tasks", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except click.ClickException as exc:
        exc.show()
        return exc.exit_code
    except (BrokenPipeError, SystemExit):
        # Whoever read our output has seen enough; click and rich end the process for that.
        _drop_output()
        return 0
    except (click.Abort, KeyboardInterrupt, Exception) as exc:
        return _explained(exc)


def _explained(exc: BaseException) -> int:
    """Say what has gone wrong; gives the exit code."""
    from mcp.shared.exceptions import MCPError

    from mcp_tasks.cli.terminal.exits import Exit, Problem, problem_of
    from mcp_tasks.client.servers.unreachable import leaves

    if isinstance(exc, click.Abort | KeyboardInterrupt):
        click.echo(err=True)
        return Exit.INTERRUPTED
    if isinstance(exc, Problem | TasksError | MCPError):
        problem = problem_of(exc)
    elif isinstance(exc, OSError) and exc.errno in _NO_ROOM:
        _drop_output()
        problem = Problem(f"what there is to print cannot be written: {exc.strerror}", Exit.OUTPUT)
    else:
        logger.debug("an exception that nobody expected", exc_info=exc)
        root = next(leaves(exc), exc)
        problem = Problem(repr(root), Exit.DEFECT, hint="This is a bug in mcp-tasks. -vv shows where it comes from.")
    problem.show()
    return problem.code


def _drop_output() -> None:
    """Print no more: Python would complain once more when it flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_what_is_closed() -> None:
    """Have something to read, and somewhere to write to, where we were started without (`<&-`, `>&-`)."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process lasts
    sys.stderr = cast("TextIO", _Aside(sys.stderr))


class _Aside:
    """What is said on the side: that there is no room for it keeps nobody from a result."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, if that can be done."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """The same of what has been written."""
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def run(work: Coroutine[Any, Any, int]) -> int:
    """Run an asynchronous command.

    The SDK's task groups wrap what is raised inside them; what was meant for the person is taken out again.
    """
    from mcp_tasks.cli.terminal.exits import Problem
    from mcp_tasks.client.servers.unreachable import leaves

    try:
        return asyncio.run(work)
    except BaseExceptionGroup as group:
        for exc in leaves(group):
            if isinstance(exc, Problem | TasksError | click.ClickException | KeyboardInterrupt):
                raise exc from None
        raise
