"""A `tools/call` as the record keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from mcp.server import ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, CallToolRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_tasks.core import TaskRequest

_RESERVED = "io.modelcontextprotocol/"


def task_request(params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any]) -> TaskRequest:
    """Everything of the call that a run needs, later and elsewhere.

    The legacy `params.task` is left out: SEP-2663 has servers treat it as unknown.
    """
    envelope = _meta(ctx)
    own = {key: value for key, value in envelope.items() if not key.startswith(_RESERVED)}
    # It ends with the request.
    own.pop("progressToken", None)
    return TaskRequest(
        name=params.name,
        arguments=params.arguments or {},
        meta=own,
        protocol_version=ctx.protocol_version,
        # As they came, not dumped from the SDK's models again: a run has them parsed by the SDK, as this call had.
        client_info=_object(envelope, CLIENT_INFO_META_KEY),
        client_capabilities=_object(envelope, CLIENT_CAPABILITIES_META_KEY) or {},
        input_responses=_responses(params),
        request_state=params.request_state,
    )


def _meta(ctx: ServerRequestContext[Any, Any]) -> Mapping[str, Any]:
    meta = (ctx.params or {}).get("_meta")
    return cast("Mapping[str, Any]", meta) if isinstance(meta, Mapping) else {}


def _object(envelope: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    value: Any = envelope.get(key)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _responses(params: CallToolRequestParams) -> dict[str, Any] | None:
    if params.input_responses is None:
        return None
    dumped = params.model_dump(by_alias=True, mode="json", exclude_none=True, include={"input_responses"})
    return dumped["inputResponses"]


async def ignore_task_param(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Middleware that drops the legacy `params.task` from `tools/call`.

    SEP-2663: servers MUST treat the field as unknown. The SDK still knows it, and would refuse a malformed one.
    """
    if ctx.method == "tools/call" and ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and "task" in (ctx.params or {}):
        params = {name: value for name, value in (ctx.params or {}).items() if name != "task"}
        return await call_next(replace(ctx, params=params))
    return await call_next(ctx)
