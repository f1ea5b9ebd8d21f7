"""A world: machines, a store, a broker, and clients, and a plan of what happens to them.

First everything happens that the plan has. Then the world is healthy, and all tasks have to come to their ends.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from importlib import import_module
from itertools import count
from typing import Any, cast
from unittest.mock import patch

from mcp_tasks.errors import KeySpent, StoreUnavailable, TasksError, UnknownTask
from mcp_tasks.model import TaskRecord
from mcp_tasks.model.record import NOBODY
from mcp_tasks.runtime import TaskOptions, TaskRuntime
from mcp_tasks.runtime.launch import LaunchSpec
from mcp_tasks.runtime.store_clock import StoreClock
from tests.properties.tools.tree import Child
from tests.simulation.clockwork import Clockwork, SimulatedLoop, Stuck
from tests.simulation.engine import Broker
from tests.simulation.oracle import Oracle, ToolPlan
from tests.simulation.plans import Happening, Mishap, Plan, TaskPlan
from tests.simulation.processes import Machine, Process
from tests.simulation.store import Reach, StoreMachine, Strike
from tests.simulation.tools import request_of

LONG_ENOUGH = 450.0
"""Seconds without a change of any open task after which they wait forever, where all is healthy and all questions are
answered: longer than any sleep, and than the pauses with which sweeps submit a task again (`Idleness`)."""

LEFT_BRANCHES_END = 15.0
"""Seconds in which branches that tools left behind end."""

LAST = 10_000.0
"""Seconds after which a world that goes on is one that turns in a circle."""

LOOKS_IN = 5.0
"""Seconds between two looks of those who answer all questions in the end."""

ANSWER_COMES_WITHIN = 30.0
"""Seconds that a client waits for the answer to a request."""

_RATES = {"create": 3.0, "save": 1.0}
"""How much more often than others a call is struck that changes a task."""


@dataclass
class Tally:
    worlds: int = 0
    tasks: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter[str])

    def add(self, world: World) -> None:
        self.worlds += 1
        self.tasks += len(world.oracle.tasks)
        self.seconds += world.clockwork.now
        self.faults.update(world.faults)

    def merge(self, other: Tally) -> None:
        self.worlds += other.worlds
        self.tasks += other.tasks
        self.seconds += other.seconds
        self.faults.update(other.faults)


class Weather:
    """What becomes of single calls, messages and hints."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"weather {world.plan.seed}")
        self._faults = tuple(world.plan.call_faults)
        self._weights = tuple(world.plan.call_faults.values())

    def chance(self, probability: float) -> bool:
        """Whether something happens."""
        return self._rng.random() < probability

    def latency(self) -> float:
        return self._rng.expovariate(1.0) * self._world.plan.latency

    def strike(self, process: Process, verb: str) -> Strike | None:
        world = self._world
        if not self._faults or world.is_healthy:
            return None
        rate = world.plan.fault_rate * _RATES.get(verb, 0.1)
        if self._rng.random() >= rate:
            return None
        fault = self._rng.choices(self._faults, self._weights)[0]
        seconds = self._rng.choice((0.1, 1.0, 3.0, 8.0, world.plan.lease))
        world.faults[fault.value] += 1
        return Strike(fault, seconds, self._rng.choice((1, 1, 2, 3, 5, 8)))

    def loses_hint(self, process: Process) -> bool:
        return process.is_deaf or process.is_cut or self.chance(self._world.plan.hint_losses)

    def copies(self) -> int:
        if not self._world.plan.carrier_faults or self._world.is_healthy:
            return 1
        copies = self._rng.choices((0, 1, 2), (1, 8, 1))[0]
        if copies != 1:
            self._world.faults["message lost" if copies == 0 else "message repeated"] += 1
        return copies

    def carrying(self) -> float:
        if self._world.plan.carrier_faults and not self._world.is_healthy and self.chance(0.1):
            self._world.faults["message delayed"] += 1
            return self._rng.choice((0.5, 3.0, 20.0))
        return self.latency()


