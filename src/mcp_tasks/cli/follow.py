"""Following calls and tasks to their ends: many at once, over several servers.

`Follower` waits. It tells a `Watcher` every state, every question, and that a server is out of reach or back.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

import anyio
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, ElicitRequestParams, ElicitResult, ErrorData
from pydantic import BaseModel, ValidationError

from mcp_tasks.cli.questions import Question, questions_of
from mcp_tasks.cli.servers import ServerAddress, ServerTasks, by_server, leaves
from mcp_tasks.client import CallLost, LedgerEntry, OnAbandon, TaskHandle, resume_task, start_task
from mcp_tasks.client.answers import Budget
from mcp_tasks.client.backend import is_transient
from mcp_tasks.client.ledger import UNKNOWN, short_id
from mcp_tasks.errors import (
    Fate,
    InvalidInput,
    InvalidResponse,
    QuestionUnseen,
    ServerUnreachable,
    TasksError,
    UnknownTask,
    UsageError,
    WaitTimedOut,
)
from mcp_tasks.model.json import JsonObject, list_in, object_in
from mcp_tasks.model.record import FINAL_STATUSES, Progress, TaskStatus
from mcp_tasks.model.values import clock, seconds_of
from mcp_tasks.protocol.shapes import TaskSnapshot

COMPLETED_BADLY: Final = "completed with an error"
"""The state of a task that is completed to the protocol, and whose tool says that it failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Followed:
    """The last known state of a task, or of a call that has not become one.

    Attributes:
        entry: The task, as the ledger had it. That of a call has no task id.
        snapshot: Its last state; None if none was seen. A call has its response in it.
        problem: Why no more is known of it, if so. A `WaitTimedOut` if the time was up.
        left_open: Whether a question of it was left open on purpose.
        saved: Files of its result that were written, by the number of their block.
        not_saved: Why one could not be written.
        fate: What became of it when the wait for it ended early.
        away_since: Since when its server is out of reach.
    """

    entry: LedgerEntry
    snapshot: TaskSnapshot | None = None
    problem: Exception | None = None
    left_open: bool = False
    saved: Mapping[int, Path] = field(default_factory=dict[int, Path])
    not_saved: TasksError | None = None
    fate: Fate | None = None
    away_since: datetime | None = None

    @property
    def task_id(self) -> str | None:
        """The id of the task; None for a call that has not become one."""
        return self.entry.task_id or None

    @property
    def name(self) -> str:
        """Its tool, or the beginning of its id if the tool is not known."""
        return self.entry.tool or short_id(self.entry.task_id)

    @property
    def status(self) -> str:
        """The task's status as it was last seen, `unknown` if there was no way to find out."""
        if self.snapshot is not None:
            return self.snapshot.status.value
        return self.entry.status if self.problem is None else UNKNOWN

    @property
    def state(self) -> str:
        """The status for people: `completed with an error` if the tool says that it failed."""
        return COMPLETED_BADLY if self.is_error and self.status == TaskStatus.COMPLETED else self.status

    @property
    def is_final(self) -> bool:
        return self.status in FINAL_STATUSES

    @property
    def elapsed(self) -> timedelta | None:
        """How long it took, or has taken so far; None if that is not known."""
        entry, snapshot = self.entry, self.snapshot
        if self.status == UNKNOWN:
            return None
        if not self.is_final:
            return entry.age
        if snapshot is not None:
            # Both by the server's clock, so their difference is right even if that clock is wrong.
            return snapshot.updated_at - snapshot.created_at
        return None if entry.finished_at is None else entry.finished_at - entry.started_at

    @property
    def progress(self) -> Progress | None:
        return None if self.snapshot is None or self.is_final else self.snapshot.progress

    @property
    def percent(self) -> int | None:
        if self.progress is None or not self.progress.total:
            return None
        # Within bounds before it is rounded: a server may say more than fits a whole number.
        return int(max(0.0, min(100.0, 100 * self.progress.progress / self.progress.total)))

    @property
    def message(self) -> str | None:
        return self.entry.message if self.snapshot is None else self.snapshot.message

    @property
    def says(self) -> str:
        """The message, or for how long the server is out of reach."""
        if self.away_since is None:
            return self.message or ""
        return f"server out of reach for {clock(datetime.now(UTC) - self.away_since)}, trying again"

    @property
    def result(self) -> JsonObject | None:
        return self.entry.result if self.snapshot is None else self.snapshot.result

    @property
    def error(self) -> JsonObject | None:
        """The JSON-RPC error of the call."""
        return self.entry.error if self.snapshot is None else self.snapshot.error

    @property
    def failure(self) -> str:
        """Why the call failed, for people; empty if it did not, or has a result that says so."""
        if self.status != TaskStatus.FAILED or self.result is not None:
            return ""
        error = self.error or {}
        why = str(error.get("message") or self.message or "the server does not say why")
        return f"{why} (code {error['code']})" if "code" in error else why

    @property
    def input_requests(self) -> Mapping[str, JsonObject]:
        return {} if self.snapshot is None else self.snapshot.input_requests

    @property
    def questions(self) -> list[Question]:
        return questions_of(self.input_requests, self.entry.tool or self.entry.task_id, self.entry.server_label)

    @property
    def is_error(self) -> bool:
        """Whether there is a result by which the tool says that it failed."""
        return bool((self.result or {}).get("isError"))

    @property
    def outcome(self) -> str:
        """The status; but `tool_error` if the tool says that it failed, `left_open` if the user chose to leave its
        question open, and `unknown` if there is a problem."""
        if self.problem is not None:
            return UNKNOWN
        if self.is_error and self.is_final:
            # The same result is "completed" in 2026-07-28, and "failed" in 2025-11-25.
            return "tool_error"
        if self.status == TaskStatus.INPUT_REQUIRED.value and self.left_open:
            # A question for a model or a program is not the user's to leave open.
            return "left_open" if all(question.is_elicitation for question in self.questions) else self.status
        return self.status

    @property
    def refuses_arguments(self) -> bool:
        """Whether the server did not accept the arguments: by its error, or in the words of the SDKs."""
        if self.error is not None:
            return self.error.get("code") == INVALID_PARAMS
        said = [str(block.get("text")) for block in blocks_of(self.result or {})] if self.is_error else []
        return any("validation error" in text.lower() for text in said)

    def state_to_json(self) -> dict[str, Any]:
        """The state as one line of a log: what changes while it is followed."""
        progress = None if self.snapshot is None else self.snapshot.progress
        return _with_values(
            taskId=self.task_id,
            tool=self.name,
            status=self.status,
            isError=self.is_error or None,
            statusMessage=self.message,
            progress=progress and progress.progress,
            total=progress and progress.total,
            outOfReachSince=self.away_since and self.away_since.isoformat(),
        )

    def to_json(self) -> dict[str, Any]:
        """Everything that has a value, in the protocol's words."""
        problem = self.problem or self.not_saved
        return _with_values(
            server=self.entry.server,
            tool=self.entry.tool or None,
            taskId=self.task_id,
            status=self.status,
            statusMessage=self.message,
            result=self.result,
            error=self.error,
            inputRequests=dict(self.input_requests) or None,
            problem=None if problem is None else str(problem),
            saved=[str(path) for path in self.saved.values()] or None,
        )


