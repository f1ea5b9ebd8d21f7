"""A client of the 2025-11-25 wire over Streamable HTTP that sees on which stream each message comes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2

from harness.http import HttpWire
from harness.rpc import (
    EVERYTHING,
    LEGACY,
    PATIENCE,
    error_response,
    hello,
    legacy_request,
    loads,
    notification,
    response,
)

RELATED = "io.modelcontextprotocol/related-task"
Message = dict[str, Any]


class Stream:
    """What comes on one stream."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.is_over = False
        self.status = 0
        self.request_id = 0
        self._changed = asyncio.Event()

    def put(self, message: Message) -> None:
        self.messages.append(message)
        self._changed.set()

    def end(self) -> None:
        self.is_over = True
        self._changed.set()

    async def until(self, wanted: Callable[[Message], bool], *, number: int = 1) -> Message:
        """The message that is wanted, the first or a later one, now or soon."""
        with anyio.fail_after(PATIENCE):
            while True:
                found = [message for message in self.messages if wanted(message)]
                if len(found) >= number:
                    return found[number - 1]
                assert not self.is_over, f"the stream ended without it: {self.messages}"
                self._changed.clear()
                await self._changed.wait()

    async def request(self, method: str, *, number: int = 1) -> Message:
        """A request of the server."""
        return await self.until(lambda message: message.get("method") == method, number=number)

    async def answer(self) -> Message:
        """The answer that ends the stream."""
        return await self.until(lambda message: "method" not in message)

    def sent(self, method: str) -> list[Message]:
        """What came so far of one method."""
        return [message for message in self.messages if message.get("method") == method]


class HttpSession:
    """One session."""

    def __init__(self, wire: HttpWire, session_id: str) -> None:
        self.session_id = session_id
        self._wire = wire

    async def ask(self, method: str, **params: Any) -> Message:
        """The answer to a request, result or error."""
        async with self.open(method, **params) as stream:
            return await stream.answer()

    async def create(self, tool: str, arguments: Mapping[str, Any] | None = None, **params: Any) -> str:
        """The id of a new task."""
        answer = await self.ask("tools/call", name=tool, arguments=dict(arguments or {}), task={}, **params)
        return answer["result"]["task"]["taskId"]

    async def status(self, task_id: str) -> str:
        return (await self.ask("tasks/get", taskId=task_id))["result"]["status"]

    async def until_status(self, task_id: str, wanted: str) -> None:
        with anyio.fail_after(PATIENCE):
            while await self.status(task_id) != wanted:  # noqa: ASYNC110 - what a poll shows is what is tested
                await anyio.sleep(0.02)

    async def result(self, task_id: str) -> str:
        """The text that the tool returned."""
        return (await self.ask("tasks/result", taskId=task_id))["result"]["content"][0]["text"]

    @asynccontextmanager
    async def open(self, method: str, **params: Any) -> AsyncGenerator[Stream]:
        """A request and the stream of its answer; leaving hangs up."""
        request = legacy_request(method, params)
        stream = Stream()
        stream.request_id = request["id"]
        async with self._reading(stream, "POST", json.dumps(request)):
            yield stream

    @asynccontextmanager
    async def open_result(self, task_id: str) -> AsyncGenerator[Stream]:
        """A result that the server has begun to wait for, and may send questions and progress with."""
        async with self.open("tasks/result", taskId=task_id) as stream:
            await anyio.sleep(0.05)  # sleep: nobody is told when a request is taken up, which is after its headers
            yield stream

    @asynccontextmanager
    async def listen(self, **headers: str) -> AsyncGenerator[Stream]:
        """The session's own stream; leaving hangs up."""
        stream = Stream()
        async with self._reading(stream, "GET", None, headers):
            yield stream

    async def reply(self, request: Message, result: Mapping[str, Any]) -> None:
        """Answer a request of the server."""
        await self.post(response(request["id"], result))

    async def refuse(self, request: Message, code: int, message: str, data: Any = None) -> None:
        """Answer a request of the server with an error."""
        await self.post(error_response(request["id"], code, message, data))

    async def accept(self, request: Message, **content: Any) -> None:
        """Fill in a form."""
        await self.reply(request, {"action": "accept", "content": content})

    async def notify(self, method: str, **params: Any) -> None:
        await self.post(notification(method, params))

    async def post(self, message: Message) -> None:
        response = await self._wire.raw_post(json.dumps(message), list(self._headers().items()))
        assert response.status_code == 202, response.text

    async def delete(self) -> None:
        """End the session."""
        await self._wire.client.delete(self._wire.url, headers=self._headers())

    @asynccontextmanager
    async def _reading(
        self, stream: Stream, method: str, body: str | None, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[None]:
        started = asyncio.Event()
        reading = asyncio.create_task(self._read(stream, method, body, {**self._headers(), **(headers or {})}, started))
        try:
            with anyio.fail_after(PATIENCE):
                await started.wait()
            yield
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading

    async def _read(
        self, stream: Stream, method: str, body: str | None, headers: dict[str, str], started: asyncio.Event
    ) -> None:
        base = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        try:
            client = self._wire.client
            async with client.stream(
                method, self._wire.url, content=body, headers=base | headers, timeout=None
            ) as response:
                stream.status = response.status_code
                started.set()
                await _read_messages(response, stream)
        finally:
            started.set()
            stream.end()

    def _headers(self) -> dict[str, str]:
        return {"mcp-protocol-version": LEGACY, "mcp-session-id": self.session_id}


async def _read_messages(response: httpx2.Response, stream: Stream) -> None:
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        stream.put(loads(await response.aread()))
        return
    async for line in response.aiter_lines():
        if line.startswith("data:") and line != "data:" and line.strip() != "data:":
            stream.put(loads(line.removeprefix("data:")))


async def open_session(wire: HttpWire, capabilities: Mapping[str, Any] = EVERYTHING) -> HttpSession:
    """A session, its handshake complete."""
    reply = await wire.post(json.dumps(legacy_request("initialize", hello(capabilities))), [])
    session = HttpSession(wire, reply.headers["mcp-session-id"])
    await session.notify("notifications/initialized")
    return session
