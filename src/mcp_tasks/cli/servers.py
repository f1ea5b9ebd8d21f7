"""Servers as the command line names them: a URL, the command of a stdio server, or a name in a file; and connecting.

A command is kept in the ledger with the folder it was given in, as `cd FOLDER && COMMAND`, because a relative path
means something else the next day. That form is read back here, and may be typed as well. No other text in a ledger is
taken for a command: a program that shares the ledger chooses the names of its servers.

Names are those of the user's own file, and of a file given on the command line. Configuration files of other programs
and of the current folder are never searched: others may have written them, and could have commands run here. A file
that another user owns, or that everybody can write, is not read either.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Literal, Self, TextIO, TypeAlias, cast, get_args
from urllib.parse import parse_qsl, urlsplit

import httpx2
from mcp import Client
from mcp.client.session import ElicitationFnT
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError
from mcp_types import REQUEST_TIMEOUT, Implementation, JSONRPCMessage, JSONRPCResponse, PaginatedRequestParams, Tool
from mcp_types.version import LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from mcp_tasks.client import Ledger, LedgerEntry, Patience, TasksClient, reconnecting_http, stdio_transport
from mcp_tasks.client.transport import http_address
from mcp_tasks.errors import (
    InvalidInput,
    InvalidResponse,
    ServerUnreachable,
    TasksError,
    UnreachableReason,
    UntrustedFile,
)
from mcp_tasks.files import alone, make_private_folder, read_trusted, write_private
from mcp_tasks.model.json import JsonObject, object_in
from mcp_tasks.protocol.schema import is_tame
from mcp_tasks.protocol.shapes import EXTENSION_ID

# ---- variables
# `${NAME}`, `${NAME:-default}` and `${env:NAME}` in files that name servers.


_REFERENCE: Final = re.compile(r"\$\{([^}]*)\}")


def expand(text: str, values: Mapping[str, str]) -> str:
    """The text with values in place of its variables. As in a shell, a default also replaces an empty value.

    Raises:
        KeyError: A variable is not set and has no default; it has the name.
    """

    def value(found: re.Match[str]) -> str:
        name, has_default, default = found[1].partition(":-")
        name = name.removeprefix("env:")
        return values.get(name) or default if has_default else values[name]

    return _REFERENCE.sub(value, text)


def variables_in(text: str) -> list[str]:
    return [name.partition(":-")[0].removeprefix("env:") for name in _REFERENCE.findall(text)]


# ---- addresses


_PLACED: Final = re.compile(r"cd (?P<folder>.+?) && (?P<command>.+)", re.DOTALL)
_HTTP: Final = re.compile(r"https?://", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerAddress:
    """A server, and all that is needed to reach it again except credentials.

    Attributes:
        url: For a server over HTTP.
        argv: For a stdio server: its command, in parts.
        folder: For a stdio server: where the command is run.
        written: Its name in a ledger, where that differs: a server of a file is named as it is written there, with
            variables in place of possible secrets.
    """

    url: str | None = None
    argv: tuple[str, ...] = ()
    folder: str = ""
    written: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The server that a text names: a URL, or a command, which is run in the present folder.

        Raises:
            InvalidInput: It does not name a server.
        """
        text = text.strip()
        if _HTTP.match(text):
            return cls(url=text)
        if re.match(r"[a-z][a-z0-9+.-]*://", text, re.IGNORECASE):
            raise InvalidInput("address", f"{text!r} is not a server: a URL begins with http:// or https://")
        placed = _PLACED.fullmatch(text)
        folder, command = (placed["folder"], placed["command"]) if placed else (shlex.quote(str(Path.cwd())), text)
        try:
            argv, [where] = shlex.split(command), shlex.split(folder)
        except ValueError as exc:
            raise InvalidInput("address", f"{text!r} is not a command: {exc}") from exc
        if not argv:
            raise InvalidInput("address", "SERVER is empty; give a URL or the command of a stdio server")
        return cls(argv=tuple(argv), folder=os.path.expanduser(where))

    @classmethod
    def of(cls, entry: LedgerEntry) -> Self:
        """The server of a task in a ledger.

        Raises:
            InvalidInput: The ledger does not say how to reach it.
        """
        if re.match(r"https?://", entry.server) or _PLACED.fullmatch(entry.server):
            return cls.parse(entry.server)
        why = "is known to the ledger by the name its program gave it"
        if entry.server.startswith("with "):
            why = "is started by its program with environment variables that the ledger does not keep"
        raise InvalidInput(
            "address",
            f"the server of {entry.task_id} {why}: {entry.server!r}",
            "Say which server it is, and give the whole id of the task.",
        )

    @property
    def spec(self) -> str:
        """Its name in a ledger; `parse` takes it back."""
        if self.url is not None and not self.written:
            return _written_url(self.url)
        return self.written or f"cd {shlex.quote(self.folder)} && {shlex.join(self.argv)}"

    @property
    def label(self) -> str:
        """How it is shown."""
        return self.spec if self.url is not None else self.written.rpartition(" && ")[2] or shlex.join(self.argv)


