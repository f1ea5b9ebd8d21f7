"""The contract of a store as tests. A store that passes them may be handed to `Tasks(store=...)`.

    class TestMyStore(StoreSuite):
        @asynccontextmanager
        async def open_store(self):
            store = MyStore(self.url)      # a place that is empty at the start of each test
            await store.open()
            try:
                yield store
            finally:
                await store.close()

The tests run with anyio's pytest plugin on asyncio; nothing else needs to be set up. They live in modules by
subject: records, what is kept beside them, idempotency keys, listings, sweeps, what has expired, what is kept of whom,
what is handed out, how many may be at work, what waits, heartbeats, the time, notes, what processes share, and writes
whose answer was lost (`open_lossy`).
"""

from __future__ import annotations

import pytest

# Before the imports that follow: an `assert` in a module that is not a test says nothing unless rewritten.
_MODULES = ("records", "listings", "queue")
pytest.register_assert_rewrite(*(f"mcp_tasks.testing._store_{name}" for name in _MODULES))

from mcp_tasks.testing._store_listings import (  # noqa: E402
    ExpiryTests,
    HeartbeatTests,
    HintTests,
    ListingTests,
    NoteTests,
    SweepTests,
    TimeTests,
)
from mcp_tasks.testing._store_queue import BacklogTests, HandingTests, LimitTests, TurnTests, UsageTests  # noqa: E402
from mcp_tasks.testing._store_records import (  # noqa: E402
    JoiningTests,
    KeyTests,
    PartTests,
    RaceTests,
    RecordTests,
    RepeatTests,
    SpentKeyTests,
)

__all__ = ["StoreSuite"]


class StoreSuite(
    RecordTests,
    PartTests,
    KeyTests,
    JoiningTests,
    SpentKeyTests,
    RaceTests,
    ListingTests,
    SweepTests,
    ExpiryTests,
    UsageTests,
    HandingTests,
    TurnTests,
    LimitTests,
    BacklogTests,
    HeartbeatTests,
    TimeTests,
    NoteTests,
    HintTests,
    RepeatTests,
):
    """Every test of the contract; give it `open_store`.

    Attributes:
        shared: Whether a second `open_store` in the same test opens the same tasks, as another process would.
            Set it to False for a store that only one process can have.
    """
