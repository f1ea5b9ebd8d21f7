"""Whether a function takes the many arguments of a call: the same as the SDK says, with less work."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from datetime import datetime
from typing import Annotated, Any, Literal

import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver.tools import Tool
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, model_validator
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict

from harness.official import in_memory
from harness.rpc import Tasking, text_of
from harness.server import QUICK
from mcp_tasks import Tasks

pytestmark = pytest.mark.anyio


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


class Loose(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)
    name: str


class Names(RootModel[list[str]]):
    """A list that is a model."""


@dataclass
class Size:
    width: int


class Options(TypedDict):
    deep: bool


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
    (list[Loose], {"name": 7}, {"name": None}),
    (list[Names], ["a"], [7]),
    (list[Size], {"width": 1}, {"width": "wide"}),
    (list[Options], {"deep": "yes"}, {"deep": "perhaps"}),
    (
        list[Annotated[Cat | Dog, Field(discriminator="kind")]],
        {"kind": "dog", "tricks": ["sit"]},
        {"kind": "cat", "lives": "many"},
    ),
    (list[int | Point | None], None, {"x": None}),
    (list[datetime], "2026-01-01T00:00:00Z", "soon"),
    (dict[str, int], 1, "one"),
    (tuple[int, ...], "1", "one"),
    (list[Annotated[str, AfterValidator(_short)]], "abc", "abcd"),
    (list[list[int]], [1, "2"], [1, "two"]),
]
MANY = 4 * 1024
"""So many are checked in our own way."""


def tool_of(kind: Any) -> Callable[..., None]:
    """A function with one parameter of this kind."""

    def tool(values: Any) -> None: ...

    tool.__annotations__["values"] = kind
    return tool


@pytest.fixture(scope="module")
async def client() -> AsyncGenerator[Tasking]:
    """A client of a server with a tool for each case."""
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
        return dict(zip(map(str, range(MANY)), items, strict=True)) if kind == dict[str, int] else items

    sdk = Tool.from_function(tool_of(kind), structured_output=False).fn_metadata
    fitting = values([good] * MANY)
    sdk.validate_arguments({"values": fitting})
    await client.finish(f"tool_{number}", values=fitting)
    for items, place in (([good] * (MANY - 1) + [bad], MANY - 1), ([bad] * MANY, 0)):
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
