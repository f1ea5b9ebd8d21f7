"""Servers by the names that people gave them: in the user's own file, and in a file that a program is told to read.

Nothing here starts or connects to anything, and nothing is looked for: configuration files of other programs and of the
current folder are not read, because others may have written them, and could have commands run here. The same goes for
a file that somebody else owns, or that everybody can write.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, cast

from mcp_tasks.client.servers.address import ServerAddress, looks_like_address
from mcp_tasks.client.servers.entry import KnownServer, credential_in, entry_of
from mcp_tasks.core.json import JsonObject
from mcp_tasks.errors import InvalidServerFile, UnknownServer, UntrustedFile
from mcp_tasks.files import alone, make_private_folder, read_trusted, write_private

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
        InvalidServerFile: `config` cannot be read.
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
                raise InvalidServerFile(f"the servers in {config} cannot be read: {exc}") from exc
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
            UnknownServer: It is neither, but spelled like a name.
            InvalidAddress: It names no server.
        """
        known = self.get(text)
        if known is not None:
            return known
        if _NAME.fullmatch(text) and shutil.which(text) is None and not looks_like_address(text):
            raise UnknownServer(f"no server and no command is called {text!r}", self._near(text) or self._unread())
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
            UnknownServer: It is no name.
            InvalidServerFile: The name is taken, there are credentials in it, or the file cannot be used.
        """
        if not _NAME.fullmatch(name):
            raise UnknownServer(f"{name!r} is not a name for a server", "Letters, digits, and any of _ . + - @ in it.")
        entry = entry_of(server, headers or {}, environment or {})
        credential = credential_in(entry)
        if credential is not None:
            raise InvalidServerFile(
                f"{credential} would be kept for everybody to read who can read {self.kept_in}",
                "Write ${VARIABLE} in its place, in single quotes, and set that variable when you use the server.",
            )
        with self._changing() as kept:
            if name in kept:
                hint = f"It is in {self.kept_in}. Remove it first."
                raise InvalidServerFile(f"there is a server {name!r} already", hint)
            kept[name] = entry

    def remove(self, name: str) -> None:
        """Keep a server no longer.

        Raises:
            UnknownServer: It is not kept here.
            InvalidServerFile: The file cannot be used.
        """
        with self._changing() as kept:
            if name not in kept:
                raise UnknownServer(f"no server {name!r} is kept in {self.kept_in}", self._near(name))
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
            raise InvalidServerFile(f"{self.kept_in} cannot be read: {self.problem}", "Mend it first.")
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
            raise InvalidServerFile(f"{self.kept_in} cannot be written: {exc}") from exc


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
