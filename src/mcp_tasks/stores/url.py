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


def default_store(server_name: str) -> Store:
    """The store of a server whose author chose none: a file of its own in the user's state folder.

    Not in the working directory: a stdio server is started by its host, wherever that happens to be.
    """
    url = os.environ.get("MCP_TASKS_URL")
    return store_from_url(url) if url else SqliteStore(state_folder() / f"{_file_name(server_name)}.db")


def state_folder() -> Path:
    """Where this user's programs keep what they must not forget."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "mcp-tasks"
    if sys.platform == "darwin":
        return Path.home() / "Library/Application Support/mcp-tasks"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "mcp-tasks"


def _file_name(server_name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", server_name).strip("-.") or "server"
