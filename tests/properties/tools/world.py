"""A world in which tools run: a loop on which hours pass in milliseconds, a store that fails, a process that dies and
is started again, clients that answer, and what must be so when all is over.
"""

from __future__ import annotations

import asyncio
import logging
import selectors
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import count
from typing import Any, TypeVar

from mcp_tasks.engines import LocalEngine
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import JournalEntry, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.json import decode_json
from mcp_tasks.model.record import NOBODY, Outcome
from mcp_tasks.runtime import Ending, Run, Settings, TaskRuntime, ToolPolicy
from mcp_tasks.runtime.context import current_run
from mcp_tasks.runtime.launch import LaunchSpec
from mcp_tasks.runtime.replay import GIVEN_UP, tasks_by_value
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import Hint, LocalNotifier, WorkLimits
from mcp_tasks.stores.codec import to_micros
from tests.properties.tools.body import TreeRun, Witness
from tests.properties.tools.model import allows, may_fail
from tests.properties.tools.tree import Node

# The loop. Its time is a number: where another loop would sleep until the next timer, this one moves the number there.
# Its asyncio tasks are numbered, because sets of them are walked in the order of their hashes, which are addresses.

T = TypeVar("T")

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


TURN = 0.0005
"""Seconds that a turn of the loop takes: where something turns until a time has come, it does come."""


LAST = 20_000.0
"""Seconds after which a simulation that has not come to its end never will."""


class Stuck(Exception):
    """The simulation will not come to its end: nothing is scheduled, or something turns in a circle."""