def _written_url(url: str) -> str:
    """A URL as a ledger has it. Host names are in lower case; the name of a variable in one stays as it is."""
    address = http_address(url)
    for name in variables_in(url.partition("://")[2].partition("/")[0]):
        address = address.replace(f"${{{name.lower()}}}", f"${{{name}}}")
    return address


def looks_like_address(text: str) -> bool:
    """Whether a URL may be meant, without its beginning."""
    return bool(re.match(r"(localhost|[\w-]+(\.[\w-]+)*:\d+|[\w-]+(\.[\w-]+)+/)", text)) and not Path(text).exists()


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerTasks:
    """Tasks of one server, and of one identity there.

    Attributes:
        named: How the user named the server, if that is known: `LedgerEntry.named`.
    """

    server: ServerAddress
    identity: str
    entries: list[LedgerEntry]
    named: str | None = None


def by_server(entries: Iterable[LedgerEntry], headers: Mapping[str, str] | None = None) -> list[ServerTasks]:
    """The tasks grouped by server, by identity there, and by how the user named the server.

    Args:
        headers: The headers that will be sent with requests. They are credentials, so there may be one place for them
            to go.

    Raises:
        InvalidInput: There are headers, and they would go to several servers or identities; or the ledger does not say
            how to reach a server.
    """

    def group_of(entry: LedgerEntry) -> tuple[str, str, bool, str]:
        return entry.server, entry.identity, entry.named is None, entry.named or ""

    groups: list[ServerTasks] = []
    for _, same in groupby(sorted(entries, key=lambda entry: (group_of(entry), entry.task_id)), group_of):
        first, *rest = same
        server = ServerAddress.of(first)
        groups.append(ServerTasks(server=server, identity=first.identity, entries=[first, *rest], named=first.named))
    over_http = {
        group.server.label + (f" as {group.identity}" if group.identity else ""): None
        for group in groups
        if group.server.url is not None
    }
    if headers and len(over_http) > 1:
        raise InvalidInput(
            "credentials",
            "these tasks are of several servers or identities, and the token or headers are for one of them",
            "\n".join(["Name the tasks of one at a time:", *over_http]),
        )
    return groups


# ---- known servers
# Servers by the names that people gave them in files.


_CREDENTIAL: Final = re.compile(r"auth|cookie|credential|key|passw|secret|token", re.IGNORECASE)
_NAME: Final = re.compile(r"[\w@][\w@.+-]*")
# Strings are matched first, so that nothing in them is taken for a comment or a comma.
_STRING: Final = r'("(?:[^"\\]|\\.)*")'
_COMMENTS: Final = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMAS: Final = re.compile(rf"{_STRING}|,(?=\s*[\]}}])")


