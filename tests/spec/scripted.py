"""A server of 2025-11-25 that says exactly what a test wants it to say, and checks all that a client sends."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from harness.http import serving_app
from harness.older import RELATED
from harness.rpc import (
    INVALID_PARAMS,
    LEGACY,
    METHOD_NOT_FOUND,
    PATIENCE,
    Reply,
    error_response,
    legacy_request,
    response,
)
from harness.schema import check_older_answer, check_older_request

TASK_ID = "task-of-the-script"
CREATED = "2026-08-01T10:00:00Z"

ALL_OF_IT: dict[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
"""`capabilities.tasks` of a server that does everything."""

FORM: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class Refused(Exception):
    def __init__(self, code: int, message: str = "no") -> None:
        self.error: dict[str, Any] = {"code": code, "message": message}
        super().__init__(message)


Params: TypeAlias = dict[str, Any]
Push: TypeAlias = Callable[[dict[str, Any]], None]
Handler: TypeAlias = Callable[[Params, Push], Awaitable[dict[str, Any]]]
"""Answers a request; what is pushed meanwhile goes out on the stream of the answer."""


def task(status: str = "working", **fields: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "taskId": TASK_ID,
        "status": status,
        "createdAt": CREATED,
        "lastUpdatedAt": CREATED,
        "ttl": 3_600_000,
        "pollInterval": 20,
    }
    return shown | fields


def result(text: str = "done") -> dict[str, Any]:
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": {"nothing": None, "list": [1, {"a": "b"}]},
        "isError": False,
        "_meta": {RELATED: {"taskId": TASK_ID}, "example.com/own": 1},
    }


def question(number: int) -> dict[str, Any]:
    params = {"mode": "form", "message": "Name?", "requestedSchema": FORM, "_meta": {RELATED: {"taskId": TASK_ID}}}
    return legacy_request("elicitation/create", params, f"question-{number}")


@dataclass
class Scripted:
    tasks: dict[str, Any] | None = field(default_factory=lambda: dict(ALL_OF_IT))
    support: dict[str, str | None] = field(default_factory=lambda: {"slow": "optional"})
    handlers: dict[str, Handler] = field(default_factory=dict[str, Handler])
    seen: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    own_stream: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue[dict[str, Any]])
    answered: dict[str | int, asyncio.Future[dict[str, Any]]] = field(
        default_factory=dict[str | int, "asyncio.Future[dict[str, Any]]"]
    )

    def on(self, method: str, *answers: dict[str, Any] | Refused) -> None:
        """Give these answers in turn, and the last one from then on."""
        left = list(answers)

        async def handler(params: Params, push: Push) -> dict[str, Any]:
            answer = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(answer, Refused):
                raise answer
            return answer

        self.handlers[method] = handler

    def asked(self, method: str) -> list[Params]:
        return [message.get("params", {}) for message in self.seen if message.get("method") == method]

    def answer_to(self, number: int) -> asyncio.Future[dict[str, Any]]:
        return self.answered.setdefault(f"question-{number}", asyncio.get_running_loop().create_future())

    async def ask(self, method: str, params: Params | None = None) -> Reply:
        """Ask the client for something on the session's own stream; gives its answer, checked."""
        message = legacy_request(method, params)
        answer = self.answered.setdefault(message["id"], asyncio.get_running_loop().create_future())
        self.own_stream.put_nowait(message)
        with anyio.fail_after(PATIENCE):
            reply = await answer
        check_older_answer(message, reply)
        return Reply(message=reply)

    async def post(self, request: Request) -> Response:
        message = await request.json()
        self.seen.append(message)
        if "method" not in message:
            future = self.answered.setdefault(message["id"], asyncio.get_running_loop().create_future())
            if not future.done():
                future.set_result(message)
            return Response(status_code=202)
        check_older_request(message)
        if "id" not in message:
            return Response(status_code=202)
        headers = {"mcp-session-id": "session"} if message["method"] == "initialize" else {}
        return StreamingResponse(self._events(message), media_type="text/event-stream", headers=headers)

    async def get(self, request: Request) -> Response:
        async def events() -> AsyncGenerator[bytes]:
            yield b": open\n\n"
            while True:
                yield _event(await self.own_stream.get())

        return StreamingResponse(events(), media_type="text/event-stream")

    async def delete(self, request: Request) -> Response:
        return Response(status_code=200)

    async def _events(self, message: Mapping[str, Any]) -> AsyncGenerator[bytes]:
        yield b": answering\n\n"
        pushed: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        answering = asyncio.ensure_future(self._answer(message, pushed.put_nowait))
        try:
            while not (answering.done() and pushed.empty()):
                next_push = asyncio.ensure_future(pushed.get())
                await asyncio.wait([answering, next_push], return_when=asyncio.FIRST_COMPLETED)
                if next_push.done():
                    yield _event(next_push.result())
                next_push.cancel()
            yield _event(answering.result())
        finally:
            answering.cancel()

    async def _answer(self, message: Mapping[str, Any], push: Push) -> dict[str, Any]:
        try:
            return response(message["id"], await self._handle(message["method"], message.get("params", {}), push))
        except Refused as refused:
            return error_response(message["id"], **refused.error)

    async def _handle(self, method: str, params: Params, push: Push) -> dict[str, Any]:
        if method in self.handlers:
            return await self.handlers[method](params, push)
        match method:
            case "initialize":
                tasks = {} if self.tasks is None else {"tasks": self.tasks}
                server = {"name": "scripted", "version": "1"}
                return {"protocolVersion": LEGACY, "capabilities": {"tools": {}, **tasks}, "serverInfo": server}
            case "tools/list":
                return {"tools": [_tool(name, support) for name, support in self.support.items()]}
            case "tools/call":
                return {"task": task()} if "task" in params else result("plainly")
            case "tasks/get":
                return task("completed")
            case "tasks/result":
                return result()
            case "tasks/cancel":
                return task("cancelled")
            case "ping":
                return {}
            case _:
                raise Refused(METHOD_NOT_FOUND if method != "tasks/list" else INVALID_PARAMS)


@asynccontextmanager
async def serving_script(script: Scripted) -> AsyncGenerator[str]:
    routes = [
        Route("/mcp", script.post, methods=["POST"]),
        Route("/mcp", script.get, methods=["GET"]),
        Route("/mcp", script.delete, methods=["DELETE"]),
    ]
    async with serving_app(Starlette(routes=routes)) as base:
        yield f"{base}/mcp"


def _tool(name: str, support: str | None) -> dict[str, Any]:
    execution = {} if support is None else {"execution": {"taskSupport": support}}
    return {"name": name, "inputSchema": {"type": "object"}, **execution}


def _event(message: Mapping[str, Any]) -> bytes:
    return f"event: message\r\ndata: {json.dumps(message)}\r\n\r\n".encode()