def _with_values(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def blocks_of(result: JsonObject) -> list[JsonObject]:
    """The content of a tool's result, block by block; an empty one for anything that is not a block."""
    return [object_in(block) or {} for block in list_in(result, "content")]


Event: TypeAlias = Literal["changed", "withdrawn", "refused", "back", "ended", "problem", "not cancelled"]
"""A state changed, or its server was tried again; a question that is being asked was withdrawn; the server refused an
answer (`detail`: the exception), which is asked again; the server is back (after this time); a call of `Follower.call`
is over, or has become a task; the wait ended with a problem (the exception); `cancel_all` failed (the exception)."""

TaskKey: TypeAlias = tuple[str, str, str]
"""The `key` of a task's entry in the ledger."""

Connector: TypeAlias = Callable[[ServerTasks], AbstractAsyncContextManager[Client]]
"""Connects to the server of some tasks, as the user that they belong to."""


class Watcher:
    """Is told what happens to calls and tasks, and answers their questions. An exception of it ends the following.

    Attributes:
        can_answer: Whether there is a person to ask. If not, a task that asks ends the wait for it.
    """

    can_answer: bool = False

    def tell(self, followed: Followed, event: Event, detail: Any = None) -> None:
        """Something happened."""

    async def answer(self, followed: Followed, question: Question) -> Mapping[str, Any] | None:
        """The answer to a question; None leaves it open, and ends the wait for this task."""
        return None


class _WatcherFailed(Exception):
    """The watcher raised, and not a server; the cause is the exception."""


async def ask_through_the_task(context: ClientRequestContext, params: ElicitRequestParams) -> ErrorData:
    """An elicitation callback for a client that answers the questions of tasks by `TaskHandle.answer`. With it, the
    server is told that there is a person to ask."""
    return ErrorData(code=INVALID_REQUEST, message="Ask through the task")


class Follower:
    """Follows calls, and tasks of any number of servers, to their ends.

    Args:
        asks: Whether questions are put to the watcher, and end the wait if it cannot answer. Without, tasks are only
            watched, and nothing becomes of them when the watching ends.
        on_abandon: What becomes of a task whose wait ends before the task does.
        timeout: How long `follow` or `call` may take. Time in which the watcher works on an answer does not count.

    Attributes:
        seen: The last known state of each task, by the key of its entry.
    """

    def __init__(
        self,
        watcher: Watcher | None = None,
        *,
        asks: bool = True,
        on_abandon: OnAbandon = "leave",
        timeout: timedelta | float | None = None,
    ) -> None:
        self.watcher: Watcher = watcher or Watcher()
        self.asks: bool = asks
        self.seen: dict[TaskKey, Followed] = {}
        self._on_abandon: OnAbandon = on_abandon
        self._seconds = seconds_of(timeout)
        self._budget: Budget | None = None
        self._open: dict[TaskKey, LedgerEntry] = {}
        self._handles: dict[TaskKey, tuple[LedgerEntry, TaskHandle]] = {}
        self._call: LedgerEntry | None = None
        self._calling = anyio.CancelScope()
        self._failure: _WatcherFailed | None = None

    async def follow(
        self, entries: Sequence[LedgerEntry], connect: Connector, *, headers: Mapping[str, str] | None = None
    ) -> list[Followed]:
        """Follow tasks, over a connection to each of their servers. Returns their last states, in the order given.

        Args:
            headers: The headers that will be sent with requests: credentials, for one server.

        Raises:
            InvalidInput: The ledger does not say how to reach a server, or there are headers, and several servers.
        """
        # A result that is in the ledger is not fetched again: the server may have forgotten it.
        each = {entry.key: entry for entry in entries}.values()
        unknown = [entry for entry in each if not self.asks or entry.result is None]
        groups = by_server(unknown, headers)
        self.seen.update({entry.key: Followed(entry=entry) for entry in each})
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
            server: The server's address, and `identity` the user there, as the ledger has them.
            detach: Whether to leave the task as soon as there is one.
        """
        entry = LedgerEntry.begun(server=server, tool=tool, identity=identity)
        self.seen[entry.key] = Followed(entry=entry)
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
        """An elicitation callback that asks the questions of a call itself, before there is a task."""
        call = self._call
        if call is None:
            return await ask_through_the_task(context, params)
        request = {"method": "elicitation/create", "params": _json(params)}
        asked = _state(call, TaskStatus.INPUT_REQUIRED, input_requests={"": request})
        answer: Mapping[str, Any] | None = None
        with self._ending_call():
            if self.watcher.can_answer and (answer := await self.ask(call, "", request, asked)) is not None:
                return ElicitResult.model_validate(answer)
        self.note(call, snapshot=asked, left_open=self.watcher.can_answer)
        why = "Left open by the user" if self.watcher.can_answer else "Nobody is there to answer"
        return ErrorData(code=INVALID_REQUEST, message=why)

    @property
    def can_cancel(self) -> bool:
        """Whether there is a task to cancel, and not only a call under way or tasks that are watched."""
        return self.asks and any(entry.task_id for entry in self._open.values())

    async def cancel_all(self) -> None:
        """Ask for every task that is still waited for to be cancelled. The waits go on until they have ended."""
        for entry, handle in list(self._handles.values()):
            try:
                await handle.cancel()
            except (TasksError, MCPError, OSError) as exc:
                self.watcher.tell(self.seen[entry.key], "not cancelled", exc)

    def leave_all(self) -> None:
        """Leave the tasks running when the waits end, whatever `on_abandon` says."""
        self._on_abandon = "leave"

    @contextmanager
    def paused(self) -> Generator[None]:
        """Stop the clock of the `timeout` while this is entered."""
        with nullcontext() if self._budget is None else self._budget.paused():
            yield

    async def ask(
        self, entry: LedgerEntry, key: str, request: JsonObject, asked: TaskSnapshot | None = None
    ) -> Mapping[str, Any] | None:
        """The watcher's answer to a question, while no time passes; None if it is left open.

        Args:
            asked: The state of a call that asks it, which is not kept: it may be answered.
        """
        followed = self.seen[entry.key] if asked is None else replace(self.seen[entry.key], snapshot=asked)
        [question] = questions_of({key: request}, entry.tool or entry.task_id, entry.server_label)
        with self.paused(), _of_watcher():
            return await self.watcher.answer(followed, question)

    def note(self, entry: LedgerEntry, **fields: Any) -> Followed:
        """Keep new facts about a task; returns its state."""
        followed = self.seen[entry.key] = replace(self.seen.get(entry.key) or Followed(entry=entry), **fields)
        return followed

    def tell(self, entry: LedgerEntry, event: Event, detail: Any = None, **fields: Any) -> None:
        """Keep new facts about a task, and tell the watcher."""
        followed = self.note(entry, **fields)
        with _of_watcher():
            self.watcher.tell(followed, event, detail)

    @asynccontextmanager
    async def _in_time(self, entries: Iterable[LedgerEntry]) -> AsyncGenerator[None]:
        """Cancel the block when the time is up, and note that for what had not ended. An exception of the watcher is
        raised as it was."""
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
        except (_WatcherFailed, BaseExceptionGroup) as exc:
            failed = next((leaf for leaf in leaves(exc) if isinstance(leaf, _WatcherFailed)), None)
            if failed is None or failed.__cause__ is None:
                raise
            raise failed.__cause__ from None
        finally:
            self._open.clear()

    async def _start(self, client: Client, entry: LedgerEntry, arguments: dict[str, Any] | None) -> TaskHandle | None:
        """Make a call; the handle of its task, or None if it became none."""

        def show(**fields: Any) -> None:
            # Told and not kept: if no more becomes known, nothing is.
            with _of_watcher():
                call = Followed(entry=entry, snapshot=_state(entry, TaskStatus.WORKING, **fields))
                self.watcher.tell(call, "changed")

        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            with self._ending_call():
                show(message=message, progress=Progress(progress=progress, total=total, message=message))

        self._call, self._failure = entry, None
        show()
        ended: dict[str, Any] = {}
        try:
            started: Any = None
            with anyio.CancelScope() as self._calling:
                # A call that does not become a task shows its progress, and takes as long as it takes.
                started = await start_task(
                    client, entry.tool, arguments, read_timeout_seconds=math.inf, progress_callback=progressed
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
            # The SDK raises these for a result that does not fit its tool's own schema, or is no result.
            ended = {"problem": InvalidResponse(f"the server's answer is not valid: {exc}")}
        finally:
            self._call = None
            if self.seen[entry.key].input_requests:
                # It ended because of an unanswered question, and the server's response to that says less.
                ended = {}
            self.tell(entry, "ended", **ended)
        return None

    @contextmanager
    def _ending_call(self) -> Generator[None]:
        """End the call when the watcher raises inside a callback of the SDK, which would swallow the exception."""
        try:
            yield
        except _WatcherFailed as exc:
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
            # The end of a connection ends the waits on it, in a group.
            found = list(leaves(exceptions))
            if not all(isinstance(exc, Exception) and is_transient(exc) for exc in found):
                raise
            what = f"the connection broke: {found[0]}"
            self._give_up(group.entries, ServerUnreachable(what, reason="connection"))

    async def _follow(self, handle: TaskHandle, entry: LedgerEntry) -> None:
        self._handles[entry.key] = entry, handle
        try:
            if entry.is_final:
                # See how it ended, as long as its server can tell.
                with suppress(UnknownTask):
                    self.tell(entry, "changed", snapshot=await handle.status())
            elif not await _TaskWait(self, handle, entry).run():
                await self._abandon(handle, entry)
            self._open.pop(entry.key, None)
        except asyncio.CancelledError:
            await self._abandon(handle, entry)
            raise
        except (UnknownTask, InvalidResponse, MCPError, OSError) as exc:
            self._give_up([entry], exc)
        finally:
            del self._handles[entry.key]

    async def _abandon(self, handle: TaskHandle, entry: LedgerEntry) -> None:
        if self.asks:
            self.note(entry, fate=await handle.abandon(self._on_abandon))

    def _give_up(self, entries: Sequence[LedgerEntry], problem: Exception) -> None:
        for entry in entries:
            self._open.pop(entry.key, None)
            self.tell(entry, "problem", problem, problem=problem)


class _TaskWait:
    """The wait for one task of a `Follower`: its states until it has ended, and its questions, one at a time."""

    def __init__(self, follower: Follower, handle: TaskHandle, entry: LedgerEntry) -> None:
        self._follower = follower
        self._handle = handle
        self._entry = entry
        self._can_answer = follower.watcher.can_answer
        self._answered: set[str] = set()
        self._away_since: datetime | None = None
        self._untold: TaskSnapshot | None = None

    async def run(self) -> bool:
        """Wait until the task has ended or its question was left open (True), or there is no person to ask (False)."""
        while True:
            snapshot = await self._until(lambda state: state.is_final or self._is_stuck(state))
            if snapshot.is_final:
                return True
            if not self._can_answer:
                return False
            key = self._open(snapshot)[0]
            if not await self._answer(key, snapshot.input_requests[key]):
                self._follower.note(self._entry, left_open=True)
                return True

    async def _until(self, reached: Callable[[TaskSnapshot], bool], *, tell_last: bool = True) -> TaskSnapshot:
        """The first state for which `reached` holds. All up to it are told; without `tell_last`, that one next time."""
        if self._untold is not None:
            untold, self._untold = self._untold, None
            self._follower.tell(self._entry, "changed", snapshot=untold)
            if reached(untold):
                return untold
        # To a server of 2025-11-25, fetching a question is promising to answer it.
        questions = self._follower.asks and self._can_answer
        async with aclosing(self._handle.watch(questions=questions, on_outage=self._outage)) as states:
            async for snapshot in states:
                self._outage(None)
                if not tell_last and reached(snapshot):
                    self._follower.note(self._entry, snapshot=snapshot)
                    self._untold = snapshot
                    return snapshot
                self._follower.tell(self._entry, "changed", snapshot=snapshot)
                if reached(snapshot):
                    return snapshot
        raise AssertionError("unreachable: a task is watched to its end")

    def _outage(self, lasted: timedelta | None) -> None:
        now = datetime.now(UTC)
        if lasted is not None:
            # The first time counts: an outage may outlast the look that met it.
            self._away_since = self._away_since or now - lasted
            self._follower.tell(self._entry, "changed", away_since=self._away_since)
        elif self._away_since is not None:
            after, self._away_since = now - self._away_since, None
            self._follower.tell(self._entry, "back", after, away_since=None)

    def _is_stuck(self, snapshot: TaskSnapshot) -> bool:
        """Whether the task waits for an answer."""
        if not self._follower.asks:
            return False
        return bool(self._open(snapshot)) if self._can_answer else snapshot.status is TaskStatus.INPUT_REQUIRED

    def _open(self, snapshot: TaskSnapshot) -> list[str]:
        return [key for key in snapshot.input_requests if key not in self._answered]

    async def _answer(self, key: str, request: JsonObject) -> bool:
        """Have a question answered, and send the answer; False if it is left open."""
        response = self._handle.recorded_answer(key, request)
        if response is None:
            was_asked, response = await self._ask(key, request)
            if was_asked and response is None:
                return False
        self._answered.add(key)
        if response is None:
            return True
        try:
            await self._handle.answer({key: response})
        except (MCPError, OSError, UsageError) as exc:
            self._answered.discard(key)
            if not is_transient(exc):
                self._follower.tell(self._entry, "refused", exc)
            # Otherwise it is in the ledger, and goes out again after the next look.
        return True

    async def _ask(self, key: str, request: JsonObject) -> tuple[bool, Mapping[str, Any] | None]:
        """Ask until answered or left open (None); False if the question was withdrawn meanwhile."""
        asking = asyncio.ensure_future(self._follower.ask(self._entry, key, request))
        # The state that ends the asking is told after that: until then a person types.
        gone = asyncio.ensure_future(self._until(lambda state: key not in state.input_requests, tell_last=False))
        try:
            await asyncio.wait({asking, gone}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return True, await asking
            await gone
        finally:
            for future in (asking, gone):
                future.cancel()
            await asyncio.gather(asking, gone, return_exceptions=True)
        self._follower.tell(self._entry, "withdrawn")
        return False, None


@contextmanager
def _of_watcher() -> Generator[None]:
    """Tells exceptions of the watcher from those of servers: an `OSError` of its own ends no wait for a task."""
    try:
        yield
    except Exception as exc:
        raise _WatcherFailed from exc


def _state(call: LedgerEntry, status: TaskStatus, **fields: Any) -> TaskSnapshot:
    """The state of a call that is not a task."""
    return TaskSnapshot(id="", status=status, created_at=call.started_at, updated_at=datetime.now(UTC), **fields)


def _json(value: BaseModel) -> dict[str, Any]:
    return value.model_dump(by_alias=True, mode="json", exclude_none=True)


# ---- looking
# Tasks of a ledger, each for a moment: their present states, and their questions.


T = TypeVar("T")

Seen: TypeAlias = dict[TaskKey, T | Exception]
"""The result for each task, or why there is none."""

_MORE: Final = 0.2
"""Seconds for further questions, which come one after the other."""

_FETCH_LIMIT: Final = timedelta(seconds=15)
"""For a server to send its questions."""


async def at_each(
    entries: Iterable[LedgerEntry],
    connect: Connector,
    act: Callable[[TaskHandle], Awaitable[T]],
    *,
    headers: Mapping[str, str] | None = None,
) -> Seen[T]:
    """Do something with tasks of any number of servers, over a connection to each. A failure with one does not keep
    the others from it.

    Args:
        headers: The headers that will be sent with requests: credentials, for one server.

    Raises:
        InvalidInput: There are headers, and several servers.
    """
    seen: Seen[T] = {}
    reachable: list[LedgerEntry] = []
    for entry in entries:
        try:
            ServerAddress.of(entry)
            reachable.append(entry)
        except InvalidInput as exc:
            seen[entry.key] = exc

    async def visit(group: ServerTasks) -> None:
        try:
            async with connect(group) as client:
                for entry in group.entries:
                    try:
                        seen[entry.key] = await act(resume_task(client, entry.task_id, tool=entry.tool))
                    except (TasksError, MCPError) as exc:
                        seen[entry.key] = exc
        except TasksError as exc:
            for entry in group.entries:
                seen.setdefault(entry.key, exc)

    groups = by_server(reachable, headers)
    async with asyncio.TaskGroup() as visits:
        for group in groups:
            visits.create_task(visit(group))
    return seen


async def open_questions(
    handle: TaskHandle, *, server: str = "", fetch: bool = True, within: timedelta = _FETCH_LIMIT
) -> list[Question]:
    """The questions of a task, for a client that answers and does not stay.

    Args:
        server: Where the task is, as the person is shown it.
        fetch: Whether to fetch questions from a server that sends them only to a client that waits. To servers of
            2025-11-25 that is a promise to answer.
        within: For how long to wait for them.

    Raises:
        InvalidInput: The task asks nothing.
        QuestionUnseen: It asks something, and its server has not sent the question.
    """
    snapshot = await handle.status()
    if snapshot.status is TaskStatus.INPUT_REQUIRED and not snapshot.input_requests:
        if not fetch:
            raise QuestionUnseen("the task asks something, and its server shows it only to one who is going to answer")
        found: TaskSnapshot | None = None
        with anyio.move_on_after(within.total_seconds()) as scope:
            async with aclosing(handle.watch()) as states:
                async for snapshot in states:
                    if snapshot.is_final or snapshot.input_requests:
                        # Further questions may come right behind the first one.
                        scope.deadline = anyio.current_time() + _MORE if found is None else scope.deadline
                        found = snapshot
        if found is None:
            raise QuestionUnseen(
                f"the task asks something, and its server did not send it within {within.total_seconds():.15g} s",
                "Some servers of 2025-11-25 send a question only once. Is somebody else about to answer it?",
            )
        snapshot = found
    if not snapshot.input_requests:
        raise InvalidInput("no_question", f"the task has no open question; it is {snapshot.status.value}")
    return questions_of(snapshot.input_requests, handle.tool or handle.id, server)


async def still_asked(handle: TaskHandle, answers: Mapping[str, T]) -> dict[str, T]:
    """The answers that a task still wants. Another client may have answered meanwhile, and a server ignores an answer
    that comes too late.

    Raises:
        InvalidInput: It wants none of them.
    """
    try:
        keys = {question.key for question in await open_questions(handle, fetch=False)}
    except QuestionUnseen:
        # A server of 2025-11-25 has shown it to this client alone.
        return dict(answers)
    except InvalidInput:
        keys = set[str]()
    if wanted := {key: answer for key, answer in answers.items() if key in keys}:
        return wanted
    hint = "Somebody else answered it meanwhile, or the task went on. Nothing was sent."
    raise InvalidInput("no_question", "the task no longer asks this", hint)
