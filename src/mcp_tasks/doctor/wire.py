"""Raw JSON-RPC to a server, over HTTP or through the pipes of its process, and exactly what came back."""

from __future__ import annotations

import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, TextIO

import anyio
import httpx2
from mcp.client.stdio import stdio_client
from mcp.shared.inbound import encode_header_value
from mcp.shared.message import SessionMessage
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY, JSONRPCRequest
from mcp_types.version import LATEST_MODERN_VERSION
from pydantic import ValidationError

from mcp_tasks.client.messages import messages_in, notification, request_message
from mcp_tasks.client.servers.address import ServerAddress
from mcp_tasks.client.servers.connecting import stdio_parameters
from mcp_tasks.client.servers.unreachable import check_url, why_unreachable
from mcp_tasks.core.json import JsonObject, object_in
from mcp_tasks.wire.models import EXTENSION_ID

ANSWER_TIMEOUT: Final = 10.0
"""Seconds for one answer. A tasks method reads or writes one record; this is plenty."""

LISTENING: Final = "notifications/subscriptions/acknowledged"
"""The first message on a listen stream."""

LONGEST_LINE: Final = 200
"""Characters that are shown of a line that a server wrote."""

CLIENT: Final[JsonObject] = {"name": "mcp-tasks-doctor", "version": "1"}


class Silence(Exception):
    """No answer came: not in time, or not at all."""


