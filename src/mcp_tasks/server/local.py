"""Calls and tasks inside the server's own process: `tasks.call(...)`, `tasks.start(...)` and what belongs to them.

A call in this process is synchronous until its caller asks for a task, whatever the mode of the tool: modes speak of
clients. A task that is started here is one like any other: kept, run from its record, recovered, and seen by its owner
on the wire.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypeAlias, TypeVar, get_args

from anyio.lowlevel import checkpoint
from mcp_types import CallToolResult, GetPromptResult, ReadResourceResult
from mcp_types.version import LATEST_MODERN_VERSION

from mcp_tasks.errors import (
    InvalidOption,
    KeySpent,
    OwnerRequired,
    ResultExpired,
    StoreUnavailable,
    TaskWasCancelled,
    UnknownTask,
    UsageError,
    ValueNotStorable,
    WaitTimedOut,
)
from mcp_tasks.failure import task_failed
from mcp_tasks.model.json import JsonObject
from mcp_tasks.model.limits import expires_at, poll_interval
from mcp_tasks.model.options import TaskOptions
from mcp_tasks.model.record import Actor, InputRequest, Progress, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.values import check_choice, check_duration, check_mapping, check_number, check_text, seconds_of
from mcp_tasks.protocol.answers import ASKED_WITHIN, Action, send_input, status_of, until
from mcp_tasks.protocol.dialect import decoded, outcome_of
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.methods import tell_listing, tell_local_look
from mcp_tasks.runtime import Run, TaskRuntime
from mcp_tasks.runtime.context import current_run, current_runtime
from mcp_tasks.runtime.launch import LaunchSpec
from mcp_tasks.server.calls import Doors
from mcp_tasks.server.catalog import KINDS, Catalogue, Kind, Served
from mcp_tasks.server.lifecycle import Lifecycle
from mcp_tasks.server.options import UNSET, Unset
from mcp_tasks.server.tool_runner import ToolBody, body_at_work, to_mcp_error
from mcp_tasks.stores.base import EVERYBODY, ChildrenOf, InSession, Whose, owned_by

# ---- local handle
# `LocalTask`: one task, for code in the server's own process.


LocalResult: TypeAlias = CallToolResult | GetPromptResult | ReadResourceResult
ResultT = TypeVar("ResultT", bound=LocalResult, covariant=True)

RELATED_TASK: Final = "io.modelcontextprotocol/related-task"

_RESULTS: Final[Mapping[str, type[LocalResult]]] = {
    "tools/call": CallToolResult,
    "prompts/get": GetPromptResult,
    "resources/read": ReadResourceResult,
}
_GOES_ON: Final = "The task goes on: come back with tasks.handle({task_id!r})."


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalSnapshot:
    """A task as it was at one moment.

    Attributes:
        kind: What runs: a tool, a prompt or a resource,
        name: and which; for a resource, its URI.
        status: `failed` also for a tool that ended with an `isError` result, which `is_error` tells apart.
        message: What is said of the status: of a failure, the tool's own words where it has some.
        questions: What the task asks now, by the keys to answer under.
        expires_at: When the task is deleted; None while it runs, and for one that is kept for good.
        poll_interval: How often clients are told to look: as the author fixed it, or growing with the task's age.
        parent: The task in whose run this one was started.
    """

    id: str
    kind: Kind
    name: str
    status: TaskStatus
    message: str | None
    is_error: bool
    progress: Progress | None
    questions: Mapping[str, InputRequest]
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    expires_at: datetime | None
    poll_interval: timedelta
    owner: str | None
    session: str | None
    parent: str | None

    @property
    def is_final(self) -> bool:
        """Whether the task has ended."""
        return self.status.is_final


def snapshot_of(record: TaskRecord, now: datetime) -> LocalSnapshot:
    """The task as code in this process sees it."""
    return LocalSnapshot(
        id=record.id,
        kind=KINDS[record.method],
        name=record.name,
        status=status_of(record),
        message=record.status_message,
        is_error=record.is_error,
        progress=record.progress,
        questions=dict(record.inputs.outstanding),
        created_at=record.created_at,
        updated_at=record.updated_at,
        finished_at=record.finished_at,
        expires_at=expires_at(record),
        poll_interval=poll_interval(record, now),
        owner=record.owner,
        session=record.session,
        parent=record.parent,
    )


class LocalTask(Generic[ResultT]):
    """One task of this server. Made by `Tasks.start` and its kin, and by `Tasks.handle`, which say whose it is: a task
    of anybody else is not there."""

    def __init__(self, runtime: Callable[[], TaskRuntime], task_id: str, owner: str | Unset | None = UNSET) -> None:
        self.id: str = task_id
        self._runtime = runtime
        self._owner = owner

    def __repr__(self) -> str:
        return f"<LocalTask {self.id}>"

    async def fetch(self) -> LocalSnapshot:
        """The task as it is now.

        Raises:
            UnknownTask: There is no such task (any more).
        """
        runtime = self._runtime()
        record = await self._find(runtime)
        tell_local_look(runtime, record)
        return snapshot_of(record, runtime.now())

    async def wait(self, timeout: timedelta | float | None = None) -> ResultT:
        """Wait for the task to end; what a plain call would have returned, or raised.

        A result that says `isError` is returned like any other. It has the task's id in its `_meta`.

        Args:
            timeout: How long to wait, as a `timedelta` or in seconds. The task goes on if it is not enough.

        Raises:
            TaskFailed: The task failed. It is an `MCPError` with the JSON-RPC error that the task carries.
            TaskWasCancelled: The task was cancelled.
            WaitTimedOut: It did not end in time. A `TimeoutError`.
            UnknownTask: There is no such task (any more); `ResultExpired` in the tool that started it.
            InvalidOption: The timeout is not one.
        """
        seconds = seconds_of(timeout)
        run = current_run.get()
        if run is None:
            end = await self._end(seconds)
        elif run.record.id == self.id:
            raise UsageError("a task cannot wait for itself")
        else:
            end = await run.waits.wait_for_task(self.id, lambda: self._end_or_gone(seconds))
            if "gone" in end:
                raise ResultExpired(self.id) if run.waits.has_started(self.id) else UnknownTask(self.id)
        return self._outcome(end, seconds)

    async def result(self) -> ResultT:
        """The result of the task, once it has ended: `wait` without a time-out."""
        return await self.wait()

    async def until_asked(self, timeout: timedelta | float | None = None) -> Mapping[str, InputRequest]:
        """Wait until the task asks something; all that it asks then, by key.

        Raises:
            UsageError: It ended without asking.
            WaitTimedOut: It did not ask in time, and has not ended.
            UnknownTask: There is no such task (any more).
        """
        seconds = seconds_of(timeout)
        record = await self._until(lambda task: task.is_final or bool(task.inputs.outstanding), seconds)
        if record.inputs.outstanding:
            return dict(record.inputs.outstanding)
        if record.is_final:
            raise UsageError(f"task {self.id} asks nothing: it has ended ({status_of(record).value})")
        raise WaitTimedOut(self.id, seconds or 0.0, how_to_go_on=_GOES_ON)

    async def send_input(
        self,
        action: Action = "accept",
        content: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        response: Mapping[str, Any] | None = None,
        timeout: timedelta | float | None = ASKED_WITHIN,
    ) -> None:
        """Answer an open question: the one under `key`, or the only one. Durable on return.

        A task that has just been started may not have asked yet: then this waits for its question.

        Args:
            action: What the person does with a form.
            content: What the person enters into it.
            key: Which question, where there are several.
            response: The whole answer instead, for sampling and roots: the result of the request that was asked.
            timeout: How long to wait for the question, as a `timedelta` or in seconds; None until the task ends.

        Raises:
            UsageError: The task asks nothing in time, asks several things and no key is given, or not under this key.
            InvalidOption: An argument has a value that it cannot have.
            MCPError: -32602: the answer does not fit the question, which stays open.
            UnknownTask: There is no such task (any more).
        """
        check_choice("action", action, get_args(Action))
        for name, given in (("content", content), ("response", response)):
            if given is not None:
                check_mapping(name, given)
        if key is not None:
            check_text("key", key)
        if response is None:
            response = {"action": action} if content is None else {"action": action, "content": dict(content)}
        seconds = seconds_of(timeout)
        try:
            await send_input(self._runtime, self._find, response, key=key, seconds=seconds)
        except RpcError as exc:
            raise to_mcp_error(exc) from exc

    async def cancel(self, reason: str = "Cancelled by the server") -> LocalSnapshot:
        """Cancel the task, and say how it stands: one that had ended stays as it was. Its own children go on.

        Raises:
            UnknownTask: There is no such task (any more).
        """
        runtime = self._runtime()
        record = await self._find(runtime)
        cancelled = await runtime.cancel(record, reason, actor=Actor("client", record.owner))
        return snapshot_of(cancelled, runtime.now())

    async def _find(self, runtime: TaskRuntime) -> TaskRecord:
        if isinstance(self._owner, Unset):
            return await runtime.find(self.id)
        return await runtime.get(self.id, owner=self._owner)

    async def _until(self, condition: Callable[[TaskRecord], bool], seconds: float | None) -> TaskRecord:
        return await until(self._runtime, self._find, condition, seconds)

    async def _end(self, seconds: float | None) -> JsonObject:
        """How the task ended, as JSON, for the journal of a tool that waits for it; nothing if it has not in time."""
        record = await self._until(lambda task: task.is_final, seconds)
        if not record.is_final:
            return {}
        outcome = await outcome_of(self._runtime(), record)
        tell_local_look(self._runtime(), record)
        end: dict[str, Any] = {"status": record.status.value, "method": record.method}
        if record.status_message is not None:
            end["message"] = record.status_message
        if outcome is not None:
            end["body"] = await decoded(outcome.body)
            end["meta"] = {} if outcome.meta is None else await decoded(outcome.meta)
        return end

    async def _end_or_gone(self, seconds: float | None) -> JsonObject:
        """The same, and that there is no such task: what a tool does about that, it has to do in every run."""
        try:
            return await self._end(seconds)
        except UnknownTask:
            return {"gone": True}

    def _outcome(self, end: JsonObject, seconds: float | None) -> Any:
        if not end:
            raise WaitTimedOut(self.id, seconds or 0.0, how_to_go_on=_GOES_ON)
        if end["status"] == TaskStatus.CANCELLED:
            raise TaskWasCancelled(self.id, end.get("message"))
        if end["status"] == TaskStatus.FAILED:
            raise task_failed(self.id, end["body"], end.get("message"))
        meta = {**end["meta"], RELATED_TASK: {"taskId": self.id}}
        return _RESULTS[end["method"]].model_validate({**end["body"], "_meta": meta}, by_name=False)


# ---- local listing
# Pages of tasks, for code in the server's own process.


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskPage:
    """Some tasks of a listing, and where the next ones start (None when there are no more)."""

    tasks: Sequence[LocalSnapshot]
    next_cursor: str | None


async def page_of(
    runtime: TaskRuntime,
    whose: Whose,
    *,
    owner: str | Unset | None = UNSET,
    status: TaskStatus | str | None,
    page_size: int,
    cursor: str | None,
) -> TaskPage:
    """One page of a listing, of one owner's tasks alone if that is said.

    Raises:
        InvalidOption: An argument has a value that it cannot have.
    """
    check_number("page_size", page_size, 1)
    if status is not None:
        check_choice("status", status, [each.value for each in TaskStatus])
    wanted = None if status is None else TaskStatus(status)
    # In the record, an `isError` result is a completed task.
    kept = None if wanted is TaskStatus.FAILED else wanted
    found: list[TaskRecord] = []
    while True:
        try:
            page = await runtime.list(whose, status=kept, cursor=cursor, limit=page_size - len(found))
        except ValueError as exc:
            raise InvalidOption(f"cursor must be the next_cursor of an earlier page, got {cursor!r}") from exc
        found += [
            record
            for record in page.records
            if (wanted is None or status_of(record) is wanted) and (isinstance(owner, Unset) or record.owner == owner)
        ]
        cursor = page.cursor
        if cursor is None or len(found) >= page_size:
            tell_listing(runtime, None, "local", len(found))
            now = runtime.now()
            return TaskPage(tasks=[snapshot_of(record, now) for record in found], next_cursor=cursor)
        # A store that never waits would have the event loop for itself.
        await checkpoint()


def whose_tasks(owner: str | Unset | None, session: str | None, parent: str | None, *, everybody: bool) -> Whose:
    """Whose tasks to list, which must be said in exactly one way.

    Raises:
        UsageError: It is not said, or in more than one way.
        InvalidOption: It is not said with a name.
    """
    for name, given in (("owner", owner), ("session", session), ("parent", parent)):
        if not isinstance(given, str | Unset | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(f"{name} must be a string, got {given!r}")
    said: list[Whose] = []
    if not isinstance(owner, Unset):
        said.append(owned_by(owner))
    if session is not None:
        said.append(InSession(session))
    if parent is not None:
        said.append(ChildrenOf(parent))
    if everybody:
        said.append(EVERYBODY)
    if len(said) != 1:
        raise UsageError(
            "say whose tasks to list, in one way: owner= (None for nobody's), session=, parent=, or everybody=True"
        )
    return said[0]


# ---- local start
# A task that code in the server's own process starts: what is asked for, whose it is, and under which key.


ALL_CAPABILITIES: Final[Mapping[str, Any]] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {},
}
"""A task that is started in this process may ask anything: `send_input` can answer anything."""


def request_for(method: str, name: str, arguments: Mapping[str, Any] | None) -> TaskRequest:
    """The request that a client would have made.

    Raises:
        InvalidOption: The name is not one, or the arguments are not.
    """
    check_text("uri" if method == "resources/read" else "name", name)
    if arguments is not None and not isinstance(arguments, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(f"arguments must be a mapping of names to values, got {arguments!r}")
    if wrong := [key for key in arguments or () if not isinstance(key, str)]:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(f"the names of arguments must be strings, got {wrong[0]!r}")
    return TaskRequest(
        method=method,
        name=name,
        arguments=dict(arguments or {}),
        protocol_version=LATEST_MODERN_VERSION,
        client_capabilities=ALL_CAPABILITIES,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalStart:
    """A task to be started from code in this process."""

    request: TaskRequest
    options: TaskOptions
    ttl: timedelta | Unset | None
    owner: str | Unset | None
    session: str | Unset | None
    key: str | None

    def __post_init__(self) -> None:
        if self.ttl is not None and not isinstance(self.ttl, Unset):
            check_duration("ttl", self.ttl)
        for name in ("owner", "session"):
            value: object = getattr(self, name)
            if value is not None and not isinstance(value, str | Unset):
                raise InvalidOption(f"{name} must be a string or None, got {value!r}")
        if self.key is not None:
            check_text("key", self.key)

    @property
    def identity(self) -> str:
        """What is started, and with what."""
        try:
            arguments = json.dumps(self.request.arguments, sort_keys=True)
        except (TypeError, ValueError, RecursionError) as exc:
            raise ValueNotStorable(f"the arguments of {self.request.name!r} are not JSON: {exc}") from exc
        return f"{self.request.method} {self.request.name} {arguments}"

    async def launch(self, runtime: TaskRuntime, key: str | None, run: Run | None = None) -> str:
        """The id of the new task, or of the one that stands or stood under the key."""
        parent = None if run is None else run.record
        owner = self._owner(runtime, run)
        session = parent and parent.session if isinstance(self.session, Unset) else self.session
        try:
            record = await runtime.launch(
                LaunchSpec(
                    request=self.request,
                    owner=owner,
                    retention=self.options.ttl if isinstance(self.ttl, Unset) else self.ttl,
                    poll_interval=self.options.poll_interval,
                    key=key,
                    session=session,
                    parent=None if parent is None else parent.id,
                )
            )
        except KeySpent as exc:
            if exc.task_id is None:
                if run is None:
                    raise
                # The task that this run belongs to has ended, and the run has not heard of it yet.
                run.stop()
                await run.abort_branch()
            # An earlier run started it, and its result has expired by now. Who waits for it is told so.
            return exc.task_id
        if self.key is not None:
            await self._check_same(runtime, record)
        return record.id

    def owner_in(self, run: Run | None) -> str | None:
        """The owner that is given, or that of the run's own task."""
        return (run and run.record.owner) if isinstance(self.owner, Unset) else self.owner

    def _owner(self, runtime: TaskRuntime, run: Run | None) -> str | None:
        """Whose task it will be.

        Raises:
            OwnerRequired: Nobody's, on a server where every task has to have an owner.
        """
        owner = self.owner_in(run)
        if not owner and runtime.requires_owner:
            whose = "the task that it is started in has no owner either" if run is not None else "nobody is named"
            raise OwnerRequired(
                f"{self.request.name!r} was to be started as a task that nobody owns ({whose}), and this server "
                "requires authentication, so that nobody could see it: say whose it is, as in "
                'tasks.start(..., owner="reports"). Tasks of a client\'s user have the owner that '
                "current_task().owner gives in a tool that runs for them"
            )
        return owner

    async def _check_same(self, runtime: TaskRuntime, record: TaskRecord) -> None:
        try:
            standing = await runtime.store.request(record.id)
        except StoreUnavailable as exc:
            # Only the check failed. The task was made.
            raise StoreUnavailable(str(exc), may_have_happened=True) from exc
        mine = self.request
        if standing is not None and (standing.method, standing.name, dict(standing.arguments)) != (
            mine.method,
            mine.name,
            dict(mine.arguments),
        ):
            raise UsageError(
                f"under the key {self.key!r} stands another call, of {standing.name!r} or with other arguments: "
                "one key is for one call"
            )


