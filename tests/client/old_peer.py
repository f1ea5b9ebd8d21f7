"""A server of 2025-11-25 that says what a test wants it to say, at the other end of a connection in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias, cast

import anyio
from mcp import Client
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp_types import (
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)

from harness.rpc import LEGACY
from mcp_tasks.client import TasksClient, with_tasks

TASK_ID = "786512e2-9e0d-44bd-8f29-789f320fe840"
RELATED = {"io.modelcontextprotocol/related-task": {"taskId": TASK_ID}}
EVERYTHING: Mapping[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}

Answer: TypeAlias = Mapping[str, Any] | ErrorData | None
"""A result, an error, or nothing at all."""
Handler: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Answer]]


def task(status: str = "working", **fields: Any) -> dict[str, Any]:
    """A task as it stands in answers."""
    return {
        "taskId": TASK_ID,
        "status": status,
        "createdAt": "2025-11-25T10:30:00Z",
        "lastUpdatedAt": "2025-11-25T10:40:00Z",
        "ttl": None,
        "pollInterval": 20,
        **fields,
    }


def result(text: str = "done") -> dict[str, Any]:
    """A tool's result, as `tasks/result` has it."""
    return {"content": [{"type": "text", "text": text}], "isError": False, "_meta": dict(RELATED)}


class OldPeer:
    """What the server says. Each method has answers in order, of which the last stays."""

    def __init__(self, tasks: Mapping[str, Any] | None = EVERYTHING, version: str = LEGACY) -> None:
        self.seen: list[JSONRPCRequest | JSONRPCNotification] = []
        self.replies: list[JSONRPCResponse | JSONRPCError] = []
        self._answers: dict[str, list[Any]] = {}
        capabilities: dict[str, Any] = {"tools": {}} if tasks is None else {"tools": {}, "tasks": dict(tasks)}
        self.on(
            "initialize",
            {
                "protocolVersion": version,
                "capabilities": capabilities,
                "serverInfo": {"name": "old peer", "version": "1"},
            },
        )
        self.offer(x="optional")
        self.on("tools/call", {"task": task()})
        self._write: Any = None
        self._working: set[asyncio.Task[None]] = set()

    def on(self, method: str, *answers: Answer | Handler) -> None:
        """Answer a method with these, one after the other; the last one from then on."""
        self._answers[method] = list(answers)

    def offer(self, **tools: str | None) -> None:
        """List these tools, by whether they may be tasks."""
        listed = [
            {
                "name": name,
                "inputSchema": {"type": "object"},
                **({} if how is None else {"execution": {"taskSupport": how}}),
            }
            for name, how in tools.items()
        ]
        self.on("tools/list", {"tools": listed})

    def asked(self, method: str) -> list[Mapping[str, Any]]:
        """The params of what was asked so far."""
        return [message.params or {} for message in self.seen if message.method == method]

    async def ask(self, method: str, params: Mapping[str, Any], request_id: int | str = 1) -> None:
        """Ask the client something."""
        await self._send(JSONRPCRequest(jsonrpc="2.0", id=request_id, method=method, params=dict(params)))

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Tell the client something."""
        await self._send(JSONRPCNotification(jsonrpc="2.0", method=method, params=dict(params)))

    async def hang_up(self) -> None:
        """End the connection."""
        await self._write.aclose()

    async def serve(self, read: Any, write: Any) -> None:
        """Serve one connection."""
        self._write = write
        async for item in read:
            message = item.message
            if isinstance(message, JSONRPCRequest):
                self.seen.append(message)
                work = asyncio.create_task(self._answer(message))
                self._working.add(work)
                work.add_done_callback(self._working.discard)
            elif isinstance(message, JSONRPCNotification):
                self.seen.append(message)
            else:
                self.replies.append(message)

    async def _answer(self, request: JSONRPCRequest) -> None:
        answers: list[Any] = self._answers.get(request.method, [ErrorData(code=-32601, message="Method not found")])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        said = await cast(Handler, answer)(request.params or {}) if callable(answer) else cast(Answer, answer)
        if isinstance(said, ErrorData):
            await self._send(JSONRPCError(jsonrpc="2.0", id=request.id, error=said))
        elif said is not None:
            await self._send(JSONRPCResponse(jsonrpc="2.0", id=request.id, result=dict(said)))

    async def _send(self, message: Any) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._write.send(SessionMessage(message))


@asynccontextmanager
async def connected(peer: OldPeer, **options: Any) -> AsyncGenerator[Client]:
    """A client of the peer; `elicitation_callback` is the client's, other options are those of `TasksClient`."""
    callback = options.pop("elicitation_callback", None)
    transport = with_tasks(_streams(peer), address="old peer")
    async with Client(
        transport, mode="legacy", elicitation_callback=callback, extensions=[TasksClient(**options)]
    ) as client:
        yield client


@asynccontextmanager
async def _streams(peer: OldPeer) -> AsyncGenerator[Any]:
    async with create_client_server_memory_streams() as (client, server):
        serving = asyncio.create_task(peer.serve(*server))
        try:
            yield client
        finally:
            serving.cancel()
            await asyncio.wait([serving])
