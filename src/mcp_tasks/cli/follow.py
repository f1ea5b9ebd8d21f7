"""Following calls and tasks to their ends: many at once, over several servers, for who watches and can be asked.

`Follower` does the waiting. What happens meanwhile it tells its `Hooks`: every state, every question, that a server is
out of reach and that it is back. The wait for one task is `TaskWait`'s.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import anyio
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, ElicitRequestParams, ElicitResult, ErrorData
from pydantic import BaseModel, ValidationError

from mcp_tasks.cli.questions import Question, blocks_of, questions_of, save_files
from mcp_tasks.cli.servers import (
    Connector,
    Era,
    ServerAddress,
    ServerTasks,
    ask_through_the_task,
    by_server,
    connector,
    leaves,
)
from mcp_tasks.client import CallLost
from mcp_tasks.client.answers import Budget
from mcp_tasks.client.backend import is_transient
from mcp_tasks.client.extension import resume_task, start_task
from mcp_tasks.client.handle import OnAbandon, TaskHandle
from mcp_tasks.client.ledger import UNKNOWN, Ledger, LedgerEntry, short_id
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
from mcp_tasks.model.json import JsonObject
from mcp_tasks.model.record import FINAL_STATUSES, Progress, TaskStatus
from mcp_tasks.model.values import clock, seconds_of
from mcp_tasks.protocol.shapes import TaskSnapshot

# ---- followed
# How a call or a task stood when it was last heard of: one value, for whoever shows it, keeps it or decides by it.


COMPLETED_BADLY: Final = "completed with an error"
"""What the protocol calls completed of a tool that says that it failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Followed:
    """How a task stood when it was last heard of, or a call that has not become one.

    Attributes:
        entry: The task, as the ledger had it. That of a call has no task id.
        snapshot: Its last state; None if none was seen. That of a call has what it was answered with.
        problem: Why no more is known of it; None if there is no reason. A `WaitTimedOut` if the time was up.
        left_open: Whether a question of it was left open on purpose.
        saved: Files of its result that `save` wrote, by the number of their block.
        not_saved: Why `save` could not write one; None if it could.
        fate: What became of it when the wait for it ended early; None if it did not.
        away_since: Since when its server is out of reach; None if it is not.
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
        """The id of the task; None of a call that has not become one."""
        return self.entry.task_id or None

    @property
    def name(self) -> str:
        """What to call it: its tool, or of a task that is not ours the beginning of its id."""
        return self.entry.tool or short_id(self.entry.task_id)

    @property
    def status(self) -> str:
        """The task's status as it was last seen, `unknown` if there was no way to find out."""
        if self.snapshot is not None:
            return self.snapshot.status.value
        return self.entry.status if self.problem is None else UNKNOWN

    @property
    def state(self) -> str:
        """The same for people: `completed with an error` if the tool says that it failed."""
        return COMPLETED_BADLY if self.is_error and self.status == TaskStatus.COMPLETED else self.status

    @property
    def is_final(self) -> bool:
        """Whether it has ended."""
        return self.status in FINAL_STATUSES

    @property
    def elapsed(self) -> timedelta | None:
        """How long it took, or has taken so far; None where that is not known."""
        entry, snapshot = self.entry, self.snapshot
        if self.status == UNKNOWN:
            return None
        if not self.is_final:
            return entry.age
        if snapshot is not None:
            # Both by the server's clock, so their difference is right whatever that clock says.
            return snapshot.updated_at - snapshot.created_at
        return None if entry.finished_at is None else entry.finished_at - entry.started_at

    @property
    def progress(self) -> Progress | None:
        """How far it is; None if it does not say, or has ended."""
        return None if self.snapshot is None or self.is_final else self.snapshot.progress

    @property
    def percent(self) -> int | None:
        """The same in percent, if it says of how much."""
        if self.progress is None or not self.progress.total:
            return None
        # Within bounds before it is rounded: a server may say more than fits a whole number.
        return int(max(0.0, min(100.0, 100 * self.progress.progress / self.progress.total)))

    @property
    def message(self) -> str | None:
        """What the task says of itself."""
        return self.entry.message if self.snapshot is None else self.snapshot.message

    @property
    def says(self) -> str:
        """The same for people, or what is more important now: for how long its server is out of reach."""
        if self.away_since is None:
            return self.message or ""
        return f"server out of reach for {clock(datetime.now(UTC) - self.away_since)}, trying again"

    @property
    def result(self) -> JsonObject | None:
        """The result of the call, as the protocol has it."""
        return self.entry.result if self.snapshot is None else self.snapshot.result

    @property
    def error(self) -> JsonObject | None:
        """The JSON-RPC error of the call."""
        return self.entry.error if self.snapshot is None else self.snapshot.error

    @property
    def failure(self) -> str:
        """Why the call failed, for people; nothing if it did not, or has a result that says so."""
        if self.status != TaskStatus.FAILED or self.result is not None:
            return ""
        error = self.error or {}
        why = str(error.get("message") or self.message or "the server does not say why")
        return f"{why} (code {error['code']})" if "code" in error else why

    @property
    def input_requests(self) -> Mapping[str, JsonObject]:
        """What is asked, by key, as the protocol has it."""
        return {} if self.snapshot is None else self.snapshot.input_requests

    @property
    def questions(self) -> list[Question]:
        """The same, for a person."""
        return questions_of(self.input_requests, self.entry.tool or self.entry.task_id, self.entry.server_label)

    @property
    def is_error(self) -> bool:
        """Whether there is a result by which the tool says that it failed."""
        return bool((self.result or {}).get("isError"))

    @property
    def outcome(self) -> str:
        """What came of it, in one word: its status; but `tool_error` if the tool says that it failed, `left_open` if
        somebody chose to leave what it asks, and `unknown` if there is a problem."""
        if self.problem is not None:
            return UNKNOWN
        if self.is_error and self.is_final:
            # What is a result to newer servers is a failure to those of 2025-11-25.
            return "tool_error"
        if self.status == TaskStatus.INPUT_REQUIRED.value and self.left_open:
            # Nobody has a choice about what is for a model or a program.
            return "left_open" if all(question.is_elicitation for question in self.questions) else self.status
        return self.status

    @property
    def refuses_arguments(self) -> bool:
        """Whether the server did not take what it was called with: by its error, or in the words of the SDKs."""
        if self.error is not None:
            return self.error.get("code") == INVALID_PARAMS
        said = [str(block.get("text")) for block in blocks_of(self.result or {})] if self.is_error else []
        return any("validation error" in text.lower() for text in said)

    def save(self, folder: Path) -> Followed:
        """The same, after images, sounds and files of its result were written into a folder; see `save_files`."""
        if self.result is None:
            return self
        saved, problem = save_files(self.result, folder, self.entry.tool)
        return replace(self, saved=saved, not_saved=problem)

    def state_to_json(self) -> dict[str, Any]:
        """What changes while it is followed, as JSON: for one line of a log, or one event of a stream."""
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
        """The same as JSON, in the protocol's words: what has a value."""
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


