"""Processes of one server, as far as sealing goes: each with keys of its own on a store that they share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.fallback.request_state import KEPT_FOR, StateKeys
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.testing import FakeClock
from tests.unit.running import Seconds, make_runtime


class NoteStore(MemoryStore):
    """Counts how often notes are read and set, and can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = self.writes = 0
        self.is_away = False

    async def note(self, namespace: str, name: str) -> bytes | None:
        self.reads += 1
        self._check_here()
        return await super().note(namespace, name)

    async def set_note(self, namespace: str, name: str, value: bytes, *, expected: bytes | None) -> bool:
        self.writes += 1
        self._check_here()
        kept = await super().set_note(namespace, name, value, expected=expected)
        # The reference store looks by reading.
        self.reads -= 1
        return kept

    def _check_here(self) -> None:
        if self.is_away:
            raise StoreUnavailable("the store is away")


class Replica:
    """One process of the server."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], datetime] | None = None,
        namespace: str = "demo",
        kept_for: timedelta = KEPT_FOR,
    ) -> None:
        self.monotonic: Seconds = Seconds()
        self.runtime = make_runtime(
            {}, store=store, clock=clock or FakeClock(), monotonic=self.monotonic, namespace=namespace
        )
        self.keys: StateKeys = StateKeys(lambda: self.runtime, kept_for=kept_for)
