"""What differs between the eras of the protocol, behind one seam.

A dialect parses, renders and words refusals. It decides nothing about tasks, and nothing above it asks which version a
caller speaks: `Dialects` is the one place where the version chooses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, cast

from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_tasks.errors import UnknownTask
from mcp_tasks.model.json import LARGE, JsonObject, decode_in_pieces, decode_json, object_in
from mcp_tasks.model.record import Outcome, TaskRecord, TaskStatus
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.limits import Unread, hold
from mcp_tasks.protocol.owners import Caller
from mcp_tasks.protocol.shapes import (
    ACK,
    EXTENSION_ID,
    encode_plain,
    render_created,
    render_detailed,
    render_moving,
    render_outcome,
    render_result,
    render_task,
)
from mcp_tasks.runtime import TaskRuntime

# ---- message
# What goes out, in a form that needs no second pass over what is large.


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """The result of a request, or the params of a notification.

    Attributes:
        fields: Its fields, small whatever the task is about.
        large: One more field, as JSON bytes: how the task ended. Kept apart so that it is never decoded only to be
            encoded again.
    """

    fields: dict[str, Any]
    large: tuple[str, bytes] | None = None

    def encode(self) -> bytes:
        """The whole object as JSON."""
        fields = encode_plain(self.fields)
        if self.large is None:
            return fields
        name, value = self.large
        return b"%b,%b:%b}" % (fields[:-1], encode_plain(name), value)


class Dialect(Protocol):
    """How one era words tasks."""

    @property
    def versions(self) -> frozenset[str]:
        """The versions of the protocol that are worded like this."""
        ...

    @property
    def methods(self) -> frozenset[str]:
        """The methods of this era that have to do with tasks."""
        ...

    @property
    def notification_method(self) -> str:
        """The notification that carries the state of a task."""
        ...

    def declares_tasks(self, caller: Caller) -> bool:
        """Whether the client said, in the way of this era, that it takes tasks."""
        ...

    def undeclared(self) -> RpcError:
        """The refusal of a request that needs that declaration."""
        ...

    def parse_task_id(self, params: JsonObject) -> str:
        """The task that `tasks/get` or `tasks/cancel` names.

        Raises:
            RpcError: The params are malformed; so it is for the other parsers.
        """
        ...

    def parse_answers(self, params: JsonObject) -> tuple[str, Mapping[str, Any]]:
        """The task that `tasks/update` names, and the answers by key."""
        ...

    def parse_listened(self, params: JsonObject) -> Sequence[str]:
        """The tasks that a listen request names, each once."""
        ...

    def asks_to_listen(self, params: JsonObject) -> bool:
        """Whether a listen request is about tasks at all, well-formed or not."""
        ...

    def created(self, record: TaskRecord, now: datetime) -> Message:
        """The answer to a call that became a task."""
        ...

    def result(self, outcome: Outcome) -> bytes:
        """The answer to a call whose tool ended before there was a task to speak of, as JSON."""
        ...

    def question(self, question: JsonObject) -> Message:
        """The answer to a call whose tool asks before there is a task."""
        ...

    def task(self, record: TaskRecord, outcome: Outcome | None, now: datetime) -> Message:
        """The answer to `tasks/get`."""
        ...

    def moving(self, record: TaskRecord, now: datetime) -> JsonObject:
        """Those fields of the answer to `tasks/get` that depend on when it is given."""
        ...

    def acknowledgement(self) -> Message:
        """The answer to `tasks/update` and `tasks/cancel`."""
        ...

    def notification(self, record: TaskRecord, outcome: Outcome | None, now: datetime) -> Message:
        """The params of the notification that carries the state of a task."""
        ...


class Dialects:
    """The dialects that a server speaks, by version."""

    def __init__(self, dialects: Iterable[Dialect]) -> None:
        self._by_version = {version: dialect for dialect in dialects for version in dialect.versions}

    def speaks(self, version: str) -> bool:
        """Whether there is a dialect for that version."""
        return version in self._by_version

    def find(self, caller: Caller) -> Dialect | None:
        """The dialect of a caller; None in an era that has no tasks."""
        return self._by_version.get(caller.protocol_version)

    def require(self, caller: Caller, method: str) -> Dialect:
        """The dialect in which a caller uses a method.

        Raises:
            RpcError: -32601: in that era there is no such method.
        """
        dialect = self.find(caller)
        if dialect is None or method not in dialect.methods:
            raise RpcError(METHOD_NOT_FOUND, "Method not found", method)
        return dialect


# ---- modern
# The dialect of 2026-07-28: SEP-2663, the tasks extension.


class ModernDialect:
    """Tasks as SEP-2663 words them."""

    versions: frozenset[str] = frozenset(MODERN_PROTOCOL_VERSIONS)
    methods: frozenset[str] = frozenset(
        {"tools/call", "tasks/get", "tasks/update", "tasks/cancel", "subscriptions/listen"}
    )
    notification_method: str = "notifications/tasks"

    def declares_tasks(self, caller: Caller) -> bool:
        """Whether this very request declares the extension; an earlier one does not count."""
        return caller.declares(EXTENSION_ID)

    def undeclared(self) -> RpcError:
        """-32021, with the capability to declare."""
        return RpcError(
            MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"Client did not declare required extension {EXTENSION_ID!r}",
            {"requiredCapabilities": {"extensions": {EXTENSION_ID: {}}}},
        )

    def parse_task_id(self, params: JsonObject) -> str:
        """The task that a request names in `taskId`."""
        task_id = params.get("taskId")
        if not isinstance(task_id, str):
            raise RpcError(INVALID_PARAMS, "params.taskId must be a string: the id of a task")
        return task_id

    def parse_answers(self, params: JsonObject) -> tuple[str, Mapping[str, Any]]:
        """The task, and `inputResponses`.

        The answers are not looked at here: SEP-2663 has us ignore keys that are not outstanding, whatever their values
        look like, so only the question can say what its answer must be.
        """
        task_id = self.parse_task_id(params)
        answers = params.get("inputResponses")
        if not isinstance(answers, Mapping):
            raise RpcError(
                INVALID_PARAMS, "params.inputResponses must be an object: answers by the keys of inputRequests"
            )
        return task_id, cast("Mapping[str, Any]", answers)

    def asks_to_listen(self, params: JsonObject) -> bool:
        """Whether `notifications.taskIds` is there."""
        return _task_ids(params) is not None

    def parse_listened(self, params: JsonObject) -> Sequence[str]:
        """The ids in `notifications.taskIds`, each once and in their order."""
        ids = _task_ids(params)
        if not isinstance(ids, list) or not all(isinstance(task_id, str) for task_id in cast("list[Any]", ids)):
            raise RpcError(INVALID_PARAMS, "notifications.taskIds must be a list of strings")
        return list(dict.fromkeys(cast("list[str]", ids)))

    def created(self, record: TaskRecord, now: datetime) -> Message:
        """`CreateTaskResult`."""
        return Message(fields=render_created(record, now))

    def result(self, outcome: Outcome) -> bytes:
        """The `CallToolResult` of the plain call."""
        return render_result(outcome)

    def question(self, question: JsonObject) -> Message:
        """`InputRequiredResult`."""
        return Message(fields={"resultType": "input_required", **question})

    def task(self, record: TaskRecord, outcome: Outcome | None, now: datetime) -> Message:
        """`GetTaskResult`."""
        return Message(fields=render_task(record, now), large=render_outcome(record, outcome))

    def moving(self, record: TaskRecord, now: datetime) -> JsonObject:
        """`ttlMs` and `pollIntervalMs`."""
        return render_moving(record, now)

    def acknowledgement(self) -> Message:
        """An empty result: no task fields."""
        return Message(fields=dict(ACK))

    def notification(self, record: TaskRecord, outcome: Outcome | None, now: datetime) -> Message:
        """`DetailedTask`, as the params of `notifications/tasks`."""
        return Message(fields=render_detailed(record, now), large=render_outcome(record, outcome))


def _task_ids(params: JsonObject) -> Any:
    return (object_in(params, "notifications") or {}).get("taskIds")


# ---- outcome
# How a task ended, read for whoever is shown the task.


_WITH_OUTCOME = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED})


async def outcome_of(runtime: TaskRuntime, record: TaskRecord) -> Outcome | None:
    """The outcome of a task that has one; None for a task that runs or was cancelled.

    Raises:
        UnknownTask: The task expired after its record was read, and its outcome is gone with it.
    """
    if record.status not in _WITH_OUTCOME:
        return None
    outcome = await runtime.store.outcome(record.id)
    if outcome is None:
        raise UnknownTask(record.id)
    return outcome


async def outcome_to_send(runtime: TaskRuntime, record: TaskRecord, unread: Unread) -> Outcome | None:
    """The same for the response that is being made, where it counts until its client has read it.

    Raises:
        UnknownTask: As above.
        LimitExceeded: There is no room for it.
    """
    async with unread.turn(record.owner):
        return hold(record.owner, [await outcome_of(runtime, record)])


async def decoded(data: bytes) -> Any:
    """The value behind the bytes; if it is large, from a thread, for the event loop's sake."""
    return await asyncio.to_thread(decode_in_pieces, data) if len(data) > LARGE else decode_json(data)
