"""The machines of a world, and the processes that live and die on them. Each process is a real `TaskRuntime`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from mcp_tasks.engines import LocalEngine
from mcp_tasks.engines.remote import RemoteEngine
from mcp_tasks.errors import StoreError
from mcp_tasks.runtime import Ending, Run, Settings, TaskOptions, TaskRuntime
from tests.simulation.clockwork import SimulatedLoop
from tests.simulation.engine import SimulatedCarrier
from tests.simulation.plans import MachinePlan
from tests.simulation.store import EPOCH, NAMESPACE, Reach, connect
from tests.simulation.tools import Witness, run_tool

if TYPE_CHECKING:
    from tests.simulation.world import World

RESTARTS_AFTER = 1.0
"""Seconds after which a supervisor starts a process again that ended."""

DRAINS_FOR = 2.0
"""Seconds that a process that is stopped in order gives to its tools."""


AHEAD = 1_000.0
"""Seconds by which the wall clocks of machines are ahead of the store's clock, before their plans change them: no
process shares the clock of the store."""

SETTLES_IN = 0.05
"""Seconds after its stop in which a process may still do things: helpers of its runs end a few turns after them."""

GIVEN_BACK_WITHIN = 15.0
"""Seconds after which a process that was paused has come to know that its runs are over."""

MOST_CALLS, CALLS_WITHIN = 5_000, 5.0
"""Calls to the store, and seconds: a process that makes more in less turns in a circle."""


class Machine:
    """Where one process runs after the other, with one wall clock."""

    def __init__(self, world: World, number: int, plan: MachinePlan) -> None:
        self._world = world
        self.number = number
        self.plan = plan
        self.clock_off = plan.clock
        self._started = 0
        self.process = self._start()

    def _start(self) -> Process:
        self._started += 1
        role = "worker" if not self.plan.serves else "server" if self.plan.runs_tools else "front"
        kind = Process
        if self.plan.serves and self._world.plan.wire:
            # Late: few worlds have one, and it brings the SDK.
            from tests.simulation.wire import WireProcess as kind
        self.process = kind(self._world, self, f"{role}-{self.number}.{self._started}")
        return self.process

    def restart(self, after: float = RESTARTS_AFTER) -> None:
        self._world.clockwork.after(after, self._start)

    def wall_clock(self) -> datetime:
        return EPOCH + timedelta(seconds=self._world.clockwork.now + AHEAD + self.clock_off)


class Process:
    """One process, from its start to its end.

    Attributes:
        reach: What becomes of its calls to the store.
        undelivered: Calls that have not arrived, and will when the network is back.
        slowness: Seconds that each call takes longer.
        is_ending: Whether it is stopping in order.
        lost_lease_at: When it stopped its runs last, because it could not renew its lease.
        halted_until: When it goes on, or went on, that was paused or asleep.
        requests: What clients have asked of it, and it works on.
        may_have_lost_runs: Whether something happened to it that ends runs.
    """

    def __init__(self, world: World, machine: Machine, name: str) -> None:
        self.world = world
        self.machine = machine
        self.name = name
        self.loop = SimulatedLoop(world.clockwork)
        self.reach = Reach.OK
        self.undelivered: list[Callable[[], None]] = []
        self.slowness = 0.0
        self.is_deaf = False
        self.is_ending = False
        self.is_serving = False
        self.lost_lease_at = -1.0
        self.may_have_lost_runs = False
        self.requests: set[asyncio.Task[None]] = set()
        self.stopping: asyncio.Task[None] | None = None
        self._runtimes = 0
        self._calls = 0
        self._counts_from = 0.0
        self.halted_until: float = float("-inf")
        self._reach_changes = 0
        self.connection = connect(world, self, together=world.plan.together)
        self.witness = Witness(self, world.plan.slots)
        self.runtime: TaskRuntime
        world.processes.append(self)
        world.trace(name, "starts")
        self.loop.post(self._begin)

    def _begin(self) -> None:
        self._main = self.loop.create_task(self._live())
        self._main.add_done_callback(self._check_main)

    def _check_main(self, main: asyncio.Task[None]) -> None:
        error = None if main.cancelled() else main.exception()
        if error is not None and self.lives:
            self.world.oracle.wrong("simulator", f"{self.name} ends with {error!r}")

    async def _live(self) -> None:
        while True:
            self.runtime = _runtime_of(self)
            try:
                await self.runtime.start()
            except StoreError as exc:
                self.world.trace(self.name, f"cannot start: {exc}")
                await asyncio.sleep(1.0)
                self.is_ending = False
            else:
                self.is_serving = True
                return

    # Its state

    @property
    def lives(self) -> bool:
        return not self.loop.is_dead

    @property
    def is_cut(self) -> bool:
        """Whether nothing of it arrives elsewhere."""
        return self.reach is not Reach.OK

    def worker_name(self) -> str:
        self._runtimes += 1
        return f"{self.name}/{self._runtimes}"

    def note_call(self) -> None:
        self._calls += 1
        if self._calls == 1:
            self._counts_from = self.world.clockwork.now
        elif self._calls > MOST_CALLS:
            if self.world.clockwork.now - self._counts_from < CALLS_WITHIN:
                self.world.oracle.wrong("busy", f"{self.name} calls the store {MOST_CALLS:,} times in a moment")
            self._calls = 0

    def halted_since(self, time: float) -> bool:
        """Whether it was paused, or its machine asleep, at some time since then."""
        return self.halted_until >= time

    # What happens to it

    def kill(self) -> None:
        if not self.lives:
            return
        self.world.trace(self.name, "dies")
        self.may_have_lost_runs = True
        self._end()
        self.machine.restart()

    def _end(self) -> None:
        self.loop.kill()
        self.is_serving = False
        self.world.processes.remove(self)
        self.world.graveyard.append(self)

    def drain(self, *, restart: bool = True) -> None:
        if self.lives and self.is_serving:
            self.world.trace(self.name, "stops")
            self.may_have_lost_runs = True
            self.is_serving = False
            self.loop.post(self._begin_stop, restart)

    def _begin_stop(self, restart: bool) -> None:
        self.stopping = self.loop.create_task(self._stop(restart))

    async def _stop(self, restart: bool) -> None:
        if not restart and not self.is_cut and not self.halted_since(self.world.clockwork.now - GIVEN_BACK_WITHIN):
            self._check_given_back()
        try:
            await self.runtime.stop()
        finally:
            self.world.clockwork.after(SETTLES_IN, self._stopped, restart)

    def _check_given_back(self) -> None:
        """All tasks have ended: the process has its slots and its seats again.

        A run that has not heard of the end of its task may still rest.
        """
        runtime = self.runtime
        free = max(runtime.settings.max_waiting_runs - sum(run.slot_use.is_resting for run in runtime.runs()), 0)
        if isinstance(runtime.engine, LocalEngine) and not runtime.engine.is_idle:
            self.world.oracle.wrong("left behind", f"a slot of {self.name} was not given back")
        if (seats := max(runtime.suspender.free, 0)) != free:
            self.world.oracle.wrong("left behind", f"{seats} seats are free, and {free} should be")

    def _stopped(self, restart: bool) -> None:
        if self.lives:
            self.world.trace(self.name, "has stopped")
            self.world.check_stopped(self)
            self._end()
            if restart:
                self.machine.restart()

    def pause(self, seconds: float, *, asleep: bool = False) -> None:
        """It does not run for a while; with `asleep` its monotonic clock does not either."""
        if self.lives and not self.loop.is_paused:
            self.world.trace(self.name, f"is {'asleep' if asleep else 'paused'} for {seconds:g} s")
            self.may_have_lost_runs = True
            self.loop.is_paused = True
            self.halted_until = self.world.clockwork.now + seconds
            self.world.clockwork.after(seconds, self._go_on, seconds if asleep else 0.0)

    def _go_on(self, asleep: float) -> None:
        if self.lives:
            self.world.trace(self.name, "goes on")
            self.loop.asleep += asleep
            self.loop.go_on()

    def lose_touch(self, reach: Reach, seconds: float) -> None:
        """The network between it and the store changes for a while."""
        if self.lives:
            self.world.trace(self.name, f"is cut off for {seconds:g} s: {reach.value}")
            self._reach_changes += 1
            self.reach = reach
            self.world.clockwork.after(seconds, self._get_in_touch, self._reach_changes)

    def _get_in_touch(self, number: int) -> None:
        if number == self._reach_changes and self.reach is not Reach.OK:
            self.world.trace(self.name, "is not cut off any more")
            self.reach = Reach.OK
            undelivered, self.undelivered = self.undelivered, []
            if self.lives or self.world.weather.chance(0.5):
                for arrive in undelivered:
                    arrive()

    def note_error(self, message: str) -> None:
        if "its runs are stopped" in message:
            self.may_have_lost_runs = True
            self.lost_lease_at = self.world.clockwork.now
            # The steps at work are stopped, and may begin again in this process.
            self.witness.next_life()
        elif "nothing ran it" in message and self.world.oracle.lost:
            # The store has the task as it was while it ran here.
            return
        elif self.lives and not any(known in message for known in _EXPECTED_ERRORS):
            self.world.oracle.wrong("logged", f"{self.name}: {message}")


_EXPECTED_ERRORS = (
    "change notifications are unavailable",
    "went back in time",
    "was lost with its process",
    "ended with an unexpected exception",
    "raised an unexpected exception",
)
"""The last two are judged by how its task ends."""


class _Runtime(TaskRuntime):
    """A runtime whose process knows that it is stopping, also when that is because it could not start."""

    def __init__(self, process: Process, **options: Any) -> None:
        self.process = process
        super().__init__(**options)

    async def stop(self, hurry: asyncio.Event | None = None) -> None:
        self.process.is_ending = True
        await super().stop(hurry)


def _runtime_of(process: Process) -> TaskRuntime:
    world, machine = process.world, process.machine

    async def body(run: Run) -> Ending:
        return await run_tool(process, run)

    async def policy(method: str, tool: str) -> TaskOptions:
        return policies_of(world)[tool]

    async def tools() -> Mapping[str, TaskOptions]:
        return policies_of(world)

    return _Runtime(
        process,
        store=process.connection,
        engine=engine_of(process),
        body=body,
        policy=policy,
        describe=_describe,
        runs_tools=machine.plan.runs_tools,
        tools=tools,
        new_id=world.new_id,
        settings=settings_of(world),
        namespace=NAMESPACE,
    )


def engine_of(process: Process) -> LocalEngine | RemoteEngine:
    plan = process.world.plan
    if plan.remote:
        return RemoteEngine(SimulatedCarrier(process.world, process), plan.slots)
    return LocalEngine(plan.slots)


def settings_of(world: World) -> Settings:
    plan = world.plan
    return Settings(
        lease_duration=timedelta(seconds=plan.lease),
        max_waiting_runs=plan.seats,
        drain_timeout=timedelta(seconds=DRAINS_FOR),
        max_at_work_per_owner=plan.per_owner,
    )


def policies_of(world: World) -> Mapping[str, TaskOptions]:
    if world.policies is None:
        plan = world.plan
        again = TaskOptions(recover="rerun", park_after=timedelta(seconds=plan.park_after), max_lost_runs=1_000)
        once = TaskOptions()
        world.policies = {
            "again": again,
            "once": once,
            "again_limited": TaskOptions(
                recover="rerun", park_after=again.park_after, max_lost_runs=1_000, max_at_work=plan.per_tool
            ),
            "once_limited": TaskOptions(max_at_work=plan.per_tool),
        }
    return world.policies


def _describe(exc: Exception) -> dict[str, Any]:
    return {"code": -1, "message": f"{type(exc).__name__}: {exc}"}
