"""One URL, or nothing at all, decides where tasks are kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mcp_tasks.errors import UsageError
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.stores.url import default_store, state_folder, store_from_url


def path_of(store: Store) -> Path:
    assert isinstance(store, SqliteStore)
    return store.path


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///tasks.db", "tasks.db"),
        ("sqlite:///some/folder/tasks.db", "some/folder/tasks.db"),
        ("sqlite:////var/lib/tasks.db", "/var/lib/tasks.db"),
        ("sqlite:///with%20space.db", "with space.db"),
        ("sqlite:///snow%E2%98%83.db", "snow☃.db"),
    ],
)
def test_a_sqlite_url_names_a_file(url: str, path: str) -> None:
    assert path_of(store_from_url(url)) == Path(path)


def test_a_memory_url_names_no_place() -> None:
    assert isinstance(store_from_url("memory://"), MemoryStore)


@pytest.mark.parametrize(
    "url",
    ["", "tasks.db", "sqlite:", "sqlite://", "sqlite:///", "sqlite://tasks.db", "mysql://localhost/tasks", "/a/path"],
)
def test_anything_else_is_refused_with_what_to_write(url: str) -> None:
    with pytest.raises(UsageError, match="sqlite:///FILE"):
        store_from_url(url)


def test_a_server_without_a_store_gets_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MCP_TASKS_URL", raising=False)
    one, other = path_of(default_store("render farm")), path_of(default_store("other"))
    assert one.name == "render-farm.db"
    assert one.parent == other.parent == state_folder()
    assert one != other


@pytest.mark.parametrize(
    ("server", "file"),
    [("../../etc/passwd", "etc-passwd.db"), ("", "server.db"), ("...", "server.db"), ("späße", "späße.db")],
)
def test_a_server_name_never_leads_out_of_the_folder(server: str, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MCP_TASKS_URL", raising=False)
    path = path_of(default_store(server))
    assert path.parent == state_folder()
    assert path.name == file


def test_the_environment_decides_for_a_server_that_chose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_TASKS_URL", "sqlite:///elsewhere.db")
    assert path_of(default_store("render farm")) == Path("elsewhere.db")
    monkeypatch.setenv("MCP_TASKS_URL", "memory://")
    assert isinstance(default_store("render farm"), MemoryStore)


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="the place is another there")
def test_the_state_folder_is_where_the_desktop_standard_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_folder() == tmp_path / "mcp-tasks"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert state_folder() == Path.home() / ".local/state/mcp-tasks"
