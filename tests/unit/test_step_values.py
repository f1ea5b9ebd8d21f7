"""What a step gave or raised, as it is kept and as later runs get it back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from mcp_tasks.errors import StepError, UsageError
from mcp_tasks.runtime.step_values import StepValue, keep_error, restore_error


class Invoice(BaseModel):
    number: int
    paid: datetime | None = None


class Aliased(BaseModel):
    """As models of other people's APIs are: no name is the same on the wire, and not the same both ways."""

    due_date: date = Field(alias="dueDate")
    total: Decimal = Field(validation_alias="sum", serialization_alias="total_sum")


@dataclass
class Point:
    x: int
    y: int


class Colour(Enum):
    RED = "red"


def returning(annotation: Any) -> Callable[..., Any]:
    """A function that says it returns that."""

    def function() -> Any: ...

    function.__annotations__["return"] = annotation
    return function


def unannotated() -> Callable[..., Any]:
    def function() -> Any: ...

    del function.__annotations__["return"]
    return function


def kept_and_restored(function: Callable[..., Any], value: Any) -> tuple[Any, Any]:
    """What the first run gets, and what a later one does, over the JSON that is between them."""
    step = StepValue("s", function)
    stored, first = step.keep(value)
    return first, StepValue("s", function).restore(json.loads(json.dumps(stored)))


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 7),
        (tuple[int, str], (7, "a")),
        (set[int], {1, 2}),
        (dict[int, str], {1: "a"}),
        (bytes, b"abc"),
        (datetime, NOON),
        (timedelta, timedelta(seconds=1.5)),
        (Decimal, Decimal("1.50")),
        (UUID, UUID(int=7)),
        (Path, Path("/tmp/a")),
        (Colour, Colour.RED),
        (Invoice, Invoice(number=7, paid=NOON)),
        (list[Invoice], [Invoice(number=7)]),
        (Invoice | None, None),
        (Aliased, Aliased(dueDate=date(2026, 1, 1), sum=Decimal("1.50"))),  # pyright: ignore[reportCallIssue]
        (Point, Point(1, 2)),
        (dict[str, Point], {"a": Point(1, 2)}),
        (Awaitable[Point], Point(1, 2)),
        (Coroutine[Any, Any, Point], Point(1, 2)),
    ],
    ids=str,
)
def test_a_value_comes_back_as_its_annotation_says(annotation: Any, value: Any) -> None:
    assert kept_and_restored(returning(annotation), value) == (value, value)


@pytest.mark.parametrize("value", [Invoice(number=7, paid=NOON), Point(1, 2)], ids=["model", "dataclass"])
def test_a_model_or_dataclass_comes_back_as_its_class_without_any_annotation(value: Any) -> None:
    for function in (unannotated(), returning(Any), lambda: None):
        assert kept_and_restored(function, value) == (value, value)


@pytest.mark.parametrize(
    ("value", "plain"),
    [((1, 2), [1, 2]), ({1: "a"}, {"1": "a"}), (None, None), ("\ud800", "\ud800"), (1.5, 1.5)],
    ids=["tuple", "numbered", "none", "surrogate", "number"],
)
@pytest.mark.parametrize("annotation", [None, Any, object, NoReturn], ids=str)
def test_what_no_annotation_names_is_the_first_time_what_json_makes_of_it(
    annotation: Any, value: Any, plain: Any
) -> None:
    assert kept_and_restored(returning(annotation), value) == (plain, plain)


def test_an_annotation_that_is_not_true_is_not_believed() -> None:
    assert kept_and_restored(returning(int), ["no", "number"]) == (["no", "number"], ["no", "number"])
    assert kept_and_restored(returning(Invoice), {"number": "none"}) == ({"number": "none"}, {"number": "none"})


def test_a_value_that_was_kept_under_another_annotation_comes_back_as_it_was_kept() -> None:
    stored, _ = StepValue("s", returning(dict[str, Any])).keep({"colour": "red"})
    assert StepValue("s", returning(Invoice)).restore(stored) == {"colour": "red"}


