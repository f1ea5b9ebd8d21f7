"""Options that several commands share, each set handed over as one value; and credentials, which go to one server."""

from __future__ import annotations

import logging
import os
import stat
import sys
import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast
from urllib.parse import urlsplit

import click

from mcp_tasks.cli.questions import is_loopback
from mcp_tasks.cli.servers import Era, is_credential
from mcp_tasks.client import OnAbandon
from mcp_tasks.encryption import LEDGER_KEYS_VARIABLE
from mcp_tasks.errors import InvalidOption
from mcp_tasks.files import LARGEST_SECRET
from mcp_tasks.model.values import read_duration

# ---- credentials


TOKEN: Final = "MCP_TASKS_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE: Final = "MCP_TASKS_TOKEN_FILE"  # noqa: S105

HIDDEN: Final = "***"


class Secrets:
    """Tokens and passwords of this process, which are removed from all output: servers repeat what they are told."""

    def __init__(self) -> None:
        self._texts: set[str] = set()

    def hide(self, *texts: str) -> None:
        """Never show these from now on."""
        self._texts.update(text for text in texts if text)

    def hidden_in(self, text: str) -> str:
        # Longest first: one may be the beginning of another.
        for secret in sorted(self._texts, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return text

    def hidden_in_json(self, value: Any) -> Any:
        """A JSON value without them: in its texts alone, so that it is still JSON."""
        match value if self._texts else None:
            case str():
                return self.hidden_in(value)
            case Mapping():
                items = cast("Mapping[Any, Any]", value).items()
                return {self.hidden_in_json(name): self.hidden_in_json(part) for name, part in items}
            case list() | tuple():
                return [self.hidden_in_json(part) for part in cast("Sequence[Any]", value)]
            case _:
                return value


SECRETS: Final = Secrets()


def check_token(text: str) -> str:
    """A token, without the space around it.

    Raises:
        InvalidOption: It is none. The message does not have it: messages are kept longer than they should be.
    """
    token = text.strip()
    if not token:
        raise InvalidOption("the token is empty")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidOption("the token has characters that no token has: is it one line, and nothing else?")
    return token


def read_token(path: Path) -> tuple[str, bool]:
    """The token in a file; and whether others on this machine may read the file.

    Raises:
        InvalidOption: The file cannot be read, or has no token.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(LARGEST_SECRET + 1)
    except OSError as exc:
        raise InvalidOption(f"the token file {str(path)!r} cannot be read: {exc.strerror or exc}") from exc
    if len(data) > LARGEST_SECRET:
        raise InvalidOption(f"{str(path)!r} is too large to be a token file")
    is_open = os.name == "posix" and stat.S_ISREG(mode) and bool(mode & (stat.S_IRWXG | stat.S_IRWXO))
    return check_token(data.decode(errors="replace")), is_open


def read_headers(lines: Iterable[str], token: str | None = None) -> dict[str, str]:
    """HTTP headers that are written as `NAME:VALUE`, and one for a bearer token, if there is one.

    Raises:
        InvalidOption: One cannot be a header, or the token cannot be one. The message has no values: they may be
            secrets.
    """
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise InvalidOption("a header is written NAME:VALUE, with a colon")
        if not (line.strip().isascii() and line.strip().isprintable()):
            raise InvalidOption(f"the header {name.strip()!r} has characters that no header has")
        headers[name.strip()] = value.strip()
    return headers if token is None else {**headers, "Authorization": f"Bearer {check_token(token)}"}


def secrets_of(url: str = "", headers: Mapping[str, str] | None = None) -> list[str]:
    """The secrets in a URL and in headers."""
    named = [value for name, value in (headers or {}).items() if is_credential(name) or "session" in name.lower()]
    secrets = [value.rpartition(" ")[2] for value in named]
    # Not by `urlsplit`, which refuses texts that are no URL: connecting to one says what is wrong.
    user_info, at, _ = url.partition("://")[2].partition("/")[0].rpartition("@")
    if at and ":" in user_info:
        # As it stands in URLs, so that one of a letter does not hide that letter everywhere.
        secrets.append(f":{user_info.partition(':')[2]}@")
    return [secret for secret in secrets if secret]


def is_in_the_clear(url: str) -> bool:
    """Whether everyone on the way to a server can read the requests."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


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
    """Hide the password of a URL, and warn of credentials that everyone on the way can read."""
    SECRETS.hide(*secrets_of(url))
    if with_credentials and is_in_the_clear(url):
        warn(f"credentials go to {urlsplit(url).hostname} over plain http, where everybody on the way can read them")


def environment_for_servers() -> dict[str, str]:
    """The environment of a stdio server: that of any other command typed here, without the secrets of this one."""
    ours = (TOKEN, TOKEN_FILE, LEDGER_KEYS_VARIABLE, f"{LEDGER_KEYS_VARIABLE}_FILE")
    return {name: value for name, value in os.environ.items() if name not in ours}


def warn(text: str) -> None:
    click.secho(f"warning: {text}", fg="yellow", err=True)


# ---- option values


Output: TypeAlias = Literal["text", "json"]
Command: TypeAlias = Callable[..., int | Coroutine[Any, Any, int]]
Takes: TypeAlias = Callable[[Command], Command]
"""A decorator that gives a command options."""

LEDGER: Final = "MCP_TASKS_LEDGER"

CONFIG: Final = __name__
"""The key of the `--config` file in the context of a command."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """How a server is spoken to.

    Attributes:
        headers: The HTTP headers of the command line, credentials included. Never written down anywhere.
        of_environment: The header for the token of the environment, which goes only to servers that the user named or
            typed.
        identity: The user's name for themselves there, by which the ledger keeps users apart; None if not said.
    """

    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    of_environment: Mapping[str, str] = field(default_factory=dict[str, str])
    era: Era = "auto"
    identity: str | None = None

    @property
    def credentials(self) -> Mapping[str, str]:
        """All headers that may be sent, which are for one server."""
        return {**self.of_environment, **self.headers}

    @property
    def repeated(self) -> str:
        """The options that a later command over the same tasks needs again; no credentials, as they are shown."""
        return "" if self.era == "auto" else f" --era {self.era}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The options of every command that works with servers and their tasks. `ledger_path` is None for the usual one."""

    access: Access
    ledger_path: Path | None
    output: Output


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """How a command waits for results: `timeout` in seconds, and the folder to `save` files of results into."""

    timeout: float | None = None
    on_abandon: OnAbandon = "leave"
    save: Path | None = None


class Duration(click.ParamType[timedelta]):
    """A duration: `90`, `90s`, `10m`, `1h30m`, `2d`."""

    name = "duration"

    def __init__(self, *, zero: bool = True, longest: timedelta = timedelta(days=36500)) -> None:
        self._zero = zero
        self._longest = longest

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
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
    if token is not None and token_file is not None:
        raise click.UsageError("--token and --token-file are two ways to say the same; give one of them")
    is_said = token is not None or token_file is not None
    if token == "-":  # noqa: S105 - not a token
        # From a pipe: one line, so that what follows may be for something else.
        is_typed = sys.stdin.isatty()
        token = str(click.prompt("Token", hide_input=True, err=True)) if is_typed else sys.stdin.readline()
    elif token is not None:
        instead = "--token-file, or --token - for a prompt"
        warn(f"the token is on the command line, where everybody on this machine can read it: {instead}")
    sent = _hidden(read_headers(headers, token if token_file is None else _in_file(token_file)))
    return Access(headers=sent, of_environment={} if is_said else environment_headers(), era=era, identity=identity)


def _output(output: Output, as_json: bool) -> Output:
    return "json" if as_json else output


def _in_seconds(ctx: click.Context, param: click.Parameter, limit: timedelta | None) -> float | None:
    return None if limit is None else limit.total_seconds()


def _choice(*names: str, of: Sequence[str], about: str) -> Takes:
    """An option with one of these values; the first is the default."""
    return click.option(*names, type=click.Choice(of), default=of[0], show_default=True, help=about)


def file_option(*names: str, **more: Any) -> Takes:
    return click.option(*names, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", **more)


def _set_up_logging(ctx: click.Context, param: click.Parameter, verbose: int) -> None:
    """Log to stderr as far as asked for; otherwise not at all, as every command reports errors itself."""
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
        # These log many lines per request; our own logger has one.
        for name in ("httpx2", "httpcore2", "mcp"):
            logging.getLogger(name).setLevel(logging.WARNING)
        logging.getLogger("mcp_tasks.client.requests").setLevel(logging.DEBUG)


def _keep_config(ctx: click.Context, param: click.Parameter, config: Path | None) -> None:
    ctx.meta[CONFIG] = config


def check_folder(ctx: click.Context, param: click.Parameter, folder: Path | None) -> Path | None:
    """Check that files can be written into a folder, or that it can be made: before a tool is called, whose result
    comes once."""
    if folder is not None:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not there.is_dir():
            raise click.BadParameter(f"{str(there)!r} is not a folder", ctx, param)
        if not os.access(there, os.W_OK | os.X_OK):
            raise click.BadParameter(f"{str(there)!r} cannot be written to", ctx, param)
    return folder


# ---- options


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
    file_option("--token-file", help=f"Read the token from a file. Nothing keeps it.  [env var: {TOKEN_FILE}]"),
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

takes_ledger: Final = file_option(
    "--ledger",
    "ledger_path",
    envvar=LEDGER,
    show_envvar=True,
    help="The file that keeps the tasks you started.  [default: ledger.db in your state folder]",
)

takes_format: Final = taking(
    _choice("-o", "--output", of=["text", "json"], about="What to print on stdout: words, or one JSON value."),
    click.option("--json", "as_json", is_flag=True, help="The same as --output json."),
    into=_output,
    name="output",
)

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

takes_options: Final = taking(takes_access, takes_ledger, takes_output, into=Options, name="options")

takes_save: Final[Takes] = click.option(
    "--save",
    type=click.Path(file_okay=False, path_type=Path),
    callback=check_folder,
    metavar="DIR",
    help="Write images, sounds and files of results into this folder, which is made if it is not there.",
)


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
