"""Writing down what one run does.

Everything a run writes carries its attempt number. If the task meanwhile went to another run, or ended, the machine
refuses or ignores it, and the run is stopped. So a run never has to ask whether it still may.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from weakref import proxy

import anyio

from mcp_tasks.core.actor import Actor
from mcp_tasks.core.events import Event, RunReleased, StepRecorded
from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.record import Outcome, TaskRecord, WriteId
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import (
    LimitReached,
    StaleRun,
    StoreUnavailable,
    UnknownTask,
    ValueNotStorable,
    VersionConflict,
)
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime.early import TURNS, Unwritten
from mcp_tasks.runtime.late_writes import Write
from mcp_tasks.runtime.life import State
from mcp_tasks.runtime.patience import pause_after, until_available
from mcp_tasks.runtime.replay import GIVEN_UP, Place, Replay, ResultId, done_entry
from mcp_tasks.runtime.uncancelled import uncancelled
from mcp_tasks.stores.repeats import new_write_id
from mcp_tasks.stores.shares import WorkLimits

if TYPE_CHECKING:
    from mcp_tasks.runtime.host import Host
    from mcp_tasks.runtime.run import Run

logger: Final = get_logger(__name__)


KEPT_FOR: Final = 60.0
"""Seconds for which a run keeps what it wrote to its journal, to write it again if a failover loses it: far more than a
replica lags behind."""


LOST_WITHIN: Final = 20.0
"""Seconds after a write in which a run that waits compares it with the store, and not only its version."""


class Recording:
    """What one run writes, and reads of its journal."""

    def __init__(self, run: Run, host: Host, replay: Replay, unwritten: Unwritten | None = None) -> None:
        # Not kept alive by its own parts: a run is freed when it ends, and not once the garbage collector comes by.
        self._run: Run = proxy(run)
        self._host = host
        self._replay = replay
        self._unwritten = unwritten
        self._writing = asyncio.Lock()
        self._last: WriteId | None = None
        self._unsettled: Write | None = None
        self._kept: deque[tuple[int, float, Sequence[JournalEntry]]] = deque()
        self._kept_after = 0
        self._wrote_at = -LOST_WITHIN
        self._write_soon: asyncio.Task[bool] | None = None

    @property
    def is_written(self) -> bool:
        """Whether the task itself is in the store."""
        return self._unwritten is None

    def write_task_soon(self, run: Run, turns: int = TURNS) -> None:
        """Have the task written, if it is not, when its tool had some turns of the event loop to end before that.

        The run is kept alive until then: if the task cannot be written, it is stopped."""
        if self._unwritten is None or self._unwritten.is_begun:
            return
        if turns:
            asyncio.get_running_loop().call_soon(self.write_task_soon, run, turns - 1)
        else:
            # No helper of the run: those are cancelled when it is over.
            self._write_soon = asyncio.get_running_loop().create_task(_write_task_of(run), context=run.outside())

    async def write_task(self) -> bool:
        """Return when the task is in the store; False if it never will be."""
        return self._unwritten is None or await self._write_task(self._unwritten) is not None

    async def end(self) -> None:
        """The run is over. A task that is on its way to the store then is there with no run, and is given to the next;
        one that nobody has begun to write is left to whoever wanted it.

        Without a lease nothing is given: what is ours is given up when there is one again, or by others.
        """
        if self._unwritten is None:
            return
        self._unwritten.give_up()
        if not await self.write_task() or self._run.record.is_final or not self._host.lease.is_valid:
            return
        if await self.write_leaving(RunReleased(attempt=self._run.attempt)):
            await self._host.submit(self._run.record)

    async def record(
        self, *events: Event, entries: Sequence[JournalEntry] = (), outcome: Outcome | None = None
    ) -> None:
        """Write what the tool did, however long the store takes to be there again.

        The tool never sees a half of it: it is written to the end even if the branch is cancelled meanwhile. If the
        tool may not say such things any more, it goes no further."""
        await self._finish(self._write_whatever_happens(self._by_tool(events, entries, outcome)))

    async def record_in_turn(
        self,
        *events: Event,
        entries: Sequence[JournalEntry] = (),
        then: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """The same for what the tool is handed now: one thing at a time. What it still takes to hand it over is done
        `then`, before anything else is recorded.

        A branch that the tool cancels while it stands in line ends at once, and is handed nothing. If it waited for its
        turn, those in front of it could win a race that they lose in the next run, in which nobody stands in line."""
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        writing = self._write_in_turn(self._by_tool(events, entries), begun, then)
        turn = asyncio.get_running_loop().create_task(writing, context=self._run.outside())
        try:
            await asyncio.wait({begun})
        except asyncio.CancelledError:
            if self._run.life.counts and not begun.done():
                turn.cancel()
                raise
            # What a stopped run did is written all the same: its task may still be its own.
            with suppress(Exception):
                await uncancelled(turn)
            raise
        await self._finish(turn)

    async def write_patiently(
        self, *events: Event, outcome: Outcome | None = None, limits: WorkLimits | None = None
    ) -> bool:
        """Write how the run ended, waits or goes on, however long the store takes to be there again. False, and the run
        is stopped, if its task is not its own any more.

        Raises:
            LimitReached: There is no place within the limits. Nothing was written.
        """
        return await self._write_patiently(self._by_tool(events, outcome=outcome, limits=limits))

    async def write(self, *events: Event) -> bool:
        """Write what the tool said, once. False, and the run is stopped, if its task is not its own any more."""
        return await self._write(self._by_tool(events))

    async def write_leaving(self, *events: Event, outcome: Outcome | None = None) -> bool:
        """The same for what the process does with the run: park it, or give it up."""
        return await self._write(Write(events=events, actor=Actor("worker", self._host.worker), outcome=outcome))

    @asynccontextmanager
    async def giving_up(self, result: ResultId) -> AsyncGenerator[None]:
        """If the tool itself cancels what is done while this is entered, that is recorded: it will give up again.

        Otherwise the next run would go on where this one went another way.
        """
        try:
            yield
        except asyncio.CancelledError:
            self.record_first(self.record_given_up([result], place=self._run.place))
            raise

    def require_room(self) -> None:
        """See that something new may begin: it ends as an entry of the journal.

        Raises:
            LimitExceeded: The journal has as many entries as it may have.
        """
        self._replay.require_room(self._host.limits.journal_entries)

    def record_first(self, work: Coroutine[Any, Any, None]) -> None:
        """Record something before anything new begins. Nobody waits for it now: a cancellation is not held up."""
        self._run.deliveries.begin_after(self._run.help(work))

    async def record_given_up(self, results: Sequence[ResultId], *events: Event, place: Place) -> None:
        """Record what the tool did not wait for. What ends because the run is stopped is not given up."""
        if results and self._run.life.counts:
            entries = [done_entry(result, GIVEN_UP, place) for result in results]
            await self._write_patiently(self._by_tool((StepRecorded(attempt=self._run.attempt), *events), entries))

    async def journal(self, *, after: int) -> Sequence[JournalEntry]:
        """What the task's journal has beyond `after`, as soon as the store gives it."""
        task_id = self._run.record.id
        try:
            return await until_available(lambda: self._host.store.journal(task_id, after=after), self._run)
        except StoreUnavailable:
            if self._run.life.counts:
                raise
            # The run has been stopped, for example while a write was under way. The tool is not told of the outage.
            await self._run.go_no_further()

    def _by_tool(
        self,
        events: Sequence[Event],
        entries: Sequence[JournalEntry] = (),
        outcome: Outcome | None = None,
        limits: WorkLimits | None = None,
    ) -> Write:
        actor = Actor("run", self._host.worker)
        return Write(events=events, actor=actor, entries=entries, outcome=outcome, limits=limits)

    async def _finish(self, writing: Coroutine[Any, Any, bool] | asyncio.Task[bool]) -> None:
        if not await uncancelled(writing, context=self._run.outside()):
            await self._run.go_no_further()

    async def _write_in_turn(
        self, write: Write, begun: asyncio.Future[None], then: Callable[[], Awaitable[None]] | None
    ) -> bool:
        async with self._run.deliveries.turn():
            begun.set_result(None)
            written = await self._write_whatever_happens(write)
            if written and then is not None:
                await then()
            return written

    async def _write_whatever_happens(self, write: Write) -> bool:
        # Kept from here on, as an attempt may hang: if the process loses touch with the store, what was done is done,
        # and if the task is still ours when the store is back, it need not be done again.
        late, late_then = self._host.late_writes, False
        late.add(self._run.record, write)
        try:
            written = await self._write_patiently(write)
            late_then = not written and not self._run.record.is_final and not self._host.lease.is_valid
        finally:
            if not late_then:
                late.settled(write)
        return written

    async def _write_patiently(self, write: Write) -> bool:
        failures = 0
        while True:
            try:
                return await self._write(write, repeats=True)
            except StoreUnavailable as exc:
                logger.debug("task %s… cannot be written yet: %s", self._run.record.id[:12], exc)
            is_judged = self._run.life.state is State.JUDGED
            if not self._run.life.counts and not is_judged:
                return False
            failures += 1
            # A run that is stopped tries once more, at once: a process that stops waits for less than a pause. One that
            # is judged is over already, and its verdict is still to be written.
            with anyio.move_on_after(pause_after(failures)):
                await (anyio.sleep_forever() if is_judged else self._run.life.over.wait())

    async def _write(self, write: Write, *, repeats: bool = False) -> bool:
        """One attempt to write it; with `repeats`, another follows if the store is not available.

        Nothing overtakes a write that will be repeated: it is written first, or this one fails as well. So the number
        of the run's last write, in the record, says of all before it that they were made.
        """
        async with self._writing:
            if self._unwritten is not None:
                task = await self._write_task(self._unwritten, write if write.is_ending else None)
                if task is None:
                    return False
                if write.is_ending and task.is_final:
                    return True
            if (earlier := self._unsettled) is not None and earlier is not write:
                try:
                    await self._make(earlier)
                except (LimitReached, ValueNotStorable):
                    # Its own caller hears of that, with the next attempt.
                    earlier.id = None
            self._unsettled = None
            try:
                return await self._make(write)
            except StoreUnavailable:
                self._unsettled = write if repeats else None
                raise

    async def _make(self, write: Write) -> bool:
        if write.made is not None:
            return write.made
        if write.id is None:
            write.id = self._last = self._next_id()
        try:
            record = await write.to(self._host.changes, self._run.record, self._restore)
        except (StaleRun, UnknownTask):
            self._run.stop_at_once()
            write.made = False
        else:
            # A change that lost against another's write has read it; what it says is news to the questions.
            self._run.reconcile(record)
            self._replay.length += len(write.entries)
            # A task that has ended passes over all that comes after its end.
            write.made = not record.is_final or record.has(write.id)
            if not write.made and self._run.life.counts:
                # The run has read as many versions of the task, from before a failover, and took no note of this one.
                self._run.stop()
            self._wrote_at = self._host.monotonic()
            self._keep(write)
        return write.made

    @property
    def may_be_lost(self) -> bool:
        """Whether the run only waits, and wrote so lately that a failover may have lost it.

        If another has written since, the version alone does not tell.
        """
        return self._run.rest.waits > 0 and self._host.monotonic() < self._wrote_at + LOST_WITHIN

    async def make_up(self) -> None:
        """See whether the store has an older record than this run read or wrote, and if so, write again what was lost.

        A failover to a replica that lags behind loses what it was not sent, although it was acknowledged.
        """
        async with self._writing:
            known = self._run.record
            try:
                stored = await self._host.changes.reload(self._run.record.id)
                if is_older(stored, known):
                    await self._restore(stored)
            except VersionConflict:
                # Another writes it just now: the next look tells.
                return
            except (StaleRun, UnknownTask):
                self._run.stop()

    async def _restore(self, stored: TaskRecord) -> TaskRecord:
        """Write again what the store lost: the record, answers that were read, and the entries of the last minute.

        Raises:
            StaleRun: The task as it is stored has ended, or was given to another run.
        """
        run, known = self._run, self._run.record
        is_claimed = stored.worker == self._host.worker and stored.attempt == run.attempt
        was_before = stored.worker is None and stored.attempt < run.attempt
        if stored.is_final or not (is_claimed or was_before):
            raise StaleRun(known.id, stored.status, "writing again", "the store went back, and it is not ours now")
        if was_before:
            # The first heartbeat may be gone with the claim, and a worker without one is dead.
            await self._host.lease.renew()
        writer = next((each.writer for each in known.writes if each.number), None)
        made = next((each.number for each in stored.writes if each.writer == writer), 0)
        entries = [entry for number, _, kept in self._kept if number > made for entry in kept]
        journal = await self._host.store.journal(known.id)
        has = {entry.key for entry in journal if entry.kind in ("answer", "refusal")}
        entries = [*(entry for entry in self._replay.answer_entries() if entry.key not in has), *entries]
        asked = {**known.inputs.outstanding, **run.unanswered()}
        asked = {key: request for key, request in asked.items() if key not in has}
        lost = known.but(
            version=known.version + 1,
            status=TaskStatus.INPUT_REQUIRED if asked else TaskStatus.WORKING,
            inputs=replace(known.inputs, outstanding=asked),
        ).written(new_write_id())
        restored = await self._host.changes.restore(lost, expected=stored.version, entries=entries)
        # Entries have other numbers now.
        self._replay.read_up_to = 0
        run.reconcile(restored)
        if made < self._kept_after:
            # More is gone than is known here. A tool that may run again starts from what is left; another one ends.
            run.help(self._leave_to_another())
        return restored

    async def _leave_to_another(self) -> None:
        run = self._run
        await run.interrupt()
        if run.record.is_queued(run.now()):
            await uncancelled(self._host.submit(run.record), context=run.outside())

    def _keep(self, write: Write) -> None:
        """Keep what was written for as long as a store may lose it in a failover."""
        now = self._host.monotonic()
        while self._kept and self._kept[0][1] < now:
            self._kept_after = self._kept.popleft()[0]
        if write.entries and write.id is not None:
            self._kept.append((write.id.number, now + KEPT_FOR, write.entries))

    def _next_id(self) -> WriteId:
        last = self._last or next((each for each in self._run.record.writes if each.number), None)
        return new_write_id(run=True) if last is None else WriteId(last.writer, last.number + 1)

    async def _write_task(self, unwritten: Unwritten, ending: Write | None = None) -> TaskRecord | None:
        """The task, once it is written: with its ending, if nobody was first without; None if it never will be."""
        record = await unwritten.write(ending, context=self._run.outside())
        if record is None:
            self._run.stop()
            return None
        self._unwritten = None
        self._run.reconcile(record)
        return record


def is_older(stored: TaskRecord, known: TaskRecord) -> bool:
    """Whether the store, which was read after `known` was written there, has lost that write."""
    if stored.version != known.version:
        return stored.version < known.version
    return bool(known.writes) and not stored.has(known.writes[0])


async def _write_task_of(run: Run) -> bool:
    return await run.recording.write_task()
