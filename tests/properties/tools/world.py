"""A world in which tools run: a process that dies and is started again, and clients that answer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any

from mcp_tasks.engines import LocalEngine
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import JournalEntry, TaskRecord, TaskRequest
from mcp_tasks.model.record import NOBODY
from mcp_tasks.runtime import Ending, Run, Settings, TaskRuntime, ToolPolicy
from mcp_tasks.runtime.context import current_run
from mcp_tasks.runtime.replay import tasks_by_value
from tests.properties.tools.body import TreeRun, Witness
from tests.properties.tools.checks import (
    check_all_is_given_back,
    check_history,
    check_outcome,
    check_questions,
    errors_logged,
)
from tests.properties.tools.simulation import SimulatedLoop
from tests.properties.tools.store import Faults, FaultyStore
from tests.properties.tools.tree import Node

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
        record = await self._runtime.launch(request, owner=None, retention=None)
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
