"""Raw JSON-RPC to a server, over HTTP or through the pipes of its process, and exactly what came back."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final, TextIO, TypeAlias, cast

import anyio
import httpx2
from mcp.shared.message import SessionMessage
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    jsonrpc_message_adapter,
)
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION
from pydantic import ValidationError

from mcp_tasks.core.json import JsonObject
from mcp_tasks.wire.models import EXTENSION_ID

ANSWER_TIMEOUT: Final = 10.0
"""Seconds for one answer. A tasks method reads or writes one record; this is plenty."""

STARTUP_LIMIT: Final = 60.0
"""The same for the first answer of a process that has just been started."""

LISTENING: Final = "notifications/subscriptions/acknowledged"
"""The first message on a listen stream."""

LONGEST_LINE: Final = 200
"""Characters that are shown of a line that a server wrote."""

CLIENT: Final[JsonObject] = {"name": "mcp-tasks-doctor", "version": "1"}
TASKS: Final[JsonObject] = {"extensions": {EXTENSION_ID: {}}}
ASKS: Final[JsonObject] = {"elicitation": {"form": {}, "url": {}}}


class Silence(Exception):
    """No answer came: not in time, or not at all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What came back for one request: the HTTP status, if there is one, and the JSON-RPC response, if it is one."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    message: JsonObject | None = None

    @property
    def result(self) -> JsonObject | None:
        """The result, if it is one."""
        return object_in(self.message, "result")

    @property
    def error(self) -> JsonObject | None:
        """The error, if it is one."""
        return object_in(self.message, "error")

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
        kind = self.headers.get("content-type", "").partition(";")[0]
        return f"no JSON-RPC message{where}" + (f" and {kind}" if kind else "")


Answering: TypeAlias = tuple[Reply, AsyncIterator[JsonObject]]
"""What there is of a reply before any message, and the messages as they come."""
Coming: TypeAlias = AsyncIterable[SessionMessage | Exception]