# ---- hooks
# What somebody does who follows calls and tasks: is told what happens, and answers what is asked.


class Hooks:
    """What somebody does who follows tasks. Every hook does nothing, until a class of yours says otherwise. It is told
    how the task, or the call, stands. What one raises ends the following, and is raised from it as it is.

    Attributes:
        can_answer: Whether there is somebody to ask. If not, a task that asks something ends the wait for it.
    """

    can_answer: bool = False

    def on_change(self, followed: Followed) -> None:
        """The task has a new state; or its server cannot be reached, and is tried again. That is told after every try,
        and `away_since` says since when it lasts."""

    async def on_question(self, followed: Followed, question: Question) -> Mapping[str, Any] | None:
        """The task asks something.

        Returns:
            The answer, as `TaskHandle.answer` takes it. None leaves the question open, and ends the wait for this task.
        """
        return None

    def on_withdrawn(self, followed: Followed, key: str) -> None:
        """The task no longer asks what `on_question` was working on, which has been cancelled."""

    def on_refused(self, followed: Followed, key: str, problem: Exception) -> None:
        """The server refused the answer. The question is asked again."""

    def on_back(self, followed: Followed, after: timedelta) -> None:
        """The task's server can be reached again."""

    def on_call_ended(self, followed: Followed) -> None:
        """A call of `Follower.call` is over: it was answered, failed, or has become a task, which has its own entry."""

    def on_problem(self, followed: Followed, problem: Exception) -> None:
        """The wait for the task has ended, and no more is known of it."""

    def on_not_cancelled(self, followed: Followed, problem: Exception) -> None:
        """`Follower.cancel_all` could not cancel the task."""


class HookFailed(Exception):
    """A hook raised; the cause is what it raised."""


@contextmanager
def in_hook() -> Generator[None]:
    """Tells what a hook raises from the troubles of servers: an `OSError` of its own ends no wait for a task."""
    try:
        yield
    except Exception as exc:
        raise HookFailed from exc


@contextmanager
def raised_by_hooks() -> Generator[None]:
    """Raises what a hook raised, as it was, out of the groups that it comes in."""
    try:
        yield
    except (HookFailed, BaseExceptionGroup) as exc:
        failed = next((leaf for leaf in leaves(exc) if isinstance(leaf, HookFailed)), None)
        if failed is None or failed.__cause__ is None:
            raise
        raise failed.__cause__ from None