def is_credential(name: str) -> bool:
    """Whether a header, environment variable or option of that name is a secret."""
    return _CREDENTIAL.search(name) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownServer:
    """A server with a name in a file: `{"command", "args", "env", "cwd"}` or `{"url", "headers"}`, as hosts write it.

    Variables are looked up when they are needed: a server can be listed although its variables are not set. Every
    property may raise `InvalidInput`, for an entry that is not a server, or a variable that is not set.
    """

    name: str
    source: Path
    _entry: JsonObject = field(repr=False)
    _folder: Path
    _variables: Mapping[str, str] = field(repr=False)

    @property
    def is_command(self) -> bool:
        """Whether it is a process to start, and not a URL."""
        return "url" not in self._entry

    @property
    def spec(self) -> str:
        """Its name in a ledger: as it is written, with variables in place of possible secrets."""
        url, argv = self._url, self._argv
        if url is not None:
            return _written_url(url if _HTTP.match(url) else self._expanded(url))
        return f"cd {shlex.quote(self._place)} && {shlex.join(argv)}"

    @property
    def address(self) -> ServerAddress:
        url, spec = self._url, self.spec
        if url is None:
            address = ServerAddress(argv=tuple(self._expanded(word) for word in self._argv), folder=self._place)
        else:
            address = ServerAddress(url=self._expanded(url).strip())
            if not _HTTP.match(address.url or ""):
                raise self._invalid(f"has a url that is none: {url!r} should begin with http:// or https://")
        return address if address.spec == spec else replace(address, written=spec)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of its HTTP requests. They may be credentials: not for a ledger, nor for a screen."""
        return self._pairs("headers")

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of its process, beside those that every server gets."""
        return self._pairs("env")

    @property
    def secrets(self) -> list[str]:
        """Values that must not be shown: headers and environment variables with the names of credentials, and
        variables of this process with such names that are referred to anywhere."""
        pairs = {**self._mapping("headers"), **self._mapping("env")}
        texts = [str(self._url or ""), *map(str, self._list("args")), *map(str, pairs.values())]
        names = [name for text in texts for name in variables_in(text) if is_credential(name)]
        found = [self._variables.get(name, "") for name in names]
        found += [expand(str(value), _Lenient(self._variables)) for name, value in pairs.items() if is_credential(name)]
        return [secret for value in found for secret in {value, value.rpartition(" ")[2]} if len(secret) > 3]

    @property
    def _url(self) -> str | None:
        url = self._entry.get("url")
        if str(self._entry.get("type", "")).lower() == "sse":
            raise self._invalid("is a server of the old SSE transport, which is not spoken here")
        if url is None or isinstance(url, str):
            return url
        raise self._invalid("has a url that is no text")

    @property
    def _argv(self) -> list[str]:
        command = self._entry.get("command")
        if self._url is not None:
            return []
        if not isinstance(command, str) or not command.strip():
            raise self._invalid("has neither a url nor a command")
        return [command, *map(str, self._list("args"))]

    @property
    def _place(self) -> str:
        cwd = self._entry.get("cwd")
        return os.path.normpath(self._folder / os.path.expanduser(self._expanded(str(cwd)) if cwd else "."))

    def _pairs(self, key: str) -> dict[str, str]:
        return {name: self._expanded(str(value)) for name, value in self._mapping(key).items() if value is not None}

    def _mapping(self, key: str) -> JsonObject:
        value: Any = self._entry.get(key) or {}
        if not isinstance(value, Mapping):
            raise self._invalid(f"has {key!r} that are no object")
        return cast("JsonObject", value)

    def _list(self, key: str) -> list[Any]:
        value: Any = self._entry.get(key) or []
        if not isinstance(value, list):
            raise self._invalid(f"has {key!r} that are no list")
        return cast("list[Any]", value)

    def _expanded(self, text: str) -> str:
        try:
            return expand(text, self._variables)
        except KeyError as exc:
            name = exc.args[0]
            raise InvalidInput(
                "server_file",
                f"the server {self.name!r} needs the variable {name}, which is not set",
                f"It is in {self.source}. Set {name}, or give it a default there: ${{{name}:-...}}",
            ) from None

    def _invalid(self, what: str) -> InvalidInput:
        return InvalidInput("server_file", f"the server {self.name!r} {what}", f"It is in {self.source}.")


