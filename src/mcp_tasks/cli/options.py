"""Options that several commands share, each set handed over as one value."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, Literal, TypeAlias

import click

from mcp_tasks.cli.credentials import TOKEN, TOKEN_FILE, chosen_token, hide_values
from mcp_tasks.client.handle import OnAbandon

Era: TypeAlias = Literal["auto", "modern", "legacy"]
Output: TypeAlias = Literal["text", "json"]
Command: TypeAlias = Callable[..., int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """How a server is spoken to.

    Attributes:
        headers: What goes with every HTTP request, credentials included. Never written down anywhere.
        identity: Who somebody is to the server, in words of their own, by which the ledger keeps users apart. None for
            not said.
    """

    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    era: Era = "auto"
    identity: str | None = None

    @property
    def has_credentials(self) -> bool:
        """Whether anything goes with requests that may be a secret."""
        return bool(self.headers)

    @property
    def repeated(self) -> str:
        """What a later command over the same tasks has to be given again, as the end of its line. Credentials are not
        in it: those are not for the screen."""
        return "" if self.era == "auto" else f" --era {self.era}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskOptions:
    """What every command takes that is given the ids of tasks.

    Attributes:
        server: The tasks' server, for tasks that are not in the ledger or are there twice.
        access: How servers are spoken to.
        ledger_path: The ledger's file; None for the usual one.
        output: What is printed on stdout.
    """

    server: str | None
    access: Access
    ledger_path: Path | None
    output: Output


def takes_task_options(command: Command) -> Command:
    """`--server` and the options of `takes_access`, `takes_ledger` and `takes_output`, as `options`."""

    @click.option(
        "--server", metavar="SERVER", help="The task's server, if the ledger does not know it. Needs the whole id."
    )
    @takes_access
    @takes_ledger
    @takes_output
    @wraps(command)
    def wrapper(
        *args: Any, server: str | None, access: Access, ledger_path: Path | None, output: Output, **others: Any
    ) -> int:
        options = TaskOptions(server=server, access=access, ledger_path=ledger_path, output=output)
        return command(*args, options=options, **others)

    return wrapper


def takes_timeout(what: str) -> Callable[[Command], Command]:
    """`--timeout`, as `timeout` in seconds; `what` says what it ends."""
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help=f"Stop {what} after this long.",
    )


def takes_access(command: Command) -> Command:
    """`--header`, `--token`, `--token-file`, `--identity` and `--era`, as `access`."""

    @click.option(
        "-H", "--header", "headers", multiple=True, metavar="NAME:VALUE", help="Send this HTTP header too. Repeatable."
    )
    @click.option(
        "--token",
        metavar="TOKEN",
        help="Send it as a bearer token; - asks for it, or reads a line of stdin. Others on this machine can see what "
        f"is on a command line.  [env var: {TOKEN}]",
    )
    @click.option(
        "--token-file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help=f"Read the token from a file. Nothing keeps it.  [env var: {TOKEN_FILE}]",
    )
    @click.option(
        "--identity",
        envvar="MCP_TASKS_IDENTITY",
        show_envvar=True,
        metavar="NAME",
        help="Who you are to the server, if you come to it as several users. The ledger keeps their tasks apart.",
    )
    @click.option(
        "--era",
        type=click.Choice(["auto", "modern", "legacy"]),
        default="auto",
        show_default=True,
        help="Which protocol to speak: 2026-07-28, 2025-11-25, or what the server has.",
    )
    @wraps(command)
    def wrapper(
        *args: Any,
        headers: Sequence[str],
        token: str | None,
        token_file: Path | None,
        identity: str | None,
        era: Era,
        **others: Any,
    ) -> int:
        sent = _headers(headers, chosen_token(token, token_file))
        hide_values(sent)
        return command(*args, access=Access(headers=sent, era=era, identity=identity), **others)

    return wrapper


def takes_ledger(command: Command) -> Command:
    """`--ledger`, as the file's `ledger_path`."""

    @click.option(
        "--ledger",
        "ledger_path",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="MCP_TASKS_LEDGER",
        show_envvar=True,
        metavar="FILE",
        help="The file that keeps the tasks you started.  [default: ledger.db in your state folder]",
    )
    @wraps(command)
    def wrapper(*args: Any, **others: Any) -> int:
        return command(*args, **others)

    return wrapper


def takes_on_abandon(command: Command) -> Command:
    """`--on-abandon`, as `on_abandon`."""
    leave: OnAbandon = "leave"
    return click.option(
        "--on-abandon",
        type=click.Choice(["leave", "cancel"]),
        default=leave,
        show_default=True,
        help="What becomes of a task that has not ended when the wait for it ends: --timeout, a question with nobody "
        "to ask, Ctrl-C without a terminal. What you choose at the prompt takes precedence.",
    )(command)


def takes_output(command: Command) -> Command:
    """`--output` and `--verbose`; the first as `output`."""

    @click.option(
        "-o",
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="What to print on stdout: words, or one JSON value.",
    )
    @click.option(
        "-v",
        "--verbose",
        count=True,
        help="Log requests to stderr; twice for everything.",
        expose_value=True,
    )
    @wraps(command)
    def wrapper(*args: Any, verbose: int, **others: Any) -> int:
        set_up_logging(verbose)
        return command(*args, **others)

    return wrapper


def set_up_logging(verbose: int) -> None:
    """Log to stderr as far as asked for; otherwise not at all, as every command says itself what went wrong."""
    root = logging.getLogger()
    if not verbose:
        warnings.simplefilter("ignore")
        root.addHandler(logging.NullHandler())
        return
    from rich.logging import RichHandler

    from mcp_tasks.cli.terminal.text import CleanLog
    from mcp_tasks.cli.terminal.views import stderr

    handler = RichHandler(console=stderr(), show_path=False, rich_tracebacks=False)
    handler.setFormatter(CleanLog("%(message)s"))
    root.addHandler(handler)
    root.setLevel(logging.INFO if verbose == 1 else logging.DEBUG)


def _headers(lines: Sequence[str], token: str | None) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise click.UsageError(f"--header takes NAME:VALUE, not {line!r}")
        headers[name.strip()] = value.strip()
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return headers
