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
    """A model that takes nothing else."""

    model_config = ConfigDict(extra="forbid")
    x: int
    y: int = 0


class Tree(BaseModel):
    """A model that refers to itself."""

    name: str
    kids: list[Tree] = Field(default_factory=list["Tree"])


class Pair(BaseModel):
    """A model that looks at the whole of itself."""

    low: int
    high: int

    @model_validator(mode="after")
    def _is_in_order(self) -> Pair:
        if self.high < self.low:
            raise ValueError("it is upside down")
        return self


class Loose(BaseModel):
    """A model that takes numbers for text."""

    model_config = ConfigDict(coerce_numbers_to_str=True)
    name: str


class Names(RootModel[list[str]]):
    """A list that is a model."""


@dataclass
class Size:
    """No model."""

    width: int


class Options(TypedDict):
    """A dictionary."""

    deep: bool


class Cat(BaseModel):
    """One of two."""

    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    """The other."""

    kind: Literal["dog"]
    tricks: list[str]


def _short(value: str) -> str:
    if len(value) > 3:
        raise ValueError("it is long")
    return value


def points(values: list[Point]) -> None: ...
def trees(values: list[Tree]) -> None: ...
def pairs(values: list[Pair]) -> None: ...
def loose(values: list[Loose]) -> None: ...
def names(values: list[Names]) -> None: ...
def sizes(values: list[Size]) -> None: ...
def options(values: list[Options]) -> None: ...
def pets(values: list[Annotated[Cat | Dog, Field(discriminator="kind")]]) -> None: ...
def either(values: list[int | Point | None]) -> None: ...
def times(values: list[datetime]) -> None: ...
def by_name(values: dict[str, int]) -> None: ...
def fixed(values: tuple[int, ...]) -> None: ...
def checked(values: list[Annotated[str, AfterValidator(_short)]]) -> None: ...
def nested(values: list[list[int]]) -> None: ...


TREE: dict[str, Any] = {"name": "a", "kids": [{"name": "b", "kids": []}]}
CASES: list[tuple[Callable[..., None], Any, Any]] = [
    (points, {"x": 1}, {"x": "one"}),
    (points, {"x": "1", "y": 2}, {"x": 1, "z": 1}),
    (trees, TREE, {"name": "a", "kids": [{"name": 7}]}),
    (pairs, {"low": 1, "high": 2}, {"low": 2, "high": 1}),
    (loose, {"name": 7}, {"name": None}),
    (names, ["a"], [7]),
    (sizes, {"width": 1}, {"width": "wide"}),
    (options, {"deep": "yes"}, {"deep": "perhaps"}),
    (pets, {"kind": "dog", "tricks": ["sit"]}, {"kind": "cat", "lives": "many"}),
    (either, None, {"x": None}),
    (times, "2026-01-01T00:00:00Z", "soon"),
    (by_name, 1, "one"),
    (fixed, "1", "one"),
    (checked, "abc", "abcd"),
    (nested, [1, "2"], [1, "two"]),
]
MANY = 4 * 1024
"""So many are checked in our own way."""


@pytest.fixture(scope="module")
async def client() -> AsyncGenerator[Tasking]:
    """A client of a server with all of the functions."""
    tasks = Tasks("memory://", settings=QUICK)
    server: MCPServer[Any] = MCPServer("many", **tasks.wiring(), log_level="CRITICAL")
    for function in {case[0] for case in CASES}:
        server.add_tool(tasks.task()(function))
    async with in_memory(server) as wire:
        yield Tasking(wire)


@pytest.mark.parametrize(("function", "good", "bad"), CASES, ids=[case[0].__name__ for case in CASES])
async def test_what_the_sdk_takes_is_taken_and_what_it_refuses_is_refused_in_a_few_words(
    client: Tasking, function: Callable[..., None], good: Any, bad: Any
) -> None:
    def values(items: list[Any]) -> Any:
        return dict(zip(map(str, range(MANY)), items, strict=True)) if function is by_name else items

    fitting, misfit, worse = [good] * MANY, [good] * (MANY - 1) + [bad], [bad] * MANY
    sdk = Tool.from_function(function, structured_output=False).fn_metadata
    sdk.validate_arguments({"values": values(fitting)})
    await client.finish(function.__name__, values=values(fitting))
    for items, place in ((misfit, MANY - 1), (worse, 0)):
        with pytest.raises(ValueError, match="validation error"):
            sdk.validate_arguments({"values": values(items)})
        refused = await client.call(function.__name__, values=values(items))
        assert refused["isError"] is True
        assert f"values.{place}" in text_of(refused)
        assert len(text_of(refused)) < 3_000


async def test_a_name_that_the_caller_made_up_is_cut(client: Tasking) -> None:
    refused = await client.call("by_name", values={"x" * 1_000_000: "one"})
    assert len(text_of(refused)) <= 4_200
