"""The questions a run has put, and their answers as they arrive.

Questions asked at the same moment (an `asyncio.gather`) are put together, so that a client which sees the task
ask sees everything it asks. While all that is left is waiting, the run holds nothing, and after a while it
leaves memory altogether if it can be started again.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from mcp_tasks.core.events import InputRequested, InputWithdrawn
from mcp_tasks.core.inputs import InputRequest
from mcp_tasks.core.json import JsonValue
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.runtime.replay import Ask, Replay, ask_entry

if TYPE_CHECKING:
    from mcp_tasks.runtime.run import Run

STAY_ON = timedelta(milliseconds=200)
"""How long a run that could not leave memory waits before it tries again."""


class Questions:
    """What one run asked, and whom it waits for."""

    def __init__(self, run: Run, replay: Replay) -> None:
        self._run = run
        self._replay = replay
        self._unsaved: list[Ask] = []
        self._saving = asyncio.Lock()
        self._open: dict[str, asyncio.Future[None]] = {}

    async def ask(self, request: InputRequest) -> JsonValue:
        """Put the question, unless an earlier run did, and wait for its answer."""
        ask = self._replay.next_ask(request)
        if not ask.known:
            self._unsaved.append(ask)
        # Registered before it is put: the answer may come before we are back from the store.
        answered = self._open[ask.key] = asyncio.get_running_loop().create_future()
        try:
            await self._put()
            if ask.key not in self._replay.answers:
                await self._wait(ask.key, answered)
        except asyncio.CancelledError:
            await self._withdraw(ask)
            raise
        except BaseException:
            # Not put: it must not come up with the next question.
            self._drop_unsaved(ask)
            raise
        finally:
            self._open.pop(ask.key, None)
        return self._replay.answers[ask.key]

    def look(self, record: TaskRecord) -> None:
        """See whether an answer has come."""
        for key, answered in self._open.items():
            if key in record.inputs.used and key not in record.inputs.outstanding and not answered.done():
                answered.set_result(None)

    async def _withdraw(self, ask: Ask) -> None:
        """Take back a question that the tool gave up on; one whose run was stopped waits for the next run."""
        if not self._drop_unsaved(ask) and not self._run.stopped.is_set():
            event = InputWithdrawn(attempt=self._run.attempt, keys={ask.key})
            with anyio.CancelScope(shield=True):
                await self._run.change(event)

    def _drop_unsaved(self, ask: Ask) -> bool:
        if ask in self._unsaved:
            self._unsaved.remove(ask)
            return True
        return False

    async def _put(self) -> None:
        # Let the other questions of a gather join.
        await anyio.lowlevel.checkpoint()
        async with self._saving:
            if not self._unsaved:
                return
            asks, self._unsaved = self._unsaved, []
            event = InputRequested(attempt=self._run.attempt, requests={ask.key: ask.request for ask in asks})
            try:
                await self._run.change(event, entries=[ask_entry(ask) for ask in asks])
            except BaseException:
                # Not put. Whoever waits for the lock with a question of this lot tries again, and is told.
                self._unsaved = asks + self._unsaved
                raise

    async def _wait(self, key: str, answered: asyncio.Future[None]) -> None:
        # A known question may have been answered between the reading of the journal and now.
        self.look(self._run.record)
        async with self._run.waiting():
            await self._held_wait(answered)
            await self._fetch(key)
            if key not in self._replay.answers:
                # An earlier run gave up on it. It is not open any more, so there is only giving up on it again.
                await asyncio.get_running_loop().create_future()

    async def _held_wait(self, answered: asyncio.Future[None]) -> None:
        hold = self._run.hold
        while not answered.done():
            await asyncio.wait({answered}, timeout=None if hold is None else hold.total_seconds())
            if not answered.done() and self._run.may_unwind:
                await self._run.unwind()
            # Still here: another branch is in a step, or the store is away.
            hold = STAY_ON

    async def _fetch(self, key: str) -> None:
        if key not in self._replay.answers:
            entries = await self._run.host.journal(self._run.record.id)
            self._replay.answers.update({e.key: e.value for e in entries if e.kind == "answer"})
