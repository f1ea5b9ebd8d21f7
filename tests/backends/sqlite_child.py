"""A second process for the tests of the SQLite store.

    python -m tests.backends.sqlite_child VERB PATH

It prints `ready` once it runs, and does not go on before it gets a line on its standard input.
"""

from __future__ import annotations

import os
import resource
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from secrets import token_hex

import anyio

from mcp_tasks.errors import StoreError, StoreUnavailable
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import make_record, make_request

REQUEST = make_request()
WRITERS = 10
CREATES = 100
NOBODY = 65534
SMALL_FILE = 512 * 1024


def say(line: str) -> None:
    print(line, flush=True)


def wait_for_line() -> None:
    sys.stdin.readline()


async def create_tasks(path: Path, *, count: int | None = CREATES) -> None:
    """Create tasks with several writers and print each id once it is acknowledged; for ever without a count."""
    store = SqliteStore(path)
    await store.open()

    async def write() -> None:
        done = 0
        while count is None or done < count // WRITERS:
            record = make_record(id=token_hex(8))
            await store.create(record, REQUEST)
            say(record.id)
            done += 1

    async with anyio.create_task_group() as group:
        for _ in range(WRITERS):
            group.start_soon(write)
    await store.close()


async def create_for_ever(path: Path) -> None:
    """Create tasks until killed."""
    await create_tasks(path, count=None)


async def open_as_nobody(path: Path) -> None:
    """Open the store as a user to whom permission bits apply. Only here: this user may not read all of Python."""
    if os.geteuid() == 0:
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
    try:
        await SqliteStore(path).open()
    except StoreError as exc:
        say(f"{type(exc).__name__}: {exc}")


async def fill_disk(path: Path) -> None:
    """Create large tasks until no file may grow any more; then let it grow again and create one more."""
    store = SqliteStore(path)
    await store.open()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL_FILE, hard))
    refused = False

    async def create() -> None:
        nonlocal refused
        record = make_record(status_message="x" * 10_000)
        try:
            await store.create(record, REQUEST)
        except StoreUnavailable as exc:
            refused = True
            say(f"refused {record.id} {type(exc.__cause__).__name__} {await store.get(record.id)}")
        else:
            say(f"kept {record.id}")

    while not refused:
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(create)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await store.create(make_record(id="after"), REQUEST)
    say("kept after")
    await store.close()


def hold_lock(path: Path, begin: str) -> None:
    """Take a lock, say so, and keep it until the next line."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(begin)
    connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
    say("locked")
    wait_for_line()
    connection.close()


ASYNC_VERBS: dict[str, Callable[[Path], Awaitable[None]]] = {
    verb.__name__: verb for verb in (create_tasks, create_for_ever, open_as_nobody, fill_disk)
}
LOCKS = {"lock_writes": "BEGIN IMMEDIATE", "lock_all": "BEGIN EXCLUSIVE"}


def main(verb: str, path: Path) -> None:
    say("ready")
    wait_for_line()
    if verb in LOCKS:
        hold_lock(path, LOCKS[verb])
    else:
        anyio.run(ASYNC_VERBS[verb], path)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
