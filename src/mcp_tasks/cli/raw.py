"""Raw JSON-RPC to a server, over HTTP or through the pipes of its process, and exactly what came back.

For whoever wants to know what a server does, not what the SDK makes of it: nothing is repeated here, checked or put
right, and nothing is asked that the caller does not ask. Where nothing comes back, that is a `Silence`.
"""

from __future__ import annotations

import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TextIO

import anyio
import httpx2
from mcp.client.stdio import stdio_client
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest
from pydantic import ValidationError

from mcp_tasks.cli.servers import ServerAddress, check_url, stdio_parameters, why_unreachable
from mcp_tasks.client.http import messages_in
from mcp_tasks.client.wire import notification
from mcp_tasks.model.json import JsonObject, object_in

ANSWER_TIMEOUT: Final = 10.0
"""Seconds for one answer. What reads or writes one record takes far less; this is plenty."""

LISTENING: Final = "notifications/subscriptions/acknowledged"
"""The first message on a listen stream."""

LONGEST_LINE: Final = 200
"""Characters that are shown of a line that a server wrote."""


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


class RawConnection(ABC):
    """A way to a server.

    Attributes:
        over_http: Whether there are headers and statuses.
        patience: Seconds for the next answer.
        stray: The first that came and does not belong there: no JSON-RPC message, or the answer to another request.
    """

    over_http: bool
    patience: float = ANSWER_TIMEOUT
    stray: str = ""

    @abstractmethod
    def exchange(self, request: JSONRPCRequest, headers: Mapping[str, str]) -> AsyncGenerator[Reply]:
        """Send a request; gives all that comes for it. Leaving before its answer came takes it back.

        Raises:
            Silence: The server went away.
        """

    async def ask(self, request: JSONRPCRequest, headers: Mapping[str, str]) -> Reply:
        """Send a request; gives its answer, or the acknowledgement of a listen stream.

        Raises:
            Silence: Nothing came back.
        """
        # With what there was of it when the wait began: less is needed once a server has started.
        reply, patience = Reply(), self.patience
        try:
            with anyio.fail_after(patience):
                async with aclosing(self.exchange(request, headers)) as coming:
                    async for reply in coming:
                        # A stream that was opened says so, and then nothing for a long time.
                        if reply.message.keys() & {"result", "error"} or reply.message.get("method") == LISTENING:
                            break
        except TimeoutError as exc:
            raise Silence(f"no answer within {patience:g} s") from exc
        return reply


@dataclass
class HttpConnection(RawConnection):
    """Streamable HTTP."""

    url: str
    client: httpx2.AsyncClient
    over_http: bool = True

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
                        self.stray: str = self.stray or f"the answer to request {request.id} has the id {answered!r}"
                    yield Reply(response.status_code, response.headers, message)
                yield Reply(response.status_code, response.headers)
        except httpx2.RequestError as exc:
            raise Silence(f"the connection broke: {exc or type(exc).__name__}") from exc


@dataclass
class PipeConnection(RawConnection):
    """The pipes of a server's process, which may take its time to start. There are no headers and no statuses."""

    read: Any
    write: Any
    log: TextIO
    over_http: bool = False
    patience: float = 60.0

    async def exchange(self, request: JSONRPCRequest, headers: Mapping[str, str]) -> AsyncGenerator[Reply]:
        """Write a request. What comes meanwhile and is the answer to another one came too late for it."""
        closed, answered = (anyio.ClosedResourceError, anyio.BrokenResourceError), False
        try:
            with suppress(*closed):
                await self.write.send(SessionMessage(request))
                async for item in self.read:
                    self.patience = ANSWER_TIMEOUT
                    if isinstance(item, Exception):
                        self.stray: str = self.stray or f"one of them is no JSON-RPC message: {_line_in(item)}"
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
async def connect_raw(
    address: ServerAddress, headers: Mapping[str, str], environment: Mapping[str, str] | None
) -> AsyncGenerator[RawConnection]:
    """A way to a server.

    Raises:
        ServerUnreachable: There is none.
    """
    if address.url is not None:
        if (problem := await check_url(address.url, headers)) is not None:
            raise problem
        timeout = httpx2.Timeout(ANSWER_TIMEOUT, read=None)
        async with httpx2.AsyncClient(timeout=timeout, headers=dict(headers)) as client:
            yield HttpConnection(address.url, client)
        return
    # A line that is no UTF-8 is for the report, like any that is no message.
    how = stdio_parameters(address, environment).model_copy(update={"encoding_error_handler": "replace"})
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        try:
            async with stdio_client(how, errlog=log) as (read, write):
                yield PipeConnection(read, write, log)
        except OSError as exc:
            # Of starting the process: what is raised later comes in a group.
            raise await why_unreachable(address, exc) from exc


def _line_in(exc: Exception) -> str:
    """The line that could not be read."""
    given: Any = exc.errors()[0]["input"] if isinstance(exc, ValidationError) else exc
    return (given if isinstance(given, str) else json.dumps(given, default=str))[:LONGEST_LINE]
