"""Arguments that the SDK refuses are answered as in a plain call, at once, and no task is made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequestParams
from pydantic import AfterValidator, BaseModel, Field

from harness.http import HttpWire, serving
from harness.rpc import NOTHING, Reply, Tasking, text_of
from harness.server import CUSTOM_ERROR, QUICK
from harness.stored import all_tasks
from mcp_tasks import Tasks
from mcp_tasks.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio


class Scene(BaseModel):
    """What is rendered."""

    title: str
    frames: int = Field(gt=0)


def _even(number: int) -> int:
    if number == 13:
        raise MCPError(code=CUSTOM_ERROR, message="not that one")
    if number == 99:
        raise RuntimeError("a defect in the validator")
    if number % 2:
        raise ValueError("it is odd")
    return number


@pytest.fixture
def store() -> MemoryStore:
    """Where the server keeps its tasks."""
    return MemoryStore()


@pytest.fixture
async def wire(store: MemoryStore) -> AsyncGenerator[HttpWire]:
    """A way to a server whose tools are choosy."""
    tasks = Tasks(store, settings=QUICK)
    server: MCPServer[Any] = MCPServer("choosy", **tasks.wiring(), log_level="CRITICAL")

    @server.tool()
    @tasks.task()
    async def render(scene: Scene, ctx: Context, tags: list[str] | None = None) -> str:
        """Render a scene."""
        return f"{scene.title}, {len(tags or [])} tags"

    @server.tool()
    @tasks.task()
    def half(number: Annotated[int, AfterValidator(_even)]) -> int:
        """Halve a number."""
        return number // 2

    async with serving(server) as way:
        yield way


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing": ("render", {}),
    "another type": ("render", {"scene": 7}),
    "a part that is missing": ("render", {"scene": {"title": "Dawn"}}),
    "a number out of range": ("render", {"scene": {"title": "Dawn", "frames": 0}}),
    "a list that is none": ("render", {"scene": {"title": "Dawn", "frames": 1}, "tags": 7}),
    "a value that the author refuses": ("half", {"number": 3}),
    "a validator that crashes": ("half", {"number": 99}),
    "a validator that answers with an error": ("half", {"number": 13}),
}


async def _answer(client: Tasking, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    reply: Reply = await client.ask("tools/call", {"name": tool, "arguments": arguments})
    return reply.message.get("result") or reply.message["error"]


@pytest.mark.parametrize(("tool", "arguments"), REFUSED.values(), ids=REFUSED)
async def test_arguments_that_do_not_fit_are_answered_as_in_a_plain_call_and_no_task_is_made(
    wire: HttpWire, store: MemoryStore, tool: str, arguments: dict[str, Any]
) -> None:
    plain = await _answer(Tasking(wire, NOTHING), tool, arguments)
    answer = await _answer(Tasking(wire), tool, arguments)
    assert answer == plain
    assert answer.get("isError") or answer["code"] == CUSTOM_ERROR
    assert await all_tasks(store, "choosy") == []


@pytest.mark.parametrize(
    ("tool", "arguments", "result"),
    [
        ("render", {"scene": {"title": "Dawn", "frames": 1}}, "Dawn, 0 tags"),
        # Some hosts send JSON in a string, and the SDK takes it.
        ("render", {"scene": '{"title": "Dusk", "frames": 2}', "tags": '["a", "b"]'}, "Dusk, 2 tags"),
        ("half", {"number": "8", "unknown": 1}, "4"),
    ],
    ids=["as they should be", "as text", "as a number in a string"],
)
async def test_arguments_that_the_sdk_takes_become_a_task(
    wire: HttpWire, tool: str, arguments: dict[str, Any], result: str
) -> None:
    assert text_of((await Tasking(wire).finish(tool, **arguments))["result"]) == result


# Tools of which only the name is known


def _unmarked_server(tasks: Tasks, gate: asyncio.Event) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("unmarked", **tasks.wiring(), log_level="CRITICAL")

    @server.tool()
    async def wait(times: int) -> str:
        """Wait for the test."""
        await gate.wait()
        return f"waited {times} times"

    return server


def _always(params: CallToolRequestParams) -> bool:
    return True


@pytest.mark.parametrize("way", ["by a rule", "by name"])
async def test_a_tool_that_is_no_marked_function_answers_arguments_that_do_not_fit_at_once_as_well(
    store: MemoryStore, way: str
) -> None:
    tasks = Tasks(store, augment=_always if way == "by a rule" else None, settings=QUICK)
    gate = asyncio.Event()
    server = _unmarked_server(tasks, gate)
    if way == "by name":
        tasks.mark("wait")
    async with serving(server) as wire:
        client = Tasking(wire)
        answer = await _answer(client, "wait", {"times": "often"})
        assert answer == await _answer(client.declaring(NOTHING), "wait", {"times": "often"})
        assert answer["isError"] is True
        assert await all_tasks(store, "unmarked") == []
        # The SDK takes a number in a string, whatever the schema says: then it is a task like any other.
        task_id = await client.create("wait", times="3")
        gate.set()
        assert text_of((await client.until(task_id, "completed"))["result"]) == "waited 3 times"
