"""Everything that a tool waits for: answers to its questions, timers, steps and other tasks.

All of them go the same way. The tool comes to something, which is looked up in the journal by its identity. If an
earlier run recorded how it ended, the tool is handed that (`Journal.result`); if an earlier run gave up on it, this one
does so again. Otherwise it begins after everything recorded has been handed over (`Journal.caught_up`), its beginning
is recorded, the run waits for it and may leave memory meanwhile (`Waits.waiting`), and its end is recorded when the
tool is handed it (`Journal.record_end`).

Questions asked at the same moment (an `asyncio.gather`) are put together, so that a client which sees the task ask sees
everything it asks. They are written by a helper of the run, not by the branch that asks: a branch that is cancelled in
the middle of the write does not take the other questions down with it; its question is withdrawn once it is written.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from math import inf
from typing import TYPE_CHECKING, Any, Final

import anyio

from mcp_tasks._utils import short_id
from mcp_tasks.errors import (
    AnswerRefused,
    LimitExceeded,
    QuestionTimedOut,
    RunStopped,
    TooLarge,
    UsageError,
    ValueNotStorable,
)
from mcp_tasks.model.json import JsonObject, JsonValue, encode_json, is_large
from mcp_tasks.model.machine import InputRequested, InputWithdrawn, RunParked, StepRecorded
from mcp_tasks.model.record import InputRequest, JournalEntry, TaskRecord
from mcp_tasks.quiet import get_logger, what
from mcp_tasks.runtime.context import Asking
from mcp_tasks.runtime.journal import (
    Ask,
    ResultId,
    Tags,
    ask_entry,
    ask_identity,
    done_entry,
    short,
    steps_at_work,
)
from mcp_tasks.runtime.steps import ONCE, Retry, StepValue, attempt, keep_error, restore_error
from mcp_tasks.runtime.suspend import RunEvent, Waiter, to_the_end
from mcp_tasks.stores.codec import to_micros

if TYPE_CHECKING:
    from mcp_tasks.runtime.run import Run

logger: Final = get_logger(__name__)

ANSWERED: Final = "answer"
TIMED_OUT: Final = "timeout"
"""How a question ends for the tool."""

ANNOUNCED_WITHIN: Final = 60.0
"""Seconds after which a task that asks is announced, or never will be: its call is answered as soon as it asks."""

LARGEST_QUESTION: Final = 256 * 1024
"""Bytes of JSON. A question is part of the record while it is open, and is read with every look at the task."""

IDENTITY_SHOWN: Final = 60
"""Characters of an identity in the name of a step: enough to know it by, and a URI may be of any length."""

_FOREVER: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(eq=False, slots=True)
class _Question:
    """One question that a branch of this run asks.

    Attributes:
        tags: Where in the tool it is asked.
        result: Its end: under its key, or before it has one, under its identity.
        key: Its key for the life of the task, from the moment it is found or put.
        ends_at: When the wait for its answer is over: by its own timeout, or else the task fails.
        put: Done when it is written, by this run or an earlier one.
    """

    request: InputRequest
    asking: Asking
    tags: Tags
    result: ResultId
    gives_up: bool = False
    key: str = ""
    asked_at: datetime | None = None
    ends_at: datetime | None = None
    answered: Waiter = field(default_factory=Waiter)
    put: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def put_as(self, ask: Ask, limit: timedelta | None) -> None:
        """It has a key now."""
        self.key, self.request, self.asked_at = ask.key, ask.request, ask.asked_at
        self.result = ResultId("question", ask.key)
        self.ends_at = ask.request.deadline
        if self.ends_at is None and limit is not None and ask.asked_at is not None:
            self.ends_at = _later(ask.asked_at, limit)


class Waits:
    """What one run waits for, and whether it may leave memory meanwhile."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._journal = run.journal
        self._suspends_for: RunParked | None = None
        # Questions
        self._unwritten: list[_Question] = []
        self._writing = False
        self._open: dict[str, _Question] = {}
        self._expects_announcement = False
        self._asking = 0
        # How long the task waits for an answer: as its tool says, or its call, or the server; the least of these.
        limits = (run.policy.max_wait, run.request.max_wait, run.runtime.limits.question_wait)
        self._limit = min((limit for limit in limits if limit is not None), default=None)
        # Steps
        self._steps: set[str] = set()
        # Work that was done when the tool gave up on its step: done is done, should it come again.
        self._done: dict[str, tuple[dict[str, Any], Any]] = {}
        # Other tasks
        self._met: Counter[str] = Counter()
        self._started: set[str] = set()

    # Leaving memory

    @asynccontextmanager
    async def waiting(
        self, *, keys: frozenset[str] = frozenset(), wake_at: datetime | None = None
    ) -> AsyncGenerator[None]:
        """While this is entered, and nothing else of the tool is executing, the run may leave memory.

        Only in the tool's own asyncio task, and only with no deadline around it: what else waits for this one, and with
        which time-out, cannot be seen from a branch.
        """
        run = self._run
        own = asyncio.current_task() is run.branches.own
        may_suspend = own and run.policy.rerun and anyio.current_effective_deadline() == inf
        async with run.slot_use.waiting(suspendable=may_suspend):
            if may_suspend:
                self._suspends_for = RunParked(attempt=run.attempt, keys=keys, wake_at=wake_at)
                stay = run.policy.park_after.total_seconds()
                if not keys and wake_at is not None:
                    # A sleep is known to be long or short; an answer may come any time.
                    stay = 0.0 if (wake_at - run.runtime.now()).total_seconds() > stay else inf
                run.runtime.suspender.add(run, stay)
            try:
                yield
            finally:
                if may_suspend:
                    # Before it stands in line for a slot: what it waited for is there.
                    self.stay()

    def stay(self) -> None:
        """Do not leave: there is something to do, or the run has ended."""
        self._suspends_for = None
        self._run.runtime.suspender.remove(self._run)

    @property
    def may_suspend(self) -> bool:
        """Whether the tool's own asyncio task waits for something that would bring the run back, and nothing else of it
        is being done. A task that is not announced yet stays: if that does not change, it is to be ended."""
        run = self._run
        is_idle = not run.branches.in_steps and not self._writing
        return self._suspends_for is not None and is_idle and run.record.announced

    async def suspend(self) -> None:
        """Leave memory; what was journalled brings the run back."""
        run, suspends_for = self._run, self._suspends_for
        if suspends_for is None or not run.take(RunEvent.SUSPENDS):
            return
        try:
            write = run.writer.new_write(*run.reported(), suspends_for, role="worker")
            written = await run.writer.attempt(write)
        except Exception as exc:
            logger.info("task %s waits on in memory: %s", short_id(run.record.id), what(exc))
            run.take(RunEvent.STAYS)
            return
        run.stop()
        if not written:
            return
        if run.record.is_queued(run.runtime.now()):
            # What it waited for came while it was being suspended.
            await run.runtime.submit(run.record)
        else:
            await run.runtime.submit_later(run.record)

    async def _give_up_again(self) -> None:
        """Wait to be cancelled by the tool, as in an earlier run."""
        async with self._run.slot_use.waiting(suspendable=False, to_give_up=True):
            await asyncio.get_running_loop().create_future()

    # Timers

    async def sleep(self, duration: timedelta | None, until: datetime | None, name: str | None) -> None:
        """Wait for a time that is set once in the life of the task."""
        run, journal = self._run, self._journal
        await run.ensure_owned()
        key, end = journal.recorded.find_timer(_timer_identity(duration, until, name))
        result = ResultId("timer", key)
        journal.met(result)
        if journal.recorded.gives_up(result):
            await self._give_up_again()
        async with journal.giving_up(result):
            if journal.has(result):
                await journal.result(result)
                return
            tags = journal.tags
            if end is None:
                end = until if until is not None else _later(run.runtime.now(), duration or timedelta(0))
                journal.require_room()
                await journal.caught_up(str(result))
                entry = JournalEntry(kind="timer", key=key, value={"until": to_micros(end), **tags})
                await run.writer.record(StepRecorded(attempt=run.attempt), entries=[entry])
            async with self.waiting(wake_at=end):
                await run.runtime.alarms.wait(Waiter(), end)
            await journal.caught_up(f"the end of {result}")
            await journal.record_end(done_entry(result, "over", tags))

    # Steps

    async def step(
        self,
        name: str,
        call: Callable[[], Any],
        *,
        function: Callable[..., Any] | None = None,
        retry: Retry = ONCE,
        after: Callable[[], Awaitable[None]] | None = None,
    ) -> Any:
        """The value of the step, from the journal or by doing it now; `after` this was waited for, without the slot.

        `function` says what the value is, if that is not `call`.
        """
        run, journal, function = self._run, self._journal, function or call
        kept_as = StepValue(name, function)
        if name in self._steps:
            # One of them would get the other's value.
            raise UsageError(f"step {name!r} is there twice in one run; give every step its own name")
        self._steps.add(name)
        result, tags = ResultId("step", name), journal.tags
        try:
            if journal.recorded.gives_up(result):
                await self._give_up_again()
            async with journal.giving_up(result):
                if journal.has(result):
                    stored = await journal.result(result)
                    if "error" in stored:
                        raise restore_error(name, stored)
                    return kept_as.restore(stored)
                journal.require_room()
                if name not in journal.recorded.reopened:
                    await journal.caught_up(str(result))
                if after is not None:
                    await run.ensure_owned()
                    # As if it could be suspended, so also where too many wait: the other task may need the very slot
                    # that is given back.
                    async with run.slot_use.waiting(suspendable=True):
                        await after()
                # A step counts as running until it is recorded.
                async with run.slot_use.stepping():
                    await run.ensure_owned()
                    work = partial(self._inside, name, call)
                    if not inspect.iscoroutinefunction(function):
                        work = partial(self._in_thread, name, kept_as, work)
                    return await self._do_and_record(result, tags, kept_as, retry, work)
        except asyncio.CancelledError:
            # A cancellation is not an outcome of the step: its name is free again.
            self._steps.discard(name)
            raise

    async def _do_and_record(
        self, result: ResultId, tags: Tags, kept_as: StepValue, retry: Retry, call: Callable[[], Any]
    ) -> Any:
        async def record(stored: dict[str, Any]) -> None:
            await self._journal.record_end(JournalEntry(kind="step", key=result.key, value={**stored, **tags}))

        async def record_failure(exc: Exception) -> Exception:
            # The tool gets what a later run will get.
            stored = keep_error(exc)
            await record(stored)
            return restore_error(result.key, stored)

        if result.key in self._done:
            stored, value = self._done[result.key]
        else:
            try:
                stored, value = kept_as.keep(await attempt(retry, call))
            except Exception as exc:
                raise await record_failure(exc) from exc
        try:
            self._done[result.key] = stored, value
            await record(stored)
        except ValueNotStorable as exc:
            failure = UsageError(f"step {result.key!r} gave a value that the store cannot keep: {exc}")
            raise await record_failure(failure) from exc
        del self._done[result.key]
        return value

    async def _in_thread(self, name: str, kept_as: StepValue, call: Callable[[], Any]) -> Any:
        """What a sync function gives. A thread cannot be cancelled, so it is waited for, whatever happens meanwhile."""
        done, cancelled = await to_the_end(call())
        if cancelled is not None:
            if not done.cancelled() and done.exception() is None:
                with suppress(UsageError):
                    self._done[name] = kept_as.keep(done.result())
            raise cancelled
        return done.result()

    async def _inside(self, name: str, call: Callable[[], Any]) -> Any:
        # Before each attempt, as the process may have been paused since the last.
        await self._run.ensure_owned()
        token = steps_at_work.set((*steps_at_work.get(), name))
        try:
            return await call()
        finally:
            steps_at_work.reset(token)

    # Other tasks

    async def start_child(
        self, identity: str, launch: Callable[[str], Awaitable[str]], *, key: str | None = None
    ) -> str:
        """The id of the child with this identity, launched now unless an earlier run did.

        Args:
            identity: What is started, and with what. The next one that equals it is another child.
            launch: Starts it under the idempotency key that it is given, and returns its id.
            key: The author's own name for the child: all that is started under it in this task is that one child.
        """
        what = identity if key is None else f"key {key}"
        name = self._step_name("start", what, what[:IDENTITY_SHOWN])
        number = self._met[what] - 1 if key is None else 0
        # A tool that starts over has children of its own: those of before are of another version of it.
        starts_over = self._journal.recorded.starts_over
        start = f"/{starts_over}" if starts_over else ""
        under = f"child/{self._run.record.id}/{_digest(what)}/{number}{start}"

        async def once() -> str:
            return await launch(under)

        task_id: str = await self.step(name, once)
        self._started.add(task_id)
        return task_id

    def has_started(self, task_id: str) -> bool:
        """Whether this run, or an earlier one of its task, started this task."""
        return task_id in self._started

    async def wait_for_task(self, task_id: str, end: Callable[[], Awaitable[JsonObject]]) -> JsonObject:
        """How another task ended, as `end` says once it has; in every later run the same.

        While it waits, the run occupies no slot: the other task may need just this one.
        """
        ended: dict[str, Any] = {}

        async def wait() -> None:
            ended.update(await end())

        async def kept() -> dict[str, Any]:
            return ended

        name = self._step_name("end of task", task_id, task_id[:12] + "…")
        return await self.step(name, kept, after=wait)

    def _step_name(self, what: str, identity: str, shown: str) -> str:
        """The name of a step that is there once for each time that something equal is done."""
        self._met[identity] += 1
        return f"{what} {shown} ({_digest(identity)}, #{self._met[identity]})"

    # Questions

    async def ask(self, requests: Sequence[InputRequest], asking: Asking) -> list[JsonValue]:
        """Put questions together, unless an earlier run did, and wait for all their answers."""
        run = self._run
        for request in requests:
            # Refused in each run alike: it counts for nothing, and nothing is written.
            size = len(encode_json(request.params)) if is_large(request.params) else 0
            if size > LARGEST_QUESTION:
                raise TooLarge("question", run.record.name, size, LARGEST_QUESTION)
        await run.ensure_owned()
        # By how many the tool waits for, which is the same in each run.
        most, asking_now = run.runtime.limits.open_questions, self._asking + len(requests)
        if most is not None and asking_now > most:
            raise LimitExceeded(
                "open_questions",
                f"{run.record.name!r} asks {asking_now} questions at a time, and at most {most} may be open "
                "(Limits.open_questions). Ask for more with one form, or one after the other",
            )
        asked = [self._look_up(request, asking) for request in requests]
        self._asking += len(asked)
        try:
            if any(each.gives_up for each in asked):
                await self._give_up_again()
            return await self._answers_to(asked)
        finally:
            self._asking -= len(asked)
            for each in asked:
                self._open.pop(each.key, None)

    def look(self, record: TaskRecord) -> None:
        """See whether an answer has come."""
        for key, each in self._open.items():
            if key in record.inputs.used and key not in record.inputs.outstanding:
                each.answered.set()

    def unanswered(self) -> dict[str, InputRequest]:
        """The questions that are put, and whose answers this run has not read."""
        answers = self._journal.recorded.answers
        return {key: each.request for key, each in self._open.items() if each.put.done() and key not in answers}

    def _look_up(self, request: InputRequest, asking: Asking) -> _Question:
        recorded = self._journal.recorded
        identity = ask_identity(request, asking.key)
        each = _Question(request, asking, self._journal.tags, recorded.come_to_ask(identity))
        if recorded.gives_up(each.result):
            # An earlier run gave up on it before it was put.
            each.gives_up = True
        elif (known := recorded.find_ask(identity)) is not None:
            each.put_as(known, self._limit)
            each.put.set_result(None)
            each.gives_up = recorded.gives_up(each.result)
            self._open[each.key] = each
            self._journal.met(each.result)
        return each

    async def _answers_to(self, asked: Sequence[_Question]) -> list[JsonValue]:
        try:
            await self._put([each for each in asked if not each.key])
            if fresh := [each for each in asked if not self._journal.has(each.result)]:
                await self._wait_for_answers(fresh)
                await self._hand_over(fresh)
            outcomes = [await self._outcome(each) for each in asked]
        except asyncio.CancelledError:
            # The tool gave up on them; those of a run that was stopped wait for the next run.
            self._unwritten = [each for each in self._unwritten if each not in asked]
            if self._run.counts:
                self._journal.record_first(self._withdraw(asked))
            raise
        # Only now: the end of each of them is handed over, also if the first is an error.
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return outcomes

    async def _put(self, new: Sequence[_Question]) -> None:
        if not new:
            return
        self._journal.require_room()
        await self._journal.caught_up(", ".join(f"the question {_shown(each.request)}" for each in new))
        self._unwritten.extend(new)
        if not self._writing:
            self._writing = True
            self._run.help(self._write_questions())
        with self._run.branches.waiting():
            for each in new:
                # Waited for and not awaited: a branch that is cancelled must not cancel what the helper will set.
                await asyncio.wait({each.put})
                each.put.result()

    async def _write_questions(self) -> None:
        """Write the questions that are to be put, as long as there are any."""
        try:
            # Let the other questions of a gather join.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            while self._unwritten:
                asked, self._unwritten = self._unwritten, []
                await self._write_together(asked)
        finally:
            self._writing = False

    async def _write_together(self, asked: Sequence[_Question]) -> None:
        run, now = self._run, self._run.runtime.now()
        entries: list[JournalEntry] = []
        for each in asked:
            if not each.key:
                # Open from here on: an answer may come at once.
                timeout, request = each.asking.timeout, each.request
                request = request if timeout is None else replace(request, deadline=_later(now, timeout))
                key = self._journal.recorded.new_key(each.asking.key, request.method.partition("/")[0])
                each.put_as(Ask(key, request, now), self._limit)
            self._open[each.key] = each
            ask = Ask(each.key, each.request, each.asked_at)
            entries.append(ask_entry(ask, each.asking.key, each.tags))
        requested = InputRequested(attempt=run.attempt, requests={each.key: each.request for each in asked})
        try:
            await run.writer.record(requested, entries=entries)
        except asyncio.CancelledError:
            # The run is over, and so are the branches that wait for this.
            for each in asked:
                each.put.cancel()
            raise
        except Exception as exc:
            for each in asked:
                self._open.pop(each.key, None)
            if len(asked) > 1:
                # A value that cannot be stored: only the question that has it fails.
                for each in asked:
                    await self._write_together([each])
            else:
                asked[0].put.set_exception(exc)
            return
        for each in asked:
            each.put.set_result(None)

    async def _withdraw(self, asked: Sequence[_Question]) -> None:
        """Take back questions that the tool gave up on."""
        if being_written := {each.put for each in asked if each.key}:
            await asyncio.wait(being_written)
        run = self._run
        keys = run.record.inputs.outstanding.keys() & {each.key for each in asked}
        withdrawn = [InputWithdrawn(attempt=run.attempt, keys=keys)] if keys else []
        await self._journal.record_given_up([each.result for each in asked], asked[0].tags, *withdrawn)

    async def _wait_for_answers(self, asked: Sequence[_Question]) -> None:
        # A known question may have been answered between the reading of the journal and now.
        self.look(self._run.record)
        if any(each.answered.is_set for each in asked):
            await self._read_answers()
        waited_for = [each for each in asked if not self._has_answer(each)]
        if not waited_for:
            return
        if not self._run.record.announced and not self._expects_announcement:
            self._expects_announcement = True
            self._run.help(self._end_if_never_announced())
        keys = frozenset(each.key for each in waited_for)
        wake_at = min((each.ends_at for each in waited_for if each.ends_at is not None), default=None)
        async with self.waiting(keys=keys, wake_at=wake_at):
            for each in waited_for:
                await self._wait_for_answer(each)

    async def _end_if_never_announced(self) -> None:
        """End the task if its call went away before it was answered: its client cannot come back to answer."""
        await asyncio.sleep(ANNOUNCED_WITHIN)
        if not self._run.record.announced:
            await self._run.fail_with(RunStopped("unannounced", self._run.record.name))

    async def _wait_for_answer(self, each: _Question) -> None:
        """Wait until the question is answered, or until its time is over."""
        run = self._run
        while True:
            await run.runtime.alarms.wait(each.answered, each.ends_at)
            # Also when its time is over: an answer that was taken before that counts, whether this process knew of it
            # or not.
            if await self._find_answer(each):
                return
            if self._limit is not None and each.request.deadline is None and not each.answered.is_set:
                await run.fail_with(RunStopped("max_wait", run.record.name, limit=self._limit))
                await run.abort_branch()
            if not each.answered.is_set:
                return
            # The record said that it was answered, and the journal has no new answer. After a failover other entries
            # may have the numbers of those that were read.
            self._journal.recorded.read_up_to = 0
            if await self._find_answer(each):
                return
            # A failover lost both. The question is open again. A new waiter first: it may be answered again meanwhile.
            each.answered = Waiter()
            await run.writer.make_up()

    async def _find_answer(self, each: _Question) -> bool:
        # A run that is suspended at this moment would be started again at once, and be suspended again.
        suspends_for, self._suspends_for = self._suspends_for, None
        try:
            await self._read_answers()
        finally:
            self._suspends_for = suspends_for
        return self._has_answer(each)

    def _has_answer(self, each: _Question) -> bool:
        return each.key in self._journal.recorded.answers

    async def _read_answers(self) -> None:
        # Only what is new: a journal may be long, and what was read of it once does not change.
        recorded = self._journal.recorded
        recorded.add_news(await self._run.writer.read(after=recorded.read_up_to))

    async def _hand_over(self, asked: Sequence[_Question]) -> None:
        """Record that the tool learns how these ended, at the same moment in which it does."""
        await self._journal.caught_up(f"the answer to {_shown(asked[0].request)}")
        overdue = {each.key for each in asked if not self._has_answer(each)}
        entries = [done_entry(each.result, TIMED_OUT if each.key in overdue else ANSWERED, each.tags) for each in asked]
        withdrawn = [InputWithdrawn(attempt=self._run.attempt, keys=overdue)] if overdue else []
        # An answer may have been taken between the last look and the write that withdraws; none is after that.
        then = self._read_answers if overdue else None
        await self._journal.record_end(*entries, events=withdrawn, then=then)

    async def _outcome(self, each: _Question) -> JsonValue:
        """The answer, or the exception that the tool gets in its place."""
        if self._journal.has(each.result):
            await self._journal.result(each.result)
        # Not by how its end was recorded: a client whose answer was taken was told so.
        if not self._has_answer(each):
            return QuestionTimedOut.after(each.asking.timeout)
        answer = self._journal.recorded.answers[each.key]
        return AnswerRefused(**answer.value) if answer.kind == "refusal" else answer.value


def _timer_identity(duration: timedelta | None, until: datetime | None, name: str | None) -> str:
    if name is not None:
        return f"name:{name}"
    return f"until:{until.isoformat()}" if until is not None else f"sleep:{duration}"


def _later(now: datetime, duration: timedelta) -> datetime:
    """The instant that is `duration` from `now`, or the last one that a datetime can express."""
    try:
        return now + duration
    except OverflowError:
        return _FOREVER


def _shown(request: InputRequest) -> str:
    return short(request.params.get("message", request.method))


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
