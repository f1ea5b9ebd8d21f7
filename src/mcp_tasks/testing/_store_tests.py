"""What the parts of the store suite have in common: the hook, and stores as fixtures."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar, cast

import pytest

from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.stores.base import Store
from mcp_tasks.testing.records import make_request

REQUEST = make_request()
"""What was asked for, where a test does not care."""

ANY_VALUE: JsonObject = {
    "text": "snow ☃, astral 𝄞, nul \0, lone surrogate \ud800, quote \" ' \\",
    "": {"nested": [None, {"deeper": [[], {}, None]}]},
    "numbers": [0, -1, 2**63, -(10**40), 0.1, 1e-300, 1.7976931348623157e308, 5e-324],
    "flags": [True, False, None],
    "☃": "a key that is not ASCII",
}
"""JSON that is easily lost on the way."""

WAIT = 5
"""Seconds after which what must happen is taken not to happen."""


WRITES = frozenset(
    ("create", "save", "delete", "set_note", "hand_out", "hand_back", "forget_expired", "heartbeat", "retire")
)
"""The verbs that write."""


@pytest.mark.anyio
class StoreTests:
    """A test class with a store of its own for each test."""

    shared: ClassVar[bool] = True

    def open_store(self) -> AbstractAsyncContextManager[Store]:
        """An open store on this test's own place, closed at the end."""
        raise NotImplementedError("a store suite needs `open_store`")

    @asynccontextmanager
    async def open_lossy(self) -> AsyncGenerator[tuple[Store, Callable[[], None]]]:
        """An open store, and what has it carry out its next write and lose the answer.

        Override it for a store that is reached over a network: lose the answer there, and leave the rest to the store.
        """
        async with self.open_store() as store:
            lossy = _LossyStore(store)
            yield cast(Store, lossy), lossy.lose_next

    @pytest.fixture
    async def lossy(self) -> AsyncIterator[tuple[Store, Callable[[], None]]]:
        """A store that can lose an answer."""
        async with self.open_lossy() as lossy:
            yield lossy

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Stores are built for asyncio."""
        return "asyncio"

    @pytest.fixture
    async def store(self) -> AsyncIterator[Store]:
        """An empty store."""
        async with self.open_store() as store:
            yield store

    @pytest.fixture
    async def peer(self, store: Store) -> AsyncIterator[Store]:
        """A second store on the same place, as another process would have it."""
        if not self.shared:
            pytest.skip("only one process can have this store")
        async with self.open_store() as peer:
            yield peer


class _LossyStore:
    """Raises after a write that was carried out."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self._loses = False

    def lose_next(self) -> None:
        """Lose the next answer to a write."""
        self._loses = True

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._inner, verb)
        if not (self._loses and verb in WRITES):
            return found

        async def lost(*args: Any, **kwargs: Any) -> None:
            self._loses = False
            await found(*args, **kwargs)
            raise StoreUnavailable("the answer was lost", may_have_happened=True)

        return lost


async def create_all(store: Store, *records: TaskRecord) -> None:
    """Create the records in this order."""
    for record in records:
        await store.create(record, REQUEST)


async def entries_of(store: Store, task_id: str) -> list[JournalEntry]:
    """The task's journal as it was written, without the numbers, which are the store's to give."""
    return [replace(entry, number=0) for entry in await store.journal(task_id)]


def ids(records: Sequence[TaskRecord]) -> list[str]:
    """The ids, in order."""
    return [record.id for record in records]
