"""A ledger's file knows what it is, and so does a task store's: neither is ever taken for the other."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from mcp_tasks.client import Ledger
from mcp_tasks.errors import StoreCorrupt
from mcp_tasks.stores.sqlite import SqliteStore

FIRST_FORMAT = """
CREATE TABLE tasks (
    task_id TEXT NOT NULL, server TEXT NOT NULL, tool TEXT NOT NULL, started TEXT NOT NULL,
    status TEXT NOT NULL, message TEXT, result TEXT, error TEXT, finished TEXT,
    PRIMARY KEY (server, task_id)
);
CREATE TABLE answers (
    server TEXT NOT NULL, task_id TEXT NOT NULL, key TEXT NOT NULL, answer TEXT NOT NULL,
    sent INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (server, task_id, key)
);
INSERT INTO tasks (task_id, server, tool, started, status)
    VALUES ('t1', 'render-farm', 'render', '2026-08-01T10:00:00+00:00', 'working');
INSERT INTO answers (server, task_id, key, answer) VALUES ('render-farm', 't1', 'pin', '{"pin": 1234}');
"""


def _make(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(script)


def _pragmas(path: Path) -> tuple[int, int]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute("PRAGMA application_id").fetchone()[0], db.execute("PRAGMA user_version").fetchone()[0]


async def _open_store(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await store.close()


SECOND_FORMAT = """
CREATE TABLE tasks (
    server TEXT NOT NULL, identity TEXT NOT NULL, task_id TEXT NOT NULL, attributed INTEGER NOT NULL,
    tool TEXT NOT NULL, started TEXT NOT NULL, status TEXT NOT NULL, message TEXT, result TEXT, error TEXT,
    finished TEXT, PRIMARY KEY (server, identity, task_id, attributed)
);
CREATE TABLE answers (
    server TEXT NOT NULL, identity TEXT NOT NULL, task_id TEXT NOT NULL, key TEXT NOT NULL, question TEXT,
    answer TEXT NOT NULL, sent INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (server, identity, task_id, key)
);
INSERT INTO tasks (task_id, server, identity, attributed, tool, started, status)
    VALUES ('t1', 'http://a/mcp', '', 1, 'render', '2026-08-01T10:00:00+00:00', 'working');
PRAGMA application_id = 1296257100;
PRAGMA user_version = 1;
"""


THIRD_FORMAT = SECOND_FORMAT.replace("finished TEXT, PRIMARY", "finished TEXT, arguments TEXT, PRIMARY").replace(
    "user_version = 1", "user_version = 2"
)


@pytest.mark.parametrize("script", [SECOND_FORMAT, THIRD_FORMAT])
def test_a_file_of_a_format_before_keeps_its_tasks_and_takes_what_they_do_not_have(path: Path, script: str) -> None:
    _make(path, script)
    with closing(Ledger(path, keep_results=True)) as ledger:
        assert not ledger.was_called("http://a/mcp")
        ledger.called("http://a/mcp", name="farm")
        ledger.add("t2", server="http://a/mcp", tool="render", arguments={"scene": "forest"})
        ledger.called("http://a/mcp")
        ledger.add("t3", server="http://a/mcp", tool="render")
        ledger.add("t4", server="http://b/mcp", tool="render")
        assert [(entry.task_id, entry.named, entry.arguments) for entry in ledger.entries()] == [
            ("t1", None, None),
            ("t2", "farm", "scene=forest"),
            ("t3", "", None),
            ("t4", None, None),
        ]
        assert ledger.was_called("http://a/mcp")
    assert _pragmas(path)[1] == 3


def test_neither_is_a_task_store_a_ledger_nor_a_ledger_a_task_store(path: Path) -> None:
    anyio.run(_open_store, path)
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="task store"):
        Ledger(path)
    assert path.read_bytes() == before
    path.unlink()
    Ledger(path).close()
    assert _pragmas(path) == (int.from_bytes(b"MCPL", "big"), 3)
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt):
        anyio.run(_open_store, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("CREATE TABLE songs (name TEXT)", "another application"),
        (FIRST_FORMAT + "CREATE TABLE songs (name TEXT);", "another application"),
        ("PRAGMA application_id = 7; CREATE TABLE tasks (name TEXT)", "another application"),
        (f"PRAGMA application_id = {int.from_bytes(b'MCPL', 'big')}; PRAGMA user_version = 99", "newer release"),
    ],
)
def test_what_is_no_ledger_of_this_release_is_left_as_it_is(path: Path, script: str, says: str) -> None:
    _make(path, script)
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match=says):
        Ledger(path)
    assert path.read_bytes() == before


def test_tasks_of_the_first_format_stay_listed_and_its_answers_go(path: Path) -> None:
    _make(path, FIRST_FORMAT)
    book = Ledger(path)
    [entry] = book.entries()
    assert (entry.task_id, entry.server, entry.tool, entry.attributed) == ("t1", "render-farm", "render", False)
    assert book.answers("render-farm", "t1") == {}
    book.add("t1", server="render-farm", tool="another")
    assert len(book.entries()) == 2, "a server that is called so today is another one"
    book.close()
    assert b"1234" not in path.read_bytes()
    book = Ledger(path)
    book.forget("t1", server="render-farm")
    assert book.entries() == []
    book.close()
