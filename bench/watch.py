"""Looks at a server's tasks from outside, through the store's own reads: it costs the server no CPU."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from bench.client import BenchError
from bench.compat import list_tasks
from bench.serve import NAME
from mcp_tasks.model import TaskStatus
from mcp_tasks.stores.sqlite import SqliteStore

LIMIT = 60.0
"""Seconds to wait for tasks; far more than any sample takes."""

PAUSE = 0.005
"""Seconds between two looks: short beside a sample."""


class Watch:
    """What other processes can see of the tasks in one file."""

    def __init__(self, store: SqliteStore, runner: asyncio.Runner) -> None:
        self._store = store
        self._runner = runner

    def until_one_works(self) -> None:
        """Return when no task is working but the one that was made to stay so."""
        self._until_false(self._several_working)

    def until_all_started(self) -> None:
        """Return when no task is queued."""
        self._until_false(self._any_queued)

    async def _several_working(self) -> bool:
        return len(await list_tasks(self._store, NAME, status=TaskStatus.WORKING, limit=2)) > 1

    async def _any_queued(self) -> bool:
        return bool((await self._store.queued(NAME, limit=1)).ids)

    def _until_false(self, question: Callable[[], Awaitable[bool]]) -> None:
        self._runner.run(_poll(question))


async def _poll(question: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + LIMIT
    while await question():
        if time.monotonic() > deadline:
            raise BenchError(f"tasks did not get on within {LIMIT:g} s")
        await asyncio.sleep(PAUSE)


@contextmanager
def watching(db: Path) -> Generator[Watch]:
    """A view of the file of a running server, while the block lasts."""
    with asyncio.Runner() as runner:
        store = SqliteStore(db)
        runner.run(store.open())
        try:
            yield Watch(store, runner)
        finally:
            runner.run(store.close())
