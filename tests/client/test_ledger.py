"""The file in which a client remembers its tasks: what is in it after crashes, damage and company."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.processes import PIPE, kill, start
from harness.rpc import PATIENCE
from mcp_tasks.client import Ledger
from mcp_tasks.encryption import Keyring, new_key
from mcp_tasks.errors import AmbiguousTask, StoreCorrupt, StoreError, StoreUnavailable
from mcp_tasks.protocol.shapes import parse_task
from tests.client.peer import TASK_ID, completed, task, working

SERVER = "peer"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the ledger is."""
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Generator[Ledger]:
    """A ledger that forgets what has ended."""
    book = Ledger(path)
    yield book
    book.close()


def reopened(path: Path, *, keep_results: bool = False) -> Ledger:
    """The ledger as another process finds it."""
    return Ledger(path, keep_results=keep_results)


def test_a_task_is_remembered_over_restarts_until_its_end_was_seen(path: Path, ledger: Ledger) -> None:
    ledger.add(TASK_ID, server=SERVER, tool="render")
    ledger.saw(SERVER, parse_task(working(1)))
    ledger.close()
    again = reopened(path)
    [entry] = again.pending()
    assert (entry.task_id, entry.server, entry.tool, entry.status) == (TASK_ID, SERVER, "render", "working")
    assert entry.message == "step 1"
    assert not entry.is_final
    again.saw(SERVER, parse_task(completed()))
    assert again.entries() == []
    again.close()


def test_tasks_come_oldest_first_and_by_server(ledger: Ledger) -> None:
    for number in range(5):
        ledger.add(f"t{number}", server=f"s{number % 2}", tool="x")
    assert [entry.task_id for entry in ledger.pending()] == ["t0", "t1", "t2", "t3", "t4"]
    assert [entry.task_id for entry in ledger.pending(server="s1")] == ["t1", "t3"]
    assert ledger.pending(server="s2") == []


@pytest.mark.parametrize(
    ("created", "ended", "seconds"),
    [
        pytest.param("1999-01-01T00:00:00Z", "1999-01-01T00:01:30Z", 90, id="a clock that is late"),
        pytest.param("2099-01-01T00:00:00Z", "2099-01-01T00:01:30Z", 90, id="a clock that is early"),
        pytest.param("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", 0, id="a clock that makes no sense"),
    ],
)
def test_how_long_a_task_took_does_not_depend_on_the_clock_of_its_server(
    path: Path, created: str, ended: str, seconds: int
) -> None:
    with closing(reopened(path, keep_results=True)) as ledger:
        ledger.add(TASK_ID, server=SERVER, tool="render")
        ledger.saw(SERVER, parse_task(completed(createdAt=created, lastUpdatedAt=ended)))
        [entry] = ledger.entries()
        assert entry.finished_at is not None
        assert int((entry.finished_at - entry.started_at).total_seconds()) == seconds


def test_of_many_tasks_that_begin_alike_some_are_named_and_the_rest_counted(ledger: Ledger) -> None:
    for number in range(12):
        ledger.add(f"task_{number:02}", server=SERVER, tool="render")
    with pytest.raises(AmbiguousTask, match="matches 12 tasks") as refused:
        ledger.find("task_")
    assert refused.value.hint.splitlines()[10:] == ["and 2 more"]


def test_no_age_is_too_great_to_be_asked_for(path: Path) -> None:
    with closing(reopened(path, keep_results=True)) as ledger:
        ledger.add(TASK_ID, server=SERVER, tool="render")
        ledger.saw(SERVER, parse_task(completed()))
        assert ledger.prune(older_than=timedelta.max) == []
        assert [entry.task_id for entry in ledger.prune()] == [TASK_ID]


def test_adding_a_task_again_changes_nothing(ledger: Ledger) -> None:
    ledger.add(TASK_ID, server=SERVER, tool="first")
    ledger.saw(SERVER, parse_task(working(3)))
    ledger.add(TASK_ID, server=SERVER, tool="second")
    [entry] = ledger.entries()
    assert (entry.tool, entry.message) == ("first", "step 3")


def test_two_servers_may_use_the_same_id(ledger: Ledger) -> None:
    for server in ("a", "b"):
        ledger.add("1", server=server, tool="x")
        ledger.record_answer(server, "1", "k", {"of": server})
    ledger.forget("1", server="a")
    [entry] = ledger.entries()
    assert entry.server == "b"
    assert ledger.answers("a", "1") == {}
    assert ledger.answers("b", "1") == {"k": ({"of": "b"}, False)}


def test_results_are_kept_until_forgotten_if_asked_for(path: Path) -> None:
    keeper = reopened(path, keep_results=True)
    keeper.add(TASK_ID, server=SERVER, tool="x")
    keeper.saw(SERVER, parse_task(completed("forty-two")))
    keeper.close()
    again = reopened(path, keep_results=True)
    [entry] = again.entries()
    assert again.pending() == []
    assert entry.is_final
    assert entry.result == completed("forty-two")["result"]
    again.forget(TASK_ID, server=SERVER)
    assert again.entries() == []
    again.close()


