"""What a step gave or raised, as it is kept and as later runs get it back."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, PrivateAttr, SecretStr, computed_field

from mcp_tasks.errors import StepError, UsageError
from mcp_tasks.runtime import Ending, Run, ToolPolicy, current_task
from mcp_tasks.runtime.steps import StepValue, keep_error, restore_error
from tests.unit.running import answer, launch, ok, question, running, until, until_final


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


class Receipt(Invoice):
    """What a function that promises an invoice may return."""

    text: str


@dataclass
class Point3(Point):
    z: int


@dataclass(eq=False)
class Spot:
    """Equal to none but itself, as far as `==` goes."""

    x: float


class Strict(BaseModel, strict=True, extra="forbid"):
    when: datetime
    path: Path

    @computed_field
    @property
    def year(self) -> int:
        return self.when.year


class Login(BaseModel):
    token: SecretStr


class Excluding(BaseModel):
    raw: str = Field(default="", exclude=True)
    _seen: int = PrivateAttr(default=0)


@dataclass
class Counted:
    count: int = field(default=0, init=False)


class Pair(NamedTuple):
    left: int
    right: int


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
        (bytes, b"\xff\xfe"),
        (tuple[bytes, float], (b"\xff", 1)),
        (datetime, NOON),
        (dict[str, datetime], defaultdict(int, a=NOON)),
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
        (Strict, Strict(when=NOON, path=Path("/tmp"))),
        (list[Strict], [Strict(when=NOON, path=Path("/tmp"))]),
        (list[Receipt], [Receipt(number=7, text="odd \udcff name")]),
        (Awaitable[Point], Point(1, 2)),
        (Coroutine[Any, Any, Point], Point(1, 2)),
    ],
    ids=str,
)
def test_a_value_comes_back_as_its_annotation_says(annotation: Any, value: Any) -> None:
    assert kept_and_restored(returning(annotation), value) == (value, value)


@pytest.mark.parametrize("value", [Invoice(number=7, paid=NOON), Point(1, 2), NOON, Colour.RED, Pair(1, 2)], ids=str)
def test_what_has_a_class_of_its_own_comes_back_as_that_without_any_annotation(value: Any) -> None:
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


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, ["no", "number"]),
        (int, "5"),
        (int, True),
        (float, 1),
        (Invoice, {"number": "7"}),
        (Point, {"x": 1, "y": 2}),
        (str, Point(1, 2)),
        (Invoice, Receipt(number=7, text="paid")),
        (Point, Point3(1, 2, 3)),
    ],
    ids=str,
)
def test_an_annotation_that_is_not_the_whole_truth_changes_nothing(annotation: Any, value: Any) -> None:
    for again in kept_and_restored(returning(annotation), value):
        assert (type(again), again) == (type(value), value)


@pytest.mark.parametrize("function", [unannotated(), returning(float)], ids=["unannotated", "annotated"])
def test_what_is_no_number_comes_back_as_no_number(function: Callable[..., Any]) -> None:
    assert all(math.isnan(again) for again in kept_and_restored(function, math.nan))


def test_what_does_not_say_when_it_is_equal_is_compared_by_its_fields() -> None:
    for spots in kept_and_restored(returning(list[Spot]), [Spot(1.5), Spot(math.nan)]):
        assert [type(spot) for spot in spots] == [Spot, Spot]
        assert [str(spot.x) for spot in spots] == ["1.5", "nan"]


def excluding(*, raw: str = "", seen: int = 0) -> Excluding:
    value = Excluding(raw=raw)
    value._seen = seen  # pyright: ignore[reportPrivateUsage]
    return value


def counted(count: int) -> Counted:
    value = Counted()
    value.count = count
    return value


@pytest.mark.parametrize("value", [excluding(), counted(0)], ids=["excluded", "not taken"])
def test_fields_that_are_not_kept_do_no_harm_while_they_are_what_they_would_be_anyway(value: Any) -> None:
    assert kept_and_restored(returning(type(value)), value) == (value, value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Login, Login(token=SecretStr("hunter2"))),
        (Excluding, excluding(raw="full")),
        (Excluding, excluding(seen=7)),
        (Counted, counted(7)),
        (list[Invoice], [Receipt(number=7, text="paid")]),
        (list[Point], [Point3(1, 2, 3)]),
    ],
    ids=["secret", "excluded", "private", "not taken", "models of a subclass", "dataclasses of a subclass"],
)
def test_a_value_that_would_come_back_changed_is_refused(annotation: Any, value: Any) -> None:
    with pytest.raises(UsageError, match=r"step 's' .* would not come back equal to what it is") as refused:
        StepValue("s", returning(annotation)).keep(value)
    assert "hunter2" not in str(refused.value)


def test_keys_that_json_cannot_tell_apart_are_not_lost() -> None:
    with pytest.raises(UsageError, match="two of its keys are the same in JSON"):
        StepValue("s", unannotated()).keep({1: "a", "1": "b"})


@pytest.mark.parametrize(
    ("kept_as", "value", "later"),
    [
        (dict[str, Any], {"colour": "red"}, Invoice),
        (Any, {"x": 1, "y": 2}, Point),
        (str, "5", int),
        (Any, (1, 2), tuple[int, ...]),
        (Point, Point(1, 2), dict[str, int]),
        (Invoice, Receipt(number=7, text="paid"), Invoice),
        (Invoice, Receipt(number=7, text="paid"), None),
    ],
    ids=str,
)
def test_a_value_comes_back_as_it_was_kept_whatever_the_annotation_says_by_then(
    kept_as: Any, value: Any, later: Any
) -> None:
    stored, first = StepValue("s", returning(kept_as)).keep(value)
    again = StepValue("s", returning(later)).restore(json.loads(json.dumps(stored)))
    assert (type(again), again) == (type(first), first)


def test_a_value_that_its_annotation_cannot_read_any_more_comes_back_as_it_was_kept() -> None:
    stored, _ = StepValue("s", returning(tuple[int, str])).keep((7, "a"))
    assert StepValue("s", returning(Invoice)).restore(stored) == [7, "a"]


def test_a_value_whose_class_is_gone_comes_back_as_it_was_kept() -> None:
    stored = {"value": {"x": 1, "y": 2}, "type": "some.module:Gone"}
    assert StepValue("s", unannotated()).restore(stored) == {"x": 1, "y": 2}


class Surveyor:
    """What can be called has annotations in several places."""

    def measure(self) -> tuple[int, int]: ...

    async def measure_later(self) -> tuple[int, int]: ...

    def __call__(self, scale: int) -> tuple[int, int]: ...


@pytest.mark.parametrize(
    "function",
    [Surveyor().measure, Surveyor().measure_later, Surveyor(), partial(Surveyor(), 2), partial(partial(Surveyor()))],
    ids=["method", "async", "object", "partial", "partials"],
)
def test_the_annotation_is_found_wherever_it_stands(function: Callable[..., Any]) -> None:
    # Without it a tuple comes back as a list.
    assert kept_and_restored(function, (1, 2)) == ((1, 2), (1, 2))


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


class Unspeakable(Exception):
    """One that cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Unreducible(Exception):
    """One that cannot be taken apart."""

    def __reduce__(self) -> NoReturn:
        raise RuntimeError("not to be pickled")


