"""Raw JSON-RPC to a server, and exactly what came back; `http_wire` and `stdio_wire` carry it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from mcp_tasks.core.json import JsonObject
from mcp_tasks.wire.models import EXTENSION_ID

ANSWER_TIMEOUT: Final = 10.0
"""Seconds for one answer. A tasks method reads or writes one record; this is plenty."""

LISTENING: Final = "notifications/subscriptions/acknowledged"
"""The first message on a listen stream."""

CLIENT: Final[JsonObject] = {"name": "mcp-tasks-doctor", "version": "1"}
TASKS: Final[JsonObject] = {"extensions": {EXTENSION_ID: {}}}
ASKS: Final[JsonObject] = {"elicitation": {"form": {}, "url": {}}}


class Silence(Exception):
    """No answer came: not in time, or not at all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What came back for one request.

    Attributes:
        status: The HTTP status; None over stdio.
        message: The JSON-RPC response; None if something else came back.
    """

    status: int | None = None
    kind: str = ""
    message: JsonObject | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def result(self) -> JsonObject | None:
        """The result, if it is one."""
        value: Any = (self.message or {}).get("result")
        return cast("JsonObject", value) if isinstance(value, Mapping) else None

    @property
    def error(self) -> JsonObject | None:
        """The error, if it is one."""
        value: Any = (self.message or {}).get("error")
        return cast("JsonObject", value) if isinstance(value, Mapping) else None

    @property
    def code(self) -> int | None:
        """The error's code."""
        return None if self.error is None else self.error.get("code")

    @property
    def summary(self) -> str:
        """In a few words."""
        where = "" if self.status is None else f" with HTTP {self.status}"
        if self.error is not None:
            return f"error {self.code} ({self.error.get('message')}){where}"
        if self.result is not None:
            return f"a result{where}"
        if self.message is not None:
            return f"{self.message.get('method')}{where}"
        return f"no JSON-RPC message{where}" + (f" and {self.kind}" if self.kind else "")


class Wire(Protocol):
    """A way to a server."""

    over_http: bool

    async def send(
        self,
        method: str,
        params: JsonObject | None = None,
        *,
        declare: bool = True,
        headers: Mapping[str, str] | None = None,
        without: Sequence[str] = (),
    ) -> Reply:
        """Send a request of the 2026-07-28 protocol and give what came back.

        Args:
            declare: Whether the client says that it knows tasks.
            headers: HTTP headers in place of, or besides, those that belong to the request.
            without: HTTP headers to leave out.

        Raises:
            Silence: Nothing came back.
        """
        ...

    async def shake_hands(self) -> Reply:
        """Send an `initialize` of the 2025-11-25 protocol."""
        ...

    def listen(self, task_ids: Sequence[str]) -> AbstractAsyncContextManager[AsyncIterator[JsonObject]]:
        """Open a `subscriptions/listen` stream; gives its messages, the answer to the request among them."""
        ...


def request_of(number: int, method: str, params: JsonObject | None, *, declare: bool = True) -> dict[str, Any]:
    """A request of the 2026-07-28 protocol."""
    meta = {
        PROTOCOL_VERSION_META_KEY: LATEST_MODERN_VERSION,
        CLIENT_INFO_META_KEY: CLIENT,
        CLIENT_CAPABILITIES_META_KEY: {**ASKS, **(TASKS if declare else {})},
    }
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": {**(params or {}), "_meta": meta}}


def handshake(number: int) -> dict[str, Any]:
    """The first request of the 2025-11-25 protocol."""
    params = {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": {}, "clientInfo": CLIENT}
    return {"jsonrpc": "2.0", "id": number, "method": "initialize", "params": params}


def routing_headers(method: str, params: JsonObject | None) -> dict[str, str]:
    """The headers that belong to a request (SEP-2243, and SEP-2663 for the tasks methods)."""
    headers = {"mcp-protocol-version": LATEST_MODERN_VERSION, "mcp-method": method}
    name = (params or {}).get("taskId" if method.startswith("tasks/") else "name")
    return {**headers, "mcp-name": name} if isinstance(name, str) else headers


def parse_object(text: str | bytes) -> JsonObject | None:
    """The JSON object that `text` is, if it is one."""
    try:
        value: Any = json.loads(text)
    except ValueError:
        return None
    return cast("JsonObject", value) if isinstance(value, dict) else None
