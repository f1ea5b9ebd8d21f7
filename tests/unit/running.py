"""A `TaskRuntime` over the memory store, with small bodies in place of tools, and the faults to try it with."""

import asyncio
import inspect
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, cast

import anyio
import anyio.lowlevel

from mcp_tasks.engines import Engine, LocalEngine
from mcp_tasks.errors import RunStopped, StoreUnavailable, TaskUnreadable
from mcp_tasks.model import InputRequest, JournalEntry, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.json import decode_json
from mcp_tasks.model.limits import Limits
from mcp_tasks.model.record import Actor, Outcome
from mcp_tasks.runtime import Body, Ending, Observer, Run, Settings, Success, TaskOptions, TaskRuntime
from mcp_tasks.runtime.launch import LaunchSpec, new_task_id
from mcp_tasks.runtime.lease import uptime
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.base import Hint, Notifier

LIMIT = 5.0
"""Seconds after which a test that waits has failed."""

HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)

CLIENT = Actor("client")
REQUEST = TaskRequest(name="tool", arguments={})

ONCE = TaskOptions()
RERUN = TaskOptions(recover="rerun")
PARKS = TaskOptions(recover="rerun", park_after=timedelta(0))
"""Its runs leave memory as soon as they wait."""

# Nothing happens by itself: tests sweep when they want it. No test waits for a drain that it did not ask for.
QUIET = Settings(
    lease_duration=timedelta(hours=1),
    sweep_interval=timedelta(hours=1),
    drain_timeout=timedelta(0),
    stop_timeout=timedelta(seconds=LIMIT),
    progress_interval=timedelta(milliseconds=50),
)


def real_clock() -> datetime:
    return datetime.now(UTC)


class Seconds:
    """A clock of seconds that stands still until it is told to go on: monotonic time, or uptime."""

    def __init__(self) -> None:
        self._now = 1_000.0

    def __call__(self) -> float:
        return self._now

    def advance(self, by: timedelta) -> None:
        self._now += by.total_seconds()


@dataclass(frozen=True)
class Tool:
    """A body and how its runs are treated."""

    body: Body
    policy: TaskOptions = ONCE


def ok(value: Any = "ok") -> Success:
    return Success({"value": value})


def question(message: str) -> InputRequest:
    return InputRequest(method="elicitation/create", params={"message": message})


async def at_once(run: Run) -> Ending:
    return ok()


async def never_ending(run: Run) -> Ending:
    await anyio.sleep_forever()
    raise AssertionError("unreachable")


async def asks(run: Run) -> Ending:
    return ok(await run.ask(question("Sure?")))


def opened_by(gate: anyio.Event) -> Body:
    async def body(run: Run) -> Ending:
        await gate.wait()
        return ok()

    return body


def telling(stopped: anyio.Event) -> Body:
    """A tool that works until it is stopped, and says so then."""

    async def body(run: Run) -> Ending:
        try:
            return await never_ending(run)
        finally:
            stopped.set()

    return body


def loop_time() -> float:
    return asyncio.get_running_loop().time()


def describe(exc: Exception) -> dict[str, Any]:
    """An exception as an error, with its type for tests to look at."""
    return {
        "code": -32603,
        "message": str(exc),
        "data": {"type": exc.reason if isinstance(exc, RunStopped) else type(exc).__name__},
    }


def make_runtime(
    tools: Mapping[str, Tool] | Body,
    *,
    store: Store | None = None,
    engine: Engine | None = None,
    concurrency: int = 100,
    clock: Callable[[], datetime] | None = real_clock,
    monotonic: Callable[[], float] = time.monotonic,
    uptime: Callable[[], float] = uptime,
    namespace: str = "",
    policy: TaskOptions = ONCE,
    runs_tools: bool = True,
    queues: Collection[str] | None = None,
    observers: Sequence[Observer] = (),
    limits: Limits | None = None,
    requires_owner: bool = False,
    **settings: Any,
) -> TaskRuntime:
    """A runtime whose tools are these bodies; a single one is called `tool`. Another tool is one that it lacks."""
    known = {"tool": Tool(tools, policy)} if callable(tools) else tools

    async def body(run: Run) -> Ending:
        return await known[run.request.name].body(run)

    async def policy_of(method: str, name: str) -> TaskOptions | None:
        return known[name].policy if name in known else None

    async def tools_of() -> Mapping[str, TaskOptions]:
        return {name: tool.policy for name, tool in known.items()}

    return TaskRuntime(
        store=store or MemoryStore(),
        engine=engine or LocalEngine(concurrency),
        body=body,
        policy=policy_of,
        describe=describe,
        clock=clock,
        monotonic=monotonic,
        uptime=uptime,
        namespace=namespace,
        runs_tools=runs_tools,
        queues=queues,
        tools=tools_of,
        observers=observers,
        limits=limits,
        requires_owner=requires_owner,
        settings=replace(QUIET, **settings),
    )


