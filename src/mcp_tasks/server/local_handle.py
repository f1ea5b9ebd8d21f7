"""`LocalTask`: one task, for code in the server's own process.

It sees and does what a client's handle does, without a wire between. In a tool that itself runs as a task, how the
other task ended is recorded in the tool's own, so that every run of the tool is told the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypeAlias, TypeVar, get_args

from mcp_types import CallToolResult, GetPromptResult, ReadResourceResult

from mcp_tasks.core.actor import Actor
from mcp_tasks.core.durations import seconds_of
from mcp_tasks.core.inputs import InputRequest
from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.pacing import expires_at, poll_interval
from mcp_tasks.core.record import Progress, TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.core.values import check_choice, check_mapping, check_text
from mcp_tasks.errors import ResultExpired, TaskWasCancelled, UnknownTask, UsageError, WaitTimedOut
from mcp_tasks.failure import task_failed
from mcp_tasks.protocol import RpcError
from mcp_tasks.protocol.input import ASKED_WITHIN, Action, send_input, status_of, until
from mcp_tasks.protocol.outcome import decoded, outcome_of
from mcp_tasks.protocol.telling import tell_local_look
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.runtime.context import current_run
from mcp_tasks.server.options import UNSET, Unset
from mcp_tasks.server.reads import KINDS, Kind
from mcp_tasks.tools.sdk_errors import to_mcp_error

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
            InvalidDuration: The timeout is not one.
        """
        seconds = seconds_of(timeout)
        run = current_run.get()
        if run is None:
            end = await self._end(seconds)
        elif run.record.id == self.id:
            raise UsageError("a task cannot wait for itself")
        else:
            end = await run.children.wait(self.id, lambda: self._end_or_gone(seconds))
            if "gone" in end:
                raise ResultExpired(self.id) if run.children.has_started(self.id) else UnknownTask(self.id)
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
            InvalidDuration: The timeout is not one.
            InvalidOption: Another argument has a value that it cannot have.
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
