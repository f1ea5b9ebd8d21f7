"""One server of a file: `{"command", "args", "env", "cwd"}` or `{"url", "headers"}`, as hosts write it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import parse_qsl, urlsplit

from mcp_tasks.client.servers.address import ServerAddress
from mcp_tasks.client.servers.variables import expand, has_variables, names_in
from mcp_tasks.client.transport import http_address
from mcp_tasks.core.json import JsonObject
from mcp_tasks.errors import InvalidServerFile

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
            InvalidServerFile: It is no server, or a variable is not set that is needed to say where it is.
        """
        url, argv = self._url, self._argv
        if url is not None:
            return http_address(url if _is_http(url) else self._expanded(url))
        return f"cd {shlex.quote(self._place)} && {shlex.join(argv)}"

    def is_at(self, server: ServerAddress) -> bool:
        """Whether this is its address, as a ledger has it."""
        try:
            return self.spec == server.spec
        except InvalidServerFile:
            return False

    @property
    def address(self) -> ServerAddress:
        """How it is reached.

        Raises:
            InvalidServerFile: It is no server that can be reached, or a variable is not set.
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
            InvalidServerFile: A variable is not set.
        """
        return self._pairs("headers")

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of its process, beside those that every server gets.

        Raises:
            InvalidServerFile: A variable is not set.
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
            raise InvalidServerFile(
                f"the server {self.name!r} needs the variable {name}, which is not set",
                f"It is in {self.source}. Set {name}, or give it a default there: ${{{name}:-...}}",
            ) from None

    def _invalid(self, what: str) -> InvalidServerFile:
        return InvalidServerFile(f"the server {self.name!r} {what}", f"It is in {self.source}.")


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
