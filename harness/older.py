"""A client of the 2025-11-25 wire that speaks raw JSON-RPC, over HTTP or pipes, and believes nothing.

Every message that comes is checked against the official schema. What is no answer to a request is kept in `arrived`, in
order and with the stream it came on, so that a test can say which stream it belongs on.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio
import httpx2

from harness.http import HttpWire, is_stream, stream_messages
from harness.rpc import LEGACY, PATIENCE, Reply, error_response, hello, legacy_request, loads, notification, response
from harness.schema import check_older_answer, check_older_push
from harness.stdio import StdioWire

RELATED: Final = "io.modelcontextprotocol/related-task"
IMMEDIATE: Final = "io.modelcontextprotocol/model-immediate-response"

ASKABLE: Final[Mapping[str, Any]] = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}
"""Capabilities of a client that answers every kind of question."""

FINAL: Final = ("completed", "failed", "cancelled")

OWN_STREAM: Final = "the session's own"
"""The GET stream over HTTP, and the one pipe that there is over stdio."""


@dataclass(frozen=True)
class Arrived:
    """A request or a notification from the server."""

    message: dict[str, Any]
    stream: str

    @property
    def method(self) -> str:
        return self.message["method"]

    @property
    def params(self) -> dict[str, Any]:
        return self.message.get("params", {})

    @property
    def related(self) -> str | None:
        return self.params.get("_meta", {}).get(RELATED, {}).get("taskId")


class Pending:
    """A request that has been sent, and whose answer may take a while."""

    def __init__(self, exchange: asyncio.Task[Reply], request_id: int) -> None:
        self._exchange = exchange
        self.request_id = request_id

    @property
    def answered(self) -> bool:
        return self._exchange.done()

    async def reply(self) -> Reply:
        with anyio.fail_after(PATIENCE):
            return await asyncio.shield(self._exchange)

    async def leave(self) -> None:
        """Stop waiting for it: over HTTP this closes its stream."""
        self._exchange.cancel()
        await asyncio.wait([self._exchange])


class OlderClient(ABC):
    """One session with a server. `server` is what it said in the handshake."""

    def __init__(self) -> None:
        self.arrived: list[Arrived] = []
        self.server: dict[str, Any] = {}
        self._news = asyncio.Event()
        self._pending: list[Pending] = []

    @property
    def capabilities(self) -> dict[str, Any]:
        return self.server["capabilities"]

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Reply:
        message = legacy_request(method, params)
        with anyio.fail_after(PATIENCE):
            reply = await self._exchange(message)
        return _checked(message, reply)

    def begin(self, method: str, params: Mapping[str, Any] | None = None) -> Pending:
        message = legacy_request(method, params)

        async def exchange() -> Reply:
            return _checked(message, await self._exchange(message))

        pending = Pending(asyncio.create_task(exchange()), message["id"])
        self._pending.append(pending)
        return pending

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        await self._tell(notification(method, params))

    async def answer(self, question: Arrived, result: Mapping[str, Any]) -> None:
        await self._tell(response(question.message["id"], result))

    async def refuse(self, question: Arrived, code: int, message: str) -> None:
        await self._tell(error_response(question.message["id"], code, message))

    async def wait_for(self, wanted: Callable[[Arrived], bool], *, after: int = 0) -> Arrived:
        """The first message from the server that is wanted, now or soon, of those after the first so many."""
        with anyio.fail_after(PATIENCE):
            while True:
                self._news.clear()
                for arrived in self.arrived[after:]:
                    if wanted(arrived):
                        return arrived
                await self._news.wait()

    async def question(self, task_id: str, *, after: int = 0) -> Arrived:
        return await self.wait_for(lambda seen: "id" in seen.message and seen.related == task_id, after=after)

    async def status(self, task_id: str, status: str) -> Arrived:
        """The notification that a task has a status."""
        wanted = {"taskId": task_id, "status": status}
        return await self.wait_for(
            lambda seen: (
                seen.method == "notifications/tasks/status"
                and wanted == {key: seen.params.get(key) for key in ("taskId", "status")}
            )
        )

    async def close(self) -> None:
        for pending in self._pending:
            await pending.leave()

    # --- tasks ------------------------------------------------------------------------------------------------

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **params: Any) -> Reply:
        return await self.ask("tools/call", {"name": tool, "arguments": dict(arguments or {}), **params})

    async def create(self, tool: str, *, task: Mapping[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
        return (await self.call(tool, arguments, task=dict(task or {}))).result["task"]

    async def start(self, tool: str, **arguments: Any) -> str:
        return (await self.create(tool, **arguments))["taskId"]

    async def get(self, task_id: str) -> dict[str, Any]:
        return (await self.ask("tasks/get", {"taskId": task_id})).result

    async def cancel(self, task_id: str) -> dict[str, Any]:
        return (await self.ask("tasks/cancel", {"taskId": task_id})).result

    async def result(self, task_id: str) -> Reply:
        return await self.ask("tasks/result", {"taskId": task_id})

    def begin_result(self, task_id: str) -> Pending:
        """Ask how the task ended, before it has."""
        return self.begin("tasks/result", {"taskId": task_id})

    async def listed(self) -> list[dict[str, Any]]:
        tasks: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        while True:
            page = (await self.ask("tasks/list", params)).result
            tasks += page["tasks"]
            if "nextCursor" not in page:
                return tasks
            params = {"cursor": page["nextCursor"]}

    async def until(self, task_id: str, *statuses: str) -> dict[str, Any]:
        """Poll until the task has one of the statuses; fails if it ends in another, or after a while."""
        with anyio.fail_after(PATIENCE):
            while (task := await self.get(task_id))["status"] not in statuses:
                assert task["status"] not in FINAL, task
                await anyio.sleep(0.005)
        return task

    # --- for subclasses ---------------------------------------------------------------------------------------

    @abstractmethod
    async def _exchange(self, message: Mapping[str, Any]) -> Reply:
        """Send a request and give its answer, unchecked."""

    @abstractmethod
    async def _tell(self, message: Mapping[str, Any]) -> None:
        """Send what is not answered."""

    def _take(self, message: dict[str, Any], stream: str) -> None:
        check_older_push(message)
        self.arrived.append(Arrived(message, stream))
        self._news.set()

    async def greet(self, capabilities: Mapping[str, Any], version: str) -> Reply:
        reply = await self.ask("initialize", hello(capabilities, version))
        self.server = reply.result
        return reply


def _checked(request: Mapping[str, Any], reply: Reply) -> Reply:
    assert reply.message.get("id") == request["id"]
    check_older_answer(request, reply.message)
    return reply


class HttpClient(OlderClient):
    """A session over Streamable HTTP. Without a session id, the server keeps none."""

    def __init__(self, wire: HttpWire) -> None:
        super().__init__()
        self.wire = wire
        self.session_id: str | None = None
        self.version: str | None = None

    async def _exchange(self, message: Mapping[str, Any]) -> Reply:
        async with self._post(message) as response:
            if not is_stream(response):
                body = loads(await response.aread())
                return Reply(message=body, status=response.status_code, headers=response.headers)
            async for event in stream_messages(response):
                if "method" not in event:
                    return Reply(message=event, status=response.status_code, headers=response.headers)
                self._take(event, str(message["method"]))
        raise AssertionError(f"the stream of {message['method']} ended without an answer")

    async def _tell(self, message: Mapping[str, Any]) -> None:
        async with self._post(message) as response:
            await response.aread()
            assert response.status_code == 202, response.text

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        headers = [*self.headers(), ("accept", "text/event-stream")]
        async with self.wire.client.stream("GET", self.wire.url, headers=headers, timeout=PATIENCE) as response:
            assert response.status_code == 200
            reading = asyncio.create_task(self._read(response))
            try:
                yield
            finally:
                reading.cancel()
                await asyncio.wait([reading])

    def headers(self) -> list[tuple[str, str]]:
        base = [] if self.wire.token is None else [("authorization", f"Bearer {self.wire.token}")]
        version = [] if self.version is None else [("mcp-protocol-version", self.version)]
        return base + version + ([] if self.session_id is None else [("mcp-session-id", self.session_id)])

    @asynccontextmanager
    async def _post(self, message: Mapping[str, Any]) -> AsyncGenerator[httpx2.Response]:
        kinds = [("content-type", "application/json"), ("accept", "application/json, text/event-stream")]
        async with self.wire.client.stream(
            "POST", self.wire.url, content=json.dumps(message), headers=[*self.headers(), *kinds]
        ) as response:
            yield response

    async def _read(self, response: httpx2.Response) -> None:
        async for event in stream_messages(response):
            self._take(event, OWN_STREAM)


class PipeClient(OlderClient):
    def __init__(self, wire: StdioWire) -> None:
        super().__init__()
        self.wire = wire
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        await super().close()
        self._watching.cancel()
        await asyncio.wait([self._watching])

    async def _exchange(self, message: Mapping[str, Any]) -> Reply:
        return await self.wire.send(message)

    async def _tell(self, message: Mapping[str, Any]) -> None:
        await self.wire.write(json.dumps(message))

    async def _watch(self) -> None:
        async for message in self.wire.pushed():
            self._take(message, OWN_STREAM)


@asynccontextmanager
async def http_session(
    wire: HttpWire, capabilities: Mapping[str, Any] = ASKABLE, *, version: str = LEGACY
) -> AsyncGenerator[HttpClient]:
    client = HttpClient(wire)
    reply = await client.greet(capabilities, version)
    client.session_id = reply.headers.get("mcp-session-id")
    client.version = client.server["protocolVersion"]
    await client.notify("notifications/initialized")
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def pipe_session(
    wire: StdioWire, capabilities: Mapping[str, Any] = ASKABLE, *, version: str = LEGACY
) -> AsyncGenerator[PipeClient]:
    client = PipeClient(wire)
    try:
        await client.greet(capabilities, version)
        await client.notify("notifications/initialized")
        yield client
    finally:
        await client.close()
