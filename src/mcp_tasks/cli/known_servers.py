"""Servers by the names that people gave them: in the user's own file, and in a file that a program is told to read.

Nothing here starts or connects to anything, and nothing is looked for: configuration files of other programs and of the
current folder are not read, because others may have written them, and could have commands run here. The same goes for
a file that somebody else owns, or that everybody can write.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import parse_qsl, urlsplit

from mcp_tasks.cli.questions import is_loopback
from mcp_tasks.cli.servers import ServerAddress, expand, has_variables, http_address, looks_like_address, names_in
from mcp_tasks.errors import InvalidInput, InvalidOption, UntrustedFile
from mcp_tasks.files import LARGEST_SECRET, alone, make_private_folder, read_trusted, write_private
from mcp_tasks.model.json import JsonObject

# ---- entry
# One server of a file: `{"command", "args", "env", "cwd"}` or `{"url", "headers"}`, as hosts write it.


_CREDENTIAL: Final = re.compile(r"auth|cookie|credential|key|passw|secret|token", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownServer:
    """A server that somebody gave a name, in a file.

    Variables are looked up when they are needed: a server can be listed whose variables are not set.

    Attributes:
        name: Its name in the file.
        source: The file.
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
        """How a ledger names it: as it is written, with variables in the place of what may be secrets.

        Raises:
            InvalidInput: It is no server, or a variable is not set that is needed to say where it is.
        """
        url, argv = self._url, self._argv
        if url is not None:
            return http_address(url if _is_http(url) else self._expanded(url))
        return f"cd {shlex.quote(self._place)} && {shlex.join(argv)}"

    def is_at(self, server: ServerAddress) -> bool:
        """Whether this is its address, as a ledger has it."""
        try:
            return self.spec == server.spec
        except InvalidInput:
            return False

    @property
    def address(self) -> ServerAddress:
        """How it is reached.

        Raises:
            InvalidInput: It is no server that can be reached, or a variable is not set.
        """
        url, spec = self._url, self.spec
        if url is not None:
            address = ServerAddress(url=self._expanded(url).strip())
            if not _is_http(address.url or ""):
                raise self._invalid(f"has a url that is none: {url!r} should begin with http:// or https://")
        else:
            address = ServerAddress(argv=tuple(self._expanded(word) for word in self._argv), folder=self._place)
        return (
            address
            if address.spec == spec
            else ServerAddress(url=address.url, argv=address.argv, folder=address.folder, written=spec)
        )

    @property
    def headers(self) -> dict[str, str]:
        """What goes with its HTTP requests. It may be credentials: not for a ledger, nor for a screen.

        Raises:
            InvalidInput: A variable is not set.
        """
        return self._pairs("headers")

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of its process, beside those that every server gets.

        Raises:
            InvalidInput: A variable is not set.
        """
        return self._pairs("env")

    @property
    def secrets(self) -> list[str]:
        """What of it is not to be shown: headers and environment variables that have the names of credentials, and such
        variables of this process that are referred to anywhere."""
        texts = [str(self._url or ""), *map(str, self._list("args"))]
        pairs = {**self._mapping("headers"), **self._mapping("env")}
        names = [name for text in (*texts, *map(str, pairs.values())) for name in names_in(text)]
        given = [expand(str(value), _Lenient(self._variables)) for name, value in pairs.items() if is_credential(name)]
        found = [*given, *(self._variables.get(name, "") for name in names if is_credential(name))]
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


def _is_http(text: str) -> bool:
    return re.match(r"https?://", text, re.IGNORECASE) is not None


class _Lenient(dict[str, str]):
    """Variables, of which those that are not set are empty."""

    def __missing__(self, key: str) -> str:
        return ""


def is_credential(name: str) -> bool:
    """Whether something of that name is a secret: a header, an environment variable, an option."""
    return _CREDENTIAL.search(name) is not None


def entry_of(server: ServerAddress, headers: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Any]:
    """A server as a file has it."""
    if server.url is not None:
        return {"type": "http", "url": server.url, **({"headers": dict(headers)} if headers else {})}
    command, *arguments = server.argv
    entry: dict[str, Any] = {"command": command, "args": arguments, "cwd": server.folder}
    return {**entry, **({"env": dict(environment)} if environment else {})}


def credential_in(entry: JsonObject) -> str | None:
    """What in an entry is a credential, and not a variable that has one; None if there is nothing."""
    parts = urlsplit(str(entry.get("url", "")))
    options = [str(word).partition("=")[::2] for word in cast("list[Any]", entry.get("args", []))]
    pairs: list[tuple[str, str]] = [
        *cast("Mapping[str, str]", entry.get("headers", {})).items(),
        *cast("Mapping[str, str]", entry.get("env", {})).items(),
        *parse_qsl(parts.query),
        *((name, value) for name, value in options if name.startswith("-") and value),
        ("the password", parts.netloc.rpartition("@")[0].partition(":")[2]),
    ]
    return next((name for name, value in pairs if value and is_credential(name) and not has_variables(value)), None)


_KEYS: Final = ("mcpServers", "servers")
_NAME: Final = re.compile(r"[\w@][\w@.+-]*")
# Strings are matched first, so that nothing in them is taken for a comment or a comma.
_STRING: Final = r'("(?:[^"\\]|\\.)*")'
_COMMENTS: Final = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMAS: Final = re.compile(rf"{_STRING}|,(?=\s*[\]}}])")


class KnownServers:
    """Servers by their names: those of `config`, then those that `add` keeps.

    Args:
        config: A file with servers, such as the `mcp.json` of an editor or of a project. Read it only if the user said
            so: its commands are run, and its headers sent, when its names are used.
        kept_in: The file of `add` and `remove`; `servers.json` in the user's config folder unless given.

    Attributes:
        kept_in: That file.
        problem: Why it could not be read; empty if it could, or is not there.

    Raises:
        InvalidInput: `config` cannot be read.
    """

    def __init__(self, config: Path | None = None, *, kept_in: Path | None = None) -> None:
        self.kept_in: Path = kept_in or config_folder() / "servers.json"
        self.problem: str = ""
        self._servers: dict[str, KnownServer] = {}
        if config is not None:
            try:
                servers = _read(config)
                if servers is None:
                    raise ValueError('it has neither "mcpServers" nor "servers"')
                self._take(config, servers, _place_of(config))
            except (OSError, ValueError, UntrustedFile) as exc:
                raise InvalidInput("server_file", f"the servers in {config} cannot be read: {exc}") from exc
        self._take(self.kept_in, self._entries(), Path.home())

    def __iter__(self) -> Iterator[KnownServer]:
        """Every server that has a name, in the order of the files."""
        return iter(self._servers.values())

    def get(self, name: str) -> KnownServer | None:
        """The server of that name. A URL, and a command of several words, are no names, whatever a file says."""
        return self._servers.get(name) if _NAME.fullmatch(name) else None

    def at(self, server: ServerAddress) -> KnownServer | None:
        """The first server with that address, which has the headers and the environment variables that go with it."""
        return next((known for known in self if known.is_at(server)), None)

    def resolve(self, text: str) -> KnownServer | ServerAddress:
        """The server that a text names: by its name, or as a URL or a command.

        Raises:
            InvalidInput: It names no server.
        """
        known = self.get(text)
        if known is not None:
            return known
        if _NAME.fullmatch(text) and shutil.which(text) is None and not looks_like_address(text):
            raise InvalidInput(
                "server", f"no server and no command is called {text!r}", self._near(text) or self._unread()
            )
        return ServerAddress.parse(text)

    def add(
        self,
        name: str,
        server: ServerAddress,
        *,
        headers: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Keep a server under a name. What it is given may have variables in it, which are looked up on use.

        Raises:
            InvalidInput: It is no name, is taken, there are credentials in it, or the file cannot be used.
        """
        if not _NAME.fullmatch(name):
            raise InvalidInput(
                "server", f"{name!r} is not a name for a server", "Letters, digits, and any of _ . + - @ in it."
            )
        entry = entry_of(server, headers or {}, environment or {})
        credential = credential_in(entry)
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
        """Keep a server no longer.

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

    def _unread(self) -> str:
        return f"{self.kept_in} could not be read: {self.problem}" if self.problem else ""

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

    def _kept(self) -> Mapping[str, Any]:
        """What is in our file, read anew: another process may have written it."""
        kept = self._entries()
        if self.problem:
            raise InvalidInput("server_file", f"{self.kept_in} cannot be read: {self.problem}", "Mend it first.")
        return kept

    @contextmanager
    def _changing(self) -> Generator[dict[str, Any]]:
        """What is kept, to be changed by one process at a time. Written at the end of the block, unless it raises."""
        try:
            make_private_folder(self.kept_in.parent)
            with alone(self.kept_in):
                kept = dict(self._kept())
                yield kept
                text = json.dumps({"mcpServers": kept}, indent=2, ensure_ascii=False)
                write_private(self.kept_in, f"{text}\n".encode())
        except (OSError, UntrustedFile) as exc:
            raise InvalidInput("server_file", f"{self.kept_in} cannot be written: {exc}") from exc


def config_folder() -> Path:
    """Where this user's settings are."""
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or Path.home() / "AppData/Roaming") / "mcp-tasks"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "mcp-tasks"


