"""The SQLite store when several processes have one file, and when one of them dies."""

# ruff: noqa: ASYNC240 - a test may wait for a local file
from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest

from harness.processes import PIPE, python, running
from harness.stored import opened
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import make_record, make_request
from tests.backends.sqlite_child import CREATES

REQUEST = make_request()
LIMIT = 60
"""Seconds for one child; a slow disk takes some."""

pytestmark = pytest.mark.anyio


class Child:
    """A process that runs one verb of `sqlite_child` when told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.expect("ready")

    def go(self) -> None:
        """Let it do its next step."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def lines(self) -> Iterator[str]:
        """What it prints, until it ends."""
        assert self.process.stdout is not None
        return (line.rstrip("\n") for line in self.process.stdout)

    def expect(self, line: str) -> None:
        """The next line must be this one."""
        assert next(self.lines()) == line

    def finish(self) -> list[str]:
        """Let it run to its end, and return what it printed."""
        printed = list(self.lines())
        assert self.process.wait(LIMIT) == 0
        return printed


@contextmanager
def child(verb: str, path: Path) -> Generator[Child]:
    """A child process, gone at the end of the block."""
    command = python("tests.backends.sqlite_child", verb, path)
    with running(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        yield Child(process)


def integrity(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall()[0][0]


async def missing(path: Path, ids: list[str]) -> list[str]:
    """Those of `ids` that the store does not have."""
    async with opened(SqliteStore(path)) as store:
        return [task_id for task_id in ids if await store.get(task_id) is None]


async def test_processes_that_start_on_a_new_file_together_make_one_store_and_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "tasks.db"
    with ExitStack() as stack:
        children = [stack.enter_context(child("create_tasks", path)) for _ in range(4)]
        for each in children:
            each.go()
        created = [line for each in children for line in each.finish()]
    assert len(set(created)) == 4 * CREATES
    assert await missing(path, created) == []


async def test_a_killed_process_loses_no_task_that_it_was_told_is_created(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    with child("create_for_ever", path) as writer:
        writer.go()
        lines = writer.lines()
        acknowledged = [next(lines) for _ in range(200)]
        writer.process.kill()
        # The last line may be cut short: then no client was told that id.
        acknowledged += [line for line in lines if len(line) == len(acknowledged[0])]
    assert await missing(path, acknowledged) == []
    assert integrity(path) == "ok"


async def test_a_full_disk_refuses_writes_until_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    with child("fill_disk", path) as writer:
        writer.go()
        said = [line.split() for line in writer.finish()]
    kept = [task_id for word, task_id, *_ in said if word == "kept"]
    refused = [task_id for word, task_id, *_ in said if word == "refused"]
    assert kept[-1] == "after"
    # What was refused had a driver's error as its cause, and was not there.
    assert {tuple(rest) for word, _, *rest in said if word == "refused"} == {("OperationalError", "None")}
    assert await missing(path, kept) == []
    assert await missing(path, refused) == refused
    assert integrity(path) == "ok"


async def test_a_write_waits_for_another_process_and_then_gives_up(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    before, during, after = make_record(), make_record(), make_record()
    async with (
        opened(SqliteStore(path, busy_timeout=timedelta(milliseconds=100))) as store,
        opened(SqliteStore(path, busy_timeout=timedelta(seconds=LIMIT))) as patient,
    ):
        await store.create(before, REQUEST)
        with child("lock_writes", path) as locker:
            locker.go()
            locker.expect("locked")
            with pytest.raises(StoreUnavailable, match="locked by another process") as refused:
                await store.create(during, REQUEST)
            assert str(path) in str(refused.value)
            assert isinstance(refused.value.__cause__, sqlite3.OperationalError)
            # Readers do not wait for writers.
            assert await store.get(before.id) == before
            assert await store.get(during.id) is None
            async with anyio.create_task_group() as group:
                group.start_soon(patient.create, after, REQUEST)
                await anyio.lowlevel.checkpoint()
                assert await store.get(after.id) is None
                locker.go()
        assert await store.get(after.id) == after


async def test_a_file_that_another_process_keeps_to_itself_cannot_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    with child("lock_all", path) as locker:
        locker.go()
        locker.expect("locked")
        store = SqliteStore(path, busy_timeout=timedelta(milliseconds=100))
        with pytest.raises(StoreUnavailable, match="locked by another process"):
            await store.open()
        locker.go()
        locker.finish()
    await store.open()
    await store.close()


@pytest.mark.parametrize("exists", [True, False])
async def test_a_place_that_may_not_be_written_is_named(exists: bool) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tasks.db"
        if exists:
            store = SqliteStore(path)
            await store.open()
            await store.close()
            path.chmod(0o444)
        Path(folder).chmod(0o555)
        with child("open_as_nobody", path) as opener:
            opener.go()
            (said,) = opener.finish()
        Path(folder).chmod(0o755)
    assert said.startswith("StoreUnavailable: ")
    assert str(path) in said
    assert ("read-only" in said) if exists else ("cannot be created" in said)