@dataclass
class Reply:
    """Something that came back for a request: with an HTTP status, if there is one, and a JSON-RPC message, if it is
    one. Of that the `result` or the `error`, and the error's `code`."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    message: JsonObject = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        self.result: JsonObject | None = object_in(self.message, "result")
        self.error: JsonObject | None = object_in(self.message, "error")
        self.code: Any = (self.error or {}).get("code")

    @property
    def summary(self) -> str:
        """In a few words."""
        where = "" if self.status is None else f" with HTTP {self.status}"
        if self.error is not None:
            return f"error {self.code} ({self.error.get('message')}){where}"
        if self.message:
            return f"{'a result' if self.result is not None else self.message.get('method')}{where}"
        kind = self.headers.get("content-type", "").partition(";")[0]
        return f"no JSON-RPC message{where}" + (f" and {kind}" if kind else "")


class Wire(ABC):
    """A way to a server. Where nothing comes back, or the server goes away, that is a `Silence`.

    Attributes:
        patience: Seconds for the next answer.
        stray: The first that came and does not belong there: no JSON-RPC message, or the answer to another request.
    """

    over_http: bool
    patience: float = ANSWER_TIMEOUT
    stray: str = ""
    _numbers = count(1)

    @abstractmethod
    def exchange(self, request: JSONRPCRequest, headers: Mapping[str, str]) -> AsyncGenerator[Reply]:
        """Send a request; gives all that comes for it. Leaving before its answer came takes it back."""

    def stream(
        self, method: str, params: JsonObject, *, declare: bool = True, headers: Mapping[str, str | None] | None = None
    ) -> AsyncGenerator[Reply]:
        """Send a request of the 2026-07-28 protocol, from a client that knows tasks if it is to `declare` them; gives
        all that comes. HTTP `headers` go in place of, or besides, those that belong to the request; None leaves one
        out. An `initialize` is of the 2025-11-25 protocol, and goes as it is."""
        number = next(self._numbers)
        if method == "initialize":
            return self.exchange(request_message(number, method, params), {})
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
        return self.exchange(request_message(number, method, {**params, "_meta": meta}), present)

    async def send(self, method: str, params: JsonObject, **how: Any) -> Reply:
        """The answer to such a request."""
        reply = Reply()
        try:
            with anyio.fail_after(self.patience):
                async with aclosing(self.stream(method, params, **how)) as coming:
                    async for reply in coming:
                        # A stream that was opened says so, and then nothing for a long time.
                        if reply.message.keys() & {"result", "error"} or reply.message.get("method") == LISTENING:
                            break
        except TimeoutError as exc:
            raise Silence(f"no answer within {self.patience:g} s") from exc
        return reply


@dataclass
class HttpWire(Wire):
    """Streamable HTTP."""

    url: str
    client: httpx2.AsyncClient
    over_http = True

    async def exchange(self, request: JSONRPCRequest, headers: Mapping[str, str]) -> AsyncGenerator[Reply]:
        """Post a request. The last reply has no message: that was all."""
        sent = {"accept": "application/json, text/event-stream", **headers}
        body = request.model_dump(by_alias=True, exclude_unset=True)
        try:
            async with self.client.stream("POST", self.url, json=body, headers=sent) as response:
                async for message in messages_in(response):
                    answered, is_error = message.get("id"), "error" in message
                    # Null is for errors of requests that could not be read.
                    if "method" not in message and answered != request.id and not (is_error and answered is None):
                        self.stray = self.stray or f"the answer to request {request.id} has the id {answered!r}"
                    yield Reply(response.status_code, response.headers, message)
                yield Reply(response.status_code, response.headers)
        except httpx2.RequestError as exc:
            raise Silence(f"the connection broke: {exc or type(exc).__name__}") from exc


@dataclass
class PipeWire(Wire):
    """The pipes of a server's process, which may take its time to start. There are no headers and no statuses."""

    read: Any
    write: Any
    log: TextIO
    over_http = False
    patience = 60.0

    async def exchange(self, request: JSONRPCRequest, headers: Mapping[str, str]) -> AsyncGenerator[Reply]:
        """Write a request. What comes meanwhile and is the answer to another one came too late for it."""
        closed, answered = (anyio.ClosedResourceError, anyio.BrokenResourceError), False
        try:
            with suppress(*closed):
                await self.write.send(SessionMessage(request))
                async for item in self.read:
                    self.patience = ANSWER_TIMEOUT
                    if isinstance(item, Exception):
                        self.stray = self.stray or f"one of them is no JSON-RPC message: {_line_in(item)}"
                        continue
                    message: JsonObject = item.message.model_dump(by_alias=True, exclude_unset=True)
                    answered = "method" not in message and message.get("id") == request.id
                    if answered or "method" in message:
                        yield Reply(message=message)
            self.log.seek(0)
            said = self.log.read().strip().rpartition("\n")[2][:LONGEST_LINE]
            raise Silence("the server ended" + (f"; the last line on its stderr: {said}" if said else ""))
        finally:
            if not answered:
                params = {"requestId": request.id, "reason": "enough seen"}
                with anyio.move_on_after(1, shield=True), suppress(*closed):
                    await self.write.send(SessionMessage(notification("notifications/cancelled", params)))


@asynccontextmanager
async def way_to(
    address: ServerAddress, headers: Mapping[str, str], environment: Mapping[str, str] | None
) -> AsyncGenerator[Wire]:
    """A way to a server; raises `ServerUnreachable` where there is none."""
    if address.url is not None:
        if (problem := await check_url(address.url, headers)) is not None:
            raise problem
        timeout = httpx2.Timeout(ANSWER_TIMEOUT, read=None)
        async with httpx2.AsyncClient(timeout=timeout, headers=dict(headers)) as client:
            yield HttpWire(address.url, client)
        return
    # A line that is no UTF-8 is for the report, like any that is no message.
    how = stdio_parameters(address, environment).model_copy(update={"encoding_error_handler": "replace"})
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        try:
            async with stdio_client(how, errlog=log) as (read, write):
                yield PipeWire(read, write, log)
        except OSError as exc:
            # Of starting the process: what is raised later comes in a group.
            raise await why_unreachable(address, exc) from exc


def _line_in(exc: Exception) -> str:
    """The line that could not be read."""
    given: Any = exc.errors()[0]["input"] if isinstance(exc, ValidationError) else exc
    return (given if isinstance(given, str) else json.dumps(given, default=str))[:LONGEST_LINE]
