"""`tasks/get`, `tasks/update` and `tasks/cancel`: parse, call the runtime, render."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mcp.server import ServerRequestContext
from mcp.server.context import HandlerResult
from mcp.server.mcpserver.server import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import HEADER_MISMATCH

from mcp_tasks.core import TaskRecord
from mcp_tasks.errors import TasksError
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.server.answers import check_answers
from mcp_tasks.server.rpc_errors import to_mcp_error
from mcp_tasks.wire import ACK, EXTENSION_ID, AnyParams, CancelTaskParams, GetTaskParams, UpdateTaskParams, render_task
from mcp_tasks.wire.models import TaskParams

RequestContext = ServerRequestContext[Any, Any]

ParamsT = TypeVar("ParamsT", bound=TaskParams)

CANCELLED_BY_CLIENT = "Cancelled by the client"


class TaskHandlers:
    """Answers the tasks methods of the 2026-07-28 wire."""

    def __init__(
        self,
        runtime: Callable[[], TaskRuntime],
        *,
        principal: Callable[[RequestContext], str | None],
        require_name_header: bool,
    ) -> None:
        self._runtime = runtime
        self._principal = principal
        self._require_name_header = require_name_header

    async def get(self, ctx: RequestContext, _: AnyParams) -> HandlerResult:
        """The task with its outcome or its open questions."""
        _params, record = await self._find(ctx, GetTaskParams)
        return render_task(record, self._runtime().now())

    async def update(self, ctx: RequestContext, _: AnyParams) -> HandlerResult:
        """Take answers to open questions. Acknowledged once they are durable."""
        params, record = await self._find(ctx, UpdateTaskParams)
        answers = params.input_responses
        try:
            await self._runtime().answer(record, answers, check=lambda task: check_answers(task, answers))
        except TasksError as exc:
            raise to_mcp_error(exc) from exc
        return dict(ACK)

    async def cancel(self, ctx: RequestContext, _: AnyParams) -> HandlerResult:
        """Cancel the task. A finished one is acknowledged too, and stays as it is."""
        _params, record = await self._find(ctx, CancelTaskParams)
        try:
            await self._runtime().cancel(record, CANCELLED_BY_CLIENT)
        except TasksError as exc:
            raise to_mcp_error(exc) from exc
        return dict(ACK)

    async def _find(self, ctx: RequestContext, params_type: type[ParamsT]) -> tuple[ParamsT, TaskRecord]:
        """The params and the caller's task that they name, after the checks that come before it.

        Raises:
            ValidationError: The params are malformed; the SDK answers -32602.
            MCPError: The client did not declare the extension (-32021), a header names another task (-32020), or
                there is no such task for this caller (-32602), or it cannot be read (-32603).
        """
        require_client_extension(ctx, EXTENSION_ID)
        params = params_type.model_validate(ctx.params or {}, by_name=False)
        self._check_name_header(ctx, params.task_id)
        try:
            return params, await self._runtime().get(params.task_id, owner=self._principal(ctx))
        except TasksError as exc:
            raise to_mcp_error(exc) from exc

    def _check_name_header(self, ctx: RequestContext, task_id: str) -> None:
        # SEP-2663, "Routing Headers": clients MUST send Mcp-Name. At least one real client does not, so a missing
        # one is accepted unless the author wants it; a wrong one would have been routed wrongly, and is refused.
        headers = getattr(ctx.request, "headers", None)
        if headers is None:
            return
        sent: str | None = headers.get(MCP_NAME_HEADER)
        if sent is None and not self._require_name_header:
            return
        if decode_header_value(sent) != task_id:
            what = "is missing" if sent is None else "does not name the task in params.taskId"
            raise MCPError(code=HEADER_MISMATCH, message=f"The Mcp-Name header {what}")
