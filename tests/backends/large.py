"""What every durable store does with large values: they are encoded and decoded in a thread, small ones are not."""

from __future__ import annotations

import threading
from collections.abc import Awaitable
from dataclasses import replace

from mcp_tasks.model import JournalEntry, Outcome, TaskRequest
from mcp_tasks.stores import Store
from mcp_tasks.testing import make_record, make_request


class WatchedCipher:
    """Encrypts nothing, and notes on which thread it was to."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def encrypt(self, bound_to: str, data: bytes) -> bytes:
        return self.decrypt(bound_to, data)

    def decrypt(self, bound_to: str, data: bytes) -> bytes:
        self.threads.append(threading.get_ident())
        return data

    async def threads_of(self, act: Awaitable[object]) -> set[int]:
        """The threads that something was on."""
        self.threads.clear()
        await act
        return set(self.threads)


async def check_threads(store: Store, cipher: WatchedCipher, *, large: bool) -> None:
    """See that a store with this cipher is on another thread for what is large, and for nothing else."""
    here = threading.get_ident()
    record, text = make_record(), "x" * (1_000_000 if large else 1_000)
    entry = JournalEntry(kind="step", key="step", value=text)
    # The record itself is small, whatever is beside it.
    assert await cipher.threads_of(store.create(make_record(), make_request())) == {here}
    for act in (
        lambda: store.create(record, TaskRequest(name="render", arguments={"text": text})),
        lambda: store.save(replace(record, version=2), expected=1, entries=[entry]),
        lambda: store.save(replace(record, version=3), expected=2, outcome=Outcome(body=text.encode(), meta=b"{}")),
    ):
        assert (await cipher.threads_of(act()) != {here}) == large
    assert await cipher.threads_of(store.get(record.id)) == {here}
    for read in (store.request, store.outcome, store.journal):
        threads = await cipher.threads_of(read(record.id))
        assert (here not in threads) == large
        assert len(threads) == 1