def _place_of(config: Path) -> Path:
    """Where relative paths in a file begin: in its folder, or in that of the project whose editor has it."""
    folder = config.absolute().parent
    return folder.parent if folder.name in (".cursor", ".vscode") else folder


def _read(path: Path) -> Mapping[str, Any] | None:
    """The servers of a file; None if it has no place for them.

    There may be comments in it, and a comma too many: editors let that pass.
    """
    text = read_trusted(path).decode("utf-8-sig")
    for unwanted in (_COMMENTS, _LAST_COMMAS):
        text = unwanted.sub(lambda found: found[1] or "", text)
    value: Any = json.loads(text) if text.strip() else {}
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    values = cast("dict[str, Any]", value)
    servers: Any = next((values[key] for key in _KEYS if isinstance(values.get(key), dict)), None)
    return cast("Mapping[str, Any] | None", servers)


# ---- credentials
# What a server is sent to prove who asks: tokens and headers as people write them, and what of that is not shown.


def check_token(text: str) -> str:
    """A token, without the space around it.

    Raises:
        InvalidOption: It is none. The message does not have it: those are kept longer than they should be.
    """
    token = text.strip()
    if not token:
        raise InvalidOption("the token is empty")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidOption("the token has characters that no token has: is it one line, and nothing else?")
    return token


def read_token(path: Path) -> tuple[str, bool]:
    """The token in a file; and whether others on this machine may read the file, which somebody should be told.

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
        InvalidOption: One cannot be a header, or the token cannot be one. Of values, which may be secrets, the message
            says nothing.
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
    """What is not to be shown of a URL and of headers, wherever it turns up: servers say back what they are told."""
    named = [value for name, value in (headers or {}).items() if is_credential(name) or "session" in name.lower()]
    secrets = [value.rpartition(" ")[2] for value in named]
    # Not by `urlsplit`, which refuses what is no URL: that is for whoever connects to it.
    user_info, at, _ = url.partition("://")[2].partition("/")[0].rpartition("@")
    if at and ":" in user_info:
        # As it stands in URLs, so that one of a letter does not hide that letter everywhere.
        secrets.append(f":{user_info.partition(':')[2]}@")
    return [secret for secret in secrets if secret]


def is_in_the_clear(url: str) -> bool:
    """Whether everybody on the way to a server can read what is sent there."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")
