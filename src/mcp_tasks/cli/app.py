"""The table of commands. A command's module is imported when it is called for, so that `--help` is quick."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final

import click

from mcp_tasks import __version__
from mcp_tasks.errors import DOCS

COMMANDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "call": ("mcp_tasks.cli.commands.call", "Call a tool and wait for it, however long it takes."),
        "ls": ("mcp_tasks.cli.commands.ls", "List the tasks that were started from here."),
        "show": ("mcp_tasks.cli.commands.show", "Show everything about one task."),
        "wait": ("mcp_tasks.cli.commands.wait", "Wait for tasks and print their results."),
        "watch": ("mcp_tasks.cli.commands.watch", "Watch several tasks in one table."),
        "answer": ("mcp_tasks.cli.commands.answer", "Answer what a task asks."),
        "cancel": ("mcp_tasks.cli.commands.cancel", "Cancel tasks."),
        "forget": ("mcp_tasks.cli.commands.forget", "Remove tasks from the ledger, and leave them running."),
        "prune": ("mcp_tasks.cli.commands.prune", "Remove ended tasks from the ledger."),
        "tools": ("mcp_tasks.cli.commands.tools", "List a server's tools, and which can be tasks."),
        "servers": ("mcp_tasks.cli.commands.servers", "List the servers that have names, and give names."),
        "worker": ("mcp_tasks.cli.commands.worker.command", "Run the tools of a server, and serve nobody."),
        "backlog": ("mcp_tasks.cli.commands.worker.backlog", "Count what waits to be run, by queue."),
        "workers": ("mcp_tasks.cli.commands.store.workers", "List the workers of a store."),
        "drain": ("mcp_tasks.cli.commands.store.drain", "Have workers take nothing more, and finish what they have."),
        "rerun": ("mcp_tasks.cli.commands.store.rerun", "Run ended tasks of a store again, as new ones."),
        "delete": ("mcp_tasks.cli.commands.store.delete", "Delete ended tasks of a store."),
        "key": ("mcp_tasks.cli.commands.key", "Make a key to encrypt tasks with."),
        "encrypt": ("mcp_tasks.cli.commands.encrypt", "Encrypt all that a store keeps, or change the key."),
        "doctor": ("mcp_tasks.cli.commands.doctor", "Check a server's support for tasks, probe by probe."),
        "completion": ("mcp_tasks.cli.commands.completion", "Have the shell complete words."),
    }
)
"""Each command: the module with its `command`, and one line about it."""

ON_A_STORE: Final[Mapping[str, str]] = MappingProxyType(
    {name: f"mcp_tasks.cli.commands.store.{name}" for name in ("ls", "show", "cancel")}
)
"""Commands that are others with `--store`: for an operator, on all that is kept there. MCP_TASKS_URL alone does not
make them so: whoever runs a server has that set, too."""

EPILOG = f"""\
\b
SERVER is a URL, in quotes the command of a stdio server, or a name:
  mcp-tasks call http://localhost:8000/mcp render scene=forest
  mcp-tasks call "python server.py" render scene=forest
  mcp-tasks servers

\b
Tasks that you start are kept in a ledger, so any terminal can come back:
  mcp-tasks ls
  mcp-tasks wait task_AhLN

\b
Operators work on the store itself:
  mcp-tasks ls --store postgresql://db/tasks --status working
  mcp-tasks show --store URL --help

Exit codes and everything else: {DOCS}cli/
"""


class Table(click.Group):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that was named, and which of the two of its name if there are two."""
        name, *rest = args
        if name in ON_A_STORE and any(word == "--store" or word.startswith("--store=") for word in rest):
            return name, import_module(ON_A_STORE[name]).command, rest
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in `--help`, without an import."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=Table, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="mcp-tasks")
def app() -> None:
    """Call the tools of MCP servers, and come back to the tasks they become."""