def test_a_task_that_was_never_added_leaves_no_trace(ledger: Ledger) -> None:
    ledger.saw(SERVER, parse_task(task()))
    ledger.saw(SERVER, parse_task(completed()))
    ledger.forget("nobody", server=SERVER)
    assert ledger.entries() == []


def test_an_answer_is_there_from_before_it_was_sent(path: Path, ledger: Ledger) -> None:
    ledger.add(TASK_ID, server=SERVER, tool="x")
    ledger.record_answer(SERVER, TASK_ID, "name", {"action": "accept", "content": {"name": "Ada"}})
    other = reopened(path)
    assert other.answers(SERVER, TASK_ID) == {"name": ({"action": "accept", "content": {"name": "Ada"}}, False)}
    ledger.answer_sent(SERVER, TASK_ID, "name")
    assert other.answers(SERVER, TASK_ID)["name"][1]
    other.close()


def test_a_later_answer_takes_the_place_of_an_earlier_one(ledger: Ledger) -> None:
    ledger.record_answer(SERVER, TASK_ID, "k", {"n": 1})
    ledger.answer_sent(SERVER, TASK_ID, "k")
    ledger.record_answer(SERVER, TASK_ID, "k", {"n": 2})
    assert ledger.answers(SERVER, TASK_ID) == {"k": ({"n": 2}, False)}


def test_an_answer_that_was_refused_is_none_to_come_back_to(ledger: Ledger) -> None:
    for key in ("good", "bad"):
        ledger.record_answer(SERVER, TASK_ID, key, {"n": 1})
    ledger.answer_refused(SERVER, TASK_ID, "bad")
    assert list(ledger.answers(SERVER, TASK_ID)) == ["good"]


def test_answers_go_with_their_task(ledger: Ledger) -> None:
    ledger.add(TASK_ID, server=SERVER, tool="x")
    ledger.record_answer(SERVER, TASK_ID, "k", {"n": 1})
    ledger.saw(SERVER, parse_task(completed()))
    assert ledger.answers(SERVER, TASK_ID) == {}


@pytest.mark.parametrize("odd", ["'; DROP TABLE tasks; --", "", "\n", "☃" * 500])
def test_odd_names_are_names_like_others(ledger: Ledger, odd: str) -> None:
    ledger.add(odd, server=odd, tool=odd)
    ledger.record_answer(odd, odd, odd, {odd: odd})
    [entry] = ledger.pending(server=odd)
    assert (entry.task_id, entry.server, entry.tool) == (odd, odd, odd)
    assert ledger.answers(odd, odd) == {odd: ({odd: odd}, False)}


def test_a_folder_that_is_missing_is_made(tmp_path: Path) -> None:
    Ledger(tmp_path / "a" / "b" / "ledger.db").close()
    assert (tmp_path / "a" / "b" / "ledger.db").exists()


@pytest.mark.skipif(os.name != "posix", reason="other systems have other ways")
def test_a_ledger_is_for_its_owner_alone(path: Path) -> None:
    Ledger(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_closing_twice_is_safe(path: Path) -> None:
    book = Ledger(path)
    book.close()
    book.close()


# Damage


def test_a_file_that_is_no_database_is_named_as_corrupt(path: Path) -> None:
    path.write_bytes(b"this is a shopping list, and not a short one: " + b"milk, " * 1_000)
    with pytest.raises(StoreCorrupt, match=r"ledger\.db"):
        Ledger(path)
    assert path.read_bytes().startswith(b"this is a shopping list"), "what somebody else wrote is not touched"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="asks Linux which files are open")
def test_a_file_that_is_no_ledger_is_let_go_of(path: Path) -> None:
    path.write_bytes(b"no database" * 1_000)
    with pytest.raises(StoreCorrupt) as caught:
        Ledger(path)
    # Asked while the exception, and what hangs on it, is still there.
    assert caught.value.__traceback__ is not None
    assert str(path) not in {os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()}


def test_a_place_that_cannot_be_written_is_named_as_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="under"):
        Ledger(tmp_path / "file" / "under")
    with pytest.raises(StoreUnavailable):
        Ledger(tmp_path)