class _Lenient(dict[str, str]):
    """Variables, of which those that are not set are empty."""

    def __missing__(self, key: str) -> str:
        return ""


class KnownServers:
    """Servers by their names: those of `config`, then those that `add` keeps.

    Args:
        config: A file with servers that the user named for this command: its commands are run, and its headers sent.

    Attributes:
        kept_in: The file of `add` and `remove`: `servers.json` in the user's config folder.
        problem: Why it could not be read; empty if it could, or is not there.

    Raises:
        InvalidInput: `config` cannot be read.
    """

    def __init__(self, config: Path | None = None) -> None:
        self.kept_in: Path = _config_folder() / "servers.json"
        self.problem: str = ""
        self._servers: dict[str, KnownServer] = {}
        if config is not None:
            # Relative paths begin in the folder of the file, or of the project whose editor has it.
            folder = config.absolute().parent
            folder = folder.parent if folder.name in (".cursor", ".vscode") else folder
            try:
                servers = _read(config)
                if servers is None:
                    raise ValueError('it has neither "mcpServers" nor "servers"')
                self._take(config, servers, folder)
            except (OSError, ValueError, UntrustedFile) as exc:
                raise InvalidInput("server_file", f"the servers in {config} cannot be read: {exc}") from exc
        self._take(self.kept_in, self._entries(), Path.home())

    def __iter__(self) -> Iterator[KnownServer]:
        """Every server that has a name, in the order of the files."""
        return iter(self._servers.values())

    def get(self, name: str) -> KnownServer | None:
        """The server of that name. A URL, or a command of several words, is never a name, whatever a file says."""
        return self._servers.get(name) if _NAME.fullmatch(name) else None

    def at(self, server: ServerAddress, *, name: str = "") -> KnownServer | None:
        """The server with that address: the one of this name, or the first."""
        candidates = [known for known in (self.get(name), *self) if known is not None]
        for known in candidates:
            try:
                if known.spec == server.spec:
                    return known
            except InvalidInput:
                continue
        return None

    def resolve(self, text: str) -> KnownServer | ServerAddress:
        """The server that a text names: by its name, or as a URL or a command.

        Raises:
            InvalidInput: It names no server.
        """
        known = self.get(text)
        if known is not None:
            return known
        if _NAME.fullmatch(text) and shutil.which(text) is None and not looks_like_address(text):
            unread = f"{self.kept_in} could not be read: {self.problem}" if self.problem else ""
            raise InvalidInput("server", f"no server and no command is called {text!r}", self._near(text) or unread)
        return ServerAddress.parse(text)

    def add(
        self,
        name: str,
        server: ServerAddress,
        *,
        headers: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Keep a server under a name. Variables in it are looked up on use.

        Raises:
            InvalidInput: It is no name, or taken, there are credentials in it, or the file cannot be used.
        """
        if not _NAME.fullmatch(name):
            raise InvalidInput(
                "server", f"{name!r} is not a name for a server", "Letters, digits, and any of _ . + - @ in it."
            )
        if server.url is not None:
            entry: dict[str, Any] = {"type": "http", "url": server.url}
            entry |= {"headers": dict(headers)} if headers else {}
        else:
            entry = {"command": server.argv[0], "args": list(server.argv[1:]), "cwd": server.folder}
            entry |= {"env": dict(environment)} if environment else {}
        credential = _credential_in(entry)
        if credential is not None:
            raise InvalidInput(
                "server_file",
                f"{credential} would be kept for everybody to read who can read {self.kept_in}",
                "Write ${VARIABLE} in its place, in single quotes, and set that variable when you use the server.",
            )
        with self._changing() as kept:
            if name in kept:
                hint = f"It is in {self.kept_in}. Remove it first."
                raise InvalidInput("server_file", f"there is a server {name!r} already", hint)
            kept[name] = entry

    def remove(self, name: str) -> None:
        """Forget a name.

        Raises:
            InvalidInput: It is not kept here, or the file cannot be used.
        """
        with self._changing() as kept:
            if name not in kept:
                raise InvalidInput("server", f"no server {name!r} is kept in {self.kept_in}", self._near(name))
            del kept[name]

    def _near(self, name: str) -> str:
        near = get_close_matches(name.lower(), [known.lower() for known in self._servers], n=3, cutoff=0.6)
        names = [known for known in self._servers if known.lower() in near]
        return f"Did you mean {' or '.join(names)}?" if names else ""

    def _take(self, path: Path, entries: Mapping[str, Any], folder: Path) -> None:
        variables = {"userHome": str(Path.home()), **os.environ, "workspaceFolder": str(folder)}
        for name, entry in entries.items():
            if isinstance(entry, Mapping) and name not in self._servers:
                self._servers[name] = KnownServer(
                    name=name, source=path, _entry=cast("JsonObject", entry), _folder=folder, _variables=variables
                )

    def _entries(self) -> Mapping[str, Any]:
        self.problem = ""
        try:
            return _read(self.kept_in) or {}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, UntrustedFile) as exc:
            self.problem = str(exc)
            return {}

    @contextmanager
    def _changing(self) -> Generator[dict[str, Any]]:
        """The entries of the user's file, to be changed by one process at a time. Written at the end of the block."""
        try:
            make_private_folder(self.kept_in.parent)
            with alone(self.kept_in):
                # Read again: another process may have written it.
                kept = dict(self._entries())
                if self.problem:
                    raise InvalidInput(
                        "server_file", f"{self.kept_in} cannot be read: {self.problem}", "Mend it first."
                    )
                yield kept
                text = json.dumps({"mcpServers": kept}, indent=2, ensure_ascii=False)
                write_private(self.kept_in, f"{text}\n".encode())
        except (OSError, UntrustedFile) as exc:
            raise InvalidInput("server_file", f"{self.kept_in} cannot be written: {exc}") from exc


def _credential_in(entry: JsonObject) -> str | None:
    """The name of a credential in an entry that is not a variable; None if there is none."""
    parts = urlsplit(str(entry.get("url", "")))
    options = [str(word).partition("=")[::2] for word in cast("list[Any]", entry.get("args", []))]
    pairs: list[tuple[str, str]] = [
        *cast("Mapping[str, str]", entry.get("headers", {})).items(),
        *cast("Mapping[str, str]", entry.get("env", {})).items(),
        *parse_qsl(parts.query),
        *((name, value) for name, value in options if name.startswith("-") and value),
        ("the password", parts.netloc.rpartition("@")[0].partition(":")[2]),
    ]
    return next((name for name, value in pairs if value and is_credential(name) and not _REFERENCE.search(value)), None)


def _config_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or Path.home() / "AppData/Roaming") / "mcp-tasks"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "mcp-tasks"


