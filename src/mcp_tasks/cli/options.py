"""Options that several commands share, each set handed over as one value."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import click

from mcp_tasks.cli.known_servers import is_in_the_clear, read_headers, read_token, secrets_of
from mcp_tasks.cli.questions import Secrets, check_folder
from mcp_tasks.cli.servers import Era
from mcp_tasks.client import OnAbandon
from mcp_tasks.encryption import LEDGER_KEYS_VARIABLE
from mcp_tasks.errors import InvalidOption
from mcp_tasks.model.values import read_duration

# ---- credentials
# Where the token for a server comes from, and that it goes nowhere else.


TOKEN: Final = "MCP_TASKS_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE: Final = "MCP_TASKS_TOKEN_FILE"  # noqa: S105

SECRETS: Final = Secrets()
"""What nothing shows that is printed here."""


def sent_headers(lines: Sequence[str] = (), given: str | None = None, file: Path | None = None) -> dict[str, str]:
    """The headers of every HTTP request that are said on the command line: those that were typed as `NAME:VALUE`, and
    one for the token of `--token` or `--token-file`.

    Raises:
        UsageError: The token is said twice.
        InvalidOption: One is no header, or there is no token where there should be one.
    """
    if given is not None and file is not None:
        raise click.UsageError("--token and --token-file are two ways to say the same; give one of them")
    token = _asked() if given == "-" else given
    if given not in (None, "-"):
        instead = "--token-file, or --token - for a prompt"
        warn(f"the token is on the command line, where everybody on this machine can read it: {instead}")
    return _hidden(read_headers(lines, token if file is None else _in_file(file)))


def environment_headers() -> dict[str, str]:
    """The header for the token of the environment, if there is one.

    Raises:
        InvalidOption: There is no token where there should be one.
    """
    token, path = os.environ.get(TOKEN) or None, os.environ.get(TOKEN_FILE)
    return _hidden(read_headers((), _in_file(Path(path)) if path and token is None else token))


def _hidden(headers: dict[str, str]) -> dict[str, str]:
    SECRETS.hide(*secrets_of(headers=headers))
    return headers


def _in_file(file: Path) -> str:
    token, is_open = read_token(file)
    if is_open:
        warn(f"others on this machine may read {file}: chmod 600 {file}")
    return token


def guard(url: str, *, with_credentials: bool) -> None:
    """Have nothing show the password that is in a URL, and say that credentials travel in the clear, where they do."""
    SECRETS.hide(*secrets_of(url))
    if with_credentials and is_in_the_clear(url):
        warn(f"credentials go to {urlsplit(url).hostname} over plain http, where everybody on the way can read them")


def environment_for_servers() -> dict[str, str]:
    """The environment of a stdio server: that of any other command typed here, but without what is for this one."""
    ours = (TOKEN, TOKEN_FILE, LEDGER_KEYS_VARIABLE, f"{LEDGER_KEYS_VARIABLE}_FILE")
    return {name: value for name, value in os.environ.items() if name not in ours}


def _asked() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Token", hide_input=True, err=True))
    # From a pipe: one line, so that what follows may be for something else.
    return sys.stdin.readline()


def warn(text: str) -> None:
    """Say on stderr what may be wrong."""
    click.secho(f"warning: {text}", fg="yellow", err=True)


Output: TypeAlias = Literal["text", "json"]
Command: TypeAlias = Callable[..., int | Coroutine[Any, Any, int]]
Takes: TypeAlias = Callable[[Command], Command]
"""A decorator that gives a command options."""

LEDGER: Final = "MCP_TASKS_LEDGER"

CONFIG: Final = __name__
"""Where the context of a command has the file of `--config`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """How a server is spoken to.

    Attributes:
        headers: What the command line says goes with every HTTP request, credentials included. Never written down
            anywhere.
        of_environment: The same for the token of the environment, which goes only to servers that the user named or
            typed.
        identity: Who somebody is to the server, in words of their own, by which the ledger keeps users apart. None for
            not said.
    """

    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    of_environment: Mapping[str, str] = field(default_factory=dict[str, str])
    era: Era = "auto"
    identity: str | None = None

    @property
    def credentials(self) -> Mapping[str, str]:
        """All that may be sent, and is for one server."""
        return {**self.of_environment, **self.headers}

    @property
    def repeated(self) -> str:
        """What a later command over the same tasks has to be given again, as the end of its line. Credentials are not
        in it: those are not for the screen."""
        return "" if self.era == "auto" else f" --era {self.era}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What every command takes that comes to servers, and to the tasks that were started there.

    Attributes:
        ledger_path: The ledger's file; None for the usual one.
        output: What is printed on stdout.
    """

    access: Access
    ledger_path: Path | None
    output: Output


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """How a command waits for results.

    Attributes:
        timeout: For how many seconds; None for as long as it takes.
        on_abandon: What becomes of a task that has not ended when the wait for it ends.
        save: The folder that files in results are written into, if they are.
    """

    timeout: float | None = None
    on_abandon: OnAbandon = "leave"
    save: Path | None = None


class Duration(click.ParamType[timedelta]):
    """A duration: `90`, `90s`, `10m`, `1h30m`, `2d`.

    Args:
        zero: Whether it may be none at all.
    """

    name = "duration"

    def __init__(self, *, zero: bool = True, longest: timedelta = timedelta(days=36500)) -> None:
        self._zero = zero
        self._longest = longest

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """The duration that was typed."""
        try:
            return read_duration(str(value), zero=self._zero, longest=self._longest)
        except InvalidOption as exc:
            self.fail(str(exc), param, ctx)


def taking(*options: Takes, into: Callable[..., object] | None = None, name: str = "") -> Takes:
    """A decorator that gives a command these options. `into` makes one value of those that are its parameters, which
    the command takes as `name`."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def wrapper(**given: Any) -> int | Coroutine[Any, Any, int]:
            if into is not None:
                given[name] = into(**{typed: given.pop(typed) for typed in signature(into).parameters})
            return command(**given)

        decorated: Command = wrapper
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