class LocalCalls:
    """What a `Tasks` object does for code in its server's own process."""

    _lifecycle: Lifecycle
    _catalogue: Catalogue
    _doors: Doors

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> CallToolResult:
        """Call a tool here and now, without a task; what the tool fails with is a result that says `isError`.

        In a tool that runs as a task, the called one is a part of that task: what it asks, the task asks. Otherwise
        there is nobody whom it could ask.

        Raises:
            UsageError: The server has no such tool, or it asks something by returning it.
            MCPError: The tool raised it.
            WiringError: The server is not running.
        """
        request = request_for("tools/call", name, arguments)
        if await self._catalogue.tool(name) is None:
            raise UsageError(f"the server has no tool {name!r}")
        return CallToolResult.model_validate(await self._result(request), by_name=False)

    async def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> GetPromptResult:
        """Get a prompt here and now, without a task. Raises what `call` raises."""
        request = request_for("prompts/get", name, arguments)
        await self._check_read(request)
        return GetPromptResult.model_validate(await self._result(request), by_name=False)

    async def read_resource(self, uri: str) -> ReadResourceResult:
        """Read a resource here and now, without a task. Raises what `call` raises."""
        request = request_for("resources/read", uri, None)
        await self._check_read(request)
        return ReadResourceResult.model_validate(await self._result(request), by_name=False)

    async def start(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        ttl: timedelta | Unset | None = UNSET,
        owner: str | Unset | None = UNSET,
        session: str | Unset | None = UNSET,
        key: str | None = None,
    ) -> LocalTask[CallToolResult]:
        """Start a tool as a task; it is durable on return.

        In a tool that itself runs as a task, this starts a child: its `parent` is that task, whose owner and session it
        has unless others are given. It is started once, however often the tool is run again: it is the same child if it
        is the same tool with the same arguments, and as many equal ones came before it. Cancelling a task leaves its
        children alone.

        Args:
            ttl: How long the task is kept after it ended; None for as long as the store lives. By default as the tool
                is marked. A child has a ttl of its own.
            owner: Whose task it is; None for nobody's. Only its owner sees it on the wire. It has to be given on a
                server that requires authentication.
            session: The session in whose listing it is.
            key: An idempotency key: if a task of the same owner stands under it, that one is given and none is started.
                For a child, it says which one it is in place of its tool and arguments.

        Raises:
            UsageError: The server has no such tool, it never becomes a task, or it does not take these arguments; or
                another call stands under the key.
            OwnerRequired: The server requires authentication, and no owner is given.
            WiringError: The server is not running.
            StoreError: The task could not be kept. `StoreUnavailable` says whether it may have been made all the same.
        """
        request = request_for("tools/call", name, arguments)
        runtime = self._runtime()
        tool = await self.check_call(name, request.arguments)
        start = LocalStart(request=request, options=tool.options, ttl=ttl, owner=owner, session=session, key=key)
        return await self._start(runtime, start)

    async def start_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        ttl: timedelta | Unset | None = UNSET,
        owner: str | Unset | None = UNSET,
        session: str | Unset | None = UNSET,
        key: str | None = None,
    ) -> LocalTask[GetPromptResult]:
        """Start a prompt as a task. Takes and raises what `start` does."""
        request = request_for("prompts/get", name, arguments)
        runtime = self._runtime()
        options = await self._check_read(request, as_task=True)
        start = LocalStart(request=request, options=options, ttl=ttl, owner=owner, session=session, key=key)
        return await self._start(runtime, start)

    async def start_resource(
        self,
        uri: str,
        *,
        ttl: timedelta | Unset | None = UNSET,
        owner: str | Unset | None = UNSET,
        session: str | Unset | None = UNSET,
        key: str | None = None,
    ) -> LocalTask[ReadResourceResult]:
        """Start the reading of a resource as a task. Takes and raises what `start` does."""
        request = request_for("resources/read", uri, None)
        runtime = self._runtime()
        options = await self._check_read(request, as_task=True)
        start = LocalStart(request=request, options=options, ttl=ttl, owner=owner, session=session, key=key)
        return await self._start(runtime, start)

    def handle(self, task_id: str, *, owner: str | Unset | None = UNSET, everybody: bool = False) -> LocalTask[Any]:
        """The task of that id, started on another day or in another process. Nothing is looked up yet.

        Args:
            owner: Whose task it has to be; None for nobody's. Another's is not there, as on the wire. In a tool that
                runs as a task it is by default the owner of that task, because the id may come from its caller;
                elsewhere it is anybody's, and has to be said on a server that requires authentication.
            everybody: Whoever's it is: for operators.

        Raises:
            OwnerRequired: It is not said whose, on a server that requires authentication.
            UsageError: It is said in two ways.
        """
        check_text("task_id", task_id)
        return LocalTask(self._runtime, task_id, self._whose(owner, everybody=everybody))

    async def list(
        self,
        *,
        owner: str | Unset | None = UNSET,
        session: str | None = None,
        parent: str | None = None,
        everybody: bool = False,
        status: TaskStatus | str | None = None,
        page_size: int = 100,
        cursor: str | None = None,
    ) -> TaskPage:
        """One page of tasks of this server, in the order of creation.

        Whose tasks must be said, in exactly one way: there is no default that shows everybody's.

        Args:
            owner: The tasks of one owner; None for those that nobody owns.
            session: The tasks of one session,
            parent: or the children of one task, whoever owns them; in a tool that runs as a task, those that the owner
                of that task has.
            everybody: All tasks: for operators.
            status: Only those in this status, as `LocalSnapshot.status` has it.
            page_size: How many tasks a page has at most.
            cursor: Where the page starts: `next_cursor` of the one before.

        Raises:
            UsageError: It is not said whose tasks, or in more than one way.
            InvalidOption: Another argument has a value that it cannot have.
        """
        whose = whose_tasks(owner, session, parent, everybody=everybody)
        run = current_run.get()
        # What it is given by its caller is no proof: another's session or task may be meant.
        only = UNSET if run is None or isinstance(owner, str | None) or everybody else run.record.owner
        return await page_of(self._runtime(), whose, owner=only, status=status, page_size=page_size, cursor=cursor)

    async def list_all(
        self,
        *,
        owner: str | Unset | None = UNSET,
        session: str | None = None,
        parent: str | None = None,
        everybody: bool = False,
        status: TaskStatus | str | None = None,
    ) -> AsyncGenerator[LocalSnapshot]:
        """All tasks of a listing, page by page. Takes and raises what `list` does."""
        cursor: str | None = None
        while True:
            page = await self.list(
                owner=owner, session=session, parent=parent, everybody=everybody, status=status, cursor=cursor
            )
            for task in page.tasks:
                yield task
            cursor = page.next_cursor
            if cursor is None:
                return

    async def check_call(self, name: str, arguments: Mapping[str, Any]) -> Served:
        """The tool of a call that can become a task.

        Raises:
            UsageError: There is no such tool, it is not marked, or it does not take these arguments.
        """
        tool = await self._catalogue.tool(name)
        if tool is None:
            raise UsageError(f"the server has no tool {name!r}")
        if not self._doors.calls.can_become_task(tool):
            raise UsageError(f"tool {name!r} never becomes a task: {_why_not(tool)}")
        problem = None if tool.resolves else tool.problem_with(arguments)
        if problem is not None:
            raise UsageError(f"tool {name!r} does not take these arguments: {problem}") from problem
        return tool

    def _runtime(self) -> TaskRuntime:
        """The runtime of the task that the calling code is part of, or else the server's."""
        return current_runtime.get() or self._lifecycle.runtime()

    async def _result(self, request: TaskRequest) -> Mapping[str, Any]:
        body: ToolBody = body_at_work.get() or self._lifecycle.body()
        try:
            return await body.call(request)
        except RpcError as exc:
            raise to_mcp_error(exc) from exc

    async def _check_read(self, request: TaskRequest, *, as_task: bool = False) -> TaskOptions:
        """What was said of the prompt or resource of a request.

        Raises:
            UsageError: There is none, it does not take these arguments, or it never becomes a task.
        """
        self._runtime()
        what = f"{'prompt' if request.method == 'prompts/get' else 'resource'} {request.name!r}"
        read = await self._catalogue.find(request.method, request.name)
        if read is None:
            raise UsageError(f"the server has no {what}")
        problem = read.problem_with(request.arguments)
        if problem is not None:
            raise UsageError(f"{what} does not take these arguments: {problem}")
        if as_task and read.support == "forbidden":
            raise UsageError(f"{what} never becomes a task: {_why_not(read)}")
        return read.options

    def _whose(self, owner: str | Unset | None, *, everybody: bool) -> str | Unset | None:
        """Whose a task has to be; unset for anybody's."""
        if not isinstance(owner, str | Unset | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(f"owner must be a string or None, got {owner!r}")
        if not isinstance(owner, Unset):
            if everybody:
                raise UsageError("say whose task it is in one way: owner=, or everybody=True")
            return owner
        run = current_run.get()
        if everybody or run is not None:
            return UNSET if run is None or everybody else run.record.owner
        if self._lifecycle.requires_owner:
            raise OwnerRequired(
                "this server requires authentication, so a task is somebody's: say whose, as in tasks.handle(task_id, "
                "owner=owner), or tasks.handle(task_id, everybody=True) for an operator"
            )
        return UNSET

    async def _start(self, runtime: TaskRuntime, start: LocalStart) -> LocalTask[Any]:
        run = current_run.get()
        if run is None:
            key = None if start.key is None else f"local/{start.key}"
            task_id = await start.launch(runtime, key)
        else:
            task_id = await run.waits.start_child(
                start.identity, lambda key: start.launch(runtime, key, run), key=start.key
            )
        return LocalTask(self._runtime, task_id, start.owner_in(run))


def _why_not(served: Served) -> str:
    return 'its mode is "forbidden"' if served.is_marked else "it is not marked with @tasks.task()"