# ---- task wait
# The wait for one task of a `Follower`: its states until it has ended, and its questions, one at a time.


class TaskWait:
    """The wait for one task."""

    def __init__(self, follower: Follower, handle: TaskHandle, entry: LedgerEntry) -> None:
        self._follower = follower
        self._hooks = follower.hooks
        self._handle = handle
        self._entry = entry
        self._answered: set[str] = set()
        self._away_since: datetime | None = None
        self._untold: TaskSnapshot | None = None

    async def run(self) -> bool:
        """Wait until the task has ended, was left with an open question (True), or has nobody to ask (False)."""
        asks = self._follower.asks
        while True:
            snapshot = await self._until(lambda state: state.is_final or (asks and self._is_stuck(state)))
            if snapshot.is_final:
                return True
            if not self._hooks.can_answer:
                return False
            key = self._open(snapshot)[0]
            if not await self._answer(key, snapshot.input_requests[key]):
                self._follower.note(self._entry, left_open=True)
                return True

    async def _until(self, reached: Callable[[TaskSnapshot], bool], *, tell_last: bool = True) -> TaskSnapshot:
        """The first state that is as `reached` says. All up to it are told; without `tell_last`, that one next time."""
        if self._untold is not None:
            untold, self._untold = self._untold, None
            self._follower.tell(self._entry, snapshot=untold)
            if reached(untold):
                return untold
        # To a server of 2025-11-25, fetching a question is promising to answer it.
        questions = self._follower.asks and self._hooks.can_answer
        async with aclosing(self._handle.watch(questions=questions, on_outage=self._outage)) as states:
            async for snapshot in states:
                self._outage(None)
                if not tell_last and reached(snapshot):
                    self._follower.note(self._entry, snapshot=snapshot)
                    self._untold = snapshot
                    return snapshot
                self._follower.tell(self._entry, snapshot=snapshot)
                if reached(snapshot):
                    return snapshot
        raise AssertionError("unreachable: a task is watched to its end")

    def _outage(self, lasted: timedelta | None) -> None:
        now = datetime.now(UTC)
        if lasted is not None:
            # The first time counts: an outage may outlast the look that met it.
            self._away_since = self._away_since or now - lasted
            self._follower.tell(self._entry, away_since=self._away_since)
        elif self._away_since is not None:
            after, self._away_since = now - self._away_since, None
            followed = self._follower.note(self._entry, away_since=None)
            with in_hook():
                self._hooks.on_back(followed, after)

    def _is_stuck(self, snapshot: TaskSnapshot) -> bool:
        """Whether the task goes no further without us."""
        if self._hooks.can_answer:
            return bool(self._open(snapshot))
        # With nobody to answer, what is asked makes no difference.
        return snapshot.status is TaskStatus.INPUT_REQUIRED

    def _open(self, snapshot: TaskSnapshot) -> list[str]:
        return [key for key in snapshot.input_requests if key not in self._answered]

    async def _answer(self, key: str, request: JsonObject) -> bool:
        """Have a question answered, and send the answer; False if it is left open."""
        response = self._handle.recorded_answer(key, request)
        if response is None:
            asked = await self._ask(key, request)
            if asked is None:
                return False
            response = asked.answer
        self._answered.add(key)
        if response is None:
            return True
        try:
            await self._handle.answer({key: response})
        except (MCPError, OSError, UsageError) as exc:
            self._answered.discard(key)
            if not is_transient(exc):
                with in_hook():
                    self._hooks.on_refused(self._follower.seen[self._entry.key], key, exc)
            # Otherwise it is in the ledger, and goes out again after the next look.
        return True

    async def _ask(self, key: str, request: JsonObject) -> _Asked | None:
        """Ask until answered; None if it is left open."""
        asking = asyncio.ensure_future(self._follower.ask(self._entry, key, request))
        # The state that ends the asking is told after that: until then somebody types.
        gone = asyncio.ensure_future(self._until(lambda state: key not in state.input_requests, tell_last=False))
        try:
            await asyncio.wait({asking, gone}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                answer = await asking
                return None if answer is None else _Asked(answer)
            await gone
        finally:
            for future in (asking, gone):
                future.cancel()
            await asyncio.gather(asking, gone, return_exceptions=True)
        with in_hook():
            self._hooks.on_withdrawn(self._follower.seen[self._entry.key], key)
        return _Asked(None)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What came of asking: an answer, or None for a question that is no longer asked."""

    answer: Mapping[str, Any] | None


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
            InvalidInput: The ledger does not say how to reach a server, or there are headers, and several servers.
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
        InvalidInput: The ledger does not say how to reach a server, or there are headers, and several servers.
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


# ---- looking
# Tasks of a ledger, wherever they are, each for a moment: how they stand right now, and what they ask.


T = TypeVar("T")

Seen: TypeAlias = dict[tuple[str, str, str], T | Exception]
"""By the key of the ledger's entry: what came of it, or why nothing did."""

_MORE: Final = 0.2
"""Seconds for further questions, which come one after the other."""

_FETCH_LIMIT: Final = timedelta(seconds=15)
"""For a server to send what a task asks."""


async def look_at(
    entries: Iterable[LedgerEntry], connect: Connector, *, headers: Mapping[str, str] | None = None
) -> Seen[TaskSnapshot]:
    """Look at tasks of any number of servers. What is seen goes into the ledger of the connections."""
    return await at_each(entries, connect, TaskHandle.status, headers=headers)


async def at_each(
    entries: Iterable[LedgerEntry],
    connect: Connector,
    act: Callable[[TaskHandle], Awaitable[T]],
    *,
    headers: Mapping[str, str] | None = None,
) -> Seen[T]:
    """Do something with tasks of any number of servers, over a connection to each. One that it cannot be done with does
    not keep the others from it.

    Args:
        headers: What is going to be sent with requests: credentials, for one server.

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
    groups = by_server(reachable, headers)
    async with asyncio.TaskGroup() as visits:
        for group in groups:
            visits.create_task(_visit(group, connect, act, seen))
    return seen


async def _visit(
    group: ServerTasks, connect: Connector, act: Callable[[TaskHandle], Awaitable[T]], seen: Seen[T]
) -> None:
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


async def open_questions(
    handle: TaskHandle, *, server: str = "", fetch: bool = True, within: timedelta = _FETCH_LIMIT
) -> list[Question]:
    """What a task asks right now, for somebody who answers it and does not stay.

    Args:
        server: Where the task is, as it is shown to who is asked.
        fetch: Whether to fetch questions from a server that sends them only to one who waits. To servers of 2025-11-25
            that is a promise to answer.
        within: For how long to wait for them.

    Raises:
        InvalidInput: The task asks nothing.
        QuestionUnseen: It asks something, and its server has not sent what.
    """
    snapshot: TaskSnapshot | None = await handle.status()
    if snapshot.status is TaskStatus.INPUT_REQUIRED and not snapshot.input_requests:
        if not fetch:
            raise QuestionUnseen("the task asks something, and its server shows it only to one who is going to answer")
        snapshot = await fetch_questions(handle, within=within)
    if snapshot is None:
        raise QuestionUnseen(
            f"the task asks something, and its server did not send it within {within.total_seconds():.15g} s",
            "Some servers of 2025-11-25 send a question only once. Is somebody else about to answer it?",
        )
    if not snapshot.input_requests:
        raise InvalidInput("no_question", f"the task has no open question; it is {snapshot.status.value}")
    return questions_of(snapshot.input_requests, handle.tool or handle.id, server)


async def still_asked(handle: TaskHandle, answers: Mapping[str, T]) -> dict[str, T]:
    """Those of some answers, by the keys of their questions, that a task still wants: while somebody types, somebody
    else may answer, and a server takes what comes too late without a word.

    Raises:
        InvalidInput: It wants none of them.
    """
    try:
        keys = {question.key for question in await open_questions(handle, fetch=False)}
    except QuestionUnseen:
        # It is ours to answer: a server of 2025-11-25 does not show it to anybody else.
        return dict(answers)
    except InvalidInput:
        keys = set[str]()
    if wanted := {key: answer for key, answer in answers.items() if key in keys}:
        return wanted
    hint = "Somebody else answered it meanwhile, or the task went on. Nothing was sent."
    raise InvalidInput("no_question", "the task no longer asks this", hint)


async def fetch_questions(handle: TaskHandle, *, within: timedelta) -> TaskSnapshot | None:
    """The task with what it asks, also from a server that sends that only to one who waits, as those of 2025-11-25 do.

    Returns:
        The task as soon as it asks something or has ended; None if neither is so within that time.
    """
    found: TaskSnapshot | None = None
    with anyio.move_on_after(within.total_seconds()) as scope:
        async with aclosing(handle.watch()) as states:
            async for snapshot in states:
                if found is None and (snapshot.is_final or snapshot.input_requests):
                    # Further questions may come right behind the first one.
                    scope.deadline = anyio.current_time() + _MORE
                if snapshot.is_final or snapshot.input_requests:
                    found = snapshot
    return found
