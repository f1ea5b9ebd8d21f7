"""Servers that say exactly what a test wants, over HTTP and in memory, for clients that must stand anything."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import anyio
from mcp import Client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from harness.http import serving_app
from harness.rpc import (
    EXTENSION,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    LEGACY,
    METHOD_NOT_FOUND,
    MODERN,
    error_response,
    legacy_request,
    notification,
    response,
)
from mcp_tasks.client import TasksClient, with_tasks

TASK_ID = "task-of-the-peer"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
RELATED = {"io.modelcontextprotocol/related-task": {"taskId": TASK_ID}}

CREATED = "2026-08-01T10:00:00.000Z"
ACK: Mapping[str, Any] = {"resultType": "complete"}

RARELY = 60_000
"""Milliseconds of a poll interval that no test waits for: what comes sooner was pushed."""


@dataclass(frozen=True)
class Refusal:
    code: int
    message: str = "no"
    status: int = 200
    data: Any = None


@dataclass(frozen=True)
class Raw:
    body: bytes
    content_type: str = "application/json"
    status: int = 200


@dataclass(frozen=True)
class Frames:
    """An answer over HTTP that is a stream of messages. `last` is its result; without one the stream just ends."""

    messages: AsyncIterator[Mapping[str, Any]]
    last: Mapping[str, Any] | None = None


Answer: TypeAlias = Mapping[str, Any] | Refusal | Raw | Frames | None
"""None is no answer at all."""
Handler: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Answer]]

UNKNOWN_TASK = Refusal(INVALID_PARAMS, "Task not found", status=400)
OUT_OF_ORDER = Refusal(INTERNAL_ERROR, "try again later")
NOT_SERVED = Refusal(METHOD_NOT_FOUND, "Method not found", status=404)

# Tasks of 2026-07-28


def task(status: Any = "working", **fields: Any) -> dict[str, Any]:
    """A task as `tasks/get` shows it. A field that is None stays, one that is `...` is left out."""
    shown: dict[str, Any] = {
        "resultType": "complete",
        "taskId": TASK_ID,
        "status": status,
        "createdAt": CREATED,
        "lastUpdatedAt": CREATED,
        "ttlMs": 3_600_000,
        "pollIntervalMs": 50,
        **fields,
    }
    return {key: value for key, value in shown.items() if value is not ...}


def working(step: int, **fields: Any) -> dict[str, Any]:
    """A working task, the later the higher the step."""
    return task(statusMessage=f"step {step}", lastUpdatedAt=f"2026-08-01T10:00:{step:02}.000Z", **fields)


def completed(text: str = "ok", **fields: Any) -> dict[str, Any]:
    result = {"resultType": "complete", "content": [{"type": "text", "text": text}], "isError": False}
    return task("completed", **{"lastUpdatedAt": "2026-08-01T10:01:00.000Z", "result": result, **fields})


def asking(*keys: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    question = {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": "Name?", "requestedSchema": schema},
    }
    return task("input_required", inputRequests=dict.fromkeys(keys, question))


def pushed(subscription: Any, *states: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    """An acknowledgement and then these states, as a listen stream carries them."""
    params = {"_meta": {SUBSCRIPTION: subscription}, "notifications": {"taskIds": [TASK_ID]}}
    acknowledged = notification("notifications/subscriptions/acknowledged", params)
    return [acknowledged, *(told(state, subscription) for state in states)]


def told(state: Mapping[str, Any], subscription: Any = 0) -> dict[str, Any]:
    params = {key: value for key, value in state.items() if key != "resultType"}
    meta = {**params.get("_meta", {}), SUBSCRIPTION: subscription}
    return notification("notifications/tasks", {**params, "_meta": meta})


async def stream_of(messages: Sequence[Mapping[str, Any]], *, hold: bool = True) -> AsyncGenerator[Mapping[str, Any]]:
    """These messages, after which the stream stays open (or ends)."""
    for message in messages:
        yield message
    if hold:
        await anyio.sleep_forever()


def discovered(**capabilities: Any) -> dict[str, Any]:
    return {
        "resultType": "complete",
        "supportedVersions": [MODERN],
        "capabilities": {"tools": {}, "extensions": {EXTENSION: {}}, **capabilities},
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "peer", "version": "1"}},
        "ttlMs": 0,
        "cacheScope": "public",
    }


# Tasks of 2025-11-25

EVERYTHING: Mapping[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}


def old_task(status: str = "working", **fields: Any) -> dict[str, Any]:
    return {
        "taskId": TASK_ID,
        "status": status,
        "createdAt": "2025-11-25T10:30:00Z",
        "lastUpdatedAt": "2025-11-25T10:40:00Z",
        "ttl": None,
        "pollInterval": 20,
        **fields,
    }


def old_result(text: str = "done") -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": False, "_meta": dict(RELATED)}


class Script:
    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self._answers: dict[str, list[Answer | Handler]] = {}
        self.on("server/discover", discovered())
        self.on("tools/list", {"resultType": "complete", "tools": [], "ttlMs": 0, "cacheScope": "public"})
        self.on("tools/call", task(resultType="task"))

    def on(self, method: str, *answers: Answer | Handler) -> None:
        self._answers[method] = list(answers)

    def asked(self, method: str) -> list[dict[str, Any]]:
        return [request.get("params", {}) for request in self.requests if request["method"] == method]

    async def answer_to(self, message: Mapping[str, Any]) -> Answer:
        answers = self._answers.get(message["method"], [NOT_SERVED])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return await cast(Handler, answer)(message.get("params", {})) if callable(answer) else cast(Answer, answer)


class Peer(Script):
    def __init__(self) -> None:
        super().__init__()
        self.url = ""
        self.headers: list[Mapping[str, str]] = []

    async def handle(self, request: Request) -> Response:
        message = await request.json()
        self.requests.append(message)
        self.headers.append(request.headers)
        if "id" not in message:
            return Response(status_code=202)
        answer = await self.answer_to(message)
        match answer:
            case Raw():
                return Response(answer.body, status_code=answer.status, media_type=answer.content_type)
            case Refusal():
                refused = error_response(message["id"], answer.code, answer.message, answer.data)
                return _json(refused, status=answer.status)
            case Frames():
                return StreamingResponse(_events(message["id"], answer), media_type="text/event-stream")
            case _:
                return _json(response(message["id"], answer or {}))


@asynccontextmanager
async def serving_peer(peer: Peer | None = None) -> AsyncGenerator[Peer]:
    peer = peer or Peer()
    app = Starlette(routes=[Route("/mcp", peer.handle, methods=["POST"])])
    async with serving_app(app) as base:
        peer.url = f"{base}/mcp"
        yield peer


async def _events(request_id: Any, frames: Frames) -> AsyncGenerator[bytes]:
    async for message in frames.messages:
        yield _event(message)
    if frames.last is not None:
        yield _event(response(request_id, frames.last))


def _event(message: Mapping[str, Any]) -> bytes:
    return f"event: message\r\ndata: {json.dumps(message)}\r\n\r\n".encode()


def _json(message: Mapping[str, Any], *, status: int = 200) -> Response:
    return Response(json.dumps(message), status_code=status, media_type="application/json")


class MemoryPeer(Script):
    """A server at the other end of a connection in memory, of either era. Every message passes as JSON text."""

    def __init__(self, tasks: Mapping[str, Any] | None = EVERYTHING, version: str = LEGACY) -> None:
        super().__init__()
        self.version = version
        self.replies: list[dict[str, Any]] = []
        self._waiting: dict[Any, asyncio.Future[dict[str, Any]]] = {}
        self._working: set[asyncio.Task[None]] = set()
        self._to_client: Any = None
        if version != MODERN:
            capabilities: dict[str, Any] = {"tools": {}} if tasks is None else {"tools": {}, "tasks": dict(tasks)}
            info = {"name": "old peer", "version": "1"}
            self.on("initialize", {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info})
            self.on("ping", {})
            self.offer(x="optional")
            self.on("tools/call", {"task": old_task()})

    def offer(self, **tools: str | None) -> None:
        listed = [
            {
                "name": name,
                "inputSchema": {"type": "object"},
                **({} if how is None else {"execution": {"taskSupport": how}}),
            }
            for name, how in tools.items()
        ]
        self.on("tools/list", {"tools": listed})

    async def send(
        self, method: str, params: Mapping[str, Any] | None = None, request_id: int | str | None = None
    ) -> asyncio.Future[dict[str, Any]]:
        message = legacy_request(method, params, request_id)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[message["id"]] = answer
        await self.write(message)
        return answer

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        await self.write(notification(method, params))

    async def write(self, message: Mapping[str, Any] | Exception) -> None:
        """Send a message as it is, or what the SDK's transports make of a line that is none."""
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            if isinstance(message, Exception):
                await self._to_client.send(message)
            else:
                await self._to_client.send(SessionMessage(jsonrpc_message_adapter.validate_json(json.dumps(message))))

    async def hang_up(self) -> None:
        await self._to_client.aclose()

    @asynccontextmanager
    async def transport(self) -> AsyncGenerator[Any]:
        self._to_client, read = anyio.create_memory_object_stream[SessionMessage | Exception](10_000)
        write, from_client = anyio.create_memory_object_stream[SessionMessage](10_000)
        async with self._to_client, read, write, from_client:
            reading = asyncio.create_task(self._read(from_client))
            try:
                yield read, write
            finally:
                for work in (reading, *self._working):
                    work.cancel()

    async def _read(self, from_client: AsyncIterator[SessionMessage]) -> None:
        async for item in from_client:
            self.take(json.loads(item.message.model_dump_json(by_alias=True, exclude_unset=True)))

    def take(self, message: dict[str, Any]) -> None:
        if "method" not in message:
            self.replies.append(message)
            answer = self._waiting.pop(message["id"], None)
            if answer is not None and not answer.done():
                answer.set_result(message)
            return
        self.requests.append(message)
        if "id" in message:
            work = asyncio.create_task(self._reply(message))
            self._working.add(work)
            work.add_done_callback(self._working.discard)

    async def _reply(self, message: Mapping[str, Any]) -> None:
        answer = await self.answer_to(message)
        if isinstance(answer, Refusal):
            await self.write(error_response(message["id"], answer.code, answer.message, answer.data))
        elif answer is not None:
            await self.write(response(message["id"], cast("Mapping[str, Any]", answer)))


@asynccontextmanager
async def connected(peer: MemoryPeer, *, person: Any = None, **options: Any) -> AsyncGenerator[Client]:
    transport = with_tasks(peer.transport(), address="peer")
    mode = "auto" if peer.version == MODERN else "legacy"
    async with Client(transport, mode=mode, elicitation_callback=person, extensions=[TasksClient(**options)]) as client:
        yield client
