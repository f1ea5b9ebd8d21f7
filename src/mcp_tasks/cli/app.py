"""The table of commands. A command's module is imported when it is called for, so that `--help` is quick."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from inspect import cleandoc, iscoroutine
from typing import Any, Final, TextIO, cast

import click
from click.shell_completion import CompletionItem

from mcp_tasks import __version__
from mcp_tasks.errors import DOCS, TasksError
from mcp_tasks.quiet import get_logger

logger: Final = get_logger(__name__)

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a file that takes no more."""


# ---- running
# From the command line to an exit code. No error ends in a traceback, unless one is asked for.


def run_app(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` (or the process's own) name; returns the exit code."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # A process may be started without them (`<&-`, `>&-`).
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process lasts
    sys.stderr = cast("TextIO", _Aside(sys.stderr))
    try:
        code = app.main(args=arguments, prog_name="mcp-tasks", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except click.ClickException as exc:
        exc.show()
        return exc.exit_code
    except (BrokenPipeError, SystemExit):
        # The reader of our output has seen enough; click and rich end the process for that.
        _drop_output()
        return 0
    except (click.Abort, KeyboardInterrupt, Exception) as exc:
        return _explained(exc)


def _explained(exc: BaseException) -> int:
    """Print an error; returns the exit code."""
    from mcp.shared.exceptions import MCPError

    from mcp_tasks.cli.servers import leaves
    from mcp_tasks.cli.terminal import Exit, Problem, problem_of

    if isinstance(exc, click.Abort | KeyboardInterrupt):
        click.echo(err=True)
        return Exit.INTERRUPTED
    if isinstance(exc, Problem | TasksError | MCPError):
        problem = problem_of(exc)
    elif isinstance(exc, OSError) and exc.errno in _NO_ROOM:
        _drop_output()
        problem = Problem(f"what there is to print cannot be written: {exc.strerror}", Exit.OUTPUT)
    else:
        logger.debug("unexpected exception", exc_info=exc)
        root = next(leaves(exc), exc)
        problem = Problem(repr(root), Exit.DEFECT, hint="This is a bug in mcp-tasks. -vv shows where it comes from.")
    problem.show()
    return problem.code


def _drop_output() -> None:
    """Print no more: Python would complain again when it flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Aside:
    """A stderr whose errors are ignored: that a message cannot be written must not keep a result from being printed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


COMMANDS: Final = {
    "call": ("call:call_command", "Call a tool and wait for it, however long it takes."),
    "ls": ("tasks:ls_command", "List the tasks that were started from here."),
    "show": ("tasks:show_command", "Show everything about one task."),
    "wait": ("tasks:wait_command", "Wait for tasks and print their results."),
    "watch": ("tasks:watch_command", "Watch several tasks in one table."),
    "answer": ("call:answer_command", "Answer what a task asks."),
    "cancel": ("tasks:cancel_command", "Cancel tasks."),
    "forget": ("tasks:forget", "Remove tasks from the ledger, and leave them running."),
    "prune": ("tasks:prune", "Remove ended tasks from the ledger."),
    "tools": ("call:tools_command", "List a server's tools, and which can be tasks."),
    "servers": ("servers", "List the servers that have names, and give names."),
    "worker": ("worker:worker_command", "Run the tools of a server, and serve nobody."),
    "backlog": ("worker:backlog_command", "Count what waits to be run, by queue."),
    "workers": ("store:workers_command", "List the workers of a store."),
    "drain": ("store:drain_command", "Have workers take nothing more, and finish what they have."),
    "rerun": ("store:rerun_command", "Run ended tasks of a store again, as new ones."),
    "delete": ("store:delete_command", "Delete ended tasks of a store."),
    "key": ("encryption:key_command", "Make a key to encrypt tasks with."),
    "encrypt": ("encryption:encrypt_command", "Encrypt all that a store keeps, or change the key."),
    "doctor": ("doctor", "Check a server's support for tasks, probe by probe."),
    "completion": ("completion", "Have the shell complete words."),
}
"""Each command: its module in `commands` (and its name there, if that is not `command`), and its line in `--help`."""

ON_A_STORE: Final = ("ls", "show", "cancel")
"""Commands that are others with `--store`: for an operator, on all tasks of a store. MCP_TASKS_URL alone does not make
them so: it may be set for a server."""

EPILOG = f"""\
\b
SERVER is a URL, in quotes the command of a stdio server, or a name:
  mcp-tasks call http://localhost:8000/mcp render scene=forest
  mcp-tasks call "python server.py" render scene=forest
  mcp-tasks servers add farm http://localhost:8000/mcp
  mcp-tasks call farm render scene=forest

\b
Tasks that you start are kept in a ledger, so any terminal can come back:
  mcp-tasks ls
  mcp-tasks wait task_AhLN

\b
Operators work on the store itself:
  mcp-tasks ls --store postgresql://db/tasks --status working
  mcp-tasks show --store URL --help

\b
Exit codes and everything else:
  {DOCS}cli.html
"""


class Table(click.Group):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _imported(COMMANDS[cmd_name][0]) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, *rest = args
        if name in ON_A_STORE and any(word == "--store" or word.startswith("--store=") for word in rest):
            return name, _imported(f"store:{name}_command"), rest
        if name not in COMMANDS and (near := get_close_matches(name, COMMANDS, n=1)):
            ctx.fail(f"No such command {name!r}; did you mean {near[0]}?")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(name, help=about) for name, (_, about) in COMMANDS.items()]
        found = [item for item in names if item.value.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, in an event loop if it is an asynchronous one."""
        code = super().invoke(ctx)
        if not iscoroutine(code):
            return code
        from mcp_tasks.cli.servers import leaves
        from mcp_tasks.cli.terminal import Problem

        try:
            return asyncio.run(code)
        except BaseExceptionGroup as group:
            # The SDK's task groups wrap exceptions that are meant for the user.
            for exc in leaves(group):
                if isinstance(exc, Problem | TasksError | click.ClickException | KeyboardInterrupt):
                    raise exc from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def _imported(place: str) -> click.Command:
    module, _, name = place.partition(":")
    command: click.Command = getattr(import_module(f"mcp_tasks.cli.commands.{module}"), name or "command")
    # From the examples on, a docstring goes below the options in the help, as it is written.
    command.help, _, below = cleandoc(command.help or "").partition("\n\nExamples:\n")
    if below:
        command.epilog = "\n\n".join(f"\b\n{part}" for part in f"Examples:\n{below}".split("\n\n"))
    return command


@click.group(cls=Table, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="mcp-tasks")
def app() -> None:
    """Call the tools of MCP servers, and come back to the tasks they become."""