class World:
    """A plan as it happens."""

    def __init__(self, plan: Plan, *, tracing: bool = False) -> None:
        self.plan = plan
        self.tracing = tracing
        self.clockwork = Clockwork()
        self.faults: Counter[str] = Counter()
        self.processes: list[Process] = []
        self.graveyard: list[Process] = []
        self.policies: dict[str, TaskOptions] | None = None
        self.is_healthy = False
        self.oracle = Oracle(self)
        self.weather = Weather(self)
        self.store = StoreMachine(self, keeps_log=plan.fails_over)
        self.broker = Broker(self)
        self._ids = 0
        self._clients = SimulatedLoop(self.clockwork)
        self._rng = random.Random(f"world {plan.seed}")
        self._answers = 0
        self._following = 0
        self.machines: list[Machine] = []

    def live(self) -> tuple[str, str] | None:
        """Let it all happen; the first violation, if there is one."""
        if self.plan.wire:
            # Before the seed: some modules of the SDK draw a number when they are imported.
            import_module("tests.simulation.wire")
        # The client library and runs that wait for a place draw their pauses from here.
        random.seed(self.plan.seed)
        with _errors_to(self), _names_of(self):
            try:
                self._live()
            except Stuck:
                self.oracle.wrong("waits forever", "nothing is scheduled any more")
            finally:
                self._bury()
        return self.oracle.violation

    def _live(self) -> None:
        plan, clockwork = self.plan, self.clockwork
        self.machines = [Machine(self, number, machine) for number, machine in enumerate(plan.machines)]
        for number, task in enumerate(plan.tasks):
            if plan.wire:
                # On the wire, the tool says for how long a result is kept, and these callers have no names.
                task = replace(task, ttl=3600.0, owner=None)
            self.oracle.plans[f"t{number}"] = ToolPlan(task.tree, task.tool, task.ttl, task.owner)
            self._following += 1
            self._clients.post(self._begin_client, f"t{number}", task)
        for happening in plan.happenings:
            clockwork.after(happening.at, self._happen, happening)
        clockwork.after(plan.healthy_from, self._heal)
        clockwork.run(lambda: self.is_healthy or self._is_over())
        self._answer_everything()
        clockwork.run(lambda: self._all_ended() or self._is_stuck() or self._is_over())
        if self.oracle.violation is None:
            self.oracle.check_end(self._following)
        if self.oracle.violation is None:
            self._stop_all()
        for process in (*self.processes, *self.graveyard):
            for mishap in process.loop.mishaps:
                self.oracle.wrong("asyncio", f"{process.name}: {mishap}")

    def _is_over(self) -> bool:
        return self.oracle.violation is not None

    def _all_ended(self) -> bool:
        return not self._following and not self.oracle.open

    def _is_stuck(self) -> bool:
        return self.clockwork.now > self.oracle.changed + LONG_ENOUGH or self.clockwork.now > LAST

    def _stop_all(self) -> None:
        # Branches that tools left behind end as well.
        self._pass(LEFT_BRANCHES_END)
        # Only a process that has started is told to stop: one may still be cut off, or stopping to make way for the
        # next of its machine. One that never starts is found below, as it does not stop either.
        until = self.clockwork.now + LONG_ENOUGH
        self.clockwork.run(
            lambda: (
                all(machine.process.is_serving for machine in self.machines)
                or self.clockwork.now > until
                or self._is_over()
            )
        )
        for process in tuple(self.processes):
            process.drain(restart=False)
        # One may be paused or asleep.
        until = max([self.clockwork.now, *(process.halted_until for process in self.processes)]) + 60
        self.clockwork.run(lambda: not self.processes or self.clockwork.now > until or self._is_over())
        if self.processes and not self._is_over():
            self.oracle.wrong("waits forever", f"{self.processes[0].name} does not stop")

    def _pass(self, seconds: float) -> None:
        until = self.clockwork.now + seconds
        self.clockwork.after(seconds, lambda: None)
        self.clockwork.run(lambda: self.clockwork.now >= until or self._is_over())

    def _bury(self) -> None:
        loops = [self._clients, *(process.loop for process in (*self.processes, *self.graveyard))]
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.bury()

    def check_stopped(self, process: Process) -> None:
        """A process has stopped in order: nothing of it is left.

        A request that came just before, for example while the process was paused, is answered to the end. It may start
        tasks of its own meanwhile, such as the sending of a message. Branches that tools left behind in a process that
        was paused until now had no time to end.
        """
        if process.requests or self.clockwork.now < process.halted_until + LEFT_BRANCHES_END:
            return
        left = [task.get_name() for task in process.loop.living if task is not process.stopping]
        if left and process.reach is Reach.OK and self.is_healthy:
            self.oracle.wrong("left behind", f"{process.name} has stopped, and this goes on: {left}")

    # Happenings

    def _happen(self, happening: Happening) -> None:
        if self.is_healthy:
            return
        machine = self.machines[happening.machine % len(self.machines)]
        process, seconds = machine.process, happening.seconds
        self.faults[happening.mishap.value] += 1
        match happening.mishap:
            case Mishap.KILL:
                process.kill()
            case Mishap.DRAIN:
                process.drain()
            case Mishap.REFUSED:
                process.lose_touch(Reach.REFUSED, seconds)
            case Mishap.CUT:
                process.lose_touch(Reach.DROPPED, seconds)
            case Mishap.MUTE:
                process.lose_touch(Reach.MUTE, seconds)
            case Mishap.OUTAGE | Mishap.BLACKOUT:
                reach = Reach.REFUSED if happening.mishap is Mishap.OUTAGE else Reach.DROPPED
                for each in tuple(self.processes):
                    each.lose_touch(reach, seconds)
            case Mishap.PAUSE:
                process.pause(seconds)
            case Mishap.SLEEP:
                process.pause(seconds, asleep=True)
            case Mishap.CLOCK:
                self.trace(process.name, f"has its clock off by {seconds:g} s")
                machine.clock_off = seconds
            case Mishap.SLOW:
                process.slowness = 0.5
                self.clockwork.after(seconds, setattr, process, "slowness", 0.0)
            case Mishap.DEAF:
                process.is_deaf = True

    def fail_over(self, writes: int) -> None:
        """The store goes back by some writes."""
        if not self.is_healthy:
            self.store.fail_over(writes)

    def _heal(self) -> None:
        self.trace("WORLD", "is healthy from now on")
        self.is_healthy = True
        for process in self.processes:
            process.is_deaf = False

    # Clients

    def new_id(self) -> str:
        """The id of the next task: in the order of creation, so that the same plan is the same story."""
        self._ids += 1
        return f"task-{self._ids}"

    def joins(self, plan: str) -> bool:
        """Whether a tool waits for the branches that it left alone."""
        return hash_of(plan) % 2 == 0

    def expect_child(self, plan: str, node: Child, owner: str | None) -> None:
        """A tool is about to start a child."""
        self.oracle.plans.setdefault(plan, ToolPlan(node.child, node.tool, node.ttl, owner))

    def _begin_client(self, plan: str, task: TaskPlan) -> None:
        self._clients.create_task(self._client(plan, task))

    async def _client(self, plan: str, task: TaskPlan) -> None:
        try:
            await asyncio.sleep(task.at)
            task_id = await (self._call_over_wire if self.plan.wire else self._call_tool)(plan, task)
            if task_id is not None:
                self.trace("client", f"is promised {task_id} for {plan}")
                self.oracle.promised(task_id, plan)
                await self._follow(task_id, task)
        finally:
            self._following -= 1

    async def _call_over_wire(self, plan: str, task: TaskPlan) -> str | None:
        """The same with the client library. An error that says that nothing was done has the call made again."""
        # Late: few worlds have clients of this kind, and they bring the SDK.
        from mcp import MCPError

        from tests.simulation.wire import MayHaveRun, WireProcess

        async def call(process: Process) -> tuple[str | None, bool]:
            try:
                return await cast("WireProcess", process).call(task.tool, plan), True
            except MayHaveRun:
                return None, True
            except MCPError as exc:
                self.trace("client", f"is told by {process.name} for {plan}: {exc}")
                return None, False

        while True:
            try:
                task_id, is_over = await self._ask(call)
                if is_over:
                    return task_id
            except TimeoutError:
                return None
            except StoreUnavailable:
                self.trace("client", f"finds no server for {plan}")
            await asyncio.sleep(1.0)

    async def _call_tool(self, plan: str, task: TaskPlan) -> str | None:
        """The task that the call made; None if the client gave up, not knowing whether there is one."""
        key: dict[str, Any] = {"key": f"client/{plan}", "fingerprint": plan} if task.key else {}

        def launch(process: Process) -> Awaitable[TaskRecord]:
            return process.runtime.launch(
                LaunchSpec(
                    request=request_of(task.tool, plan), owner=task.owner, retention=timedelta(seconds=task.ttl), **key
                )
            )

        while True:
            try:
                return (await self._ask(launch)).id
            except TimeoutError:
                if not task.key:
                    return None
            except StoreUnavailable as exc:
                if exc.may_have_happened and not task.key:
                    return None
            except KeySpent:
                # It was made, has ended, and its result is gone.
                return None
            await asyncio.sleep(1.0)

    async def _follow(self, task_id: str, task: TaskPlan) -> None:
        """Answer what the task asks, look at it, and cancel it, as planned, until all is healthy."""
        answered: set[str] = set()
        began = self.clockwork.now
        cancels_at = task.cancels_at
        while not self.is_healthy and task_id not in self.oracle.ended:
            await asyncio.sleep(max(task.answers_after, 0.5) if answered else 0.5)
            record = self.store.peek(task_id)
            if record is None:
                return
            if cancels_at is not None and self.clockwork.now >= began + cancels_at:
                self.oracle.cancelled.add(task_id)
                cancels_at = None
                await self._attempt(lambda p, r=record: p.runtime.cancel(r, "enough", actor=NOBODY))
            elif task.looks:
                await self._attempt(lambda p: self._look(p, task_id, task.owner))
            for key in sorted(record.inputs.outstanding.keys() - answered):
                answered.add(key)
                await asyncio.sleep(task.answers_after)
                if task.answers_wrongly:
                    await self._attempt(partial(self._answer, record=record, keys=["never asked", *record.inputs.used]))
                await self._attempt(partial(self._answer, record=record, keys=[key]))

    async def _look(self, process: Process, task_id: str, owner: str | None) -> None:
        try:
            await process.runtime.get(task_id, owner=owner)
        except UnknownTask:
            ended, ttl = self.oracle.ended.get(task_id), self.oracle.plans[self.oracle.plan_of[task_id]].ttl
            if task_id not in self.oracle.lost and (ended is None or self.clockwork.now - ended < ttl - 10):
                self.oracle.wrong("vanished", f"{process.name} does not find {task_id}")

    async def _answer(self, process: Process, *, record: TaskRecord, keys: list[str]) -> None:
        responses: dict[str, Any] = {}
        for key in keys:
            self._answers += 1
            asked = record.inputs.outstanding.get(key)
            responses[key] = {"to": asked and asked.params["message"], "number": self._answers}
        await process.runtime.answer(record, responses, actor=NOBODY)
        self.oracle.accepted(process, record.id, keys)

    async def _attempt(self, ask: Callable[[Process], Awaitable[Any]]) -> None:
        """Ask once; what is not there any more or cannot be asked now is not asked again."""
        try:
            await self._ask(ask)
        except (TimeoutError, StoreUnavailable, UnknownTask):
            return

    async def _ask(self, ask: Callable[[Process], Awaitable[Any]]) -> Any:
        """What a process that serves gives."""
        serving = [process for process in self.processes if process.is_serving and process.machine.plan.serves]
        if not serving:
            await asyncio.sleep(0.5)
            raise StoreUnavailable("no server is there")
        process = self._rng.choice(serving)
        answer: asyncio.Future[Any] = self._clients.create_future()

        async def work() -> None:
            try:
                result, error = await ask(process), None
            except TasksError as exc:
                result, error = None, exc
            self.clockwork.after(self.weather.latency(), self._clients.post, settle, result, error)

        def settle(result: Any, error: BaseException | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(result)
            elif isinstance(error, StoreUnavailable | UnknownTask | KeySpent):
                answer.set_exception(error)
            else:
                self.oracle.wrong("client told", f"{process.name} answers {type(error).__name__}: {error}")
                answer.cancel()

        self.clockwork.after(
            self.weather.latency(), process.loop.post, lambda: _keep(process, process.loop.create_task(work()))
        )
        async with asyncio.timeout(ANSWER_COMES_WITHIN):
            return await answer

    def _answer_everything(self) -> None:
        """In the end, every question is answered."""
        if self._is_over():
            return
        for task_id in self.oracle.tasks:
            record = self.store.peek(task_id)
            if record is not None and record.inputs.outstanding:
                self._clients.post(self._begin_answers, record)
        self.clockwork.after(LOOKS_IN, self._answer_everything)

    def _begin_answers(self, record: TaskRecord) -> None:
        keys = sorted(record.inputs.outstanding)
        task = self._clients.create_task(self._attempt(partial(self._answer, record=record, keys=keys)))
        self._kept_clients = [*(each for each in getattr(self, "_kept_clients", []) if not each.done()), task]

    # What is seen of it

    def running(self) -> Process | None:
        """The process whose code runs now."""
        loop = asyncio._get_running_loop()
        return next((each for each in self.processes if each.loop is loop), None)

    def trace(self, who: str, what: str) -> None:
        """Show what happens, if that is wanted."""
        if self.tracing:
            print(f"{self.clockwork.now:10.4f} {who:12} {what}")


def _keep(process: Process, task: asyncio.Task[None]) -> None:
    process.requests.add(task)
    task.add_done_callback(process.requests.discard)


def hash_of(text: str) -> int:
    """A number that is the same in every process."""
    return sum(map(ord, text))


@contextmanager
def _names_of(world: World) -> Generator[None]:
    """What the package takes from outside is the world's, and the same every time: names, ids, and clocks."""
    numbers = count()

    def token(size: int) -> str:
        return f"{next(numbers):0{size * 3 // 2}}"

    def random_bytes(size: int) -> bytes:
        return f"{next(numbers):0{size}}".encode()

    def monotonic() -> float:
        return cast("Process", world.running()).loop.time()

    # Not every one who makes a runtime can say which clocks it has.
    def wall() -> datetime:
        return cast("Process", world.running()).machine.wall_clock()

    clocks = {"monotonic": monotonic, "uptime": lambda: world.clockwork.now}
    with (
        patch.dict(cast("Any", TaskRuntime.__init__).__kwdefaults__, clocks),
        patch.dict(cast("Any", StoreClock.__init__).__kwdefaults__, {"wall": wall}),
        patch("mcp_tasks.runtime.runtime.new_worker_name", lambda: cast("Process", world.running()).worker_name()),
        patch("secrets.token_urlsafe", token),
        patch("secrets.token_hex", token),
        patch("secrets.token_bytes", random_bytes),
    ):
        yield


@contextmanager
def _errors_to(world: World) -> Generator[None]:
    """What the package logs is told to the process that logs it."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            process = world.running()
            if process is None:
                return
            message = self.format(record)
            world.trace(process.name, f"logs: {message}")
            if record.levelno >= logging.ERROR:
                process.note_error(message)

    logger, listener = logging.getLogger("mcp_tasks"), Listener(logging.WARNING)
    propagate, logger.propagate = logger.propagate, False
    level = logger.level
    logger.setLevel(logging.WARNING)
    logger.addHandler(listener)
    try:
        yield
    finally:
        logger.removeHandler(listener)
        logger.propagate = propagate
        logger.setLevel(level)
