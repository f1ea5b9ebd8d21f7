"""The questions a run has put, and their answers as they arrive.

Questions asked at the same moment (an `asyncio.gather`) are put together, so that a client which sees the task ask sees
everything it asks. They are written by a scribe of the run, not by the branch that asks: a branch that is cancelled in
the middle of the write takes nothing down with it; its question is withdrawn once it is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from mcp_tasks.errors import (
    AnswerRefused,
    LimitExceeded,
    NeverAnnounced,
    QuestionTimedOut,
    QuestionTooLarge,
    WaitedTooLong,
)
from mcp_tasks.model.json import JsonValue, encode_json, is_large
from mcp_tasks.model.machine import InputRequested, InputWithdrawn, StepRecorded
from mcp_tasks.model.record import InputRequest, TaskRecord
from mcp_tasks.runtime.replay import (
    Ask,
    Place,
    Refusal,
    Replay,
    ResultId,
    ask_entry,
    ask_identity,
    done_entry,
    short,
)
from mcp_tasks.runtime.suspend import Bell, later

if TYPE_CHECKING:
    from mcp_tasks.runtime.run import Run

ANSWERED, TIMED_OUT = "answer", "timeout"
"""How a question ends for the tool."""

ANNOUNCED_WITHIN = 60.0
"""Seconds after which a task that asks is announced, or never will be: its call is answered as soon as it asks."""

LARGEST_QUESTION = 256 * 1024
"""Bytes of JSON. A question is part of the record while it is open, and is read with every look at the task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asking:
    """What a tool says of a question beside the question itself.

    Attributes:
        key: What makes it the same question in the next run; without it, what it asks does.
        timeout: How long to wait for an answer, restarts included.
    """

    key: str | None = None
    timeout: timedelta | None = None


