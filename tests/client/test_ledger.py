"""The ledger in which a client remembers its tasks: what it keeps and gives, also after damage and crashes."""

import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness.processes import PIPE, kill, start
from harness.rpc import PATIENCE
from mcp_tasks.cli.terminal import json_text, problem_of
from mcp_tasks.client import Ledger, user_ledger
from mcp_tasks.client.ledger import UNKNOWN, on_one_line, printable, user_ledger_path
from mcp_tasks.encryption import LEDGER_KEYS_VARIABLE, Keyring, new_key
from mcp_tasks.errors import EncryptionMismatch, InvalidInput, StoreCorrupt, StoreError, StoreUnavailable
from mcp_tasks.protocol.shapes import parse_task
from mcp_tasks.stores.sqlite import SqliteStore
from tests.client.connecting import begin, connect
from tests.client.peer import TASK_ID, Peer, completed, task, working

SERVER = "peer"


@pytest.fixture
def keeper(path: Path) -> Generator[Ledger]:
    with closing(Ledger(path, keep_results=True)) as book:
        yield book


# What is remembered


def test_a_task_is_remembered_over_restarts_until_its_end_was_seen(path: Path, ledger: Ledger) -> None:
    ledger.add(TASK_ID, server=SERVER, tool="render", arguments={"scene": "forest"})
    ledger.saw(SERVER, parse_task(working(1)))
    # Adding it again changes nothing.
    ledger.add(TASK_ID, server=SERVER, tool="second")
    ledger.record_answer(SERVER, TASK_ID, "k", {"n": 1})
    ledger.close()
    with closing(Ledger(path)) as again:
        [entry] = again.pending()
        assert (entry.task_id, entry.server, entry.tool, entry.status) == (TASK_ID, SERVER, "render", "working")
        assert (entry.message, entry.is_final, entry.arguments) == ("step 1", False, None)
        again.saw(SERVER, parse_task(completed()))
        assert again.entries() == []
        assert again.answers(SERVER, TASK_ID) == {}, "answers go with their task"
        again.close()


def test_results_are_kept_until_forgotten_if_asked_for(path: Path, keeper: Ledger) -> None:
    keeper.add(TASK_ID, server=SERVER, tool="x")
    keeper.saw(SERVER, parse_task(completed("forty-two")))
    with closing(Ledger(path, keep_results=True)) as again:
        [entry] = again.entries()
        assert again.pending() == []
        assert (entry.is_final, entry.result) == (True, completed("forty-two")["result"])
        again.forget(TASK_ID, server=SERVER)
        assert again.entries() == []


def test_a_task_that_was_never_added_leaves_no_trace(ledger: Ledger) -> None:
    ledger.saw(SERVER, parse_task(task()))
    ledger.saw(SERVER, parse_task(completed()))
    ledger.forget("nobody", server=SERVER)
    assert ledger.entries() == []


def test_a_task_that_ended_is_not_unknown_because_its_server_forgot_it(keeper: Ledger) -> None:
    for task_id in ("ended", "open"):
        keeper.add(task_id, server="s", tool="x")
    keeper.saw("s", parse_task(completed(taskId="ended")))
    for task_id in ("ended", "open"):
        keeper.lost(task_id, server="s")
    assert {entry.task_id: entry.status for entry in keeper.entries()} == {"ended": "completed", "open": "unknown"}
    assert [entry.task_id for entry in keeper.pending()] == ["open"]


def test_two_servers_may_use_the_same_id(ledger: Ledger) -> None:
    for server in ("a", "b"):
        ledger.add("1", server=server, tool="x")
        ledger.record_answer(server, "1", "k", {"of": server})
    ledger.forget("1", server="a")
    assert [entry.server for entry in ledger.entries()] == ["b"]
    assert ledger.answers("a", "1") == {}
    assert ledger.answers("b", "1") == {"k": ({"of": "b"}, False)}


def test_an_answer_is_there_from_before_it_was_sent_until_it_is_refused_or_replaced(path: Path, ledger: Ledger) -> None:
    for key in ("name", "bad"):
        ledger.record_answer(SERVER, TASK_ID, key, {"n": 1})
    with closing(Ledger(path)) as other:
        assert other.answers(SERVER, TASK_ID)["name"] == ({"n": 1}, False)
        ledger.answer_sent(SERVER, TASK_ID, "name")
        ledger.answer_refused(SERVER, TASK_ID, "bad")
        assert other.answers(SERVER, TASK_ID) == {"name": ({"n": 1}, True)}
        ledger.record_answer(SERVER, TASK_ID, "name", {"n": 2})
        assert other.answers(SERVER, TASK_ID) == {"name": ({"n": 2}, False)}


