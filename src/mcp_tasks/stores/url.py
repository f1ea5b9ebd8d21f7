"""One URL decides where tasks are kept: a file, or a database that many machines share."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from mcp_tasks.encryption import Cipher
from mcp_tasks.errors import UsageError
from mcp_tasks.files import private_state_folder
from mcp_tasks.model.values import POSTGRES, REDIS, shown, with_plain_scheme
from mcp_tasks.stores.base import Store
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.memory import MemoryStore
from mcp_tasks.stores.sqlite import SqliteStore

# ---- origin
# Which program makes a `Tasks` object, told by the file of the module that does.


_INSTALLED: Final = ("site-packages", "dist-packages")


def callers_globals() -> Mapping[str, Any]:
    """The module that makes the `Tasks` object: the nearest one that is not ours."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("mcp_tasks."):
        frame = frame.f_back
    return {} if frame is None else frame.f_globals


def origin_of(frame_globals: Mapping[str, Any]) -> str:
    """The program to which the module with these globals belongs.

    - A module of an installed package: its dotted name. The folder does not count, because an environment may move.
    - Any other module: the path of its file, with symbolic links resolved. The working directory, `sys.path` and the
      name under which it was loaded do not count, because they depend on how it was started.
    """
    if getattr(sys, "frozen", False):
        # Such a program unpacks its modules into another folder each time.
        return os.path.abspath(sys.executable)
    file = frame_globals.get("__file__")
    if not file:
        return f"{os.getcwd()}/{frame_globals.get('__name__') or '__main__'}"
    path = Path(os.path.realpath(file))
    above = [index for index, part in enumerate(path.parts) if part in _INSTALLED]
    if not above:
        return str(path)
    name = ".".join((*path.parts[above[-1] + 1 : -1], path.name.partition(".")[0]))
    return name.removesuffix(".__init__")


def short_hash(text: str) -> str:
    """Eight hexadecimal digits that tell texts apart."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


_SQLITE: Final = "sqlite:///"
_WHAT_TO_WRITE: Final = (
    "use sqlite:///FILE (or sqlite:////ABSOLUTE/FILE), postgresql://HOST/DATABASE, redis://HOST/0 or memory://, or "
    "pass a Store object"
)


def store_from_url(url: str, cipher: Cipher | None = None) -> Store:
    """The store that a URL names: `sqlite:///relative.db`, `sqlite:////absolute.db`, `postgresql://…`, `redis://…` or
    `memory://`.

    Args:
        cipher: Encrypts what the store keeps. Tasks in memory are nowhere at rest, and need none.

    Raises:
        UsageError: The URL names no store this release knows.
        MissingExtra: A package that the store needs is not installed.
    """
    url = with_plain_scheme(url)
    # There, because what a database needs is not always installed.
    if url.startswith(POSTGRES):
        from mcp_tasks.stores.postgres import PostgresStore

        return PostgresStore(url, codec=Codec(cipher))
    if url.startswith(REDIS):
        from mcp_tasks.stores.redis import RedisStore

        return RedisStore(url, codec=Codec(cipher))
    if url == "memory://":
        return MemoryStore()
    if problem := _problem_with(url):
        raise UsageError(f"{shown(url)} names no store{problem}")
    return SqliteStore(Path(unquote(url.removeprefix(_SQLITE))), codec=Codec(cipher))


def _problem_with(url: str) -> str:
    """Why a URL names no file. Nothing in it is ever dropped: it would be another file."""
    if url.startswith("memory:"):
        return ": memory:// is all there is to say of memory"
    if not url.startswith("sqlite:"):
        return f"; {_WHAT_TO_WRITE}"
    if not url.startswith(_SQLITE):
        rest = url.removeprefix("sqlite:")
        file = rest.lstrip("/") or "tasks.db"
        # One slash is how an absolute path begins.
        absolute = file if rest.startswith("/") and not rest.startswith("//") else "var/lib/x.db"
        return (
            f": after sqlite: come three slashes and the file (sqlite:///{file}), or four for an absolute path "
            f"(sqlite:////{absolute})"
        )
    if url == _SQLITE:
        return f": the file is missing; {_WHAT_TO_WRITE}"
    for mark, written in ("?", "%3F"), ("#", "%23"):
        if mark in url:
            return f": it takes no options after {mark!r}, and in the name of a file that is written {written}"
    return ""


def default_store(server_name: str, origin: str, cipher: Cipher | None = None) -> Store:
    """The store of a server whose author chose none: a file of its own in the user's state folder.

    Not in the working directory: a stdio server is started by its host, wherever that happens to be. The name says
    which server of which program it is (`origin_of`), so that two programs never share a file by accident.

    Raises:
        UntrustedFile: Others can write to that folder.
        StoreUnavailable: The folder cannot be made.
    """
    return SqliteStore(private_state_folder() / _file_name(server_name, origin), codec=Codec(cipher))


def url_from_environment() -> str | None:
    """`MCP_TASKS_URL`, where the author chose no store."""
    return os.environ.get("MCP_TASKS_URL") or None


def _file_name(server_name: str, origin: str) -> str:
    # "@" is in neither part, so two different pairs never make the same name.
    return f"{_safe(server_name, longest=50)}@{_safe(origin, longest=110)}.db"


def _safe(name: str, *, longest: int) -> str:
    """The name as part of a file name, with a hash of it wherever another name might look the same there."""
    kept = re.sub(r"[^\w.-]+", "-", name).strip("-.")
    # Of a path the end says most. In bytes, because that is what file systems count.
    kept = kept.encode()[-longest:].decode(errors="ignore").strip("-.") or "server"
    # Some file systems fold case, and some compose accents.
    return kept if kept == name and name.isascii() and name == name.lower() else f"{kept}-{short_hash(name)}"
