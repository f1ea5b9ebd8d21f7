"""Params of the tasks methods, the models of a task, and the names this extension reserves.

Results are rendered as plain dicts (see `render`): the SDK drops nulls from models, and a null `ttlMs` must
reach the wire. `Task` and `CreateTaskResult` are for code that reads or writes messages itself.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal

from mcp_types import RequestParams, Result
from pydantic import BaseModel, ConfigDict, Field, SerializationInfo, SerializerFunctionWrapHandler, model_serializer
from pydantic.alias_generators import to_camel

from mcp_tasks.core.status import TaskStatus

EXTENSION_ID: Final = "io.modelcontextprotocol/tasks"
"""SEP-2663, "Extension Identifier"."""

PROGRESS_META_KEY: Final = "mcp-tasks/progress"
"""Where the numbers behind a progress message are, in `_meta` of a task. Ours, not the extension's."""


QUESTION_META_KEY: Final = "mcp-tasks/question"
"""Which question of its task it is, in `_meta` of a question that comes as a request of its own: the same however often
it is sent. Ours, like the one above."""

IDEMPOTENCY_KEY: Final = "mcp-tasks/idempotencyKey"
"""Under which key of its caller a call is made, in its `_meta`: made again under the same one, it comes to the same
task. Ours."""

LONGEST_KEY: Final = 255
"""Characters of such a key."""

REPEATED_META_KEY: Final = "mcp-tasks/repeated"
"""That a call under such a key may have been made before, in its `_meta`: if its server cannot tell, because it keeps
nothing of calls of that tool, it refuses."""

IDEMPOTENCY_CAPABILITY: Final = "mcp-tasks/idempotencyKeys"
"""By which a server says, among its experimental capabilities, that it honours such keys. Not among the settings of the
extension: its schema has none."""

LIMIT_EXCEEDED: Final = -32010
"""The code of an error: the caller takes more than it may. Of the range that JSON-RPC leaves to servers, and in use by
no version of MCP; ours, too. Its data names the limit, and says when to come back, where that helps: `retryAfterMs`."""

UNAVAILABLE: Final = "unavailable"
"""The `data.reason` of an error: the server's store cannot be used now, and the request was not carried out."""

MAY_HAVE_HAPPENED: Final = "may_have_happened"
"""The `data.reason` of an error: the server's store gave no answer, and the request may have been carried out."""


class AnyParams(RequestParams):
    """Params that are looked at later."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")


class TaskParams(RequestParams):
    """What every tasks method takes: which task."""

    # Lax mode would take 7 for "7"; the schema says string.
    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True)

    task_id: str = Field(alias="taskId")


class GetTaskParams(TaskParams):
    """Params of `tasks/get`."""


class CancelTaskParams(TaskParams):
    """Params of `tasks/cancel`."""


class UpdateTaskParams(TaskParams):
    """Params of `tasks/update`.

    The answers are not typed further here: SEP-2663 has us ignore keys that are not outstanding, whatever
    their values look like, so only the question can say what its answer must be.
    """

    input_responses: dict[str, Any] = Field(alias="inputResponses")


class _TaskFields(BaseModel):
    """The fields of a task on the wire."""

    model_config: ClassVar[ConfigDict] = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    task_id: str
    status: TaskStatus
    status_message: str | None = None
    created_at: str
    last_updated_at: str
    ttl_ms: int | None = None
    poll_interval_ms: int | None = None

    @model_serializer(mode="wrap")
    def _with_ttl(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        # SEP-2663: a null ttlMs means that the task is kept for good, so `exclude_none` must not drop it.
        return {**handler(self), "ttlMs" if info.by_alias else "ttl_ms": self.ttl_ms}


class Task(_TaskFields):
    """A task of 2026-07-28 (SEP-2663), without its outcome.

    Attributes:
        created_at: ISO 8601 text, and so is `last_updated_at`.
        ttl_ms: How long the task is kept, in milliseconds from its creation; None for good.
        poll_interval_ms: How long to wait between polls, in milliseconds.
    """


class CreateTaskResult(_TaskFields, Result):
    """The answer to a call that became a task (SEP-2663): the fields of the task, and `resultType`."""

    result_type: Literal["task"] = "task"
