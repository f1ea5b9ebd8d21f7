"""One URL decides where tasks are kept."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mcp_tasks.errors import UsageError
from mcp_tasks.stores.base import Store
from mcp_tasks.stores.memory import MemoryStore
from mcp_tasks.stores.origin import short_hash
from mcp_tasks.stores.sqlite import SqliteStore


def store_from_url(url: str) -> Store:
    """The store that a URL names: `sqlite:///relative.db`, `sqlite:////absolute.db` or `memory://`.

    Raises:
        UsageError: The URL names no store this release knows.
    """
    parts = urlsplit(url)
    if parts.scheme == "memory":
        return MemoryStore()
    if parts.scheme == "sqlite" and not parts.netloc and len(parts.path) > 1:
        return SqliteStore(Path(unquote(parts.path[1:])))
    raise UsageError(
        f"{url!r} names no store; use sqlite:///FILE (or sqlite:////ABSOLUTE/FILE) or memory://, or pass a Store object"
    )


def default_store(server_name: str, origin: str) -> Store:
    """The store of a server whose author chose none: a file of its own in the user's state folder.

    Not in the working directory: a stdio server is started by its host, wherever that happens to be. The name says
    which server of which program it is (`origin_of`), so that two programs never share a file by accident.
    """
    url = os.environ.get("MCP_TASKS_URL")
    return store_from_url(url) if url else SqliteStore(state_folder() / _file_name(server_name, origin))


def state_folder() -> Path:
    """Where this user's programs keep what they must not forget."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "mcp-tasks"
    if sys.platform == "darwin":
        return Path.home() / "Library/Application Support/mcp-tasks"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "mcp-tasks"


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