@asynccontextmanager
async def running(tools: Mapping[str, Tool] | Body, **options: Any) -> AsyncGenerator[TaskRuntime]:
    """The same, started, and stopped at the end."""
    runtime = make_runtime(tools, **options)
    await runtime.start()
    try:
        yield runtime
    finally:
        await runtime.stop()


async def create(
    runtime: TaskRuntime,
    tool: str = "tool",
    *,
    owner: str | None = None,
    retention: timedelta | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> TaskRecord:
    now = runtime.now()
    record = TaskRecord(
        id=new_task_id(),
        owner=owner,
        name=tool,
        created_at=now,
        updated_at=now,
        retention=retention,
        namespace=runtime.namespace,
    )
    request = TaskRequest(name=tool, arguments=arguments or {})
    return await runtime.changes.create(record, request, actor=Actor("client", owner))


async def start(runtime: TaskRuntime, tool: str = "tool", *, owner: str | None = None, **options: Any) -> TaskRecord:
    return await runtime.launch(LaunchSpec(request=TaskRequest(name=tool, arguments={}), owner=owner, **options))


async def launch(
    runtime: TaskRuntime, tool: str = "tool", *, retention: timedelta | None = None, **arguments: Any
) -> TaskRecord:
    record = await create(runtime, tool, retention=retention, arguments=arguments)
    await runtime.engine.submit(record.id)
    return record


async def until(
    runtime: TaskRuntime, task: TaskRecord, reached: Callable[[TaskRecord], bool], limit: float = LIMIT
) -> TaskRecord:
    """The task as soon as it is as wanted; looked at with every change."""
    with anyio.fail_after(limit):
        async with runtime.store.notifier().listen() as hints:
            while True:
                record = await runtime.store.get(task.id)
                assert record is not None, "the task is gone"
                if reached(record):
                    return record
                await anext(hints)
    raise AssertionError("unreachable: the limit raises")


@dataclass(frozen=True, kw_only=True)
class Finished(TaskRecord):
    """A task that has ended, together with what it ended with."""

    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


async def until_final(runtime: TaskRuntime, task: TaskRecord, limit: float = LIMIT) -> Finished:
    return await finished(runtime, await until(runtime, task, lambda record: record.is_final, limit))


async def finished(runtime: TaskRuntime, record: TaskRecord) -> Finished:
    outcome = await runtime.store.outcome(record.id)
    body = None if outcome is None else cast("dict[str, Any]", decode_json(outcome.body))
    return Finished(
        **{field.name: getattr(record, field.name) for field in fields(TaskRecord)},
        result=body if record.status is TaskStatus.COMPLETED else None,
        error=body if record.status is TaskStatus.FAILED else None,
    )


async def until_asking(runtime: TaskRuntime, task: TaskRecord) -> TaskRecord:
    return await until(runtime, task, lambda record: record.status is TaskStatus.INPUT_REQUIRED)


async def started(runtime: TaskRuntime, tool: str = "tool", **options: Any) -> TaskRecord:
    """A new task, once a run has it."""
    return await until(runtime, await launch(runtime, tool, **options), lambda record: record.worker is not None)


async def until_parked(runtime: TaskRuntime, task: TaskRecord, key: str | None = None) -> TaskRecord:
    """The task once it has begun, no run has it, and it asks that, if anything."""
    return await until(
        runtime,
        task,
        lambda record: bool(record.attempt) and record.worker is None and key in {None, *record.inputs.outstanding},
    )


def error_type(task: Finished) -> str | None:
    return None if task.error is None else task.error["data"]["type"]


async def answer(runtime: TaskRuntime, task: TaskRecord, **answers: Any) -> TaskRecord:
    """Answer open questions by key, with `_` for the dash that keyword arguments cannot have."""
    record = await runtime.find(task.id)
    responses = {key.replace("_", "-"): value for key, value in answers.items()}
    return await runtime.answer(record, responses, actor=CLIENT)


async def twice(body: Body, **options: Any) -> Finished:
    """The outcome of a tool that asks at its end: it leaves memory there, and is started again by the answer."""
    async with running(body, **{"policy": PARKS, **options}) as runtime:
        task = await until_parked(runtime, await launch(runtime))
        await runtime.answer(task, dict.fromkeys(task.inputs.outstanding, "yes"), actor=CLIENT)
        record = await until_final(runtime, task)
        assert record.attempt == 2
        return record


async def all_end(runtime: TaskRuntime, *tasks: TaskRecord) -> None:
    for task in tasks:
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


async def happens(event: anyio.Event) -> None:
    with anyio.fail_after(LIMIT):
        await event.wait()


async def ended(body: Body, **options: Any) -> Finished:
    async with running(body, **options) as runtime:
        return await until_final(runtime, await launch(runtime))


async def cancel(runtime: TaskRuntime, task: TaskRecord, reason: str = "enough") -> TaskRecord:
    return await runtime.cancel(task, reason, actor=CLIENT)


async def settle(rounds: int = 50) -> None:
    """Let everything happen that can happen now without waiting for time."""
    for _ in range(rounds):
        await anyio.lowlevel.checkpoint()


VERBS = frozenset(
    name for name, _ in inspect.getmembers_static(MemoryStore, inspect.iscoroutinefunction) if not name.startswith("_")
)

TOGETHER = {
    "get_owned": ("get_owned", "get"),
    "get_with_request": ("get_with_request", "get", "request"),
    "get_with_outcome": ("get_with_outcome", "get", "outcome"),
}
"""Verbs that are others as well: they read the same."""

Meddle: TypeAlias = Callable[..., Awaitable[object]]
Meant: TypeAlias = Callable[[TaskRecord, Sequence[JournalEntry]], object]


class MeddledStore(MemoryStore):
    """Has something happen before or after some of its verbs, and counts what it is asked.

    Attributes:
        before: By verb, what is called first, with the same arguments. What it raises is what the store says.
        after: What is called once the verb has done its work, with what it gave and its arguments.
    """

    def __init__(self, **before: Meddle) -> None:
        super().__init__()
        self.before: dict[str, Meddle] = before
        self.after: dict[str, Meddle] = {}
        self.calls: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        verbs = TOGETHER.get(name, (name,))
        if verbs[0] not in VERBS:
            return found

        async def call(*args: Any, **options: Any) -> Any:
            said = args[:1] if name in TOGETHER else args
            for verb in verbs:
                self.calls[verb] += 1
                if verb in self.before:
                    await self.before[verb](*said, **options)
            given = await found(*args, **options)
            for verb in verbs:
                if verb in self.after:
                    await self.after[verb](given, *said, **options)
            return given

        return call

    def refuse(
        self, failure: Exception, *verbs: str, times: float = math.inf, when: Meant = lambda record, entries: True
    ) -> None:
        """Fail in these verbs, or in all, that often, when the record and the entries are meant."""
        left = times

        async def fail(record: Any = None, *args: Any, **options: Any) -> None:
            nonlocal left
            if left > 0 and when(record, options.get("entries", ())):
                left -= 1
                raise failure

        self.before |= dict.fromkeys(verbs or VERBS - {"open", "close"}, fail)

    def go_away(self, *verbs: str, times: float = math.inf, when: Meant = lambda record, entries: True) -> None:
        """Fail as a store that cannot be reached does."""
        self.refuse(StoreUnavailable("the disk is full"), *verbs, times=times, when=when)


class Held:
    """Lets one call of a store wait: the next one whose record, and the entries written with it, are meant."""

    def __init__(self, is_meant: Meant = lambda record, entries: True) -> None:
        self.came, self.goes_on = anyio.Event(), anyio.Event()
        self._is_meant = is_meant

    async def __call__(self, record: Any, *args: Any, **options: Any) -> None:
        if not self.came.is_set() and self._is_meant(record, options.get("entries", ())):
            self.came.set()
            await self.goes_on.wait()


class PausingStore(MeddledStore):
    """Pauses in its verbs, as a store with a disk does, so that others come in between."""

    def __init__(self) -> None:
        super().__init__(get=_pause, save=_pause)
        self.after["save"] = _pause


async def _pause(*args: Any, **options: Any) -> None:
    await anyio.lowlevel.checkpoint()


class DeafNotifier(Notifier):
    """Loses every hint."""

    async def publish(self, hint: Hint, *, origin: object = None) -> None:
        pass


class DeafStore(MemoryStore):
    """A store that tells nobody of a change."""

    def __init__(self) -> None:
        super().__init__()
        self._deaf = DeafNotifier()

    def notifier(self) -> Notifier:
        return self._deaf


class TogetherStore(MemoryStore):
    """Finds some of a task, or of what belongs to it, damaged: its "row", its "request" or its "outcome"."""

    def __init__(self) -> None:
        super().__init__()
        self.damaged: set[str] = set()

    async def get(self, task_id: str) -> TaskRecord | None:
        self._check(task_id, "row")
        return await super().get(task_id)

    async def request(self, task_id: str) -> TaskRequest | None:
        self._check(task_id, "request")
        return await super().request(task_id)

    async def outcome(self, task_id: str) -> Outcome | None:
        self._check(task_id, "outcome")
        return await super().outcome(task_id)

    async def get_owned(self, task_id: str, owner: str | None) -> TaskRecord | None:
        record = await self.get(task_id)
        return record if record is not None and record.owner == owner else None

    async def get_with_request(self, task_id: str) -> tuple[TaskRecord, TaskRequest | None] | None:
        record = await self.get(task_id)
        return None if record is None else (record, await self.request(task_id))

    async def get_with_outcome(self, task_id: str, owner: str | None) -> tuple[TaskRecord, Outcome | None] | None:
        record = await self.get_owned(task_id, owner)
        return None if record is None else (record, await self.outcome(task_id))

    def _check(self, task_id: str, part: str) -> None:
        if part in self.damaged:
            raise TaskUnreadable(task_id, f"its {part} is damaged")