@pytest.mark.parametrize("odd", ["'; DROP TABLE tasks; --", "\n", "☃" * 500, "\ud800 half a pair"])
def test_odd_names_and_text_that_is_no_unicode_are_remembered_like_any_other(path: Path, odd: str) -> None:
    with closing(Ledger(path, keep_results=True)) as book:
        book.add(odd, server="s" + odd, tool=odd)
        book.saw("s" + odd, parse_task(working(1, taskId=odd) | {"statusMessage": odd}))
        book.record_answer("s" + odd, odd, odd, {odd: odd}, question={"method": odd})
    with closing(Ledger(path, keep_results=True)) as book:
        [entry] = book.pending(server="s" + odd)
        assert (entry.task_id, entry.server, entry.tool, entry.message) == (odd, "s" + odd, odd, odd)
        assert book.recorded_answer("s" + odd, odd, odd, question={"method": odd}) == {odd: odd}
        assert book.recorded_answer("s" + odd, odd, odd, question={"method": "another"}) is None
        book.answer_sent("s" + odd, odd, odd)
        assert book.answers("s" + odd, odd) == {odd: ({odd: odd}, True)}
        book.saw("s" + odd, parse_task(completed(odd, taskId=odd)))
        assert book.pending() == []
        book.forget(odd, server="s" + odd)
        assert book.entries() == []


@pytest.mark.parametrize(
    ("created", "ended", "seconds"),
    [
        pytest.param("1999-01-01T00:00:00Z", "1999-01-01T00:01:30Z", 90, id="a clock that is late"),
        pytest.param("2099-01-01T00:00:00Z", "2099-01-01T00:01:30Z", 90, id="a clock that is early"),
        pytest.param("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", 0, id="a clock that makes no sense"),
    ],
)
def test_the_clock_of_a_server_does_not_change_how_long_a_task_took(
    keeper: Ledger, created: str, ended: str, seconds: int
) -> None:
    keeper.add(TASK_ID, server=SERVER, tool="render")
    keeper.saw(SERVER, parse_task(completed(createdAt=created, lastUpdatedAt=ended)))
    [entry] = keeper.entries()
    assert entry.finished_at is not None
    assert int((entry.finished_at - entry.started_at).total_seconds()) == seconds


def test_arguments_are_kept_in_short_encrypted_and_without_what_looks_like_a_secret(path: Path) -> None:
    given = {"scene": "a\nrainforest", "api_key": "sk-1", "max_tokens": 5, "tags": ["a"], "text": "x" * 1000}
    with closing(Ledger(path, keep_results=True, cipher=Keyring(new_key()))) as book:
        book.add(TASK_ID, server=SERVER, tool="render", arguments=given)
        book.add("many", server=SERVER, tool="render", arguments={f"name{n}": "y" * 50 for n in range(1000)})
        one, many = book.entries()
    assert (one.arguments or "").startswith('scene=a rainforest api_key=*** max_tokens=5 tags=["a"] text=xxx')
    assert all(len(entry.arguments or "") <= 200 for entry in (one, many))
    assert b"rainforest" not in path.read_bytes()


# Which tasks it gives

HERE, THERE = "https://farm.example/mcp", "https://mill.example/mcp"


@pytest.fixture
def filled(keeper: Ledger) -> Ledger:
    """A ledger with a task that is done, one that is lost, and one of another server and user."""
    keeper.add("task_done", server=HERE, tool="render", arguments={"scene": "Forest"})
    keeper.add("task_lost", server=HERE, tool="render")
    keeper.add("task_busy", server=THERE, tool="grind", identity="ann")
    keeper.lost("task_lost", server=HERE)
    keeper.saw(HERE, parse_task(completed(taskId="task_done")))
    return keeper


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, ["done", "lost", "busy"]),
        ({"server": HERE}, ["done", "lost"]),
        ({"server": "elsewhere"}, []),
        ({"identity": "ann"}, ["busy"]),
        ({"active": True}, ["lost", "busy"]),
        ({"active": False}, ["done"]),
        ({"status": UNKNOWN}, ["lost"]),
        ({"search": "forest"}, ["done"]),
        ({"search": "MILL.example"}, ["busy"]),
        ({"search": "render", "active": True}, ["lost"]),
    ],
)
def test_wanted_tasks_are_listed_oldest_first(filled: Ledger, wanted: dict[str, Any], found: list[str]) -> None:
    assert [entry.task_id for entry in filled.entries(**wanted)] == [f"task_{name}" for name in found]


