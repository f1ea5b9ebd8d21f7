"""A ledger's file knows what it is, and so does a task store's: neither is ever taken for the other."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from mcp_tasks.client import Ledger
from mcp_tasks.errors import StoreCorrupt
from mcp_tasks.protocol.shapes import parse_task
from mcp_tasks.stores.sqlite import SqliteStore
from tests.client.peer import TASK_ID, completed, working

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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file is."""
    return tmp_path / "ledger.db"


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


def test_a_file_of_the_format_before_keeps_its_tasks_and_takes_arguments(path: Path) -> None:
    _make(path, SECOND_FORMAT)
    with closing(Ledger(path, keep_results=True)) as ledger:
        ledger.add("t2", server="http://a/mcp", tool="render", arguments={"scene": "forest"})
        assert [(entry.task_id, entry.arguments) for entry in ledger.entries()] == [
            ("t1", None),
            ("t2", "scene=forest"),
        ]
    assert _pragmas(path)[1] == 3


THIRD_FORMAT = SECOND_FORMAT.replace("finished TEXT, PRIMARY", "finished TEXT, arguments TEXT, PRIMARY").replace(
    "user_version = 1", "user_version = 2"
)


@pytest.mark.parametrize("script", [SECOND_FORMAT, THIRD_FORMAT])
def test_of_tasks_of_the_formats_before_it_is_not_known_how_their_server_was_said(path: Path, script: str) -> None:
    _make(path, script)
    with closing(Ledger(path)) as ledger:
        assert not ledger.was_called("http://a/mcp")
        ledger.called("http://a/mcp", name="farm")
        ledger.add("t2", server="http://a/mcp", tool="render")
        ledger.called("http://a/mcp")
        ledger.add("t3", server="http://a/mcp", tool="render")
        ledger.add("t4", server="http://b/mcp", tool="render")
        assert [(entry.task_id, entry.named) for entry in ledger.entries()] == [
            ("t1", None),
            ("t2", "farm"),
            ("t3", ""),
            ("t4", None),
        ]
        assert ledger.was_called("http://a/mcp")
    assert _pragmas(path)[1] == 3


def test_a_ledger_says_that_it_is_one(path: Path) -> None:
    Ledger(path).close()
    assert _pragmas(path) == (int.from_bytes(b"MCPL", "big"), 3)


def test_a_task_store_is_no_ledger(path: Path) -> None:
    anyio.run(_open_store, path)
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="task store"):
        Ledger(path)
    assert path.read_bytes() == before


def test_a_ledger_is_no_task_store(path: Path) -> None:
    book = Ledger(path)
    book.add(TASK_ID, server="s", tool="x")
    book.close()
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt):
        anyio.run(_open_store, path)
    assert path.read_bytes() == before
    book = Ledger(path)
    assert [entry.task_id for entry in book.entries()] == [TASK_ID]
    book.close()


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


HALF = "\ud800 half a pair"


def test_text_that_is_no_unicode_is_remembered_like_any_other(path: Path) -> None:
    book = Ledger(path, keep_results=True)
    book.add(HALF, server="s", tool=HALF)
    book.saw("s", parse_task(working(1, taskId=HALF) | {"statusMessage": HALF}))
    book.record_answer("s", HALF, HALF, {HALF: HALF}, question={"method": HALF})
    book.close()
    book = Ledger(path, keep_results=True)
    [entry] = book.pending(server="s")
    assert (entry.task_id, entry.tool, entry.message) == (HALF, HALF, HALF)
    assert book.recorded_answer("s", HALF, HALF, question={"method": HALF}) == {HALF: HALF}
    book.answer_sent("s", HALF, HALF)
    assert book.answers("s", HALF) == {HALF: ({HALF: HALF}, True)}
    book.saw("s", parse_task(completed(HALF, taskId=HALF)))
    assert book.pending() == []
    book.forget(HALF, server="s")
    assert book.entries() == []
    book.close()


def test_a_task_that_ended_is_not_unknown_because_its_server_forgot_it(path: Path) -> None:
    book = Ledger(path, keep_results=True)
    for task_id in ("ended", "open"):
        book.add(task_id, server="s", tool="x")
    book.saw("s", parse_task(completed(taskId="ended")))
    for task_id in ("ended", "open"):
        book.lost(task_id, server="s")
    assert {entry.task_id: entry.status for entry in book.entries()} == {"ended": "completed", "open": "unknown"}
    assert [entry.task_id for entry in book.pending()] == ["open"]
    book.close()
