"""The one store of a world, and the connection that each process has to it.

The store is a `MemoryStore` on a machine of its own with a clock of its own. A call travels there, is carried out, and
its answer travels back; each part may be slow, be refused, get lost, or come after the caller has given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model.record import Outcome, TaskRecord
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.base import Handing, Hint, HintFan

if TYPE_CHECKING:
    from tests.simulation.processes import Process
    from tests.simulation.world import World

NAMESPACE = "fleet"
LONGEST_CREATION = 2.0
"""Seconds after which a creation that got no answer is not carried out any more."""
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)

WRITES = frozenset(
    {"create", "save", "delete", "hand_out", "hand_back", "forget_expired", "heartbeat", "retire", "set_note"}
)
READS = frozenset(
    {"get", "request", "outcome", "journal", "list", "usage", "backlog", "queued", "due", "claimed", "versions"}
    | {"workers", "note", "id_under", "now", "standing", "namespaces"}
)
TOGETHER = frozenset({"get_owned", "get_with_request", "get_with_outcome"})


class Reach(Enum):
    """What becomes of the calls of a process."""

    OK = "they arrive"
    REFUSED = "they are refused at once"
    DROPPED = "they do not arrive"
    MUTE = "they arrive, and no answer comes back"


class CallFault(Enum):
    REFUSED = "refused"
    SLOW = "slow"
    LOST = "answer lost"
    LOST_THEN_AWAY = "answer lost, then store unreachable"
    HANGS = "hangs until the time-out"
    LATE = "carried out after the caller gave up"
    DIES_BEFORE = "process dies before the call arrives"
    DIES_AFTER = "process dies before the answer"
    FAILS_OVER = "store loses its last writes"


@dataclass(frozen=True)
class Strike:
    """A fault with its numbers.

    Attributes:
        seconds: How slow, how late, or for how long unreachable.
        writes: How many writes a failover loses.
    """

    fault: CallFault
    seconds: float = 0.0
    writes: int = 0


def at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that does not wait."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the memory store waits for something")


class StoreMachine:
    """The machine that the store is on."""

    def __init__(self, world: World, *, keeps_log: bool) -> None:
        self._world = world
        self._store = MemoryStore()
        self._keeps_log = keeps_log
        self._log: list[tuple[str, tuple[Any, ...], Mapping[str, Any]]] = []

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._world.clockwork.now)

    def peek(self, task_id: str) -> TaskRecord | None:
        """A task as it is, for the oracle and the clients' plans."""
        return at_once(self._store.get(task_id))

    def carry_out(self, process: Process, verb: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Do what a process asks for. Raises what the store raises."""
        if verb == "now":
            return self.now()
        oracle = self._world.oracle
        before = self.peek(args[0].id) if verb == "save" else None
        result = self._do(self._store, verb, args, options)
        if verb in WRITES:
            if self._keeps_log:
                self._log.append((verb, args, options))
            oracle.written(process, verb, args, options, before=before, result=result)
        return result

    def fail_over(self, lost: int) -> None:
        """Go on with a copy that has not got the last writes."""
        kept = self._log[: max(len(self._log) - lost, 0)]
        before, self._store, self._log = self._store, MemoryStore(), kept
        for verb, args, options in kept:
            self._do(self._store, verb, args, options)
        self._world.oracle.failed_over(lambda task_id: at_once(before.get(task_id)), self.peek, self.journal)

    def journal(self, task_id: str) -> Sequence[Any]:
        return at_once(self._store.journal(task_id))

    def outcome(self, task_id: str) -> Outcome | None:
        return at_once(self._store.outcome(task_id))

    @staticmethod
    def _do(store: MemoryStore, verb: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        return at_once(getattr(store, verb)(*args, **options))


class Connection:
    """What one process has of the store; it is a `Store`."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self.process = process
        self._notifier = _Notifier(world, process)

    def __repr__(self) -> str:
        return f"Connection({self.process.name})"

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    def notifier(self) -> _Notifier:
        return self._notifier

    async def ask(self, verb: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        if self.process.loop is not asyncio.get_running_loop():
            raise AssertionError("a process uses the connection of another")
        self.process.note_call()
        if verb == "create":
            self._world.oracle.creates(self.process, args[0])
        call = _Call(self._world, self.process, verb, args, options)
        call.send()
        return await call.future

    def vault(self) -> None:
        """There is nothing to encrypt."""
        raise NotImplementedError


class ApartConnection(Connection):
    """The same to a store that does not read a task together with what belongs to it."""

    async def get_owned(self, task_id: str, owner: str | None) -> TaskRecord | None:
        record = await self.ask("get", (task_id,), {})
        return record if record is not None and record.owner == owner else None

    async def get_with_request(self, task_id: str) -> tuple[TaskRecord, None] | None:
        record = await self.ask("get", (task_id,), {})
        return None if record is None else (record, None)

    async def get_with_outcome(self, task_id: str, owner: str | None) -> tuple[TaskRecord, None] | None:
        record = await self.get_owned(task_id, owner)
        return None if record is None else (record, None)


def _verb(name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def ask(self: Connection, *args: Any, **options: Any) -> Any:
        return await self.ask(name, args, options)

    return ask


for _name in sorted(WRITES | READS | TOGETHER):
    setattr(Connection, _name, _verb(_name))


def connect(world: World, process: Process, *, together: bool) -> Store:
    """A connection of a process to the store."""
    return cast("Store", Connection(world, process) if together else ApartConnection(world, process))


class _Call:
    def __init__(
        self, world: World, process: Process, verb: str, args: tuple[Any, ...], options: Mapping[str, Any]
    ) -> None:
        self._world = world
        self._process = process
        self._verb = verb
        self._args = args
        self._handing: Handing | None = options.get("handing")
        # The store changes this argument. The caller sees the change with the answer.
        self._options = options if self._handing is None else {**options, "handing": replace(self._handing)}
        self.future: asyncio.Future[Any] = process.loop.create_future()

    def send(self) -> None:
        world, process = self._world, self._process
        strike = world.weather.strike(process, self._verb)
        fault = None if strike is None else strike.fault
        if world.tracing:
            world.trace(process.name, f"-> {self._verb} {_shown(self._args)}{'' if strike is None else f' {strike}'}")
        if process.reach is Reach.REFUSED or fault is CallFault.REFUSED:
            self._fail_after(0.001, may_have_happened=False)
        elif process.reach is Reach.DROPPED:
            # The network sends it again until it arrives or the connection is given up.
            process.undelivered.append(self._arrive)
            self._fail_after(world.plan.call_timeout, may_have_happened=True)
        elif fault is CallFault.DIES_BEFORE:
            process.kill()
        elif fault is CallFault.HANGS:
            self._fail_after(world.plan.call_timeout, may_have_happened=True)
        elif strike is not None and (
            fault is CallFault.LATE or (fault is CallFault.SLOW and strike.seconds >= world.plan.call_timeout)
        ):
            self._fail_after(world.plan.call_timeout, may_have_happened=True)
            # Nothing remembers a task that has ended and expired. So a task lives longer than its creation is late.
            late = min(strike.seconds, LONGEST_CREATION) if self._verb == "create" else strike.seconds
            world.clockwork.after(world.plan.call_timeout + late, self._carry_out)
        else:
            slow = process.slowness + (strike.seconds / 2 if strike is not None and fault is CallFault.SLOW else 0.0)
            world.clockwork.after(world.weather.latency() + slow, self._arrive, strike, slow)

    def _arrive(self, strike: Strike | None = None, slow: float = 0.0) -> None:
        process, world = self._process, self._world
        fault = None if strike is None else strike.fault
        result, error = self._carry_out()
        if fault is CallFault.DIES_AFTER:
            process.kill()
        elif process.reach is not Reach.OK:
            self._fail_after(world.plan.call_timeout, may_have_happened=True)
        elif strike is not None and fault in (CallFault.LOST, CallFault.LOST_THEN_AWAY):
            self._fail_after(0.001, may_have_happened=True)
            if fault is CallFault.LOST_THEN_AWAY:
                process.lose_touch(Reach.REFUSED, strike.seconds)
        else:
            world.clockwork.after(world.weather.latency() + slow, self._answer, result, error)
            if strike is not None and fault is CallFault.FAILS_OVER:
                world.clockwork.after(world.weather.latency() * 3, world.fail_over, strike.writes)

    def _carry_out(self) -> tuple[Any, BaseException | None]:
        try:
            return self._world.store.carry_out(self._process, self._verb, self._args, self._options), None
        except StoreUnavailable:
            raise
        except Exception as exc:
            return None, exc

    def _answer(self, result: Any, error: BaseException | None) -> None:
        if self._process.reach in (Reach.DROPPED, Reach.MUTE):
            self._fail_after(self._world.plan.call_timeout, may_have_happened=True)
            return
        self._process.loop.post(self._settle, result, error)

    def _fail_after(self, seconds: float, *, may_have_happened: bool) -> None:
        how = "no answer came" if may_have_happened else "refused"
        error = StoreUnavailable(
            f"the simulated store is unreachable: {how}", may_have_happened=may_have_happened and self._verb in WRITES
        )
        self._world.clockwork.after(seconds, self._process.loop.post, self._settle, None, error)

    def _settle(self, result: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if self._world.tracing:
            self._world.trace(self._process.name, f"<- {self._verb} {_shown(self._args)} = {error or brief(result)}")
        if error is not None:
            self.future.set_exception(error)
            return
        if self._handing is not None:
            told = cast("Handing", self._options["handing"])
            self._handing.handed, self._handing.carried = told.handed, told.carried
        self.future.set_result(result)


class _Notifier:
    """Carries hints, and loses some."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._fan = HintFan()

    async def publish(self, hint: Hint, *, origin: object = None) -> None:
        if self._process.reach is not Reach.OK:
            return
        for process in self._world.processes:
            if process is not self._process and process.lives and not self._world.weather.loses_hint(process):
                notifier = cast("_Notifier", process.connection.notifier())
                self._world.clockwork.after(self._world.weather.latency() * 2, process.loop.post, notifier.hear, hint)

    def hear(self, hint: Hint) -> None:
        if self._process.reach is Reach.OK:
            self._fan.put(hint)

    @asynccontextmanager
    async def listen(self, *, origin: object = None) -> AsyncGenerator[AsyncIterator[Hint]]:
        with self._fan.listen(origin=origin) as hints:
            yield hints


def _shown(args: tuple[Any, ...]) -> str:
    return " ".join(brief(arg) for arg in args[:2])


def brief(value: Any) -> str:
    if isinstance(value, TaskRecord):
        return (
            f"{value.id}@{value.version} {value.status.value} {value.worker or '-'}#{value.attempt}"
            f"{' asks ' + ','.join(sorted(value.inputs.outstanding)) if value.inputs.outstanding else ''}"
        )
    text = str(value)
    return text if len(text) < 120 else text[:117] + "..."
