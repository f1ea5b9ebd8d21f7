"""A `tools/call` as the record keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from mcp.server import ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp_types import CallToolRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_tasks.core import TaskRequest

_ANSWERS = {"input_responses", "request_state"}
_RESERVED = "io.modelcontextprotocol/"


def task_request(params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any]) -> TaskRequest:
    """Everything of the call that a run needs, later and elsewhere.

    The legacy `params.task` is left out: SEP-2663 has servers treat it as unknown.
    """
    client = ctx.session.client_params
    capabilities = ctx.session.client_capabilities
    answers = params.model_dump(by_alias=True, mode="json", exclude_none=True, include=_ANSWERS)
    return TaskRequest(
        name=params.name,
        arguments=params.arguments or {},
        meta=_own_meta(ctx),
        protocol_version=ctx.protocol_version,
        client_info=None
        if client is None
        else client.client_info.model_dump(by_alias=True, mode="json", exclude_none=True),
        client_capabilities={}
        if capabilities is None
        else capabilities.model_dump(by_alias=True, mode="json", exclude_none=True),
        input_responses=answers.get("inputResponses"),
        request_state=answers.get("requestState"),
    )


async def ignore_task_param(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Middleware that drops the legacy `params.task` from `tools/call`.

    SEP-2663: servers MUST treat the field as unknown. The SDK still knows it, and would refuse a malformed one.
    """
    if ctx.method == "tools/call" and ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and "task" in (ctx.params or {}):
        params = {name: value for name, value in (ctx.params or {}).items() if name != "task"}
        return await call_next(replace(ctx, params=params))
    return await call_next(ctx)


def _own_meta(ctx: ServerRequestContext[Any, Any]) -> dict[str, Any]:
    """The caller's own `_meta`: without the envelope, which has fields of its own, and without a progress token,
    which ends with the request."""
    raw = (ctx.params or {}).get("_meta")
    if not isinstance(raw, Mapping):
        return {}
    meta = cast("Mapping[str, Any]", raw)
    return {key: value for key, value in meta.items() if not key.startswith(_RESERVED) and key != "progressToken"}
