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
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.methods import note_access
from mcp_tasks.protocol.outcomes import decoded, outcome_of
from mcp_tasks.runtime import Run, TaskRuntime
from mcp_tasks.runtime.context import current_run, current_runtime
from mcp_tasks.runtime.launch import LaunchSpec
from mcp_tasks.server.calls import Components
from mcp_tasks.server.catalog import KINDS, Catalogue, Kind, Served
from mcp_tasks.server.lifecycle import Lifecycle
from mcp_tasks.server.options import UNSET, Unset
from mcp_tasks.server.tool_runner import ToolBody, body_at_work, to_mcp_error
from mcp_tasks.stores.base import EVERYBODY, ChildrenOf, InSession, Whose, owned_by

LocalResult: TypeAlias = CallToolResult | GetPromptResult | ReadResourceResult
ResultT = TypeVar("ResultT", bound=LocalResult, covariant=True)

RELATED_TASK: Final = "io.modelcontextprotocol/related-task"

_RESULTS: Final[Mapping[str, type[LocalResult]]] = {
    "tools/call": CallToolResult,
    "prompts/get": GetPromptResult,
    "resources/read": ReadResourceResult,
}
_GOES_ON: Final = "The task goes on: come back with tasks.handle({task_id!r})."

ALL_CAPABILITIES: Final[Mapping[str, Any]] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {},
}
"""A task that is started in this process may ask anything: `send_input` can answer anything."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalSnapshot:
    """A task as it was at one moment.

    Attributes:
        kind: A tool, a prompt or a resource.
        name: Its name; for a resource, its URI.
        status: `failed` also for a tool that ended with an `isError` result, which `is_error` tells apart.
        message: The message of the status: of a failure, the tool's own words where it has some.
        questions: The open questions, by the keys to answer under.
        expires_at: When the task is deleted; None while it runs, and for one that is kept for good.
        poll_interval: How often clients are told to poll: as the author fixed it, or growing with the task's age.
        parent: The task whose run started this one.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskPage:
    """Some tasks of a listing, and where the next ones start (None when there are no more)."""

    tasks: Sequence[LocalSnapshot]
    next_cursor: str | None


