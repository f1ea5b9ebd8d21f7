"""Whether a function takes the arguments of a call: the same as the SDK says, with less work."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

import pytest
from mcp.server.mcpserver.tools import Tool
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, model_validator
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict

from mcp_tasks.server.creation import SMALL, ArgumentCheck, ArgumentsRefused, is_more_than_small


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


def _points(values: list[Point]) -> None: ...
def _trees(values: list[Tree]) -> None: ...
def _pairs(values: list[Pair]) -> None: ...
def _loose(values: list[Loose]) -> None: ...
def _names(values: list[Names]) -> None: ...
def _sizes(values: list[Size]) -> None: ...
def _options(values: list[Options]) -> None: ...
def _pets(values: list[Annotated[Cat | Dog, Field(discriminator="kind")]]) -> None: ...
def _either(values: list[int | Point | None]) -> None: ...
def _times(values: list[datetime]) -> None: ...
def _by_name(values: dict[str, int]) -> None: ...
def _fixed(values: tuple[int, ...]) -> None: ...
def _checked(values: list[Annotated[str, AfterValidator(_short)]]) -> None: ...
def _nested(values: list[list[int]]) -> None: ...


TREE: dict[str, Any] = {"name": "a", "kids": [{"name": "b", "kids": []}]}
CASES: list[tuple[Callable[..., None], Any, Any]] = [
    (_points, {"x": 1}, {"x": "one"}),
    (_points, {"x": "1", "y": 2}, {"x": 1, "z": 1}),
    (_trees, TREE, {"name": "a", "kids": [{"name": 7}]}),
    (_pairs, {"low": 1, "high": 2}, {"low": 2, "high": 1}),
    (_loose, {"name": 7}, {"name": None}),
    (_names, ["a"], [7]),
    (_sizes, {"width": 1}, {"width": "wide"}),
    (_options, {"deep": "yes"}, {"deep": "perhaps"}),
    (_pets, {"kind": "dog", "tricks": ["sit"]}, {"kind": "cat", "lives": "many"}),
    (_either, None, {"x": None}),
    (_times, "2026-01-01T00:00:00Z", "soon"),
    (_by_name, 1, "one"),
    (_fixed, "1", "one"),
    (_checked, "abc", "abcd"),
    (_nested, [1, "2"], [1, "two"]),
]
MANY = SMALL


def _all(function: Callable[..., None], items: list[Any]) -> dict[str, Any]:
    return {"values": dict(zip(map(str, range(MANY)), items, strict=True)) if function is _by_name else items}


@pytest.mark.parametrize(("function", "good", "bad"), CASES, ids=[case[0].__name__ for case in CASES])
def test_what_the_sdk_takes_is_taken_and_what_it_refuses_is_refused(
    function: Callable[..., None], good: Any, bad: Any
) -> None:
    tool = Tool.from_function(function, name="tool", structured_output=False)
    check = ArgumentCheck(tool)
    fitting, misfit = _all(function, [good] * MANY), _all(function, [good] * (MANY - 1) + [bad])
    assert is_more_than_small(fitting)
    tool.fn_metadata.validate_arguments(fitting)
    assert check.problem_with(fitting) is None
    with pytest.raises(ValueError, match="validation error"):
        tool.fn_metadata.validate_arguments(misfit)
    problem = check.problem_with(misfit)
    assert isinstance(problem, ArgumentsRefused)
    assert f"values.{MANY - 1}" in str(problem)


@pytest.mark.parametrize(("function", "good", "bad"), CASES, ids=[case[0].__name__ for case in CASES])
def test_what_is_told_of_many_problems_is_short(function: Callable[..., None], good: Any, bad: Any) -> None:
    check = ArgumentCheck(Tool.from_function(function, name="tool", structured_output=False))
    problem = check.problem_with(_all(function, [bad] * MANY))
    assert isinstance(problem, ArgumentsRefused)
    assert len(str(problem)) < 3_000


def test_a_name_that_the_caller_made_up_is_cut() -> None:
    check = ArgumentCheck(Tool.from_function(_by_name, name="tool", structured_output=False))
    assert len(str(check.problem_with({"values": {"x" * 1_000_000: "one"}}))) <= 4_096
