"""Following calls and tasks to their ends: many at once, over several servers, for who watches and can be asked.

`Follower` does the waiting. What happens meanwhile it tells its `Hooks`: every state, every question, that a server is
out of reach and that it is back. The wait for one task is `TaskWait`'s.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import anyio
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST, ElicitRequestParams, ElicitResult, ErrorData
from pydantic import BaseModel, ValidationError

from mcp_tasks.client.calls import resume_task, start_task
from mcp_tasks.client.failure import CallLost
from mcp_tasks.client.followed import Followed
from mcp_tasks.client.handle import OnAbandon, TaskHandle
from mcp_tasks.client.hooks import HookFailed, Hooks, in_hook, raised_by_hooks
from mcp_tasks.client.ledger import Ledger
from mcp_tasks.client.ledger_entry import LedgerEntry
from mcp_tasks.client.questions import questions_of
from mcp_tasks.client.requests import is_transient
from mcp_tasks.client.servers.connecting import Connector, Era, ask_through_the_task, connector
from mcp_tasks.client.servers.grouping import ServerTasks, by_server
from mcp_tasks.client.servers.unreachable import leaves
from mcp_tasks.client.task_wait import TaskWait
from mcp_tasks.client.waiting import Budget
from mcp_tasks.core.durations import seconds_of
from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.record import Progress
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import InvalidResponse, ServerUnreachable, TasksError, UnknownTask, WaitTimedOut
from mcp_tasks.wire.parse import TaskSnapshot

TaskKey: TypeAlias = tuple[str, str, str]
"""What tells a task from all others: the `key` of its entry in the ledger."""


class Follower:
    """Follows calls, and tasks of any number of servers, to their ends.

    Args:
        hooks: Told what happens.
        asks: Whether a question is something to do: ask it, or end the wait if nobody is there. Without, tasks are
            only watched, and nothing becomes of them when the watching ends.
        on_abandon: What becomes of a task whose wait ends before the task has: it is cancelled, it times out, or nobody
            is there to be asked.
        timeout: How long `follow` or `call` may take. Time in which `on_question` works on an answer does not count.

    Attributes:
        seen: How each task stood when it was last heard of, by the key of its entry.
    """

    def __init__(
        self,
        hooks: Hooks | None = None,
        *,
        asks: bool = True,
        on_abandon: OnAbandon = "leave",
        timeout: timedelta | float | None = None,
    ) -> None:
        self.hooks: Hooks = hooks or Hooks()
        self.asks: bool = asks
        self.seen: dict[TaskKey, Followed] = {}
        self._on_abandon: OnAbandon = on_abandon
        self._seconds = seconds_of(timeout)
        self._budget: Budget | None = None
        self._open: dict[TaskKey, LedgerEntry] = {}
        self._handles: dict[TaskKey, tuple[LedgerEntry, TaskHandle]] = {}
        self._call: LedgerEntry | None = None
        self._calling = anyio.CancelScope()
        self._failure: HookFailed | None = None

    async def follow(
        self, entries: Sequence[LedgerEntry], connect: Connector, *, headers: Mapping[str, str] | None = None
    ) -> list[Followed]:
        """Follow tasks, over a connection to each of their servers; how each stood then, in the order given.

        Args:
            headers: What is going to be sent with requests: credentials, for one server.

        Raises:
            InvalidAddress: The ledger does not say how to reach a server.
            CredentialsForOne: There are headers, and several servers.
        """
        # A result that is here is not asked for again: its server may have forgotten it. Who only watches is shown it.
        each = {entry.key: entry for entry in entries}.values()
        unknown = [entry for entry in each if not self.asks or entry.result is None]
        groups = by_server(unknown, headers)
        self._begin(each)
        with raised_by_hooks():
            async with self._in_time(unknown), asyncio.TaskGroup() as waits:
                for group in groups:
                    waits.create_task(self._follow_server(group, connect))
        return [self.seen[entry.key] for entry in entries]

    async def call(
        self,
        client: Client,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        server: str,
        identity: str = "",
        detach: bool = False,
    ) -> Followed:
        """Call a tool, and follow the task that the call becomes, if it becomes one. One call at a time.

        Args:
            client: Connected with `elicit=follower.elicit`, if questions on the call itself are to be answered.
            server: The server's address, and `identity` who we are there, as the ledger has them.
            detach: Whether to leave the task as soon as there is one.
        """
        entry = LedgerEntry.begun(server=server, tool=tool, identity=identity)
        self._begin([entry])
        with raised_by_hooks():
            async with self._in_time([entry]):
                handle = await self._start(client, entry, arguments)
                del self._open[entry.key]
                if handle is not None:
                    entry = replace(entry, task_id=handle.id)
                    self.note(entry)
                    if not detach:
                        self._open[entry.key] = entry
                        await self._follow(handle, entry)
        return self.seen[entry.key]

    async def elicit(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """An `elicit` for `connect`: asks what a server asks on a call itself, before there is a task."""
        call = self._call
        if call is None:
            return await ask_through_the_task(context, params)
        request = {"method": "elicitation/create", "params": _json(params)}
        asked = _state(call, TaskStatus.INPUT_REQUIRED, input_requests={"": request})
        answer: Mapping[str, Any] | None = None
        with self._ending_call():
            if self.hooks.can_answer and (answer := await self.ask(call, "", request, asked)) is not None:
                return ElicitResult.model_validate(answer)
        self.note(call, snapshot=asked, left_open=self.hooks.can_answer)
        why = "Left open by the user" if self.hooks.can_answer else "Nobody is there to answer"
        return ErrorData(code=INVALID_REQUEST, message=why)

    @property
    def can_cancel(self) -> bool:
        """Whether there is a task to cancel, and not just a call under way or something to watch."""
        return self.asks and any(entry.task_id for entry in self._open.values())

    async def cancel_all(self) -> None:
        """Ask for every task that is still waited for to be cancelled. The waits go on until they have ended."""
        for entry, handle in list(self._handles.values()):
            try:
                await handle.cancel()
            except (TasksError, MCPError, OSError) as exc:
                self.hooks.on_not_cancelled(self.seen[entry.key], exc)

    def leave_all(self) -> None:
        """Somebody has decided that the tasks go on, whatever `on_abandon` says."""
        self._on_abandon = "leave"

    @contextmanager
    def paused(self) -> Generator[None]:
        """Have the `timeout` stand still while this is entered: somebody is to decide something."""
        with nullcontext() if self._budget is None else self._budget.paused():
            yield

    async def ask(
        self, entry: LedgerEntry, key: str, request: JsonObject, asked: TaskSnapshot | None = None
    ) -> Mapping[str, Any] | None:
        """Have the hooks answer a question, while no time passes; None if it is left open. `asked` is how a call stands
        that asks it, which is not kept: it may be answered."""
        followed = self.seen[entry.key] if asked is None else replace(self.seen[entry.key], snapshot=asked)
        [question] = questions_of({key: request}, entry.tool or entry.task_id, entry.server_label)
        with self.paused(), in_hook():
            return await self.hooks.on_question(followed, question)

    def note(self, entry: LedgerEntry, **fields: Any) -> Followed:
        """Keep what has become known of a task; how it stands now."""
        followed = self.seen[entry.key] = replace(self.seen.get(entry.key) or Followed(entry=entry), **fields)
        return followed

    def tell(self, entry: LedgerEntry, **fields: Any) -> None:
        """Keep it, and tell the hooks."""
        followed = self.note(entry, **fields)
        with in_hook():
            self.hooks.on_change(followed)

    def _begin(self, entries: Iterable[LedgerEntry]) -> None:
        """Know nothing of these yet: what became of an earlier call, or of an earlier wait, is not said of this one."""
        self.seen.update({entry.key: Followed(entry=entry) for entry in entries})

    @asynccontextmanager
    async def _in_time(self, entries: Iterable[LedgerEntry]) -> AsyncGenerator[None]:
        """Cancel what takes longer than the limit, and note it of what had not ended by then."""
        self._open.update({entry.key: entry for entry in entries})
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._budget = Budget(self._seconds, limit.reschedule)
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            for entry in self._open.values():
                fate = self.seen[entry.key].fate or "left"
                self.note(entry, problem=WaitTimedOut(entry.task_id, self._seconds or 0.0, fate))
        finally:
            self._open.clear()

    async def _start(self, client: Client, entry: LedgerEntry, arguments: dict[str, Any] | None) -> TaskHandle | None:
        """Make a call; the handle of its task, or None if it became none."""

        async def show(progress: float, total: float | None, message: str | None) -> None:
            numbers = Progress(progress=progress, total=total, message=message)
            with self._ending_call(), in_hook():
                self.hooks.on_change(_working(entry, message=message, progress=numbers))

        self._call, self._failure = entry, None
        with in_hook():
            self.hooks.on_change(_working(entry))
        ended: dict[str, Any] = {}
        try:
            started: Any = None
            with anyio.CancelScope() as self._calling:
                # A call that does not become a task shows its progress, and takes as long as it takes.
                started = await start_task(
                    client, entry.tool, arguments, read_timeout_seconds=math.inf, progress_callback=show
                )
            if self._failure is not None:
                raise self._failure
            if isinstance(started, TaskHandle):
                return started
            ended = {"snapshot": _state(entry, TaskStatus.COMPLETED, result=_json(started))}
        except (CallLost, InvalidResponse) as exc:
            ended = {"problem": exc}
        except MCPError as exc:
            ended = {"snapshot": _state(entry, TaskStatus.FAILED, error=_json(exc.error))}
        except (RuntimeError, ValidationError) as exc:
            # What the SDK says of a result that does not fit its tool's own schema, or is no result.
            ended = {"problem": InvalidResponse(f"the server's answer is not valid: {exc}")}
        finally:
            self._call = None
            if not self.seen[entry.key].input_requests:
                # Else it ended because of a question that nobody answered, and what the server made of that says less.
                self.note(entry, **ended)
            with in_hook():
                self.hooks.on_call_ended(self.seen[entry.key])
        return None

    @contextmanager
    def _ending_call(self) -> Generator[None]:
        """Have what a hook raises end the call that it was told of: it is called by the SDK, which would keep that to
        itself."""
        try:
            yield
        except HookFailed as exc:
            self._failure = exc
            self._calling.cancel()

    async def _follow_server(self, group: ServerTasks, connect: Connector) -> None:
        try:
            async with connect(group) as client, asyncio.TaskGroup() as waits:
                for entry in group.entries:
                    handle = resume_task(client, entry.task_id, tool=entry.tool)
                    waits.create_task(self._follow(handle, entry))
        except TasksError as exc:
            self._give_up(group.entries, exc)
        except BaseExceptionGroup as exceptions:
            # A connection that goes down takes whoever waits on it along, wrapped.
            found = list(leaves(exceptions))
            if not all(isinstance(exc, Exception) and is_transient(exc) for exc in found):
                raise
            what = f"the connection broke: {found[0]}"
            self._give_up(group.entries, ServerUnreachable(what, reason="connection"))

    async def _follow(self, handle: TaskHandle, entry: LedgerEntry) -> None:
        self._handles[entry.key] = entry, handle
        try:
            if entry.is_final:
                await self._look_again(handle, entry)
            elif not await TaskWait(self, handle, entry).run():
                await self._abandon(handle, entry)
            self._open.pop(entry.key, None)
        except asyncio.CancelledError:
            await self._abandon(handle, entry)
            raise
        except (UnknownTask, InvalidResponse, MCPError, OSError) as exc:
            self._give_up([entry], exc)
        finally:
            del self._handles[entry.key]

    async def _look_again(self, handle: TaskHandle, entry: LedgerEntry) -> None:
        """A task that is known to have ended: see how, as long as its server can tell."""
        try:
            snapshot = await handle.status()
        except UnknownTask:
            return
        self.tell(entry, snapshot=snapshot)

    async def _abandon(self, handle: TaskHandle, entry: LedgerEntry) -> None:
        if self.asks:
            self.note(entry, fate=await handle.abandon(self._on_abandon))

    def _give_up(self, entries: Sequence[LedgerEntry], problem: Exception) -> None:
        for entry in entries:
            self._open.pop(entry.key, None)
            followed = self.note(entry, problem=problem)
            with in_hook():
                self.hooks.on_problem(followed, problem)


async def follow(
    entries: Sequence[LedgerEntry],
    hooks: Hooks | None = None,
    *,
    ledger: Ledger | None = None,
    headers: Mapping[str, str] | None = None,
    era: Era = "auto",
    on_abandon: OnAbandon = "leave",
    timeout: timedelta | float | None = None,
) -> list[Followed]:
    """Follow tasks of a ledger to their ends, wherever they are; how each stood then, in the order given.

    Args:
        hooks: Told what happens, and asked what the tasks ask.
        ledger: Where their states and the answers given are kept.
        headers: What goes with every HTTP request; for tasks of one server only.
        era: Which protocol is spoken.
        on_abandon: What becomes of a task whose wait ends before the task has.
        timeout: How long to wait. Time in which a hook works on an answer does not count.

    Raises:
        InvalidAddress: The ledger does not say how to reach a server.
        CredentialsForOne: There are headers, and several servers.
    """
    connect = connector(ledger=ledger, headers=headers, era=era, elicit=ask_through_the_task)
    return await Follower(hooks, on_abandon=on_abandon, timeout=timeout).follow(entries, connect, headers=headers)


def _state(call: LedgerEntry, status: TaskStatus, **fields: Any) -> TaskSnapshot:
    """How a call stands that is no task."""
    return TaskSnapshot(id="", status=status, created_at=call.started_at, updated_at=datetime.now(UTC), **fields)


def _working(call: LedgerEntry, **fields: Any) -> Followed:
    """How a call stands that is under way. That is told and not kept: if no more becomes known, nothing is."""
    return Followed(entry=call, snapshot=_state(call, TaskStatus.WORKING, **fields))


def _json(value: BaseModel) -> dict[str, Any]:
    return value.model_dump(by_alias=True, mode="json", exclude_none=True)
