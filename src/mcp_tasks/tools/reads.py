"""A prompt and a resource of an `MCPServer`, as a plain request would be answered with them.

What is between the SDK's public `get_prompt` and `read_resource` and the wire is in its private handlers; it is little,
and is here again.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from mcp.server import MCPServer
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, UnexpectedResourceError
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    BlobResourceContents,
    GetPromptRequestParams,
    GetPromptResult,
    InputRequiredResult,
    ReadResourceRequestParams,
    ReadResourceResult,
    TextResourceContents,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_tasks.core.text import valid_text
from mcp_tasks.quiet import get_logger, quietly

logger: Final = get_logger(__name__)

_UNEXPECTED_BEFORE: Final = 0
"""The code that the SDK answers an exception with in older eras."""


async def prompt_of(
    server: MCPServer[Any], context: Context[Any, Any], params: GetPromptRequestParams
) -> GetPromptResult | InputRequiredResult:
    """The prompt; what it raises is the error that the plain request would be answered with, and keeps its text."""
    try:
        return await server.get_prompt(params.name, dict(params.arguments or {}), context)
    except MCPError:
        raise
    except Exception as exc:
        logger.info("prompt %r failed", params.name)
        is_modern = context.request_context.protocol_version in MODERN_PROTOCOL_VERSIONS
        code = INTERNAL_ERROR if is_modern else _UNEXPECTED_BEFORE
        raise MCPError(code, valid_text(str(exc))) from exc


async def resource_of(
    server: MCPServer[Any], context: Context[Any, Any], params: ReadResourceRequestParams
) -> ReadResourceResult | InputRequiredResult:
    """The resource; what it raises is the error that the plain request would be answered with."""
    uri = str(params.uri)
    try:
        found = await server.read_resource(uri, context)
    except ResourceError as exc:
        if isinstance(exc, UnexpectedResourceError):
            # Not which one: what a template is filled with stands in its address.
            logger.error("a resource raised an unexpected exception", exc_info=quietly())
        code = INVALID_PARAMS if isinstance(exc, ResourceNotFoundError) else INTERNAL_ERROR
        raise MCPError(code, valid_text(str(exc)), {"uri": uri}) from exc
    if isinstance(found, InputRequiredResult):
        return found
    return ReadResourceResult(contents=[_content(uri, item) for item in found])


def _content(uri: str, item: ReadResourceContents) -> TextResourceContents | BlobResourceContents:
    if isinstance(item.content, bytes):
        return BlobResourceContents(
            uri=uri,
            blob=base64.b64encode(item.content).decode(),
            mime_type=item.mime_type or "application/octet-stream",
            _meta=item.meta,
        )
    return TextResourceContents(uri=uri, text=item.content, mime_type=item.mime_type or "text/plain", _meta=item.meta)
