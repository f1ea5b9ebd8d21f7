"""JSON-RPC by hand, so that a test says exactly what goes over the wire and sees exactly what comes back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Protocol

import anyio

from harness.schema import check_message

MODERN: Final = "2026-07-28"
LEGACY: Final = "2025-11-25"
EXTENSION: Final = "io.modelcontextprotocol/tasks"

TASKS: Final[Mapping[str, Any]] = {"extensions": {EXTENSION: {}}}
"""Capabilities of a client that declares the extension, and nothing else."""

NOTHING: Final[Mapping[str, Any]] = {}
"""Capabilities of a client that declares nothing at all."""

EVERYTHING: Final[Mapping[str, Any]] = {**TASKS, "elicitation": {}, "sampling": {}, "roots": {}}
"""Capabilities of a client that also answers every kind of question."""

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021

PATIENCE: Final = 30.0
"""Seconds that a test waits for what must come. Far more than it takes: reached only by a failing test."""

_ids = count(1)


def loads(text: str | bytes) -> Any:
    """Read JSON as strictly as a client in another language does: NaN and its kin are none."""
    return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def envelope(capabilities: Mapping[str, Any], **extra: Any) -> dict[str, Any]:
    """The `_meta` that every request of the 2026-07-28 wire carries."""
    return {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": dict(capabilities),
        **extra,
    }


def request(
    method: str,
    params: Mapping[str, Any] | None = None,
    *,
    capabilities: Mapping[str, Any] = TASKS,
    meta: Mapping[str, Any] | None = None,
    request_id: int | str | None = None,
) -> dict[str, Any]:
    """A request of the 2026-07-28 wire, with an id of its own unless one is given."""
    enveloped = {**(params or {}), "_meta": envelope(capabilities, **(meta or {}))}
    return legacy_request(method, enveloped, request_id)


def legacy_request(
    method: str, params: Mapping[str, Any] | None = None, request_id: int | str | None = None
) -> dict[str, Any]:
    """A request of the 2025-11-25 wire, with an id of its own unless one is given."""
    number = next(_ids) if request_id is None else request_id
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params or {})}


def hello(capabilities: Mapping[str, Any] = NOTHING, version: str = LEGACY) -> dict[str, Any]:
    """What `initialize` is called with, in the handshake of 2025-11-25 and before."""
    return {
        "protocolVersion": version,
        "capabilities": dict(capabilities),
        "clientInfo": {"name": "raw", "version": "1"},
    }


def notification(method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": dict(params)})}


def response(request_id: Any, result: Mapping[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "result": dict(result)}


def error_response(request_id: Any, code: int, message: str, data: Any = None) -> dict[str, Any]:
    error = {"code": code, "message": message, **({} if data is None else {"data": data})}
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What a server answered: the JSON-RPC message, and over HTTP what it came in."""

    message: dict[str, Any]
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    notifications: tuple[dict[str, Any], ...] = ()

    @property
    def result(self) -> dict[str, Any]:
        assert "result" in self.message, self.message
        return self.message["result"]

    @property
    def error(self) -> dict[str, Any]:
        assert "error" in self.message, self.message
        return self.message["error"]

    @property
    def code(self) -> int:
        return self.error["code"]


class Wire(Protocol):
    async def send(self, message: Mapping[str, Any], *, capabilities: Mapping[str, Any]) -> Reply: ...


class Tasking:
    """The tasks methods over any wire, each answer checked against the official schemas."""

    def __init__(self, wire: Wire, capabilities: Mapping[str, Any] = TASKS) -> None:
        self.wire = wire
        self.capabilities = capabilities

    def declaring(self, capabilities: Mapping[str, Any]) -> Tasking:
        return Tasking(self.wire, capabilities)

    async def ask(
        self, method: str, params: Mapping[str, Any] | None = None, *, meta: Mapping[str, Any] | None = None
    ) -> Reply:
        message = request(method, params, capabilities=self.capabilities, meta=meta)
        reply = await self.wire.send(message, capabilities=self.capabilities)
        assert reply.message.get("id") == message["id"]
        check_message(method, reply.message)
        return reply

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The result of a tool call, of whichever kind."""
        return (await self.ask("tools/call", {"name": tool, "arguments": arguments})).result

    async def create(self, tool: str, **arguments: Any) -> str:
        created = await self.call(tool, **arguments)
        assert created["resultType"] == "task", created
        return created["taskId"]

    async def get(self, task_id: str) -> dict[str, Any]:
        return (await self.ask("tasks/get", {"taskId": task_id})).result

    async def update(self, task_id: str, **responses: Any) -> dict[str, Any]:
        return (await self.ask("tasks/update", {"taskId": task_id, "inputResponses": responses})).result

    async def cancel(self, task_id: str) -> dict[str, Any]:
        return (await self.ask("tasks/cancel", {"taskId": task_id})).result

    async def until(self, task_id: str, *statuses: str) -> dict[str, Any]:
        with anyio.fail_after(PATIENCE):
            while (task := await self.get(task_id))["status"] not in statuses:
                assert task["status"] in ("working", "input_required"), task
                await anyio.sleep(0.005)
        return task

    async def finish(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return await self.until(await self.create(tool, **arguments), "completed")


def text_of(result: Mapping[str, Any]) -> str:
    [block] = result["content"]
    return block["text"]


def accept(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}