class _TimeMachine(selectors.DefaultSelector):
    """Moves the time instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and (timeout is None or self.now > LAST):
            raise Stuck
        self.now += timeout or TURN
        return ready


class _NumberedTask(asyncio.Task[Any]):
    """An asyncio task whose hash is its number."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop with a time of its own.

    Attributes:
        mishaps: What asyncio would have reported: exceptions that were never retrieved, tasks that were dropped.
    """

    def __init__(self) -> None:
        self._machine = _TimeMachine()
        super().__init__(self._machine)
        self.mishaps: list[str] = []
        self._numbers = count(1)
        self.set_task_factory(self._new_task)
        self.set_exception_handler(self._note)

    def time(self) -> float:
        return self._machine.now

    def now(self) -> datetime:
        """The time as people tell it."""
        return EPOCH + timedelta(seconds=self.time())

    def _new_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> _NumberedTask:
        return _NumberedTask(next(self._numbers), coro, loop=loop, **options)

    def _note(self, loop: asyncio.AbstractEventLoop, trouble: Mapping[str, Any]) -> None:
        self.mishaps.append(f"{trouble.get('message')}: {trouble.get('exception')!r}")


def simulate(main: Callable[[SimulatedLoop], Coroutine[Any, Any, T]]) -> T:
    """What `main` returns, on a loop of its own; what asyncio reports meanwhile is a failure."""
    loop = SimulatedLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(main(loop))
    assert not loop.mishaps, loop.mishaps
    return result


# The store


@dataclass(frozen=True)
class Faults:
    """What goes wrong in a store; writes and readings of journals are counted from 0.

    Attributes:
        pauses: Seconds that writes take, by turns: half of it before the commit, half of it after.
        refused: Writes that are refused.
        refused_readings: Readings of a journal that are refused.
        crashes: Writes in whose middle the process dies, and whether they are committed all the same.
        deaf: Whether hints are lost.
    """

    pauses: tuple[float, ...] = (0.0,)
    refused: frozenset[int] = frozenset()
    refused_readings: frozenset[int] = frozenset()
    crashes: Mapping[int, bool] = field(default_factory=dict[int, bool])
    deaf: bool = False


class _DeafNotifier(LocalNotifier):
    async def publish(self, hint: Hint, *, origin: object = None) -> None:
        pass


class FaultyStore(MemoryStore):
    """A memory store with faults.

    Attributes:
        crashed: Set when the process was to die; nothing can be read or written until `repair`.
        history: Every entry of every journal with the time at which it was written.
    """

    def __init__(self, faults: Faults, now: Callable[[], datetime]) -> None:
        super().__init__()
        self.crashed = asyncio.Event()
        self.history: list[tuple[datetime, str, JournalEntry]] = []
        self._faults = faults
        self._now = now
        self._saves = 0
        self._readings = 0
        self._hints = _DeafNotifier() if faults.deaf else LocalNotifier()

    def repair(self) -> None:
        """The process is started again."""
        self.crashed.clear()

    async def get(self, task_id: str) -> TaskRecord | None:
        self._check_up()
        await self._pause(0)
        return await super().get(task_id)

    async def save(
        self,
        record: TaskRecord,
        *,
        expected: int,
        entries: Sequence[JournalEntry] = (),
        outcome: Outcome | None = None,
        limits: WorkLimits | None = None,
    ) -> TaskRecord:
        self._check_up()
        number, self._saves = self._saves, self._saves + 1
        pause = self._faults.pauses[number % len(self._faults.pauses)]
        await self._pause(pause / 2)
        self._check_up()
        if number in self._faults.refused:
            raise StoreUnavailable("the disk is full")
        if self._faults.crashes.get(number, True):
            record = await super().save(record, expected=expected, entries=entries, outcome=outcome, limits=limits)
            self.history += [(self._now(), record.id, entry) for entry in entries]
        if number in self._faults.crashes:
            self.crashed.set()
        self._check_up()
        await self._pause(pause / 2)
        return record

    async def journal(self, task_id: str, *, after: int = 0) -> Sequence[JournalEntry]:
        self._check_up()
        number, self._readings = self._readings, self._readings + 1
        await self._pause(0)
        if number in self._faults.refused_readings:
            raise StoreUnavailable("the disk is full")
        return await super().journal(task_id, after=after)

    def notifier(self) -> LocalNotifier:
        return self._hints

    def _check_up(self) -> None:
        if self.crashed.is_set():
            raise StoreUnavailable("the process is dead")

    async def _pause(self, seconds: float) -> None:
        if self._faults.pauses != (0.0,):
            await asyncio.sleep(seconds)


# What must be so when all is over


def check_outcome(tree: Node, record: TaskRecord, outcome: Outcome | None) -> None:
    """The task has ended, as some schedule of its tool allows."""
    ended_with = None if outcome is None else decode_json(outcome.body)
    match record.status:
        case TaskStatus.COMPLETED if ended_with is not None:
            value = ended_with["value"]
            assert allows(tree, "0", value), f"no schedule of the tool gives {value}"
        case TaskStatus.FAILED if ended_with is not None:
            assert "data" in ended_with, f"the task failed: {ended_with['message']}"
            assert may_fail(tree, "0", ended_with["data"]), f"no schedule of the tool fails so: {ended_with}"
        case _:
            raise AssertionError(f"the task waits for ever: {record}")


def check_questions(record: TaskRecord, ends: Sequence[JournalEntry]) -> None:
    """No question is open that the tool is known not to wait for any more."""
    closed = {entry.key for entry in ends} & record.inputs.outstanding.keys()
    assert not closed, f"the tool has done with {closed}, and they are still open"


def check_all_is_given_back(runtime: TaskRuntime) -> None:
    """Nothing of the runs is left: no asyncio task, no slot, no seat."""
    left = {run.record.id: tasks for run, tasks in tasks_by_value(current_run).items()}
    assert not left, f"the run has ended, and this is left of it: {left}"
    assert isinstance(runtime.engine, LocalEngine)
    assert runtime.engine.is_idle, "a slot was not given back"
    room, seats = runtime.parking.room, 0
    while room.enter(standing=False):
        seats += 1
    assert seats == runtime.settings.max_waiting_runs, f"{seats} seats are left of {runtime.settings.max_waiting_runs}"


def check_history(history: Sequence[tuple[datetime, str, JournalEntry]]) -> None:
    """Everything was recorded once, and no time was over before it was."""
    seen: set[tuple[str, str, str | None, str]] = set()
    ends: dict[tuple[str, str], int] = {}
    for when, task_id, entry in history:
        value: Any = entry.value
        if entry.kind == "done" and value["how"] == GIVEN_UP:
            # Anything may be given up, and as often as the tool tries.
            continue
        what = (task_id, entry.kind, value["kind"] if entry.kind == "done" else None, entry.key)
        assert what not in seen, f"{entry} was recorded twice"
        seen.add(what)
        if entry.kind in ("ask", "timer"):
            ends[task_id, entry.key] = value.get("deadline") or value.get("until")
        if entry.kind == "done" and value["how"] != "answer":
            assert to_micros(when) >= ends[task_id, entry.key], f"{entry} was told before the time was over"


@contextmanager
def errors_logged() -> Generator[list[str]]:
    """The errors that the runtime logs meanwhile. It logs one where something happened that should not."""
    errors: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            errors.append(self.format(record))

    logger, listener = logging.getLogger("mcp_tasks"), Listener(logging.ERROR)
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(listener)
    try:
        yield errors
    finally:
        logger.removeHandler(listener)
        logger.propagate = propagate


# The world

LONG_ENOUGH = 1_000.0
"""Seconds after which a task whose questions are all answered waits for ever."""

LOOKS_IN = 5.0
"""Seconds between two looks of the client that answers everything in the end."""


class What(Enum):
    """What happens to a world."""

    ANSWER = "an answer, given to the process that runs the task"
    ANSWER_ELSEWHERE = "an answer, given to another process"
    WRONG = "answers to questions that are not open"
    KILL = "the process dies"
    DRAIN = "the process stops in order"


@dataclass(frozen=True)
class Act:
    """Something that happens after so many seconds; `which` says to which open question."""

    after: float
    what: What
    which: int = 0


@dataclass(frozen=True)
class Plan:
    """One example.

    Attributes:
        tools: One task each.
        park_after: Seconds that a waiting run stays in memory.
        slots: Runs that work at a time.
        seats: Runs that wait in memory at a time.
        joins: Whether a tool waits for those that it left alone in a race.
    """

    tools: tuple[Node, ...]
    acts: tuple[Act, ...] = ()
    faults: Faults = field(default_factory=Faults)
    park_after: float = 0.0
    slots: int = 2
    seats: int = 2
    joins: bool = True


class _Process(TaskRuntime):
    """A process; one that fails to start stops what it had begun."""

    def __init__(self, witness: Witness, **options: Any) -> None:
        super().__init__(**options)
        self._witness = witness

    async def stop(self, hurry: asyncio.Event | None = None) -> None:
        self._witness.ending = True
        await super().stop(hurry)


class World:
    """A plan as it happens."""

    def __init__(self, plan: Plan, loop: SimulatedLoop) -> None:
        self._plan = plan
        self._loop = loop
        self.store = FaultyStore(plan.faults, loop.now)
        self.witness = Witness(plan.slots, recorded_steps=self._recorded_steps, answered=self._answered)
        self._tasks: dict[str, Node] = {}
        self._answers = 0
        self._runtime = self._new_runtime()
        self._elsewhere = self._new_runtime()

    async def live(self) -> None:
        """Let it all happen, and see whether it is as promised."""
        with errors_logged() as logged:
            await self._runtime.start()
            for tool in self._plan.tools:
                await self._launch(tool)
            for act in self._plan.acts:
                await self._pass(act.after)
                await self._do(act)
            await self._come_to_an_end()
            # Branches that a tool left behind end as well.
            await self._pass(10.0)
            check_all_is_given_back(self._runtime)
            await self._runtime.stop()
        check_history(self.store.history)
        assert not self.witness.wrongs, self.witness.wrongs
        assert not logged, logged

    # The process

    def _new_runtime(self) -> TaskRuntime:
        async def policy(method: str, tool: str) -> ToolPolicy:
            return ToolPolicy(rerun=True, park_after=timedelta(seconds=self._plan.park_after), max_lost_runs=1_000)

        def describe(exc: Exception) -> dict[str, Any]:
            return {"code": -1, "message": f"{type(exc).__name__}: {exc}"}

        return _Process(
            self.witness,
            store=self.store,
            engine=LocalEngine(self._plan.slots),
            body=self._body,
            policy=policy,
            describe=describe,
            clock=self._loop.now,
            # In the order of creation, so that the same plan is the same story.
            new_id=lambda: f"task-{len(self._tasks)}",
            monotonic=self._loop.time,
            uptime=self._loop.time,
            settings=Settings(
                lease_duration=timedelta(minutes=1),
                sweep_interval=timedelta(seconds=2),
                max_waiting_runs=self._plan.seats,
            ),
        )

    async def _body(self, run: Run) -> Ending:
        return await TreeRun(run, self.witness).outcome(self._tasks[run.record.id], joins=self._plan.joins)

    async def _launch(self, tool: Node) -> None:
        request = TaskRequest(name="tool", arguments={})
        record = await self._runtime.launch(LaunchSpec(request=request))
        self._tasks[record.id] = tool

    async def _pass(self, seconds: float) -> None:
        """Let time pass. A process that dies meanwhile is started again at once."""
        until = self._loop.time() + seconds
        while (left := until - self._loop.time()) > 0 or self.store.crashed.is_set():
            try:
                async with asyncio.timeout(left):
                    await self.store.crashed.wait()
            except TimeoutError:
                return
            await self._kill()

    async def _kill(self) -> None:
        self.witness.ending = True
        # A task that is just being claimed does not begin either.
        self._runtime.lease.is_valid = False
        await self._runtime.abandon()
        await self._next_life()

    async def _drain(self) -> None:
        self.witness.ending = True
        await self._runtime.stop()
        await self._next_life()

    async def _next_life(self) -> None:
        # Branches that a tool left behind outside of its run go with the process.
        left = [each for tasks in tasks_by_value(current_run).values() for each in tasks]
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self.witness.next_life()
        self.store.repair()
        while True:
            self._runtime = self._new_runtime()
            try:
                await self._runtime.start()
            except StoreUnavailable:
                # All that it had begun was stopped in order.
                self.witness.next_life()
                self.store.repair()
            else:
                return

    # Its clients

    async def _do(self, act: Act) -> None:
        match act.what:
            case What.KILL:
                await self._kill()
            case What.DRAIN:
                await self._drain()
            case What.ANSWER:
                await self._answer(self._runtime, act.which)
            case What.ANSWER_ELSEWHERE:
                await self._answer(self._elsewhere, act.which)
            case What.WRONG:
                await self._answer_wrongly()

    async def _answer(self, runtime: TaskRuntime, which: int) -> None:
        asked = [(record, key) for record in await self._records() for key in sorted(record.inputs.outstanding)]
        if asked:
            record, key = asked[which % len(asked)]
            await self._give(runtime, record, [key])

    async def _answer_wrongly(self) -> None:
        for record in await self._records():
            closed = record.inputs.used - record.inputs.outstanding.keys()
            await self._give(self._runtime, record, ["never asked", *sorted(closed)])

    async def _give(self, runtime: TaskRuntime, record: TaskRecord, keys: Collection[str]) -> None:
        responses: dict[str, Any] = {}
        for key in keys:
            self._answers += 1
            asked = record.inputs.outstanding.get(key)
            responses[key] = {"to": asked and asked.params["message"], "number": self._answers}
        try:
            await runtime.answer(record, responses, actor=NOBODY)
        except StoreUnavailable:
            # The client will try again, or never does.
            await self._pass(0)

    async def _records(self) -> list[TaskRecord]:
        await self._pass(0)
        found = [await super(FaultyStore, self.store).get(task_id) for task_id in self._tasks]
        return [record for record in found if record is not None]

    # The end

    async def _come_to_an_end(self) -> None:
        """Answer everything until all tasks have ended."""
        for _ in range(int(LONG_ENOUGH / LOOKS_IN)):
            records = await self._records()
            for record in records:
                check_questions(record, self._entries(record.id, "done"))
            if all(record.is_final for record in records):
                break
            for record in records:
                await self._give(self._runtime, record, list(record.inputs.outstanding))
            await self._pass(LOOKS_IN)
        for record in await self._records():
            check_outcome(self._tasks[record.id], record, await self.store.outcome(record.id))

    def _answered(self, task_id: str) -> Collection[str]:
        return {entry.value["to"] for entry in self._entries(task_id, "answer")}

    def _recorded_steps(self, task_id: str) -> Collection[str]:
        return {entry.key for entry in self._entries(task_id, "step")}

    def _entries(self, task_id: str, kind: str) -> list[JournalEntry]:
        return [entry for _, task, entry in self.store.history if task == task_id and entry.kind == kind]
