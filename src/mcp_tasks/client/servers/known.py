"""Servers by the names that people gave them: in a file of ours, and in the files of the usual hosts.

Nothing here starts or connects to anything. A name means, in this order:

1. what `KnownServers.add` keeps: `servers.json` in the user's config folder;
2. what a project has, from the folder upwards: `.mcp.json`, `mcp.json`, `.cursor/mcp.json`, `.vscode/mcp.json`;
3. what the user's hosts have: `~/.cursor/mcp.json`, then the file of Claude Desktop.

A file is not read that somebody else owns, or that everybody can write: whoever wrote it could have commands run here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, cast

from mcp_tasks.client.servers.address import ServerAddress, looks_like_address
from mcp_tasks.client.servers.entry import KnownServer, credential_in, entry_of
from mcp_tasks.core.json import JsonObject
from mcp_tasks.errors import InvalidServerFile, UnknownServer, UntrustedFile
from mcp_tasks.files import alone, make_private_folder, read_trusted, write_private

IN_PROJECTS: Final = (".mcp.json", "mcp.json", ".cursor/mcp.json", ".vscode/mcp.json")
"""Files of a project, in the order in which they are looked at."""

_KEYS: Final = ("mcpServers", "servers")
_NAME: Final = re.compile(r"[\w@][\w@.+-]*")
# Strings are matched first, so that nothing in them is taken for a comment or a comma.
_STRING: Final = r'("(?:[^"\\]|\\.)*")'
_COMMENTS: Final = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMAS: Final = re.compile(rf"{_STRING}|,(?=\s*[\]}}])")


class KnownServers:
    """Servers by their names.

    Args:
        folder: Where the files of projects are looked for, from there upwards; the present folder unless given.
        kept_in: The file of `add` and `remove`; `servers.json` in the user's config folder unless given.

    Attributes:
        kept_in: That file.
        problems: Files that are there and could not be read, and why.
    """

    def __init__(self, folder: Path | None = None, *, kept_in: Path | None = None) -> None:
        self.kept_in: Path = kept_in or config_folder() / "servers.json"
        self.problems: dict[Path, str] = {}
        self._servers: dict[str, KnownServer] = {}
        for server in self._all(folder):
            self._servers.setdefault(server.name, server)

    def __iter__(self) -> Iterator[KnownServer]:
        """Every server that has a name, in the order of the files."""
        return iter(self._servers.values())

    def get(self, name: str) -> KnownServer | None:
        """The server of that name. A URL, and a command of several words, are no names, whatever a file says."""
        return self._servers.get(name) if _NAME.fullmatch(name) else None

    def at(self, server: ServerAddress) -> KnownServer | None:
        """The first server with that address, which has the headers and the environment variables that go with it."""
        return next((known for known in self if _spec_of(known) == server.spec), None)

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
                known = self._servers.get(name)
                hint = self._near(name) if known is None else f"{known.source} has one of that name; take it out there."
                raise UnknownServer(f"no server {name!r} is kept in {self.kept_in}", hint)
            del kept[name]

    def _near(self, name: str) -> str:
        near = get_close_matches(name.lower(), [known.lower() for known in self._servers], n=3, cutoff=0.6)
        names = [known for known in self._servers if known.lower() in near]
        return f"Did you mean {' or '.join(names)}?" if names else ""

    def _unread(self) -> str:
        return "\n".join(f"{path} could not be read: {why}" for path, why in self.problems.items())

    def _all(self, folder: Path | None) -> Iterator[KnownServer]:
        variables = {"userHome": str(Path.home()), **os.environ}
        for path, place, of_project in _files(self.kept_in, folder):
            for name, entry in self._entries(path).items():
                if isinstance(entry, Mapping):
                    yield KnownServer(
                        name=name,
                        source=path,
                        of_project=of_project,
                        _entry=cast("JsonObject", entry),
                        _folder=place,
                        _variables={"workspaceFolder": str(place), **variables},
                    )

    def _entries(self, path: Path) -> Mapping[str, Any]:
        try:
            return _read(path)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, UntrustedFile) as exc:
            self.problems[path] = str(exc)
            return {}

    def _kept(self) -> Mapping[str, Any]:
        """What is in our file, read anew: another process may have written it."""
        self.problems.pop(self.kept_in, None)
        kept = self._entries(self.kept_in)
        if self.kept_in in self.problems:
            raise InvalidServerFile(f"{self.kept_in} cannot be read: {self.problems[self.kept_in]}", "Mend it first.")
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


def _files(kept_in: Path, folder: Path | None) -> Iterable[tuple[Path, Path, bool]]:
    """Each file, where relative paths in it begin, and whether it is a project's."""
    home = Path.home()
    of_user = [home / ".cursor/mcp.json", _claude_desktop()]
    yield kept_in, home, False
    start = folder or _here()
    for place in () if start is None else (start.absolute(), *start.absolute().parents):
        for name in IN_PROJECTS:
            if place / name not in of_user:
                yield place / name, place, True
    for path in of_user:
        yield path, home, False


def _here() -> Path | None:
    try:
        return Path.cwd()
    except OSError:
        # The folder is gone, and there is no project without one.
        return None


def _claude_desktop() -> Path:
    if sys.platform == "darwin":
        folder = Path.home() / "Library/Application Support"
    elif sys.platform == "win32":
        folder = Path(os.environ.get("APPDATA") or Path.home() / "AppData/Roaming")
    else:
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return folder / "Claude/claude_desktop_config.json"


def _read(path: Path) -> Mapping[str, Any]:
    """The servers of a file. There may be comments in it, and a comma too many: editors let that pass."""
    text = read_trusted(path).decode("utf-8-sig")
    for unwanted in (_COMMENTS, _LAST_COMMAS):
        text = unwanted.sub(lambda found: found[1] or "", text)
    value: Any = json.loads(text) if text.strip() else {}
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    values = cast("dict[str, Any]", value)
    servers: Any = next((values[key] for key in _KEYS if isinstance(values.get(key), dict)), None)
    return cast("Mapping[str, Any]", servers or {})


def _spec_of(known: KnownServer) -> str | None:
    try:
        return known.spec
    except InvalidServerFile:
        return None
