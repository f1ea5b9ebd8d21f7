"""The table of commands. A command's module is imported when it is called for, so that `--help` is quick."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from inspect import cleandoc, iscoroutine
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from mcp_tasks import __version__
from mcp_tasks.cli.running import run
from mcp_tasks.errors import DOCS

COMMANDS: Final = {
    "call": ("call", "Call a tool and wait for it, however long it takes."),
    "ls": ("ls", "List the tasks that were started from here."),
    "show": ("show", "Show everything about one task."),
    "wait": ("wait", "Wait for tasks and print their results."),
    "watch": ("watch", "Watch several tasks in one table."),
    "answer": ("answer", "Answer what a task asks."),
    "cancel": ("cancel", "Cancel tasks."),
    "forget": ("forget:forget", "Remove tasks from the ledger, and leave them running."),
    "prune": ("forget:prune", "Remove ended tasks from the ledger."),
    "tools": ("tools", "List a server's tools, and which can be tasks."),
    "servers": ("servers.command", "List the servers that have names, and give names."),
    "worker": ("worker.command", "Run the tools of a server, and serve nobody."),
    "backlog": ("worker.backlog", "Count what waits to be run, by queue."),
    "workers": ("store.workers", "List the workers of a store."),
    "drain": ("store.drain", "Have workers take nothing more, and finish what they have."),
    "rerun": ("store.rerun", "Run ended tasks of a store again, as new ones."),
    "delete": ("store.delete", "Delete ended tasks of a store."),
    "key": ("key", "Make a key to encrypt tasks with."),
    "encrypt": ("encrypt", "Encrypt all that a store keeps, or change the key."),
    "doctor": ("doctor", "Check a server's support for tasks, probe by probe."),
    "completion": ("completion.command", "Have the shell complete words."),
}
"""Each command: its module in `commands` (and its name there, if that is not `command`), and one line about it."""

ON_A_STORE: Final = ("ls", "show", "cancel")
"""Commands that are others with `--store`: for an operator, on all that is kept there. MCP_TASKS_URL alone does not
make them so: whoever runs a server has that set, too."""

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
        """The names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        return _imported(COMMANDS[cmd_name][0]) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that was named, and which of the two of its name if there are two."""
        name, *rest = args
        if name in ON_A_STORE and any(word == "--store" or word.startswith("--store=") for word in rest):
            return name, _imported(f"store.{name}"), rest
        if name not in COMMANDS and (near := get_close_matches(name, COMMANDS, n=1)):
            ctx.fail(f"No such command {name!r}; did you mean {near[0]}?")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The names, without an import."""
        names = [CompletionItem(name, help=about) for name, (_, about) in COMMANDS.items()]
        found = [item for item in names if item.value.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, in an event loop if it is an asynchronous one."""
        code = super().invoke(ctx)
        return run(code) if iscoroutine(code) else code

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in `--help`, without an import."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def _imported(place: str) -> click.Command:
    module, _, name = place.partition(":")
    command: click.Command = getattr(import_module(f"mcp_tasks.cli.commands.{module}"), name or "command")
    # From the examples on, a docstring is for the end of the help, below the options, and as it is written.
    command.help, _, below = cleandoc(command.help or "").partition("\n\nExamples:\n")
    if below:
        command.epilog = "\n\n".join(f"\b\n{part}" for part in f"Examples:\n{below}".split("\n\n"))
    return command


@click.group(cls=Table, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="mcp-tasks")
def app() -> None:
    """Call the tools of MCP servers, and come back to the tasks they become."""
