"""Trees at work as tools of a fleet, and what they tell the oracle. The names of the package that they use are here,
and in `processes.py`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import anyio

from mcp_tasks.errors import QuestionTimedOut, TasksError, UnknownTask
from mcp_tasks.model import InputRequest, TaskRequest
from mcp_tasks.model.options import TaskOptions
from mcp_tasks.model.record import Progress
from mcp_tasks.runtime import Ending, Failure, Run, Success
from mcp_tasks.runtime.context import Asking
from mcp_tasks.server.local import LocalStart
from tests.properties.tools.model import at
from tests.properties.tools.tree import (
    GIVES_UP_AFTER,
    Ask,
    Beside,
    Caught,
    Child,
    Gather,
    Group,
    Io,
    Losers,
    MoveOn,
    Node,
    Race,
    Report,
    Seq,
    Sleep,
    Step,
    Twice,
)

if TYPE_CHECKING:
    from tests.simulation.oracle import Visit
    from tests.simulation.processes import Process


def request_of(tool: str, plan: str) -> TaskRequest:
    return TaskRequest(name=tool, arguments={"tree": plan})


class TreeError(Exception):
    """Something in the tree failed, as the tree has it."""


@dataclass(eq=False)
class _Try:
    """One time that the work of a step was begun."""

    life: int
    cancelled: bool = False


class Witness:
    """Sees what the tools of one process do, and tells the oracle of what must not be.

    Attributes:
        visits: When the tool of each task was entered last.
        life: A number that grows each time that all runs of the process are stopped.
    """

    def __init__(self, process: Process, slots: int) -> None:
        self.visits: dict[str, Visit] = {}
        self.life = 1
        self._process = process
        self._oracle = process.world.oracle
        self._slots = slots
        self._tries: dict[tuple[str, str], list[_Try]] = {}
        self._at_work: Counter[str] = Counter()

    def wrong(self, what: str) -> None:
        """Something is not as it must be. A dead process whose coroutines are being closed does not count."""
        if self._process.lives:
            self._oracle.wrong("tool", f"{self._process.name}: {what}")

    def must_live(self, run: Run) -> bool:
        """Whether nothing but the end of its tool may have ended a run."""
        return self._oracle.must_live(self._process, run.record.id, run.attempt)

    def has_answer(self, task: str, question: str) -> bool:
        """Whether an answer to a question was taken."""
        return question in self._oracle.answers_of(task)

    def next_life(self) -> None:
        """What was at work is gone."""
        self.life += 1
        self._at_work.clear()

    def begins(self, task: str, step: str, *, left_behind: bool) -> _Try:
        """The work of a step begins; what a tool left behind when it returned has no slot to work on."""
        visit = self.visits.get(task)
        if visit is not None and not left_behind:
            visit.working += 1
            self._oracle.begins_work(visit, f"step {step}")
        if task in self._oracle.lost:
            self._tries.pop((task, step), None)
        tries = self._tries.setdefault((task, step), [])
        if tries and tries[-1].life == self.life and not tries[-1].cancelled:
            self.wrong(f"step {step} was begun twice in one life")
        if step in self._oracle.steps_of(task):
            self.wrong(f"step {step} was begun although it is recorded")
        tries.append(_Try(self.life))
        self._at_work[task] += not left_behind
        if len(+self._at_work) > self._slots:
            self.wrong(f"{len(self._at_work)} runs work in steps, and there are {self._slots} slots")
        return tries[-1]

    def ends(self, task: str, life: int) -> None:
        if life == self.life:
            self._at_work[task] -= 1
        if (visit := self.visits.get(task)) is not None:
            visit.working -= 1

    def leaves(self, task: str, life: int) -> None:
        if life == self.life:
            self._at_work[task] = 0


class TreeRun:
    """One run of a tree."""

    def __init__(self, run: Run, process: Process, plan: str) -> None:
        self._run = run
        self._task = run.record.id
        self._process = process
        self._plan = plan
        self._witness = process.witness
        self._life = process.witness.life
        self._left: list[asyncio.Task[Any]] = []
        self._returned = False
        self._answers: set[int] = set()

    async def outcome(self, tree: Node, *, joins: bool) -> Ending:
        """Do it all; with `joins`, those left alone by a race are waited for at the end."""
        try:
            value = await self.do(tree, "0")
            if joins:
                await asyncio.gather(*self._left, return_exceptions=True)
            self._returned = True
            return Success({"value": value})
        except (TreeError, ExceptionGroup) as exc:
            self._returned = True
            return Failure({"code": 1, "message": "the tree failed", "data": _said(exc)})
        finally:
            self._witness.leaves(self._task, self._life)

    @contextmanager
    def _at_work(self, what: str) -> Generator[None]:
        """While this is entered, the run must not leave memory."""
        try:
            yield
        finally:
            stopped = not self._returned and not self._run.counts
            if stopped and self._witness.must_live(self._run):
                self._witness.wrong(f"the run left memory while {what} was at work")

    async def do(self, node: Node, path: str) -> Any:
        match node:
            case Child():
                return await self._child(node, path)
            case Report():
                await self._run.report(Progress(progress=float(path.replace(".", "")), message=path))
                return f"reported {path}"
            case Step():
                return await self._step(path, node.seconds, f"done {path}", fails=node.fails)
            case Ask():
                return await self._ask(path, key=f"key {path}" if node.keyed else None, timeout=node.timeout)
            case Sleep():
                await self._run.sleep(timedelta(seconds=node.seconds), name=path)
                return f"slept {path}"
            case Io():
                with self._at_work(path):
                    await asyncio.sleep(node.seconds)
                return f"worked {path}"
            case Twice():
                return await self._twice(node, path)
            case Seq():
                return [await self.do(child, at(path, place)) for place, child in enumerate(node.children)]
            case Gather():
                return await asyncio.gather(*(self.do(each, at(path, place)) for place, each in _children(node)))
            case Group():
                return await self._group(node, path)
            case Race():
                return await self._race(node, path)
            case Beside():
                return await self._beside(node, path)
            case MoveOn():
                return await self._move_on(node, path)
            case Caught():
                try:
                    return await self.do(node.child, at(path, 0))
                except (TreeError, ExceptionGroup) as exc:
                    return {"caught": _said(exc)}

    async def _child(self, node: Child, path: str) -> Any:
        plan = f"{self._plan}/{path}"
        run, runtime = self._run, self._process.runtime
        self._process.world.expect_child(plan, node, run.record.owner)
        # As `tasks.start` does it in a tool.
        request, ttl = request_of(node.tool, plan), timedelta(seconds=node.ttl)
        options = await runtime.policy(request.method, request.name) or TaskOptions()
        child = await LocalStart(request=request, options=options, ttl=ttl).begin(lambda: runtime)
        if not node.waits:
            return f"started {path}"
        try:
            result = await child.wait()
        except UnknownTask:
            raise TreeError(f"child gone {path}") from None
        except TasksError as exc:
            if "unreachable" in str(exc):
                raise
            raise TreeError(f"child failed {path}") from None
        return {"child": result.structured_content["value"]}

    async def _step(self, name: str, seconds: float, value: Any, *, fails: bool = False) -> Any:
        begun: list[_Try] = []

        async def work() -> Any:
            life = self._witness.life
            left_behind = self._returned
            begun.append(self._witness.begins(self._task, name, left_behind=left_behind))
            try:
                with self._at_work(f"step {name}"):
                    await asyncio.sleep(seconds)
            finally:
                if not self._returned:
                    self._witness.ends(self._task, life)
            if fails:
                raise TreeError(f"failed {name}")
            return value

        try:
            return await self._run.step(name, work)
        except asyncio.CancelledError:
            for each in begun:
                each.cancelled = True
            raise

    async def _ask(self, path: str, *, key: str | None = None, timeout: float | None = None) -> str:
        asking = Asking(key=key, timeout=None if timeout is None else timedelta(seconds=timeout))
        try:
            answer = await self._run.ask(InputRequest(method="elicitation/create", params={"message": path}), asking)
        except QuestionTimedOut:
            if self._witness.has_answer(self._task, path):
                self._witness.wrong(f"the question {path} timed out, and its answer had been taken")
            raise TreeError(f"timed out {path}") from None
        if answer["to"] != path:
            self._witness.wrong(f"the question {path} was handed the answer to {answer['to']}")
        if answer["number"] in self._answers:
            self._witness.wrong(f"the answer to {path} was handed over twice in a run")
        self._answers.add(answer["number"])
        return f"answered {path}"

    async def _twice(self, node: Twice, path: str) -> list[str]:
        async def once() -> str:
            if node.asks:
                return await self._ask(path)
            # Told from other sleeps by their length, which is that of no other node.
            await self._run.sleep(timedelta(seconds=4, microseconds=1 + int(path.replace(".", ""))))
            return f"slept {path}"

        return list(await asyncio.gather(once(), once())) if node.together else [await once(), await once()]

    async def _group(self, node: Group, path: str) -> list[Any]:
        values: dict[int, Any] = {}

        async def branch(place: int, child: Node) -> None:
            values[place] = await self.do(child, at(path, place))

        async with anyio.create_task_group() as group:
            for place, child in _children(node):
                group.start_soon(branch, place, child)
        return [values[place] for place, _ in _children(node)]

    async def _race(self, node: Race, path: str) -> list[Any]:
        runners = [asyncio.create_task(self.do(child, at(path, place))) for place, child in _children(node)]
        for runner in runners:
            runner.add_done_callback(_look_at)
        try:
            await asyncio.wait(runners, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._end_losers(runners, node.losers)
            raise
        winner = next(place for place, runner in enumerate(runners) if runner.done())
        await self._end_losers([each for each in runners if each is not runners[winner]], node.losers)
        recorded = await self._step(f"{path} won", 0, winner)
        if recorded != winner:
            self._witness.wrong(f"the race {path} was won by {recorded}, and in a later run by {winner}")
        return [winner, runners[winner].result()]

    async def _end_losers(self, losers: list[asyncio.Task[Any]], how: Losers) -> None:
        if how is Losers.LEFT:
            self._left += losers
            return
        for loser in losers:
            loser.cancel()
        if how is Losers.REAPED:
            await asyncio.gather(*losers, return_exceptions=True)

    async def _beside(self, node: Beside, path: str) -> list[Any]:
        beside = asyncio.create_task(self.do(node.beside, at(path, 0)))
        beside.add_done_callback(_look_at)
        try:
            value = await self.do(node.child, at(path, 1))
            return [await beside, value]
        finally:
            beside.cancel()

    async def _move_on(self, node: MoveOn, path: str) -> Any:
        value = f"moved on {path}"
        with self._at_work(f"the time-out {path}"), anyio.move_on_after(GIVES_UP_AFTER) as scope:
            value = await self.do(node.child, at(path, 0))
        recorded = await self._step(f"{path} given up", 0, scope.cancelled_caught)
        if recorded != scope.cancelled_caught:
            self._witness.wrong(f"that {path} was given up was {recorded}, and in a later run it was not")
        return value


def _children(node: Gather | Group | Race) -> list[tuple[int, Node]]:
    return list(enumerate(node.children))


def _look_at(runner: asyncio.Task[Any]) -> None:
    # The failure of one that lost does not count; asyncio would report it.
    if not runner.cancelled():
        runner.exception()


def _said(exc: Exception) -> Any:
    """An error as the model has it: a text, or for a group the texts of its parts."""
    parts: tuple[Exception, ...] | None = getattr(exc, "exceptions", None)
    return str(exc) if parts is None else [_said(each) for each in parts]


async def run_tool(process: Process, run: Run) -> Ending:
    """The body of every tool."""
    plan = run.request.arguments["tree"]
    oracle = process.world.oracle
    visit = process.witness.visits[run.record.id] = oracle.enters(process, run, plan)
    try:
        ending = await TreeRun(run, process, plan).outcome(oracle.plans[plan].tree, joins=process.world.joins(plan))
    finally:
        visit.left = True
    if isinstance(ending, Success):
        return Success({"content": [], "structuredContent": ending.result})
    return ending