def test_a_value_whose_class_is_gone_comes_back_as_it_was_kept() -> None:
    stored = {"value": {"x": 1, "y": 2}, "type": "some.module:Gone"}
    assert StepValue("s", unannotated()).restore(stored) == {"x": 1, "y": 2}


class Surveyor:
    """What can be called has annotations in several places."""

    def measure(self) -> Point: ...

    async def measure_later(self) -> Point: ...

    def __call__(self, scale: int) -> Point: ...


@pytest.mark.parametrize(
    "function",
    [Surveyor().measure, Surveyor().measure_later, Surveyor(), partial(Surveyor(), 2), partial(partial(Surveyor()))],
    ids=["method", "async", "object", "partial", "partials"],
)
def test_the_annotation_is_found_wherever_it_stands(function: Callable[..., Any]) -> None:
    # As plain JSON, so that the class of the value itself does not give it away.
    assert kept_and_restored(function, {"x": 1, "y": 2})[1] == Point(1, 2)


def test_an_annotation_that_cannot_be_resolved_is_none() -> None:
    assert kept_and_restored(returning("NoSuchName"), (1, 2)) == ([1, 2], [1, 2])


@pytest.mark.parametrize("annotation", [Iterator[int], AsyncIterator[int], Surveyor], ids=str)
def test_a_function_whose_value_cannot_be_kept_is_refused_before_it_is_called(annotation: Any) -> None:
    with pytest.raises(UsageError, match=r"step 's' would return .* cannot be kept"):
        StepValue("s", returning(annotation))


@pytest.mark.parametrize("value", [object(), {1, 2}, b"abc", lambda: None], ids=["object", "set", "bytes", "function"])
def test_a_value_that_cannot_be_kept_is_refused_by_the_name_of_its_step(value: Any) -> None:
    with pytest.raises(UsageError, match="step 's' gave a value that cannot be kept as JSON"):
        StepValue("s", unannotated()).keep(value)


# Failures


class Refused(Exception):
    """An exception that is made from its arguments."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code


class Told(Exception):
    """One that makes its message itself."""

    def __init__(self, code: int) -> None:
        super().__init__(f"it was told {code}")


class Picky(Exception):
    """One that cannot be made twice."""

    def __init__(self, *, code: int) -> None:
        super().__init__(code)


def restored(exc: Exception) -> Exception:
    return restore_error("s", json.loads(json.dumps(keep_error(exc))))


@pytest.mark.parametrize(
    "exc",
    [ValueError("no"), KeyError("a"), TimeoutError(), OSError(28, "full"), Refused(7, "no"), UsageError("no")],
    ids=lambda exc: type(exc).__name__,
)
def test_an_exception_comes_back_as_its_own_class(exc: Exception) -> None:
    again = restored(exc)
    assert (type(again), again.args, str(again)) == (type(exc), exc.args, str(exc))


def test_what_an_exception_makes_of_its_arguments_is_made_again() -> None:
    again = restored(Refused(7, "no"))
    assert isinstance(again, Refused)
    assert again.code == 7


@pytest.mark.parametrize(
    "exc",
    [Told(7), Picky(code=7), FileNotFoundError(2, "not there", "a.txt"), ValueError(object())],
    ids=lambda exc: type(exc).__name__,
)
def test_an_exception_that_cannot_be_made_again_comes_back_as_what_is_known_of_it(exc: Exception) -> None:
    again = restored(exc)
    assert isinstance(again, StepError)
    assert (again.step, again.error_type, again.message) == ("s", type(exc).__qualname__, str(exc))


@pytest.mark.parametrize("name", ["gone.module:Gone", "builtins:print", "builtins:int", "builtins:BaseException", ""])
def test_what_is_no_exception_any_more_is_not_made(name: str) -> None:
    stored = {"error": {"type": name, "arguments": ["no"], "message": "no"}}
    assert isinstance(restore_error("s", stored), StepError)