def _access(
    headers: Sequence[str], token: str | None, token_file: Path | None, identity: str | None, era: Era
) -> Access:
    sent, is_said = sent_headers(headers, token, token_file), token is not None or token_file is not None
    return Access(headers=sent, of_environment={} if is_said else environment_headers(), era=era, identity=identity)


def _output(output: Output, as_json: bool) -> Output:
    return "json" if as_json else output


def _in_seconds(ctx: click.Context, param: click.Parameter, limit: timedelta | None) -> float | None:
    return None if limit is None else limit.total_seconds()


def _choice(*names: str, of: Sequence[str], about: str) -> Takes:
    """An option with one of these values; the first, if it is not given."""
    return click.option(*names, type=click.Choice(of), default=of[0], show_default=True, help=about)


def _file(*names: str, **more: Any) -> Takes:
    return click.option(*names, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", **more)


def _set_up_logging(ctx: click.Context, param: click.Parameter, verbose: int) -> None:
    """Log to stderr as far as asked for; otherwise not at all, as every command says itself what went wrong."""
    root = logging.getLogger()
    if not verbose or ctx.resilient_parsing:
        warnings.simplefilter("ignore")
        root.addHandler(logging.NullHandler())
        return
    from mcp_tasks.cli.terminal import Log

    handler, level = Log(), "%(levelname)s " if verbose > 1 else ""
    handler.setFormatter(logging.Formatter(f"%(asctime)s {level}%(message)s", "%H:%M:%S"))
    root.addHandler(handler)
    root.setLevel(logging.INFO if verbose == 1 else logging.DEBUG)
    if verbose == 1:
        # Those say little of a request, and in many lines; this one says what is asked, in one.
        for name in ("httpx2", "httpcore2", "mcp"):
            logging.getLogger(name).setLevel(logging.WARNING)
        logging.getLogger("mcp_tasks.client.requests").setLevel(logging.DEBUG)


def _keep_config(ctx: click.Context, param: click.Parameter, config: Path | None) -> None:
    ctx.meta[CONFIG] = config


takes_config: Final[Takes] = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    # Before SERVER, which may be a name in it.
    is_eager=True,
    expose_value=False,
    callback=_keep_config,
    help="Look up the names of servers in this mcp.json first, and then in your own file (see `servers`).",
)
"""`--config`, kept in the context as `CONFIG`. No environment variable: a file with commands is named each time."""

