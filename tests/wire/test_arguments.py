"""Arguments that the SDK refuses are answered as in a plain call, at once, and no task is made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, Any, Literal

import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from mcp.shared.exceptions import MCPError
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from harness.auth import USERS, server_with
from harness.http import HttpWire, initialize, serving
from harness.official import in_memory
from harness.rpc import NOTHING, TASKS, Reply, Tasking, text_of
from harness.server import CUSTOM_ERROR, QUICK
from harness.stored import all_tasks
from mcp_tasks import Limits, Tasks
from mcp_tasks.stores.memory import MemoryStore


class Scene(BaseModel):
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
    return MemoryStore()


@pytest.fixture
async def wire(store: MemoryStore) -> AsyncGenerator[HttpWire]:
    tasks = Tasks(store, settings=QUICK)
    server: MCPServer[Any] = MCPServer("choosy", **tasks.wiring(), log_level="CRITICAL")

    @server.tool()
    @tasks.task()
    async def render(scene: Scene, ctx: Context, tags: list[str] | None = None) -> str:
        return f"{scene.title}, {len(tags or [])} tags"

    @server.tool()
    @tasks.task()
    def half(number: Annotated[int, AfterValidator(_even)]) -> int:
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


async def test_arguments_that_do_not_fit_are_answered_as_in_a_plain_call_and_no_task_is_made(
    wire: HttpWire, store: MemoryStore
) -> None:
    for tool, arguments in REFUSED.values():
        plain = await _answer(Tasking(wire, NOTHING), tool, arguments)
        answer = await _answer(Tasking(wire), tool, arguments)
        assert answer == plain
        assert answer.get("isError") or answer["code"] == CUSTOM_ERROR
    assert await all_tasks(store, "choosy") == []


async def test_arguments_that_the_sdk_takes_become_a_task(wire: HttpWire) -> None:
    taken: list[tuple[str, dict[str, Any], str]] = [
        ("render", {"scene": {"title": "Dawn", "frames": 1}}, "Dawn, 0 tags"),
        # Some hosts send JSON in a string, and the SDK takes it.
        ("render", {"scene": '{"title": "Dusk", "frames": 2}', "tags": '["a", "b"]'}, "Dusk, 2 tags"),
        ("half", {"number": "8", "unknown": 1}, "4"),
    ]
    for tool, arguments, result in taken:
        assert text_of((await Tasking(wire).finish(tool, **arguments))["result"]) == result


@pytest.mark.parametrize("way", ["by a rule", "by name"])
async def test_a_tool_of_which_only_the_name_is_known_answers_arguments_that_do_not_fit_at_once_as_well(
    store: MemoryStore, way: str
) -> None:
    tasks = Tasks(store, augment=(lambda params: True) if way == "by a rule" else None, settings=QUICK)
    gate = asyncio.Event()
    server: MCPServer[Any] = MCPServer("unmarked", **tasks.wiring(), log_level="CRITICAL")

    @server.tool()
    async def wait(times: int) -> str:
        await gate.wait()
        return f"waited {times} times"

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


# Many arguments

_looked_at: list[object] = []


def _look(value: object) -> object:
    _looked_at.append(value)
    return value


async def total(values: list[Annotated[int, BeforeValidator(_look)]]) -> int:
    return sum(values)


@asynccontextmanager
async def counting(limits: Limits) -> AsyncGenerator[HttpWire]:
    """A server that lets users in, whose tool counts what of its arguments is validated."""
    tasks = Tasks("memory://", limits=limits, settings=QUICK)
    server = server_with(tasks, "counting", USERS)
    server.add_tool(tasks.task()(total))
    _looked_at.clear()
    async with serving(server) as wire:
        yield wire


async def _total(
    wire: HttpWire, values: list[Any], *, capabilities: Mapping[str, Any] = TASKS, user: str = "alice"
) -> Reply:
    client = Tasking(wire.as_user(user), capabilities)
    return await client.ask("tools/call", {"name": "total", "arguments": {"values": values}})


MANY = 20_000


@pytest.mark.parametrize("capabilities", [TASKS, NOTHING], ids=["with tasks", "without"])
async def test_of_many_values_that_do_not_fit_the_first_is_told_and_no_other_is_looked_at(
    capabilities: Mapping[str, Any],
) -> None:
    async with counting(Limits()) as wire:
        reply = await _total(wire, ["x"] * MANY, capabilities=capabilities)
        assert reply.result["isError"] is True
        told = text_of(reply.result)
        assert told.startswith("Error executing tool total: 1 validation error for totalArguments\nvalues.0\n")
        assert len(told) < 1_000
        assert len(_looked_at) == 1


@pytest.mark.parametrize("capabilities", [TASKS, NOTHING], ids=["with tasks", "without"])
async def test_nothing_of_a_call_is_validated_that_is_too_large_or_one_too_many(
    capabilities: Mapping[str, Any],
) -> None:
    async with counting(Limits(argument_bytes=50_000, owner_creates=1)) as wire:
        too_large = await _total(wire, ["x"] * MANY, capabilities=capabilities)
        assert "may be 50,000 bytes of JSON at most" in str(too_large.message)
        one_too_many = await _total(wire, ["x"] * (MANY // 4), capabilities=capabilities)
        assert "more often than once a second" in str(one_too_many.message)
        assert _looked_at == []
        # Another user calls as before.
        assert "validation error" in text_of((await _total(wire, ["x"], user="bob")).result)


async def test_of_a_few_values_that_do_not_fit_each_is_told_up_to_ten_and_many_that_fit_are_taken() -> None:
    async with counting(Limits()) as wire:
        created = await _total(wire, [1] * MANY)
        ended = await Tasking(wire.as_user("alice")).until(created.result["taskId"], "completed")
        assert text_of(ended["result"]) == str(MANY)
        told = text_of((await _total(wire, ["x"] * 12)).result)
        assert told.startswith("Error executing tool total: 12 validation errors for totalArguments\nvalues.0\n")
        assert "values.9\n" in told
        assert "values.10\n" not in told
        assert told.endswith("and 2 more")


async def test_an_older_client_that_asks_for_a_task_is_told_the_same() -> None:
    async with counting(Limits(owner_creates=1)) as wire:
        session, _ = await initialize(wire.as_user("alice"), NOTHING)
        asked = {"name": "total", "arguments": {"values": ["x"] * MANY}, "task": {}}
        error = (await session.ask("tools/call", asked)).error
        assert error["code"] == -32602
        assert "1 validation error for totalArguments\nvalues.0\n" in error["message"]
        assert len(error["message"]) < 1_000
        assert len(_looked_at) == 1
        # The one that was refused has counted.
        assert (await session.ask("tools/call", asked)).error["data"]["limit"] == "owner_creates"
        assert len(_looked_at) == 1


# Many of every type


class Point(BaseModel):
    model_config = ConfigDict(extra="forbid")
    x: int
    y: int = 0


class Tree(BaseModel):
    name: str
    kids: list[Tree] = Field(default_factory=list["Tree"])


class Pair(BaseModel):
    low: int
    high: int

    @model_validator(mode="after")
    def _is_in_order(self) -> Pair:
        if self.high < self.low:
            raise ValueError("it is upside down")
        return self


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


def _short(value: str) -> str:
    if len(value) > 3:
        raise ValueError("it is long")
    return value


TREE: dict[str, Any] = {"name": "a", "kids": [{"name": "b", "kids": []}]}
CASES: list[tuple[Any, Any, Any]] = [
    (list[Point], {"x": 1}, {"x": "one"}),
    (list[Point], {"x": "1", "y": 2}, {"x": 1, "z": 1}),
    (list[Tree], TREE, {"name": "a", "kids": [{"name": 7}]}),
    (list[Pair], {"low": 1, "high": 2}, {"low": 2, "high": 1}),
    (
        list[Annotated[Cat | Dog, Field(discriminator="kind")]],
        {"kind": "dog", "tricks": ["sit"]},
        {"kind": "cat", "lives": "many"},
    ),
    (list[int | Point | None], None, {"x": None}),
    (list[datetime], "2026-01-01T00:00:00Z", "soon"),
    (dict[str, int], 1, "one"),
    (list[Annotated[str, AfterValidator(_short)]], "abc", "abcd"),
]
CHECKED_HERE = 4 * 1024
"""So many are checked in our own way: the same as the SDK says, with less work."""


def tool_of(kind: Any) -> Callable[..., None]:
    def tool(values: Any) -> None: ...

    tool.__annotations__["values"] = kind
    return tool


@pytest.fixture(scope="module")
async def client() -> AsyncGenerator[Tasking]:
    tasks = Tasks("memory://", settings=QUICK)
    server: MCPServer[Any] = MCPServer("many", **tasks.wiring(), log_level="CRITICAL")
    for number, (kind, _, _) in enumerate(CASES):
        server.add_tool(tasks.task(name=f"tool_{number}")(tool_of(kind)), name=f"tool_{number}")
    async with in_memory(server) as wire:
        yield Tasking(wire)


@pytest.mark.parametrize("number", range(len(CASES)))
async def test_what_the_sdk_takes_is_taken_and_what_it_refuses_is_refused_in_a_few_words(
    client: Tasking, number: int
) -> None:
    kind, good, bad = CASES[number]

    def values(items: list[Any]) -> Any:
        return dict(zip(map(str, range(CHECKED_HERE)), items, strict=True)) if kind == dict[str, int] else items

    sdk = Tool.from_function(tool_of(kind), structured_output=False).fn_metadata
    fitting = values([good] * CHECKED_HERE)
    sdk.validate_arguments({"values": fitting})
    await client.finish(f"tool_{number}", values=fitting)
    for items, place in (([good] * (CHECKED_HERE - 1) + [bad], CHECKED_HERE - 1), ([bad] * CHECKED_HERE, 0)):
        with pytest.raises(ValueError, match="validation error"):
            sdk.validate_arguments({"values": values(items)})
        refused = await client.call(f"tool_{number}", values=values(items))
        assert refused["isError"] is True
        assert f"values.{place}" in text_of(refused)
        assert len(text_of(refused)) < 3_000


async def test_a_name_that_the_caller_made_up_is_cut(client: Tasking) -> None:
    tool = [kind for kind, _, _ in CASES].index(dict[str, int])
    refused = await client.call(f"tool_{tool}", values={"x" * 1_000_000: "one"})
    assert len(text_of(refused)) <= 4_200
