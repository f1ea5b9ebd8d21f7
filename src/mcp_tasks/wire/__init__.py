"""SEP-2663 shapes: the only place with milliseconds, ISO text and camelCase. It decides nothing."""

from mcp_tasks.wire.models import (
    EXTENSION_ID,
    IDEMPOTENCY_CAPABILITY,
    IDEMPOTENCY_KEY,
    PROGRESS_META_KEY,
    AnyParams,
    CancelTaskParams,
    GetTaskParams,
    UpdateTaskParams,
)
from mcp_tasks.wire.render import (
    ACK,
    render_created,
    render_detailed,
    render_moving,
    render_outcome,
    render_result,
    render_task,
)

__all__ = [
    "ACK",
    "EXTENSION_ID",
    "IDEMPOTENCY_CAPABILITY",
    "IDEMPOTENCY_KEY",
    "PROGRESS_META_KEY",
    "AnyParams",
    "CancelTaskParams",
    "GetTaskParams",
    "UpdateTaskParams",
    "render_created",
    "render_detailed",
    "render_moving",
    "render_outcome",
    "render_result",
    "render_task",
]