def test_tasks_are_found_each_once_and_in_order_and_with_a_server_also_those_that_are_not_there(filled: Ledger) -> None:
    assert [entry.task_id for entry in filled.find_all(["busy", "do", "task_busy"])] == ["task_busy", "task_done"]
    [entry] = filled.find_all(["task_new"], server=THERE, identity="ann")
    assert (entry.key, entry.status) == ((THERE, "ann", "task_new"), "working")
    with pytest.raises(InvalidInput, match="begins with 'task_new'") as raised:
        filled.find_all(["task_new"])
    assert raised.value.reason == "task"
    for number in range(9):
        filled.add(f"task_{number:02}", server=SERVER, tool="render")
    with pytest.raises(InvalidInput, match="matches 12 tasks") as refused:
        filled.find("task_")
    assert refused.value.hint.splitlines()[10:] == ["and 2 more"]


def test_what_is_over_is_pruned(filled: Ledger) -> None:
    for age in (timedelta(hours=1), timedelta.max):
        assert filled.prune(older_than=age) == []
    assert [entry.task_id for entry in filled.prune(dry_run=True)] == ["task_done", "task_lost"]
    assert [entry.task_id for entry in filled.prune()] == ["task_done", "task_lost"]
    assert [entry.task_id for entry in filled.entries()] == ["task_busy"]


def test_text_of_a_server_moves_no_cursor_and_its_json_stays_the_same_value() -> None:
    assert printable("a\x1b[2Jb\u202ec\nd") == "a[2Jbc\nd"
    assert on_one_line("a\r\nb\u2028c") == "a bc"
    values: list[object] = [{"a": "\x1b[2J\u202e\u2028"}, ["\u00e9\U0001f600", "\ud800"], "plain"]
    for value in values:
        assert json.loads(json_text(value)) == value
        assert printable(json_text(value)) == json_text(value)
    assert json_text(["\u00e9", "\u6f22"], indent=1) == '[\n "\u00e9",\n "\u6f22"\n]'


# Damage


def test_a_place_that_cannot_be_written_is_unavailable_and_a_missing_folder_is_made(tmp_path: Path) -> None:
    book = Ledger(tmp_path / "a" / "b" / "ledger.db")
    book.close()
    book.close()
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="under"):
        Ledger(tmp_path / "file" / "under")
    with pytest.raises(StoreUnavailable):
        Ledger(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="asks Linux which files are open")
def test_a_file_that_is_no_ledger_is_let_go_of(path: Path) -> None:
    path.write_bytes(b"no database" * 1_000)
    with pytest.raises(StoreCorrupt, match=r"ledger\.db") as caught:
        Ledger(path)
    # Asked while the exception, and what hangs on it, is still there.
    assert caught.value.__traceback__ is not None
    assert str(path) not in {os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()}


@pytest.mark.parametrize(
    "damage",
    [
        "pages",
        "UPDATE answers SET answer = '{nope'",
        "UPDATE tasks SET result = '{nope'",
        "UPDATE tasks SET started = 'yesterday'",
    ],
)
def test_damage_found_later_is_named_as_corrupt_too(path: Path, damage: str) -> None:
    with closing(Ledger(path, keep_results=True)) as book:
        for number in range(5):
            book.add(f"t{number}", server=SERVER, tool="x" * 100)
            book.record_answer(SERVER, f"t{number}", "k", {"n": number})
    if damage == "pages":
        content = path.read_bytes()
        path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    else:
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(damage)
    with pytest.raises(StoreCorrupt):
        read_all(path)


def read_all(path: Path) -> list[Any]:
    with closing(Ledger(path)) as book:
        return [book.answers(entry.server, entry.task_id) for entry in book.entries()]


async def test_a_task_that_cannot_be_kept_is_named_to_who_started_it(peer: Peer, ledger: Ledger) -> None:
    async with connect(peer.url, ledger=ledger) as client:
        ledger.close()
        with pytest.raises(StoreError) as refused:
            await begin(client, "x")
    assert refused.value.__notes__ == [f"The task goes on, and is not in the ledger: {TASK_ID}"]
    # Not in its text, which is logged.
    assert TASK_ID not in str(refused.value)
    problem = problem_of(refused.value)
    assert problem is not None
    assert TASK_ID in str(problem.hint)


# Crashes and company

_WRITER = """
import sys
from mcp_tasks.client.ledger import Ledger
ledger = Ledger(sys.argv[1])
for number in range(10**6):
    ledger.add(f"{sys.argv[2]}{number}", server="s", tool="x")
    ledger.record_answer("s", f"{sys.argv[2]}{number}", "k", {"n": number})
    print(number, flush=True)
"""


def _read_until(writer: subprocess.Popen[str], wanted: int) -> int:
    assert writer.stdout is not None
    for line in writer.stdout:
        if int(line) >= wanted:
            return int(line)
    raise AssertionError("the writer ended by itself")