takes_access: Final = taking(
    takes_config,
    click.option(
        "-H", "--header", "headers", multiple=True, metavar="NAME:VALUE", help="Send this HTTP header too. Repeatable."
    ),
    click.option(
        "--token",
        metavar="TOKEN",
        help="Send it as a bearer token; - asks for it, or reads a line of stdin. Others on this machine can see what "
        f"is on a command line.  [env var: {TOKEN}]",
    ),
    _file("--token-file", help=f"Read the token from a file. Nothing keeps it.  [env var: {TOKEN_FILE}]"),
    click.option(
        "--identity",
        envvar="MCP_TASKS_IDENTITY",
        show_envvar=True,
        metavar="NAME",
        help="Who you are to the server, if you come to it as several users. The ledger keeps their tasks apart.",
    ),
    _choice(
        "--era",
        of=["auto", "modern", "legacy"],
        about="Which protocol to speak: 2026-07-28, 2025-11-25, or what the server has.",
    ),
    into=_access,
    name="access",
)
"""How a server is spoken to, as `access`."""

takes_ledger: Final = _file(
    "--ledger",
    "ledger_path",
    envvar=LEDGER,
    show_envvar=True,
    help="The file that keeps the tasks you started.  [default: ledger.db in your state folder]",
)
"""`--ledger`, as the file's `ledger_path`."""

takes_format: Final = taking(
    _choice("-o", "--output", of=["text", "json"], about="What to print on stdout: words, or one JSON value."),
    click.option("--json", "as_json", is_flag=True, help="The same as --output json."),
    into=_output,
    name="output",
)
"""`--output` and `--json`, as `output`."""

takes_output: Final = taking(
    takes_format,
    click.option(
        "-v",
        "--verbose",
        count=True,
        expose_value=False,
        callback=_set_up_logging,
        help="Say on stderr what is asked of servers; twice for everything.",
    ),
)
"""The same, and `--verbose`."""

takes_options: Final = taking(takes_access, takes_ledger, takes_output, into=Options, name="options")
"""All of these, as `options`."""


def _check_folder(ctx: click.Context, param: click.Parameter, folder: Path | None) -> Path | None:
    if folder is not None:
        try:
            check_folder(folder)
        except InvalidOption as exc:
            raise click.BadParameter(str(exc), ctx, param) from exc
    return folder


takes_save: Final[Takes] = click.option(
    "--save",
    type=click.Path(file_okay=False, path_type=Path),
    callback=_check_folder,
    metavar="DIR",
    help="Write images, sounds and files of results into this folder, which is made if it is not there.",
)
"""`--save`, as `save`."""


def takes_arguments(what: str) -> Takes:
    """`--args`, as `json_text`."""
    return click.option("--args", "json_text", metavar="JSON", help=f"{what} as a JSON object; - reads it from stdin.")


def takes_timeout(what: str) -> Takes:
    """`--timeout`, as `timeout` in seconds; `what` says what it ends."""
    return click.option(
        "--timeout",
        type=Duration(zero=False),
        callback=_in_seconds,
        metavar="DURATION",
        help=f"Stop {what} after this long: 90 (seconds), 10m, 1h30m, 2d.",
    )


def takes_waiting(what: str) -> Takes:
    """`--timeout`, `--on-abandon` and `--save`, as `waiting`; `what` says what the first of them ends."""
    on_abandon = _choice(
        "--on-abandon",
        of=["leave", "cancel"],
        about="What becomes of a task that has not ended when the wait for it ends: --timeout, a question with nobody "
        "to ask, Ctrl-C without a terminal. What you choose at the prompt takes precedence.",
    )
    return taking(takes_timeout(what), on_abandon, takes_save, into=Waiting, name="waiting")
