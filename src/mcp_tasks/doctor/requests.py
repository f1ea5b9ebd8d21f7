"""The requests that a server is asked: those of a client of the 2026-07-28 protocol, which knows tasks or does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from mcp.shared.inbound import encode_header_value
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY, JSONRPCRequest
from mcp_types.version import LATEST_MODERN_VERSION

from mcp_tasks.client.messages import request_message
from mcp_tasks.core.json import JsonObject
from mcp_tasks.wire.models import EXTENSION_ID

Headers: TypeAlias = Mapping[str, str | None]

CLIENT: Final[JsonObject] = {"name": "mcp-tasks-doctor", "version": "1"}


def request_of(
    number: int, method: str, params: JsonObject, *, declare: bool = True, headers: Headers | None = None
) -> tuple[JSONRPCRequest, Mapping[str, str]]:
    """A request, from a client that knows tasks if it is to `declare` them, and what HTTP headers go with it: `headers`
    in place of, or besides, those that belong to it; None leaves one out. An `initialize` is of the 2025-11-25
    protocol, and goes as it is."""
    if method == "initialize":
        return request_message(number, method, params), {}
    tasks: JsonObject = {"extensions": {EXTENSION_ID: {}}} if declare else {}
    meta: JsonObject = {
        PROTOCOL_VERSION_META_KEY: LATEST_MODERN_VERSION,
        CLIENT_INFO_META_KEY: CLIENT,
        CLIENT_CAPABILITIES_META_KEY: {"elicitation": {"form": {}, "url": {}}, **tasks},
    }
    # SEP-2243, and SEP-2663 for the tasks methods.
    routing = {"mcp-protocol-version": LATEST_MODERN_VERSION, "mcp-method": method}
    name: str | None = params.get("taskId" if method.startswith("tasks/") else "name")
    sent = {**routing, "mcp-name": name and encode_header_value(name), **(headers or {})}
    present = {key: value for key, value in sent.items() if value is not None}
    return request_message(number, method, {**params, "_meta": meta}), present