def _damage_pages(path: Path) -> None:
    """Overwrite everything behind the first page."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))


def _damage_answer(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE answers SET answer = '{nope'")
    db.close()


def _damage_result(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE tasks SET result = '{nope'")
    db.close()


def _damage_time(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE tasks SET started = 'yesterday'")
    db.close()


@pytest.mark.parametrize("damage", [_damage_pages, _damage_answer, _damage_result, _damage_time])
def test_damage_found_later_is_named_as_corrupt_too(path: Path, damage: Callable[[Path], None]) -> None:
    book = Ledger(path, keep_results=True)
    for number in range(5):
        book.add(f"t{number}", server=SERVER, tool="x" * 100)
        book.record_answer(SERVER, f"t{number}", "k", {"n": number})
    book.close()
    damage(path)
    with pytest.raises(StoreCorrupt):
        _read_all(Ledger(path))


def _read_all(book: Ledger) -> list[Any]:
    try:
        return [book.answers(entry.server, entry.task_id) for entry in book.entries()]
    finally:
        book.close()


def test_a_file_that_somebody_has_locked_is_named_as_unavailable(path: Path, ledger: Ledger) -> None:
    ledger._db.execute("PRAGMA busy_timeout = 20")  # pyright: ignore[reportPrivateUsage] - five seconds, otherwise
    lock = sqlite3.connect(path, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(StoreUnavailable):
            ledger.add(TASK_ID, server=SERVER, tool="x")
    finally:
        lock.close()


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


def _start_writer(path: Path, name: str) -> subprocess.Popen[str]:
    return start([sys.executable, "-c", _WRITER, path, name], stdout=PIPE, text=True)


def _read_until(writer: subprocess.Popen[str], wanted: int) -> int:
    """Read what the writer says it has written, up to a number; gives the last one."""
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


def test_after_a_kill_the_ledger_is_a_prefix_with_all_that_was_said_to_be_in_it(path: Path) -> None:
    writer = _start_writer(path, "t")
    said = max(_read_until(writer, 30), _kill(writer))
    book = reopened(path)
    ids = [entry.task_id for entry in book.entries()]
    assert ids == [f"t{number}" for number in range(len(ids))]
    assert len(ids) >= said + 1
    # At most the answer of the very last task is missing: it is written after the task.
    assert all(book.answers("s", task_id) == {"k": ({"n": n}, False)} for n, task_id in enumerate(ids[:-1]))
    book.close()


def test_two_processes_share_a_ledger_and_one_of_them_dies(path: Path) -> None:
    writers = [_start_writer(path, name) for name in "ab"]
    with ThreadPoolExecutor() as pool:
        said = list(pool.map(_read_until, writers, [20, 20]))
    said[0] = max(said[0], _kill(writers[0]))
    said[1] = max(_read_until(writers[1], said[1] + 20), _kill(writers[1]))
    book = reopened(path)
    for name, last in zip("ab", said, strict=True):
        ids = [entry.task_id for entry in book.entries() if entry.task_id.startswith(name)]
        assert ids == [f"{name}{number}" for number in range(len(ids))]
        assert len(ids) >= last + 1
    book.close()


def test_a_ledger_that_many_open_for_the_first_time_at_once_is_there_for_all(path: Path) -> None:
    ready = threading.Barrier(8)

    def write(name: int) -> StoreError | None:
        ready.wait(PATIENCE)
        try:
            book = Ledger(path)
        except StoreError as exc:
            return exc
        book.add(f"t{name}", server=SERVER, tool="x")
        book.close()
        return None

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(write, range(8))) == [None] * 8
    book = reopened(path)
    assert len(book.entries()) == 8
    book.close()


_OPENER = """
import sys
from mcp_tasks.client.ledger import Ledger
Ledger(sys.argv[1]).add(sys.argv[2], server="s", tool="x")
"""


def test_processes_that_make_the_file_at_the_same_moment_all_get_it(path: Path) -> None:
    openers = [start([sys.executable, "-c", _OPENER, path, str(number)]) for number in range(6)]
    assert [opener.wait(30) for opener in openers] == [0] * 6
    assert len(Ledger(path).entries()) == 6


def test_arguments_are_kept_in_short_and_without_what_looks_like_a_secret(path: Path) -> None:
    book = Ledger(path, keep_results=True)
    given = {"scene": "a\nforest", "api_key": "sk-1", "max_tokens": 5, "tags": ["a"], "text": "x" * 1000}
    book.add(TASK_ID, server=SERVER, tool="render", arguments=given)
    book.add("many", server=SERVER, tool="render", arguments={f"name{n}": "y" * 50 for n in range(1000)})
    one, many = book.entries()
    assert (one.arguments or "").startswith('scene=a forest api_key=*** max_tokens=5 tags=["a"] text=xxx')
    assert all(len(entry.arguments or "") <= 200 for entry in (one, many))
    book.close()


def test_a_ledger_that_keeps_no_results_keeps_no_arguments(ledger: Ledger) -> None:
    ledger.add(TASK_ID, server=SERVER, tool="render", arguments={"scene": "forest"})
    assert ledger.entries()[0].arguments is None


def test_arguments_are_encrypted_like_the_result(path: Path) -> None:
    with closing(Ledger(path, keep_results=True, cipher=Keyring(new_key()))) as book:
        book.add(TASK_ID, server=SERVER, tool="render", arguments={"scene": "rainforest"})
        assert book.entries()[0].arguments == "scene=rainforest"
    assert b"rainforest" not in path.read_bytes()
