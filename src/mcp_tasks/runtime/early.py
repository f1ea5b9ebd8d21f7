"""Starting a tool while its task is being written: for tools that may run again, and were quick the last time.

The caller is told of the task once it is on disk, as ever. If the tool has ended by the time its task is written, the
outcome goes into that very write, so that a crash leaves all of the task or nothing of it. Whatever else a run writes
(progress, a question, a step, a timer, a child) waits until its task is there: `Recording` sees to that.

The price is that a tool may have run for a task that then could not be created. Its run is stopped, what it says is
dropped, and the caller is told the error. So this is only for tools that may run again, and only where the author says
so (`ToolPolicy.early_start`).
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import OrderedDict
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from mcp_tasks.core.events import RunStarted
from mcp_tasks.core.machine import apply
from mcp_tasks.core.record import TaskRecord, TaskRequest, WriteId
from mcp_tasks.engines.base import ReservedSlot, ReservesSlots
from mcp_tasks.errors import ValueNotStorable
from mcp_tasks.quiet import get_logger, shielded
from mcp_tasks.runtime.policy import ToolPolicy
from mcp_tasks.stores.repeats import new_write_id

if TYPE_CHECKING:
    from mcp_tasks.runtime.ending import Ending
    from mcp_tasks.runtime.late_writes import Write
    from mcp_tasks.runtime.run import Body, Run
    from mcp_tasks.runtime.runtime import TaskRuntime

logger: Final = get_logger(__name__)

QUICK: Final = 0.002
"""Seconds. A tool that took longer the last time gains nothing by these: writing its task takes about as long."""

TURNS: Final = 3
"""Turns of the event loop that a tool has to end before its task is written without an outcome. Nobody is told of the
task meanwhile, so not many: a tool that only returns needs none."""

MAX_KNOWN: Final = 1_000
"""Tools whose last run is remembered. A server has fewer, but resources count by their URI."""


class Create(Protocol):
    """Writes a new task to which an event has happened already, and how it ended if it has."""

    def __call__(
        self,
        record: TaskRecord,
        request: TaskRequest,
        started: RunStarted,
        /,
        *,
        ending: Write | None = None,
        write: WriteId | None = None,
    ) -> Awaitable[TaskRecord]: ...


class Unwritten:
    """A task whose run has begun, and which is not in the store yet.

    It is inserted by an asyncio task of its own, whoever asks for that first. Whoever waits for it may be cancelled, as
    branches of a tool are at any moment; the insert goes on, and is made once.

    Attributes:
        written: The task, once it is in the store; None if it never will be by this run, which then left nothing
            behind. Await it shielded.
    """

    def __init__(self, record: TaskRecord, request: TaskRequest, started: RunStarted, create: Create) -> None:
        self._record = record
        self._request = request
        self._started = started
        self._create = create
        self._insert: asyncio.Task[TaskRecord | ValueNotStorable | None] | None = None
        self._given_up = False
        self.written: asyncio.Future[TaskRecord | None] = asyncio.get_running_loop().create_future()

    @property
    def is_begun(self) -> bool:
        """Whether it is on its way to the store, or has arrived, or failed to."""
        return self._insert is not None

    async def write(self, ending: Write | None = None, *, context: contextvars.Context) -> TaskRecord | None:
        """The task once it is written; None if it could not be, and never will be.

        Its outcome is written with it if it has one by now, and nobody was first without. Then it is final.

        Args:
            context: What the insert is made in: not that of a tool, which would wait for it as for its own work.

        Raises:
            ValueNotStorable: Not with this ending; it may be with another.
        """
        while self._insert is not None or not self._given_up:
            if self._insert is None:
                inserting = self._inserted(ending)
                self._insert = asyncio.get_running_loop().create_task(inserting, context=context)
            inserted = await shielded(self._insert)
            if not isinstance(inserted, ValueNotStorable):
                return inserted
            if ending is not None:
                raise inserted
        return None

    def give_up(self) -> None:
        """The run is over. If nobody has begun to write its task, somebody else may write it."""
        self._given_up = True
        if self._insert is None and not self.written.done():
            self.written.set_result(None)

    async def _inserted(self, ending: Write | None) -> TaskRecord | ValueNotStorable | None:
        """Insert it. The error is given and not raised: those who waited for it may all be gone by then."""
        try:
            record = await self._create(self._record, self._request, self._started, ending=ending)
        except asyncio.CancelledError:
            # The event loop is being closed.
            self.written.cancel()
            raise
        except Exception as exc:
            if ending is not None and isinstance(exc, ValueNotStorable):
                self._insert = None
                if self._given_up:
                    self.give_up()
                return exc
            self.written.set_exception(exc)
            # Looked at, so that asyncio does not report it as never retrieved if the caller went away.
            self.written.exception()
            return None
        self.written.set_result(record)
        return record


class EarlyStart:
    """Starts tools of one runtime early, and knows which were quick."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self._took: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._unwritten: dict[str, Unwritten] = {}

    def check(self, tools: Mapping[str, ToolPolicy]) -> None:
        """Say of which tools it is asked for in vain: their runs begin where an engine carries their tasks."""
        names = sorted(name for name, policy in tools.items() if policy.early_start)
        if names and not isinstance(self._runtime.engine, ReservesSlots):
            engine, named = type(self._runtime.engine).__name__, ", ".join(names)
            logger.info("early_start does nothing with %s, which carries tasks to workers: %s", engine, named)

    def is_for(self, record: TaskRecord, policy: ToolPolicy, *, key: str | None) -> bool:
        """Whether the tool of a new task may start before the task is written.

        Not under a key: the task that stands there may be another. Nor one that is not announced: its tool may still
        answer on the original call, which is decided by the record in the store.
        """
        if not (policy.early_start and policy.rerun and record.announced and key is None):
            return False
        return self._took.get((record.method, record.name), QUICK) < QUICK

    async def start(
        self, slot: ReservedSlot, record: TaskRecord, request: TaskRequest, policy: ToolPolicy, create: Create
    ) -> TaskRecord | None:
        """The task, durable on return, at work or ended already; None if nothing was written, and nothing is at work.

        The run writes it, and not the caller: one that is cancelled meanwhile would leave it in between.
        """
        started = RunStarted(worker=self._runtime.worker, tool_version=policy.version)
        write = new_write_id(run=True)
        unwritten = Unwritten(record, request, started, partial(create, write=write))
        claims = self._runtime.claims
        claims.add_made(apply(record, started, record.created_at).written(write), request, policy, unwritten)
        if not slot.start(record.id):
            claims.forget_made(record.id)
            return None
        self._unwritten[record.id] = unwritten
        unwritten.written.add_done_callback(lambda _: self._unwritten.pop(record.id, None))
        return await shielded(unwritten.written)

    async def until_written(self, task_id: str) -> None:
        """Return when the task is not on its way to the store any more, if it was: its own tool may ask about it."""
        if (unwritten := self._unwritten.get(task_id)) is not None:
            await asyncio.wait({unwritten.written})

    def timed(self, body: Body) -> Body:
        """The same body, of which it is noted how long it takes."""

        async def measured(run: Run) -> Ending:
            if not run.policy.early_start:
                return await body(run)
            clock = asyncio.get_running_loop().time
            began = clock()
            try:
                return await body(run)
            finally:
                self._note(run.record, clock() - began)

        return measured

    def _note(self, record: TaskRecord, seconds: float) -> None:
        tool = record.method, record.name
        self._took[tool] = seconds
        self._took.move_to_end(tool)
        if len(self._took) > MAX_KNOWN:
            self._took.popitem(last=False)