class Wire(ABC):
    """A way to a server."""

    over_http: bool
    patience: float = ANSWER_TIMEOUT
    """Seconds for the next answer."""
    stray: str = ""
    """The first that came and is no JSON-RPC message, where nothing else may come."""

    def __init__(self) -> None:
        self._numbers = count(1)

    @abstractmethod
    def exchange(self, body: JsonObject, headers: Mapping[str, str]) -> AbstractAsyncContextManager[Answering]:
        """Send a request; leaving before its answer came takes it back.

        Raises:
            Silence: The server went away.
        """

    async def send(
        self,
        method: str,
        params: JsonObject | None = None,
        *,
        declare: bool = True,
        headers: Mapping[str, str | None] | None = None,
    ) -> Reply:
        """Send a request of the 2026-07-28 protocol, from a client that knows tasks if it is to `declare` them. HTTP
        `headers` go in place of, or besides, those that belong to the request; None leaves one out.

        Raises:
            Silence: Nothing came back.
        """
        sent = {**routing_headers(method, params), **(headers or {})}
        present = {name: value for name, value in sent.items() if value is not None}
        return await self._ask(self._request(method, params, declare=declare), present)

    async def shake_hands(self) -> Reply:
        """Send an `initialize` of the 2025-11-25 protocol."""
        params = {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": {}, "clientInfo": CLIENT}
        return await self._ask(
            {"jsonrpc": "2.0", "id": next(self._numbers), "method": "initialize", "params": params}, {}
        )

    def listen(self, task_id: str) -> AbstractAsyncContextManager[Answering]:
        """Open a `subscriptions/listen` stream; the answer to the request is among its messages."""
        method, params = "subscriptions/listen", {"notifications": {"taskIds": [task_id]}}
        return self.exchange(self._request(method, params), routing_headers(method, params))

    async def _ask(self, body: JsonObject, headers: Mapping[str, str]) -> Reply:
        try:
            with anyio.fail_after(self.patience):
                async with self.exchange(body, headers) as (reply, messages):
                    async for message in messages:
                        # A stream that was opened says so, and then nothing for a long time.
                        if "result" in message or "error" in message or message.get("method") == LISTENING:
                            return replace(reply, message=message)
                    return reply
        except TimeoutError as exc:
            raise Silence(f"no answer within {self.patience:g} s") from exc

    def _request(self, method: str, params: JsonObject | None, *, declare: bool = True) -> dict[str, Any]:
        meta = {
            PROTOCOL_VERSION_META_KEY: LATEST_MODERN_VERSION,
            CLIENT_INFO_META_KEY: CLIENT,
            CLIENT_CAPABILITIES_META_KEY: {**ASKS, **(TASKS if declare else {})},
        }
        given = {**(params or {}), "_meta": meta}
        return {"jsonrpc": "2.0", "id": next(self._numbers), "method": method, "params": given}


class HttpWire(Wire):
    """Streamable HTTP."""

    over_http = True

    def __init__(self, url: str, client: httpx2.AsyncClient) -> None:
        super().__init__()
        self._url = url
        self._client = client

    @asynccontextmanager
    async def exchange(self, body: JsonObject, headers: Mapping[str, str]) -> AsyncGenerator[Answering]:
        """Post a request."""
        sent = {"accept": "application/json, text/event-stream", "content-type": "application/json", **headers}
        try:
            async with (
                self._client.stream("POST", self._url, content=json.dumps(body), headers=sent) as response,
                aclosing(_messages(response)) as messages,
            ):
                yield Reply(status=response.status_code, headers=response.headers), messages
        except httpx2.TransportError as exc:
            raise Silence(f"the connection broke: {exc or type(exc).__name__}") from exc


class PipeWire(Wire):
    """The pipes of a server's process. There are no headers and no statuses."""

    over_http = False

    def __init__(self, coming: Coming, send: Callable[[SessionMessage], Awaitable[None]], log: TextIO) -> None:
        super().__init__()
        self._coming = coming
        self._send = send
        self._log = log
        self.patience = STARTUP_LIMIT

    @asynccontextmanager
    async def exchange(self, body: JsonObject, headers: Mapping[str, str]) -> AsyncGenerator[Answering]:
        """Write a request. What comes meanwhile and is the answer to another one came too late for it."""
        answered = False

        async def messages() -> AsyncGenerator[JsonObject]:
            nonlocal answered
            async for item in self._coming:
                self.patience = ANSWER_TIMEOUT
                if isinstance(item, Exception):
                    self.stray = self.stray or _line_in(item)
                    continue
                message = item.message.model_dump(by_alias=True, exclude_unset=True)
                if "method" in message or message.get("id") == body["id"]:
                    answered = answered or "method" not in message
                    yield message
            raise self._end()

        await self._write(body)
        try:
            async with aclosing(messages()) as coming:
                yield Reply(), coming
        finally:
            if not answered:
                cancelled = {"requestId": body["id"], "reason": "enough seen"}
                with anyio.move_on_after(1, shield=True):
                    await self._write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled})

    async def _write(self, message: JsonObject) -> None:
        try:
            await self._send(SessionMessage(jsonrpc_message_adapter.validate_python(message)))
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as exc:
            raise self._end() from exc

    def _end(self) -> Silence:
        self._log.seek(0)
        said = self._log.read().strip().rpartition("\n")[2]
        return Silence("the server ended" + (f"; the last line on its stderr: {said[:LONGEST_LINE]}" if said else ""))


def routing_headers(method: str, params: JsonObject | None) -> dict[str, str]:
    """The headers that belong to a request (SEP-2243, and SEP-2663 for the tasks methods)."""
    headers = {"mcp-protocol-version": LATEST_MODERN_VERSION, "mcp-method": method}
    name = (params or {}).get("taskId" if method.startswith("tasks/") else "name")
    return {**headers, "mcp-name": name} if isinstance(name, str) else headers


def object_in(holder: object, *keys: str) -> JsonObject | None:
    """The object at the end of a path of keys, if there is one: whatever a server sent."""
    node = holder
    for key in keys:
        node = cast("JsonObject", node).get(key) if isinstance(node, Mapping) else None
    return cast("JsonObject", node) if isinstance(node, Mapping) else None


async def _messages(response: httpx2.Response) -> AsyncGenerator[JsonObject]:
    """The JSON-RPC messages in a response, as they come. Anything that is not JSON is skipped."""
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        async for line in response.aiter_lines():
            if line.startswith("data:") and (message := _object(line.removeprefix("data:"))) is not None:
                yield message
    elif (message := _object(await response.aread())) is not None:
        yield message


def _line_in(exc: Exception) -> str:
    """The line that could not be read."""
    given: Any = exc.errors()[0]["input"] if isinstance(exc, ValidationError) else exc
    return (given if isinstance(given, str) else json.dumps(given, default=str))[:LONGEST_LINE]


def _object(text: str | bytes) -> JsonObject | None:
    try:
        return object_in(json.loads(text))
    except ValueError:
        return None