@dataclass(eq=False, slots=True)
class _Open:
    """One question that a branch of this run asks."""

    request: InputRequest
    asking: Asking
    place: Place
    ask: Ask | None = None
    result: ResultId | None = None
    gives_up: bool = False
    bell: Bell = field(default_factory=Bell)
    put: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Done when it is written, by this run or an earlier one."""

    @property
    def key(self) -> str:
        """Its key; it has one from the moment it is looked up or put."""
        return "" if self.ask is None else self.ask.key


class Questions:
    """What one run asked, and whom it waits for."""

    def __init__(self, run: Run, replay: Replay) -> None:
        self._run = run
        self._replay = replay
        self._unwritten: list[_Open] = []
        self._writing = False
        self._open: dict[str, _Open] = {}
        self._expects_announcement = False
        self._waited_for = 0

    @property
    def is_writing(self) -> bool:
        """Whether something about questions is not written yet."""
        return self._writing

    async def ask(self, request: InputRequest, asking: Asking | None = None) -> JsonValue:
        """Put the question, unless an earlier run did, and wait for its answer."""
        return (await self.ask_all([request], asking or Asking()))[0]

    async def ask_all(self, requests: Sequence[InputRequest], asking: Asking | None = None) -> list[JsonValue]:
        """Put several questions together, and wait for all their answers."""
        for request in requests:
            self._check_size(request)
        await self._run.make_sure()
        self._check_number(len(requests))
        asked = [self._look_up(request, asking or Asking()) for request in requests]
        self._waited_for += len(asked)
        try:
            if any(each.gives_up for each in asked):
                await self._run.give_up_again()
            return await self._answers_to(asked)
        finally:
            self._waited_for -= len(asked)
            for each in asked:
                if each.ask is not None:
                    self._open.pop(each.ask.key, None)

    def _check_size(self, request: InputRequest) -> None:
        """Refuse a question that is too large, in each run alike: it counts for nothing, and nothing is written."""
        size = len(encode_json(request.params)) if is_large(request.params) else 0
        if size > LARGEST_QUESTION:
            raise QuestionTooLarge(self._run.record.name, size, LARGEST_QUESTION)

    def _check_number(self, more: int) -> None:
        """Refuse questions beyond what may be open. By what the tool waits for, which is the same in each run."""
        most = self._run.limits.open_questions
        if most is not None and self._waited_for + more > most:
            raise LimitExceeded(
                "open_questions",
                f"{self._run.record.name!r} asks {self._waited_for + more} questions at a time, and at most {most} may "
                "be open (Limits.open_questions). Ask for more with one form, or one after the other",
            )

    async def _answers_to(self, asked: Sequence[_Open]) -> list[JsonValue]:
        try:
            await self._put([each for each in asked if each.ask is None])
            fresh = [each for each in asked if not self._is_recorded(each)]
            if fresh:
                await self._wait(fresh)
                await self._hand_over(fresh)
            outcomes = [await self._outcome(each) for each in asked]
        except asyncio.CancelledError:
            self._give_up(asked)
            raise
        # Only now: the end of each of them is handed over, also if the first is an error.
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return outcomes

    def look(self, record: TaskRecord) -> None:
        """See whether an answer has come."""
        for key, each in self._open.items():
            if key in record.inputs.used and key not in record.inputs.outstanding:
                each.bell.ring()

    def unanswered(self) -> dict[str, InputRequest]:
        """The questions that are put, and whose answers this run has not read."""
        asks = (each.ask for each in self._open.values() if each.put.done())
        return {ask.key: ask.request for ask in asks if ask is not None and ask.key not in self._replay.answers}

    def _look_up(self, request: InputRequest, asking: Asking) -> _Open:
        identity = ask_identity(request, asking.key)
        unput = self._replay.come_to_ask(identity)
        each = _Open(request=request, asking=asking, place=self._run.place, result=unput)
        if self._replay.gives_up(unput):
            # An earlier run gave up on it before it was put.
            each.gives_up = True
        elif (known := self._replay.find_ask(identity)) is not None:
            each.ask, each.result = known, ResultId("question", known.key)
            each.put.set_result(None)
            each.gives_up = self._replay.gives_up(each.result)
            self._open[known.key] = each
            self._run.deliveries.met(each.result)
        return each

    def _is_recorded(self, each: _Open) -> bool:
        return each.result is not None and self._run.deliveries.has(each.result)

    # Putting and withdrawing

    async def _put(self, new: Sequence[_Open]) -> None:
        if not new:
            return
        self._run.recording.require_room()
        what = ", ".join(f"the question {_short(each.request)}" for each in new)
        await self._run.deliveries.caught_up(what)
        self._unwritten.extend(new)
        self._write_soon()
        with self._run.branches.waiting():
            for each in new:
                # Waited for and not awaited: a branch that is cancelled must not cancel what the scribe will set.
                await asyncio.wait({each.put})
                each.put.result()

    def _write_soon(self) -> None:
        if not self._writing:
            self._writing = True
            self._run.help(self._write())

    async def _write(self) -> None:
        """Write what is to be put, as long as there is any."""
        try:
            # Let the other questions of a gather join.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            while self._unwritten:
                asks, self._unwritten = self._unwritten, []
                await self._write_asks(asks)
        finally:
            self._writing = False

    async def _write_asks(self, asks: Sequence[_Open]) -> None:
        run = self._run
        now = run.now()
        for each in asks:
            self._name(each, now)
        try:
            await run.recording.record(
                InputRequested(
                    attempt=run.attempt,
                    requests={each.key: each.ask.request for each in asks if each.ask is not None},
                ),
                entries=[ask_entry(each.ask, each.asking.key, each.place) for each in asks if each.ask is not None],
            )
        except asyncio.CancelledError:
            # The run is over, and so is whoever waits for this.
            for each in asks:
                each.put.cancel()
            raise
        except Exception as exc:
            for each in asks:
                self._open.pop(each.key, None)
            if len(asks) > 1:
                # A value that cannot be stored: whoever brought it fails alone.
                for each in asks:
                    await self._write_asks([each])
            else:
                asks[0].put.set_exception(exc)
            return
        for each in asks:
            each.put.set_result(None)

    def _name(self, each: _Open, now: datetime) -> None:
        """Give a new question its key for the life of the task, and open it: an answer may come at once."""
        if each.ask is None:
            kind = each.request.method.partition("/")[0]
            wanted = each.asking.key or f"{kind}-{self._replay.number_ask()}"
            timeout = each.asking.timeout
            request = each.request if timeout is None else replace(each.request, deadline=later(now, timeout))
            each.ask = Ask(key=self._replay.new_key(wanted), request=request, asked_at=now, identity="")
            each.result = ResultId("question", each.ask.key)
        self._open[each.key] = each

    def _give_up(self, asked: Sequence[_Open]) -> None:
        """Take back questions that the tool gave up on; those of a run that was stopped wait for the next run."""
        self._unwritten = [each for each in self._unwritten if each not in asked]
        if self._run.life.counts:
            self._run.recording.record_first(self._take_back(asked))

    async def _take_back(self, asked: Sequence[_Open]) -> None:
        being_written = {each.put for each in asked if each.ask is not None}
        if being_written:
            await asyncio.wait(being_written)
        results = [each.result for each in asked if each.result is not None]
        keys = self._run.record.inputs.outstanding.keys() & {each.key for each in asked}
        withdrawn = [InputWithdrawn(attempt=self._run.attempt, keys=keys)] if keys else []
        await self._run.recording.record_given_up(results, *withdrawn, place=asked[0].place)

    # Waiting

    async def _wait(self, asked: Sequence[_Open]) -> None:
        # A known question may have been answered between the reading of the journal and now.
        self.look(self._run.record)
        if any(each.bell.rung for each in asked):
            await self._fetch()
        waited_for = [each for each in asked if each.key not in self._replay.answers]
        if not waited_for:
            return
        keys = frozenset(each.key for each in waited_for)
        self._expect_announcement()
        async with self._run.leaving.while_waiting(keys=keys, wake_at=self._wake_at(waited_for)):
            for each in waited_for:
                await self._wait_for(each)

    def _expect_announcement(self) -> None:
        """End the task if its call went away before it was answered: whoever made it cannot come back to answer."""
        if not self._run.record.announced and not self._expects_announcement:
            self._expects_announcement = True
            self._run.help(self._end_if_never_announced())

    async def _end_if_never_announced(self) -> None:
        await asyncio.sleep(ANNOUNCED_WITHIN)
        if not self._run.record.announced:
            await self._run.judge(NeverAnnounced(self._run.record.name))

    async def _wait_for(self, each: _Open) -> None:
        """Wait until the question is answered, or until its time is over."""
        while True:
            await self._run.alarms.wait(each.bell, self._wake_at([each]))
            # Also when its time is over: an answer that was taken before that counts, whether this process knew of it
            # or not. A run that is parked at this moment would be started again at once, and be parked again.
            with self._run.leaving.held():
                await self._fetch()
            if each.key in self._replay.answers:
                return
            limit, gives_up_at = self._limit, self._gives_up_at(each)
            if limit is not None and gives_up_at is not None and gives_up_at <= self._run.now():
                await self._run.judge(WaitedTooLong(self._run.record.name, limit))
                await self._run.go_no_further()
            if not each.bell.rung:
                return
            # The record said that it was answered, and the journal has no new answer. After a failover other entries
            # may have the numbers of those that were read.
            with self._run.leaving.held():
                await self._fetch_again()
            if each.key in self._replay.answers:
                return
            # A failover lost both. The question is open again. A new bell first: it may be answered again meanwhile.
            each.bell = Bell()
            await self._run.recording.make_up()

    def _wake_at(self, asked: Sequence[_Open]) -> datetime | None:
        times = [each.ask.request.deadline for each in asked if each.ask is not None]
        return min((at for at in (*times, *map(self._gives_up_at, asked)) if at is not None), default=None)

    def _gives_up_at(self, each: _Open) -> datetime | None:
        """When the task has waited too long for this answer. A question with a timeout of its own ends only by that."""
        limit, ask = self._limit, each.ask
        if limit is None or ask is None or ask.asked_at is None or ask.request.deadline is not None:
            return None
        return later(ask.asked_at, limit)

    @property
    def _limit(self) -> timedelta | None:
        """How long the task waits for an answer: as its tool says, or its call, or the server, whichever is least."""
        limits = (self._run.policy.max_wait, self._run.request.max_wait, self._run.limits.question_wait)
        return min((limit for limit in limits if limit is not None), default=None)

    async def _fetch(self) -> None:
        # Only what is new: a journal may be long, and what was read of it once does not change.
        self._replay.add_news(await self._run.recording.journal(after=self._replay.read_up_to))

    async def _fetch_again(self) -> None:
        self._replay.read_up_to = 0
        await self._fetch()

    # Handing over

    async def _hand_over(self, asked: Sequence[_Open]) -> None:
        """Record that the tool learns how these ended, in the same breath in which it does."""
        run = self._run
        await run.deliveries.caught_up(f"the answer to {_short(asked[0].request)}")
        overdue = {each.key for each in asked if each.key not in self._replay.answers}
        entries = [
            done_entry(each.result, TIMED_OUT if each.key in overdue else ANSWERED, each.place)
            for each in asked
            if each.result is not None
        ]
        withdrawn = [InputWithdrawn(attempt=run.attempt, keys=overdue)] if overdue else []
        # An answer may have been taken between the last look and the write that withdraws; none is after that.
        then = self._fetch if overdue else None
        await run.recording.record_in_turn(StepRecorded(attempt=run.attempt), *withdrawn, entries=entries, then=then)

    async def _outcome(self, each: _Open) -> JsonValue:
        """The answer, or the exception that the tool gets in its place."""
        if each.result is not None and self._is_recorded(each):
            await self._run.deliveries.recorded(each.result)
        # Not by what the record of its end says: whoever gave an answer that was taken was told so.
        if each.key not in self._replay.answers:
            return QuestionTimedOut.after(each.asking.timeout)
        answer = self._replay.answers[each.key]
        return AnswerRefused(**answer.error) if isinstance(answer, Refusal) else answer


def _short(request: InputRequest) -> str:
    return short(request.params.get("message", request.method))