class LocalTask(Generic[ResultT]):
    """One task of this server. Made by `Tasks.start` and its kin, and by `Tasks.handle`, which name its owner: another
    owner's task is not found."""

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
        note_access(runtime, None, "local", task_id=record.id, tool=record.name)
        return snapshot_of(record, runtime.now())

    async def wait(self, timeout: timedelta | float | None = None) -> ResultT:
        """Wait for the task to end, and return or raise as a plain call would.

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
        if not end:
            raise WaitTimedOut(self.id, seconds or 0.0, how_to_go_on=_GOES_ON)
        if end["status"] == TaskStatus.CANCELLED:
            raise TaskWasCancelled(self.id, end.get("message"))
        if end["status"] == TaskStatus.FAILED:
            raise task_failed(self.id, end["body"], end.get("message"))
        meta = {**end["meta"], RELATED_TASK: {"taskId": self.id}}
        result: Any = _RESULTS[end["method"]].model_validate({**end["body"], "_meta": meta}, by_name=False)
        return result

    async def result(self) -> ResultT:
        """The result of the task, once it has ended: `wait` without a time-out."""
        return await self.wait()

    async def until_asked(self, timeout: timedelta | float | None = None) -> Mapping[str, InputRequest]:
        """Wait until the task asks something, and return its open questions by key.

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
            action: The user's action on a form.
            content: The values in the form.
            key: The question, where there are several.
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
        """Cancel the task, and return its state: a task that had ended stays as it was. Its own children go on.

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
        """The end of the task as JSON, for the journal of a waiting tool; empty if it has not ended in time."""
        record = await self._until(lambda task: task.is_final, seconds)
        if not record.is_final:
            return {}
        runtime = self._runtime()
        outcome = await outcome_of(runtime, record)
        note_access(runtime, None, "local", task_id=record.id, tool=record.name)
        end: dict[str, Any] = {"status": record.status.value, "method": record.method}
        if record.status_message is not None:
            end["message"] = record.status_message
        if outcome is not None:
            end["body"] = await decoded(outcome.body)
            end["meta"] = {} if outcome.meta is None else await decoded(outcome.meta)
        return end

    async def _end_or_gone(self, seconds: float | None) -> JsonObject:
        """The same, or that there is no such task: the tool has to react to that in the same way in every run."""
        try:
            return await self._end(seconds)
        except UnknownTask:
            return {"gone": True}


def request_for(method: str, name: str, arguments: Mapping[str, Any] | None) -> TaskRequest:
    """The request that a client would have made.

    Raises:
        InvalidOption: The name or the arguments are not valid.
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
    """A task to be started by code in this process."""

    request: TaskRequest
    options: TaskOptions
    ttl: timedelta | Unset | None = UNSET
    owner: str | Unset | None = UNSET
    session: str | Unset | None = UNSET
    key: str | None = None

    def __post_init__(self) -> None:
        if self.ttl is not None and not isinstance(self.ttl, Unset):
            check_duration("ttl", self.ttl)
        _check_name("owner", self.owner, "a string or None")
        _check_name("session", self.session, "a string or None")
        if self.key is not None:
            check_text("key", self.key)

    async def begin(self, runtime: Callable[[], TaskRuntime]) -> LocalTask[Any]:
        """Start it; in a tool that runs as a task, as a child of that."""
        run = current_run.get()
        if run is None:
            owner = None if isinstance(self.owner, Unset) else self.owner
            key = None if self.key is None else f"local/{self.key}"
            task_id = await self._launch(runtime(), key, owner, None)
        else:
            owner = run.record.owner if isinstance(self.owner, Unset) else self.owner
            try:
                arguments = json.dumps(self.request.arguments, sort_keys=True)
            except (TypeError, ValueError, RecursionError) as exc:
                raise ValueNotStorable(f"the arguments of {self.request.name!r} are not JSON: {exc}") from exc
            task_id = await run.waits.start_child(
                f"{self.request.method} {self.request.name} {arguments}",
                lambda key: self._launch(runtime(), key, owner, run),
                key=self.key,
            )
        return LocalTask(runtime, task_id, owner)

    async def _launch(self, runtime: TaskRuntime, key: str | None, owner: str | None, run: Run | None) -> str:
        """The id of the new task, or of the one that is or was under the key."""
        parent = None if run is None else run.record
        if not owner and runtime.requires_owner:
            why = "the task that starts it has no owner either" if run is not None else "none was given"
            raise OwnerRequired(
                f"a task of {self.request.name!r} needs an owner ({why}): this server requires authentication, so no "
                'client could see a task without one. Pass it, as in tasks.start(..., owner="reports"). In a tool that '
                "runs for a client's user, current_task().owner is the owner of that user's tasks"
            )
        try:
            record = await runtime.launch(
                LaunchSpec(
                    request=self.request,
                    owner=owner,
                    retention=self.options.ttl if isinstance(self.ttl, Unset) else self.ttl,
                    policy=self.options.settled,
                    key=key,
                    session=parent and parent.session if isinstance(self.session, Unset) else self.session,
                    parent=None if parent is None else parent.id,
                )
            )
        except KeySpent as exc:
            if exc.task_id is None:
                if run is None:
                    raise
                # The task of this run has ended, and the run has not noticed yet.
                run.stop()
                await run.abort_branch()
            # An earlier run started it, and its result has expired by now: waiting for it will say so.
            return exc.task_id
        if self.key is not None:
            await self._check_same(runtime, record)
        return record.id

    async def _check_same(self, runtime: TaskRuntime, record: TaskRecord) -> None:
        try:
            standing = await runtime.store.request(record.id)
        except StoreUnavailable as exc:
            # Only the check failed. The task was created.
            raise StoreUnavailable(str(exc), may_have_happened=True) from exc
        mine = self.request
        if standing is not None and (standing.method, standing.name, dict(standing.arguments)) != (
            mine.method,
            mine.name,
            dict(mine.arguments),
        ):
            raise UsageError(
                f"the key {self.key!r} belongs to another call, of {standing.name!r} or with other arguments: use a "
                "key for one call only"
            )