def made_elsewhere(text: str) -> MadeElsewhere:
    return MadeElsewhere(text=text)


class MadeElsewhere(Exception):
    """One that says it is made by a function."""

    def __init__(self, *, text: str) -> None:
        super().__init__(text)

    def __reduce__(self) -> tuple[Any, ...]:
        return made_elsewhere, self.args


def restored(exc: Exception) -> Exception:
    return restore_error("s", json.loads(json.dumps(keep_error(exc))))


def raised_by(function: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011  (whatever it raises)
        function()
    return caught.value


@pytest.mark.parametrize(
    "exc",
    [
        ValueError("no"),
        KeyError("a"),
        TimeoutError(),
        OSError(28, "full"),
        FileNotFoundError(2, "not there", "a.txt"),
        OSError(18, "another device", "a.txt", None, "b.txt"),
        raised_by(lambda: json.loads("{")),
        raised_by(b"\xff".decode),
        Refused(7, "no"),
        UsageError("no"),
    ],
    ids=lambda exc: type(exc).__name__,
)
def test_an_exception_comes_back_as_its_own_class(exc: Exception) -> None:
    again = restored(exc)
    assert (type(again), again.__reduce__(), str(again)) == (type(exc), exc.__reduce__(), str(exc))


def test_what_an_exception_makes_of_its_arguments_is_made_again() -> None:
    again = restored(Refused(7, "no"))
    assert isinstance(again, Refused)
    assert again.code == 7


def test_what_an_exception_was_given_besides_comes_back_if_it_is_json() -> None:
    failed = subprocess.CalledProcessError(3, ["backup"], output=b"\xff", stderr="disk full")
    failed.response = object()  # pyright: ignore[reportAttributeAccessIssue]
    failed.add_note("while copying")
    again = restored(failed)
    assert isinstance(again, subprocess.CalledProcessError)
    assert (again.returncode, again.cmd, again.output, again.stderr) == (3, ["backup"], b"\xff", "disk full")
    assert again.__notes__ == ["while copying"]
    assert not hasattr(again, "response")


def test_an_exception_that_was_kept_without_its_attributes_comes_back() -> None:
    stored = {"error": {"type": "builtins:KeyError", "arguments": ["a"], "message": "'a'"}}
    again = restore_error("s", stored)
    assert isinstance(again, KeyError)
    assert again.args == ("a",)


def test_an_exception_of_a_module_that_only_the_step_imports_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_by_the_step.py").write_text("class Late(Exception): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    stored = keep_error(importlib.import_module("imported_by_the_step").Late("no"))
    # As in the next process.
    del sys.modules["imported_by_the_step"]
    assert type(restore_error("s", stored)).__qualname__ == "Late"


@pytest.mark.parametrize(
    "exc",
    [Told(7), Picky(code=7), ValueError(object()), Unreducible("no"), made_elsewhere("no"), ValueError("no", (1, 2))],
    ids=lambda exc: type(exc).__name__,
)
def test_an_exception_that_cannot_be_made_again_comes_back_as_what_is_known_of_it(exc: Exception) -> None:
    again = restored(exc)
    assert isinstance(again, StepError)
    assert (again.step, again.error_type, again.message) == ("s", type(exc).__qualname__, str(exc))


def test_an_exception_that_cannot_be_read_comes_back_as_what_is_known_of_it() -> None:
    again = restored(Unspeakable())
    assert isinstance(again, StepError)
    assert (again.error_type, again.message) == ("Unspeakable", "(its text cannot be read: RuntimeError)")


@pytest.mark.parametrize("name", ["gone.module:Gone", "builtins:print", "builtins:int", "builtins:BaseException", ""])
def test_what_is_no_exception_any_more_is_not_made(name: str) -> None:
    stored = {"error": {"type": name, "arguments": ["no"], "message": "no"}}
    assert isinstance(restore_error("s", stored), StepError)


@pytest.mark.anyio
async def test_every_run_catches_the_same_exception_and_the_first_one_knows_the_original_too() -> None:
    failed = subprocess.CalledProcessError(3, ["backup"], stderr="disk full")
    caught: list[Exception] = []

    def backup() -> None:
        failed.connection = object()  # pyright: ignore[reportAttributeAccessIssue]
        raise failed

    async def body(run: Run) -> Ending:
        try:
            await current_task().step("backup", backup)
        except Exception as exc:
            caught.append(exc)
        return ok(await run.ask(question("Sure?")))

    async with running(body, policy=ToolPolicy(rerun=True, park_after=timedelta(0))) as runtime:
        task = await until(runtime, await launch(runtime), lambda record: record.attempt == 1 and record.worker is None)
        await answer(runtime, task, elicitation_1="yes")
        await until_final(runtime, task)
    first, later = caught
    assert type(first) is type(later) is subprocess.CalledProcessError
    assert vars(first) == vars(later)
    assert vars(first)["stderr"] == "disk full"
    assert first.__cause__ is failed


@pytest.mark.anyio
async def test_an_annotation_that_is_no_type_is_refused_before_anything_is_done() -> None:
    def work() -> list[str]:
        raise AssertionError("it was done")

    # As somebody may write who comes from another language; it cannot even be hashed.
    work.__annotations__["return"] = [str]
    with pytest.raises(UsageError, match=r"would return \[<class 'str'>\], which cannot be kept"):
        await current_task().step("names", work)