def _kill(writer: subprocess.Popen[str]) -> int:
    """End it in the middle of a write; gives the last number it said after all."""
    kill(writer)
    assert writer.stdout is not None
    said = [int(line) for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    writer.stdout.close()
    return said[-1] if said else -1


def test_two_processes_share_a_ledger_and_when_they_are_killed_it_has_all_that_was_said_to_be_in_it(path: Path) -> None:
    writers = [start([sys.executable, "-c", _WRITER, path, name], stdout=PIPE, text=True) for name in "ab"]
    with ThreadPoolExecutor() as pool:
        said = list(pool.map(_read_until, writers, [20, 20]))
    said[0] = max(said[0], _kill(writers[0]))
    said[1] = max(_read_until(writers[1], said[1] + 20), _kill(writers[1]))
    with closing(Ledger(path)) as book:
        for name, last in zip("ab", said, strict=True):
            ids = [entry.task_id for entry in book.entries() if entry.task_id.startswith(name)]
            assert ids == [f"{name}{number}" for number in range(len(ids))]
            assert len(ids) >= last + 1
            # At most the answer of the very last task is missing: it is written after the task.
            assert all(book.answers("s", task_id) == {"k": ({"n": n}, False)} for n, task_id in enumerate(ids[:-1]))


def test_a_ledger_that_many_open_for_the_first_time_at_once_is_there_for_all(path: Path) -> None:
    ready = threading.Barrier(8)

    def write(name: int) -> None:
        ready.wait(PATIENCE)
        with closing(Ledger(path)) as book:
            book.add(f"t{name}", server=SERVER, tool="x")

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(write, range(8))) == [None] * 8
    with closing(Ledger(path)) as book:
        assert len(book.entries()) == 8


# The ledger that programs of a user share with the `mcp-tasks` command


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_STATE_HOME", "HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv(LEDGER_KEYS_VARIABLE, raising=False)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("other", [None, "other.db"])
def test_the_users_ledger_is_in_the_state_folder_and_keeps_what_has_ended(tmp_path: Path, other: str | None) -> None:
    wanted = tmp_path / other if other else user_ledger_path()
    with closing(user_ledger(tmp_path / other) if other else user_ledger()) as ledger:
        assert (ledger.path, ledger.keep_results) == (wanted, True)
        assert ledger.path.is_file()
    assert user_ledger_path().exists() is not bool(other)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(("variable", "value"), [("", ""), ("", "short"), ("_FILE", "/nonexistent")])
def test_the_users_ledger_is_encrypted_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(LEDGER_KEYS_VARIABLE + variable, value or new_key())
    if value:
        with pytest.raises(EncryptionMismatch, match=r"the ledger .* needs its keys, see MCP_TASKS_LEDGER_KEYS"):
            user_ledger()
        return
    user_ledger().close()
    with pytest.raises(EncryptionMismatch):
        Ledger(user_ledger_path())


# The file knows what it is, and so does a task store's: neither is ever taken for the other


def make(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(script)


def pragmas(path: Path) -> tuple[int, int]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute("PRAGMA application_id").fetchone()[0], db.execute("PRAGMA user_version").fetchone()[0]


async def open_store(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await store.close()


def test_a_later_format_upgrades_a_file_of_the_first_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.add("t1", server="http://a/mcp", tool="render")
    upgrade = ["ALTER TABLE tasks ADD COLUMN later TEXT", "UPDATE tasks SET tool = 'upgraded'"]
    monkeypatch.setattr("mcp_tasks.client.ledger_file.UPGRADES", [upgrade])
    for _ in range(2):
        with closing(Ledger(path)) as ledger:
            assert [(entry.task_id, entry.tool) for entry in ledger.entries()] == [("t1", "upgraded")]
    assert pragmas(path)[1] == 2
    monkeypatch.undo()
    with pytest.raises(StoreCorrupt, match="newer release"):
        Ledger(path)


def test_a_task_is_kept_with_how_the_user_named_its_server(path: Path) -> None:
    with closing(Ledger(path, keep_results=True)) as ledger:
        assert not ledger.was_called("http://a/mcp")
        ledger.add("t1", server="http://a/mcp", tool="render")
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


def test_neither_is_a_task_store_a_ledger_nor_a_ledger_a_task_store(path: Path) -> None:
    anyio.run(open_store, path)
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="task store"):
        Ledger(path)
    assert path.read_bytes() == before
    path.unlink()
    Ledger(path).close()
    assert pragmas(path) == (int.from_bytes(b"MCPL", "big"), 1)
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt):
        anyio.run(open_store, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("CREATE TABLE songs (name TEXT)", "another application"),
        ("PRAGMA application_id = 7; CREATE TABLE tasks (name TEXT)", "another application"),
        (f"PRAGMA application_id = {int.from_bytes(b'MCPL', 'big')}; PRAGMA user_version = 99", "newer release"),
    ],
)
def test_what_is_no_ledger_of_this_release_is_left_as_it_is(path: Path, script: str, says: str) -> None:
    make(path, script)
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match=says):
        Ledger(path)
    assert path.read_bytes() == before