class LocalCalls:
    """The methods of `Tasks` for code in its server's own process."""

    _lifecycle: Lifecycle
    _catalogue: Catalogue
    _components: Components

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> CallToolResult:
        """Call a tool here and now, without a task; a failure of the tool is a result that says `isError`.

        In a tool that runs as a task, the call is a part of that task, which asks the questions of the called tool.
        Otherwise no client can be asked.

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

        In a tool that itself runs as a task, this starts a child: its `parent` is that task, and it has its owner and
        session unless others are given. It is started once, however often the tool is run again: it is the same child
        if it is the same tool with the same arguments, and as many equal ones came before it. Cancelling a task leaves
        its children alone.

        Args:
            ttl: How long the task is kept after it ended; None for as long as the store lives. By default as the tool
                is marked. A child has a ttl of its own.
            owner: The owner of the task; None for no owner. Only its owner sees it on the wire. It has to be given on a
                server that requires authentication.
            session: The session in whose listing it is.
            key: An idempotency key: if a task of the same owner has it, that task is returned and none is started.
                For a child, the key identifies it in place of its tool and arguments.

        Raises:
            UsageError: The server has no such tool, it never becomes a task, or it does not take these arguments; or
                another call has the key.
            OwnerRequired: The server requires authentication, and no owner is given.
            WiringError: The server is not running.
            StoreError: The task could not be stored. `StoreUnavailable` says whether it may have been all the same.
        """
        request = request_for("tools/call", name, arguments)
        self._runtime()
        tool = await self.check_call(name, request.arguments)
        return await self._start(request, tool.options, ttl, owner, session, key)

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
        options = await self._check_read(request, as_task=True)
        return await self._start(request, options, ttl, owner, session, key)

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
        options = await self._check_read(request, as_task=True)
        return await self._start(request, options, ttl, owner, session, key)

    def handle(self, task_id: str, *, owner: str | Unset | None = UNSET, everybody: bool = False) -> LocalTask[Any]:
        """The task of that id, started on another day or in another process. Nothing is looked up yet.

        Args:
            owner: The owner that the task must have; None for no owner. Another owner's task is not found, as on the
                wire. In a tool that runs as a task the default is the owner of that task, because the id may come from
                its caller; elsewhere it is any owner, and has to be given on a server that requires authentication.
            everybody: Any owner: for operators.

        Raises:
            OwnerRequired: No owner is given, on a server that requires authentication.
            UsageError: The owner is given in two ways.
        """
        check_text("task_id", task_id)
        _check_name("owner", owner, "a string or None")
        run = current_run.get()
        if not isinstance(owner, Unset):
            if everybody:
                raise UsageError("pass either owner= or everybody=True, not both")
        elif run is not None and not everybody:
            owner = run.record.owner
        elif not everybody and self._lifecycle.requires_owner:
            raise OwnerRequired(
                "this server requires authentication, so every task has an owner: pass it, as in "
                "tasks.handle(task_id, owner=owner), or tasks.handle(task_id, everybody=True) for an operator"
            )
        return LocalTask(self._runtime, task_id, owner)

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

        Exactly one of `owner`, `session`, `parent` and `everybody` is required: no default shows all tasks.

        Args:
            owner: The tasks of one owner; None for those without an owner.
            session: The tasks of one session.
            parent: The children of one task, of any owner; in a tool that runs as a task, those with the owner of that
                task.
            everybody: All tasks: for operators.
            status: Only those in this status, as `LocalSnapshot.status` has it.
            page_size: How many tasks a page has at most.
            cursor: Where the page starts: `next_cursor` of the page before.

        Raises:
            UsageError: None of the four is given, or more than one.
            InvalidOption: Another argument has a value that it cannot have.
        """
        scope = _scope(owner, session, parent, everybody=everybody)
        check_number("page_size", page_size, 1)
        if status is not None:
            check_choice("status", status, [each.value for each in TaskStatus])
        wanted = None if status is None else TaskStatus(status)
        run, runtime = current_run.get(), self._runtime()
        # An id from the tool's caller proves nothing: it may be another user's session or task.
        own_only = run is not None and not isinstance(owner, str | None) and not everybody
        found: list[TaskRecord] = []
        while True:
            try:
                page = await runtime.list(
                    scope,
                    # In the record, an `isError` result is a completed task.
                    status=None if wanted is TaskStatus.FAILED else wanted,
                    cursor=cursor,
                    limit=page_size - len(found),
                )
            except ValueError as exc:
                raise InvalidOption(f"cursor must be the next_cursor of an earlier page, got {cursor!r}") from exc
            found += [
                record
                for record in page.records
                if (wanted is None or status_of(record) is wanted)
                and (run is None or not own_only or record.owner == run.record.owner)
            ]
            cursor = page.cursor
            if cursor is None or len(found) >= page_size:
                note_access(runtime, None, "local", verb="list", detail=f"{len(found)} tasks")
                now = runtime.now()
                return TaskPage(tasks=[snapshot_of(record, now) for record in found], next_cursor=cursor)
            # A store that never waits would block the event loop.
            await checkpoint()

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
        if not self._components.calls.can_become_task(tool):
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
        """The options of the prompt or resource of a request.

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

    async def _start(
        self,
        request: TaskRequest,
        options: TaskOptions,
        ttl: timedelta | Unset | None,
        owner: str | Unset | None,
        session: str | Unset | None,
        key: str | None,
    ) -> LocalTask[Any]:
        start = LocalStart(
            request=request,
            options=options,
            ttl=ttl,
            owner=owner,
            session=session,
            key=key,
        )
        return await start.begin(self._runtime)


def _scope(owner: str | Unset | None, session: str | None, parent: str | None, *, everybody: bool) -> Whose:
    """The tasks to list, which must be given in exactly one way."""
    for name, given in (("owner", owner), ("session", session), ("parent", parent)):
        _check_name(name, given, "a string")
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
            "pass exactly one of owner= (None for tasks without an owner), session=, parent= and everybody=True"
        )
    return said[0]


def _check_name(name: str, given: object, kind: str) -> None:
    if not isinstance(given, str | Unset | None):
        raise InvalidOption(f"{name} must be {kind}, got {given!r}")


def _why_not(served: Served) -> str:
    return 'its mode is "forbidden"' if served.is_marked else "it is not marked with @tasks.task()"