def _read(path: Path) -> Mapping[str, Any] | None:
    """The servers of a file; None if it has none. Comments and trailing commas are allowed, as editors do."""
    text = read_trusted(path).decode("utf-8-sig")
    for unwanted in (_COMMENTS, _LAST_COMMAS):
        text = unwanted.sub(lambda found: found[1] or "", text)
    value: Any = json.loads(text) if text.strip() else {}
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    values = cast("dict[str, Any]", value)
    return next((values[key] for key in ("mcpServers", "servers") if isinstance(values.get(key), dict)), None)


# ---- connecting


Era: TypeAlias = Literal["auto", "modern", "legacy"]
"""Which protocol is spoken: 2026-07-28 (`modern`), 2025-11-25 (`legacy`), or the one that the server has."""

READ_LIMIT: Final = 30.0
"""Seconds for a response to any request but a tool call. A server that needs longer to show a task hangs."""

STARTUP_LIMIT: Final = 120.0
"""The same for a stdio server: its command may have to download things before it starts."""

SAID_LAST: Final = 2000
"""Characters of a dead server's log that are shown."""


class _TameListings:
    """Removes schemas from listings of tools that the SDK must not compile."""

    def outgoing(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        return message

    def incoming(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        tools: Any = message.result.get("tools") if isinstance(message, JSONRPCResponse) else None
        for tool in cast("list[Any]", tools) if isinstance(tools, list) else ():
            if isinstance(tool, dict) and not is_tame(cast("dict[str, Any]", tool).get("outputSchema", True)):
                del tool["outputSchema"]
        return message


@asynccontextmanager
async def connect(
    server: ServerAddress | str,
    *,
    headers: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    era: Era = "auto",
    ledger: Ledger | None = None,
    identity: str = "",
    elicit: ElicitationFnT | None = None,
    client_info: Implementation | None = None,
    errlog: TextIO | None = None,
) -> AsyncGenerator[Client]:
    """A connected client that knows tasks, over a transport that survives restarts of an HTTP server.

    Args:
        headers: The headers of every HTTP request, credentials included.
        environment: The environment variables of a stdio server; by default those that the SDK gives every server.
        elicit: Answers questions. Without it the server is told that there is no person to ask.
        errlog: Where a stdio server's stderr goes. By default it is kept for the error message.

    Raises:
        InvalidInput: The text names no server.
        ServerUnreachable: The server cannot be used; it says why, and what to do.
    """
    address = ServerAddress.parse(server) if isinstance(server, str) else server
    # A server behind a URL may come back, and is tried about as often as tasks are looked at. The process of a stdio
    # server that ended does not come back.
    patience = Patience(max_pause=timedelta(seconds=2))
    if address.url is None:
        patience = Patience(max_outage=timedelta(seconds=2))
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        if address.url is not None:
            transport = reconnecting_http(address.url, headers=headers)
        else:
            transport = stdio_transport(stdio_parameters(address, environment), errlog=errlog or log)
        transport.use(lambda _: _TameListings())
        tasks = TasksClient(ledger=ledger, server=address.spec, identity=identity, patience=patience)
        async with AsyncExitStack() as stack:
            client = Client(
                transport,
                mode=LATEST_MODERN_VERSION if era == "modern" else era,
                read_timeout_seconds=READ_LIMIT if address.url is not None else STARTUP_LIMIT,
                client_info=client_info,
                elicitation_callback=elicit,
                extensions=[tasks],
            )
            # With a fixed version nothing is sent in the beginning, and a server that is not there would go unnoticed.
            problem = None if era != "modern" or address.url is None else await check_url(address.url, headers)
            if problem is not None:
                raise problem
            try:
                await stack.enter_async_context(client)
            except Exception as exc:
                log.seek(0)
                said = log.read()[-SAID_LAST:].strip()
                raise await why_unreachable(address, exc, headers=headers, said=said) from exc
            yield client


def stdio_parameters(server: ServerAddress, environment: Mapping[str, str] | None) -> StdioServerParameters:
    command, *arguments = server.argv
    env = None if environment is None else dict(environment)
    return StdioServerParameters(command=command, args=arguments, env=env, cwd=server.folder)


# ---- tools


PAGE_LIMIT: Final = 100
"""Pages of a listing: some servers' listings never end."""

TaskSupport: TypeAlias = Literal["required", "optional", "forbidden", "undeclared"]
"""Whether calls of a tool are tasks, can be, or never are; undeclared if the server decides call by call."""

_SAID: Final = frozenset(get_args(TaskSupport)) - {"undeclared"}


async def list_tools(client: Client) -> list[Tool]:
    """All tools of a server, page by page.

    Raises:
        InvalidResponse: It does not list them.
    """
    tools: list[Tool] = []
    cursor: str | None = None
    try:
        for _ in range(PAGE_LIMIT):
            page = await client.session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            tools.extend(page.tools)
            cursor = page.next_cursor
            if cursor is None:
                break
    except MCPError as exc:
        raise InvalidResponse(f"the server does not list its tools: {exc}") from exc
    except ValidationError as exc:
        raise InvalidResponse(f"the server's list of tools is not valid: {exc}") from exc
    return tools


async def find_tool(client: Client, name: str) -> Tool:
    """The tool of that name.

    Raises:
        InvalidInput: The server has none.
        InvalidResponse: It does not list its tools.
    """
    tools = {tool.name: tool for tool in reversed(await list_tools(client))}
    if name in tools:
        return tools[name]
    raise unknown_tool(name, [*reversed(tools)])


def unknown_tool(name: str, names: Collection[str]) -> InvalidInput:
    """The error for a name that no tool has, with the names that are spelled like it."""
    near = get_close_matches(name, names, n=3, cutoff=0.5)
    # On one line, whatever a server calls them.
    near, names = ([" ".join(found.split()) for found in some] for some in (near, names))
    hint = f"Did you mean {' or '.join(near)}?" if near else f"It has: {', '.join(names) or 'no tools'}"
    return InvalidInput("tool", f"the server has no tool {name!r}", hint)


def declares_tasks(client: Client) -> bool | None:
    """Whether the server declares that calls of tools may become tasks; None if it was not asked, because the client is
    pinned to the newer protocol."""
    capabilities = client.server_capabilities
    if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
        if client.mode in MODERN_PROTOCOL_VERSIONS:
            return None
        return EXTENSION_ID in (capabilities.extensions or {})
    requests = None if capabilities.tasks is None else capabilities.tasks.requests
    return requests is not None and requests.tools is not None and requests.tools.call is not None


def task_support(tool: Tool, client: Client) -> TaskSupport:
    """Whether calls of a tool become tasks, as far as that is known. In 2026-07-28 the server decides call by call, and
    need not say anything in advance."""
    if declares_tasks(client) is False:
        return "forbidden"
    # Part of 2025-11-25; a server may send it in the newer version, too.
    hint = (object_in(tool.model_dump(by_alias=True, mode="json"), "execution") or {}).get("taskSupport")
    if isinstance(hint, str) and hint in _SAID:
        return cast("TaskSupport", hint)
    return "undeclared" if client.protocol_version in MODERN_PROTOCOL_VERSIONS else "forbidden"


# ---- unreachable
# Why a server cannot be used: the last lines of its process, or the response to one plain request to its URL.


TIMEOUT: Final = 10.0
"""Seconds for the one request; a person waits for the error message."""

_PING: Final = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


def leaves(exc: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group, or the one exception."""
    if isinstance(exc, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", exc).exceptions:
            yield from leaves(inner)
    else:
        yield exc


async def why_unreachable(
    server: ServerAddress, exc: Exception, *, headers: Mapping[str, str] | None = None, said: str = ""
) -> TasksError:
    """Why a server could not be connected to: a `ServerUnreachable`, or the error of ours that `exc` is or contains.

    Args:
        said: The last lines that its process wrote to stderr.
    """
    cause = next((inner for inner in leaves(exc) if isinstance(inner, TasksError | MCPError | OSError)), exc)
    if isinstance(cause, TasksError):
        return cause
    if server.url is None:
        return _why_not_started(server, cause, said)
    found = await check_url(server.url, headers)
    if found is not None:
        return found
    if isinstance(cause, MCPError) and cause.code == REQUEST_TIMEOUT:
        return ServerUnreachable(f"{server.label} does not answer", reason="timeout")
    return ServerUnreachable(f"{server.label} cannot be used: {cause}")


def _why_not_started(server: ServerAddress, cause: BaseException, said: str) -> ServerUnreachable:
    command = server.argv[0]
    if isinstance(cause, FileNotFoundError):
        if not os.path.isdir(server.folder):
            return ServerUnreachable(f"the folder of this server is gone: {server.folder}", reason="not_found")
        hint = "Is it installed, and spelled like that?"
        if looks_like_address(command):
            hint = f"If that is an address, write http://{command}"
        return ServerUnreachable(f"command not found: {command}", hint, reason="not_found")
    if isinstance(cause, OSError):
        return ServerUnreachable(f"{command} cannot be started: {cause.strerror or cause}")
    hint = f"Its last lines on stderr:\n{said}" if said else "It wrote nothing to stderr."
    return ServerUnreachable(f"`{server.label}` exited, or does not speak MCP", hint, reason="exited")


async def check_url(url: str, headers: Mapping[str, str] | None = None) -> TasksError | None:
    """Why a URL cannot be used, as far as HTTP can tell; None if it looks like an MCP server.

    Returns:
        A `ServerUnreachable`, or an `InvalidInput` if it is no URL.
    """

    def unreachable(what: str, hint: str = "", *, reason: UnreachableReason) -> ServerUnreachable:
        # Printed and logged, so without a user name and password.
        return ServerUnreachable(f"{http_address(url)} {what}", hint, reason=reason)

    try:
        async with httpx2.AsyncClient(timeout=TIMEOUT) as client:
            accept = {"accept": "application/json, text/event-stream"}
            async with client.stream("POST", url, json=_PING, headers={**accept, **(headers or {})}) as response:
                return await _judge(http_address(url), response)
    except httpx2.InvalidURL as exc:
        return InvalidInput("address", f"{url!r} is not a URL: {exc}")
    except httpx2.TimeoutException as exc:
        is_there = not isinstance(exc, httpx2.ConnectTimeout)
        hint = "Look at the server's log." if is_there else "Is the host name right, and no firewall in between?"
        return unreachable("does not answer", hint, reason="timeout")
    except httpx2.ConnectError as exc:
        text, what, hint = str(exc).lower(), "refuses the connection", "Is the server running, and on this port?"
        if "certificate" in text or "ssl" in text:
            what, hint = f"cannot be trusted: {exc}", "Is the certificate valid, and is this host the one it is for?"
        elif "name" in text and ("resolution" in text or "known" in text or "nodename" in text):
            what, hint = "cannot be found: the host name is unknown", "Is the host name spelled right?"
        return unreachable(what, hint, reason="connection")
    except httpx2.RequestError as exc:
        return unreachable(f"breaks the connection: {str(exc) or type(exc).__name__}", reason="connection")


async def _judge(url: str, response: httpx2.Response) -> ServerUnreachable | None:
    status, kind = response.status_code, response.headers.get("content-type", "").partition(";")[0].strip()
    if status in (401, 403):
        asked = response.headers.get("www-authenticate", "").partition(" ")[0]
        hint = f"It asks for {asked} authorization: send an Authorization header."
        if not asked:
            hint = "Send an Authorization header" + (", or another." if status == 403 else ".")
        what = f"{url} {'requires credentials' if status == 401 else 'denies access'}: HTTP {status}"
        return ServerUnreachable(what, hint, reason="credentials", scheme=asked or "Bearer")
    if response.has_redirect_location:
        location = response.headers["location"]
        hint = f"Try {httpx2.URL(url).join(location)}"
        return ServerUnreachable(f"{url} redirects to {location}", hint, reason="redirect")
    if status >= 500:
        what = f"{url} has an internal problem: HTTP {status}"
        return ServerUnreachable(what, "Look at the server's log.", reason="internal")
    speaks = kind == "text/event-stream" or status in (202, 204)
    if speaks or (kind == "application/json" and b'"jsonrpc"' in await response.aread()):
        return None
    path = httpx2.URL(url).path.rstrip("/")
    hint = f"The endpoint often ends in /mcp: try {url.rstrip('/')}/mcp"
    if path.endswith("/mcp"):
        hint = "Is it the right port, and the right path?"
    what = f"{url} is not an MCP server: it answers HTTP {status}" + (f" with {kind}" if kind else "")
    return ServerUnreachable(what, hint, reason="not_mcp")
