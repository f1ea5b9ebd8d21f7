"""A server that counts what its tools do, and callers of it that give their calls idempotency keys."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

from harness.http import HttpWire, LegacyHttpWire, initialize, serving
from harness.rpc import EVERYTHING, Reply, Tasking
from harness.waiting import eventually
from mcp_tasks import Tasks
from mcp_tasks.model.record import TaskRecord
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.base import EVERYBODY
from mcp_tasks.testing import FakeClock

KEY: Final = "mcp-tasks/idempotencyKey"
REPEATED: Final = "mcp-tasks/repeated"
LONG_KEY: Final = "k" * 22


@dataclass
class Scene:
    """A server, and what its tools were called with."""

    tasks: Tasks
    server: MCPServer[Any]
    store: Store
    clock: FakeClock
    runs: Counter[str] = field(default_factory=Counter[str])
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    meta: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])

    async def all_tasks(self) -> Sequence[TaskRecord]:
        return (await self.store.list("keyed", EVERYBODY, now=self.clock(), limit=100)).records

    async def until_idle(self) -> None:
        async def idle() -> bool:
            return all(task.is_final for task in await self.all_tasks())

        await eventually(idle)

    async def pass_time(self, time: timedelta) -> None:
        """It is later, and whatever has expired is gone."""
        self.clock.advance(time)
        await self.store.forget_expired(self.clock(), limit=100)


def build(store: Store | None = None, **options: Any) -> Scene:
    clock, store = FakeClock(datetime.now(UTC)), store or MemoryStore()
    tasks = Tasks(
        store,
        namespace="keyed",
        default_ttl=timedelta(hours=1),
        clock=clock,
        principal=lambda caller: caller.headers.get("x-user"),
        **options,
    )
    scene = Scene(tasks, MCPServer("keyed", **tasks.wiring()), store, clock)
    _add_tools(scene)
    return scene


def _add_tools(scene: Scene) -> None:
    server, tasks, runs = scene.server, scene.tasks, scene.runs

    @server.tool()
    @tasks.task()
    async def pay(amount: int, ctx: Context) -> str:
        runs["pay"] += 1
        scene.meta.append(dict(ctx.request_context.meta or {}))
        return f"paid {amount}"

    @server.tool()
    @tasks.task()
    async def refund(amount: int) -> str:
        runs["refund"] += 1
        return f"refunded {amount}"

    @server.tool()
    @tasks.task(grace=timedelta(seconds=20))
    async def quick(amount: int) -> str:
        runs["quick"] += 1
        return f"paid {amount} at once"

    @server.tool()
    @tasks.task(grace=timedelta(seconds=20))
    async def fails(amount: int) -> str:
        runs["fails"] += 1
        raise ValueError(f"cannot pay {amount}")

    @server.tool()
    @tasks.task()
    async def asks(ctx: Context) -> str | InputRequiredResult:
        runs["asks"] += 1
        if not ctx.input_responses:
            return question()
        runs["asked"] += 1
        return f"paid after {sorted(ctx.input_responses)}"

    @server.tool()
    @tasks.task(join_running=True)
    async def joined(amount: int) -> str:
        runs["joined"] += 1
        await scene.gate.wait()
        return f"paid {amount}"

    @server.tool()
    async def plain(amount: int) -> str:
        runs["plain"] += 1
        return f"paid {amount} plainly"


def question() -> InputRequiredResult:
    form = ElicitRequestFormParams(message="Sure?", requested_schema={"type": "object", "properties": {}})
    return InputRequiredResult(input_requests={"sure": ElicitRequest(params=form)})


@dataclass
class ModernDoor:
    wire: HttpWire
    capabilities: Mapping[str, Any]

    async def call(self, tool: str, key: object = None, *, user: str | None = None, **arguments: Any) -> Reply:
        return await self.send({"name": tool, "arguments": arguments}, key, user=user)

    async def send(
        self, params: Mapping[str, Any], key: object = None, *, user: str | None = None, repeated: bool = False
    ) -> Reply:
        meta = ({} if key is None else {KEY: key}) | ({REPEATED: True} if repeated else {})
        _sign_in(self.wire, user)
        return await Tasking(self.wire, self.capabilities).ask("tools/call", params, meta=meta)


@dataclass
class LegacyDoor:
    """Calls of the wire of 2025-11-25, as tasks or not. Each user has a session."""

    wire: HttpWire
    as_tasks: bool
    sessions: dict[str | None, LegacyHttpWire] = field(default_factory=dict)

    async def call(self, tool: str, key: object = None, *, user: str | None = None, **arguments: Any) -> Reply:
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        if key is not None:
            params["_meta"] = {KEY: key}
        if self.as_tasks:
            params["task"] = {}
        _sign_in(self.wire, user)
        if user not in self.sessions:
            self.sessions[user], _ = await initialize(self.wire, {"elicitation": {}})
        return await self.sessions[user].ask("tools/call", params)


def _sign_in(wire: HttpWire, user: str | None) -> None:
    wire.client.headers.pop("x-user", None)
    if user is not None:
        wire.client.headers["x-user"] = user


DOORS: Final = ("short", "sdk", "without tasks", "older tasks", "older, without tasks")


@asynccontextmanager
async def opened(door: str, **options: Any) -> AsyncGenerator[tuple[Scene, Any]]:
    scene = build(short_way=door == "short", **options)
    async with serving(scene.server, json_response=True) as wire:
        if door.startswith("older"):
            yield scene, LegacyDoor(wire, as_tasks=door == "older tasks")
        else:
            yield scene, ModernDoor(wire, {"elicitation": {}} if door == "without tasks" else EVERYTHING)


def told(reply: Reply) -> Any:
    """What a call came to: the id of its task, or the text of its result."""
    result = reply.result
    if "task" in result:
        return result["task"]["taskId"]
    if result.get("resultType") == "task":
        return result["taskId"]
    return result["content"][0]["text"]
