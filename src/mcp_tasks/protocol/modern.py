"""The dialect of 2026-07-28: SEP-2663, the tasks extension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from mcp_types import INVALID_PARAMS, MISSING_REQUIRED_CLIENT_CAPABILITY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_tasks.core.json import JsonObject, object_in
from mcp_tasks.core.record import Outcome, TaskRecord
from mcp_tasks.protocol.caller import Caller
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.message import Message
from mcp_tasks.wire import (
    ACK,
    EXTENSION_ID,
    render_created,
    render_detailed,
    render_moving,
    render_outcome,
    render_result,
    render_task,
)


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
