"""A server that says exactly what a test wants it to say, for clients that must stand anything."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from harness.http import serving_app
from harness.rpc import (
    EXTENSION,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MODERN,
    error_response,
    notification,
    response,
)

TASK_ID = "task-of-the-peer"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"

CREATED = "2026-08-01T10:00:00.000Z"


@dataclass(frozen=True)
class Refusal:
    """An answer that is a JSON-RPC error."""

    code: int
    message: str = "no"
    status: int = 200
    data: Any = None


@dataclass(frozen=True)
class Raw:
    """An answer that is whatever it is."""

    body: bytes
    content_type: str = "application/json"
    status: int = 200


@dataclass(frozen=True)
class Frames:
    """An answer that is a stream of messages. `last` is its result; without one the stream just ends."""

    messages: AsyncIterator[Mapping[str, Any]]
    last: Mapping[str, Any] | None = None


Answer: TypeAlias = Mapping[str, Any] | Refusal | Raw | Frames
Handler: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Answer]]

UNKNOWN_TASK = Refusal(INVALID_PARAMS, "Task not found", status=400)
OUT_OF_ORDER = Refusal(INTERNAL_ERROR, "try again later")
NOT_SERVED = Refusal(METHOD_NOT_FOUND, "Method not found", status=404)


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
    """A task with a result."""
    result = {"resultType": "complete", "content": [{"type": "text", "text": text}], "isError": False}
    return task("completed", **{"lastUpdatedAt": "2026-08-01T10:01:00.000Z", "result": result, **fields})


def asking(*keys: str) -> dict[str, Any]:
    """A task that asks for a name under each of the keys."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    question = {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": "Name?", "requestedSchema": schema},
    }
    return task("input_required", inputRequests=dict.fromkeys(keys, question))


@dataclass
class Peer:
    """What the server answers, by method, and what it was asked."""

    handlers: dict[str, Handler] = field(default_factory=dict[str, Handler])
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    headers: list[Mapping[str, str]] = field(default_factory=list[Mapping[str, str]])
    name: str = "peer"

    def on(self, method: str, *answers: Answer) -> None:
        """Give these answers in turn, and the last one from then on."""
        left = list(answers)

        async def handler(params: Mapping[str, Any]) -> Answer:
            return left.pop(0) if len(left) > 1 else left[0]

        self.handlers[method] = handler

    def asked(self, method: str) -> list[dict[str, Any]]:
        """The params of the requests of a method so far."""
        return [request.get("params", {}) for request in self.requests if request["method"] == method]

    async def handle(self, request: Request) -> Response:
        """Answer one POST."""
        message = await request.json()
        self.requests.append(message)
        self.headers.append(request.headers)
        if "id" not in message:
            return Response(status_code=202)
        answer = await self._answer(message["method"], message.get("params", {}))
        match answer:
            case Raw():
                return Response(answer.body, status_code=answer.status, media_type=answer.content_type)
            case Refusal():
                refused = error_response(message["id"], answer.code, answer.message, answer.data)
                return _json(refused, status=answer.status)
            case Frames():
                return StreamingResponse(_events(message["id"], answer), media_type="text/event-stream")
            case _:
                return _json(response(message["id"], answer))

    async def _answer(self, method: str, params: Mapping[str, Any]) -> Answer:
        if method in self.handlers:
            return await self.handlers[method](params)
        if method == "server/discover":
            return self._discovered()
        if method == "tools/list":
            return {"resultType": "complete", "tools": [], "ttlMs": 0, "cacheScope": "public"}
        if method == "tools/call":
            return task(resultType="task")
        return NOT_SERVED

    def _discovered(self) -> dict[str, Any]:
        return {
            "resultType": "complete",
            "supportedVersions": [MODERN],
            "capabilities": {"tools": {}, "extensions": {EXTENSION: {}}},
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": self.name, "version": "1"}},
            "ttlMs": 0,
            "cacheScope": "public",
        }


@asynccontextmanager
async def serving_peer(peer: Peer) -> AsyncGenerator[str]:
    """Serve the peer on a port of its own; gives its URL."""
    app = Starlette(routes=[Route("/mcp", peer.handle, methods=["POST"])])
    async with serving_app(app) as base:
        yield f"{base}/mcp"


def pushed(subscription: Any, *states: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    """An acknowledgement and then these states, as a listen stream carries them."""
    params = {"_meta": {SUBSCRIPTION: subscription}, "notifications": {"taskIds": [TASK_ID]}}
    acknowledged = notification("notifications/subscriptions/acknowledged", params)
    return [acknowledged, *(told(state, subscription) for state in states)]


def told(state: Mapping[str, Any], subscription: Any = 0) -> dict[str, Any]:
    """The state of a task as a notification."""
    params = {key: value for key, value in state.items() if key != "resultType"}
    meta = {**params.get("_meta", {}), SUBSCRIPTION: subscription}
    return notification("notifications/tasks", {**params, "_meta": meta})


async def stream_of(messages: Sequence[Mapping[str, Any]], *, hold: bool = True) -> AsyncGenerator[Mapping[str, Any]]:
    """These messages, after which the stream stays open (or ends)."""
    for message in messages:
        yield message
    if hold:
        await anyio.sleep_forever()


async def _events(request_id: Any, frames: Frames) -> AsyncGenerator[bytes]:
    async for message in frames.messages:
        yield _event(message)
    if frames.last is not None:
        yield _event(response(request_id, frames.last))


def _event(message: Mapping[str, Any]) -> bytes:
    return f"event: message\r\ndata: {json.dumps(message)}\r\n\r\n".encode()


def _json(message: Mapping[str, Any], *, status: int = 200) -> Response:
    return Response(json.dumps(message), status_code=status, media_type="application/json")
