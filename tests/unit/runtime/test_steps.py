"""Steps: done once in the life of a task, and ended in every later run as they ended in the first."""

import asyncio
import importlib
import inspect
import json
import math
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from uuid import UUID

import anyio
import pytest
from pydantic import BaseModel, Field, PrivateAttr, SecretStr, computed_field

from mcp_tasks.errors import InvalidOption, StepError, UsageError, ValueNotStorable
from mcp_tasks.runtime import Ending, Run, current_task
from mcp_tasks.runtime.steps import Retry, keep_error, restore_error
from mcp_tasks.stores import MemoryStore
from tests.unit.running import (
    RERUN,
    SECOND,
    MeddledStore,
    answer,
    asks,
    cancel,
    ended,
    error_type,
    launch,
    loop_time,
    ok,
    question,
    running,
    settle,
    started,
    twice,
    until,
    until_asking,
    until_final,
)
from tests.unit.virtual_time import simulated


async def test_a_step_is_done_once_in_the_life_of_a_task() -> None:
    done: Counter[str] = Counter()

    def work(what: str) -> str:
        done[what] += 1
        return f"{what} {done[what]}"

    async def body(run: Run) -> Ending:
        before = await current_task().step("before", work, "before")
        sure = await run.ask(question("Sure?"))
        return ok([before, sure, await current_task().step("after", work, what="after")])

    assert (await twice(body)).result == {"value": ["before 1", "yes", "after 1"]}
    assert done == {"before": 1, "after": 1}


async def test_a_step_may_be_async_and_a_sync_one_does_not_hold_the_event_loop() -> None:
    async def body(run: Run) -> Ending:
        async def here() -> int:
            return threading.get_ident()

        step = current_task().step
        # A function that returns something to await is awaited.
        return ok(
            [await step("async", here), await step("sync", threading.get_ident), await step("late", lambda: here())]
        )

    result = (await ended(body)).result
    assert result is not None
    here, there, late = result["value"]
    assert here == late == threading.get_ident() != there


@pytest.mark.parametrize("fails", [True, False])
async def test_a_step_is_there_once_under_its_name_however_it_ended(fails: bool) -> None:
    tries: list[int] = []

    def work() -> None:
        tries.append(1)
        if fails:
            raise OSError("not yet")

    async def body(run: Run) -> Ending:
        with suppress(OSError):
            await current_task().step("work", work)
        await current_task().step("work", work)
        return ok()

    assert error_type(await ended(body)) == "UsageError"
    assert len(tries) == 1


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ({"attempts": 0}, "attempts must be a whole number of at least 1, got 0"),
        ({"attempts": "3"}, "attempts must be a whole number of at least 1, got '3'"),
        ({"wait": 1}, r"wait must be a timedelta, got 1: write wait=timedelta\(seconds=1\)"),
        ({"max_wait": -SECOND}, "max_wait must not be negative, got -1 s"),
        ({"on": [ValueError]}, r"on must be an exception class, or a tuple of them such as .*; got \[<class"),
        ({"on": (OSError, "x")}, "on must be an exception class"),
        ({"on": int}, "on must be an exception class"),
    ],
    ids=str,
)
def test_a_retry_that_cannot_be_is_refused(mistake: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        Retry(**mistake)


TENTH = SECOND / 10


@simulated
@pytest.mark.parametrize(
    ("failures", "retry", "times", "raises"),
    [
        ([OSError()] * 2, Retry(attempts=3, wait=TENTH), [0, 1, 3], None),
        ([OSError()] * 9, Retry(attempts=3, wait=TENTH), [0, 1, 3], OSError),
        ([OSError(), ValueError()], Retry(attempts=10, wait=TENTH, on=OSError), [0, 1], ValueError),
        ([OSError()] * 9, Retry(attempts=6, wait=TENTH, max_wait=5 * TENTH), [0, 1, 3, 7, 12, 17], OSError),
    ],
    ids=["succeeds", "fails", "not for this exception", "pauses grow to a limit"],
)
async def test_a_step_is_tried_again_as_its_retry_says_and_only_its_end_is_recorded(
    failures: list[Exception], retry: Retry, times: list[int], raises: type[Exception] | None
) -> None:
    tried, left = list[float](), list(failures)

    async def work() -> str:
        tried.append(loop_time())
        if left:
            raise left.pop(0)
        return "done"

    async def body(run: Run) -> Ending:
        if raises is None:
            assert await current_task().step("work", work, retry=retry) == "done"
        else:
            with pytest.raises(raises):
                await current_task().step("work", work, retry=retry)
        return await asks(run)

    assert (await twice(body)).result == {"value": "yes"}
    assert [round((each - tried[0]) / TENTH.total_seconds()) for each in tried] == times


async def _work() -> int:
    return 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("call", [_work, lambda: 5, lambda: None])
async def test_a_step_takes_a_function_and_not_what_it_returned(call: Callable[[], Any]) -> None:
    returned = call()
    name = "_work" if call is _work else "function"
    with pytest.raises(UsageError) as refused:
        await current_task().step("x", returned)
    assert str(refused.value) == (
        f"step('x', ...) takes a function and its arguments, not what the function returned: step('x', {name})"
    )
    # Closed, so that Python does not warn of it as well.
    assert call is not _work or inspect.getcoroutinestate(returned) == inspect.CORO_CLOSED


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        *((name, {}, "a step's name must be a non-empty string") for name in ("", None, 7)),
        ("x", {"retry": 3}, r"retry must be a Retry, got 3: write retry=Retry\(\.\.\.\)"),
    ],
)
async def test_what_cannot_be_a_step_is_refused_before_it_is_done(name: Any, options: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        await current_task().step(name, _work, **options)


async def test_a_value_that_the_store_cannot_keep_fails_its_step_now_and_later() -> None:
    store, too_large = MeddledStore(), ValueNotStorable("a value is too large")
    store.refuse(too_large, "save", when=lambda _, entries: len(str(entries)) > 4_096)
    first, later = await caught(lambda: "x" * 10_000, store=store)
    assert type(first) is type(later) is UsageError
    assert str(first) == str(later)
    assert str(first).startswith("step 's' gave a value that the store cannot keep")


@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
async def test_a_sync_step_that_was_done_when_the_tool_gave_up_on_it_is_not_done_again(fails: bool) -> None:
    """A thread goes on to its end. What it gave is kept, should the tool come to the step again; a failure is not."""
    begun, may_end, times = threading.Event(), threading.Event(), list[int]()

    def work() -> int:
        times.append(1)
        begun.set()
        may_end.wait(5)
        if fails and len(times) == 1:
            raise ValueError
        return len(times)

    async def body(run: Run) -> Ending:
        branch = asyncio.ensure_future(current_task().step("work", work))
        await asyncio.to_thread(begun.wait, 5)
        branch.cancel()
        await settle()
        may_end.set()
        await asyncio.wait({branch})
        assert branch.cancelled()
        return ok(await current_task().step("work", work))

    record = await ended(body)
    assert (record.result, len(times)) == (({"value": 2}, 2) if fails else ({"value": 1}, 1))


async def _leaves_its_steps(*steps: Coroutine[Any, Any, Any]) -> None:
    """Wait for the first of them. Unlike a gather, this cancels none when it is cancelled itself."""
    await asyncio.wait([asyncio.create_task(step) for step in steps], return_when=asyncio.FIRST_COMPLETED)


async def cancelled_in(body: Callable[[Run], Awaitable[Ending]]) -> None:
    async with running(body) as runtime:
        task = await started(runtime)
        await settle()
        await cancel(runtime, task)
        await settle()


async def test_a_step_that_is_at_work_beside_the_tool_ends_with_a_run_that_is_stopped() -> None:
    """Another run may begin it, and a step is not to be done by two runs at a time."""
    stopped: list[str] = []

    async def work(name: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append(name)

    async def around() -> None:
        await current_task().step("inner", work, "inner")

    async def body(run: Run) -> Ending:
        await _leaves_its_steps(current_task().step("alone", work, "alone"), current_task().step("outer", around))
        raise AssertionError("no step ends before its run")

    await cancelled_in(body)
    assert sorted(stopped) == ["alone", "inner"]


async def test_a_step_that_the_tool_has_cancelled_is_not_disturbed_by_the_end_of_its_run() -> None:
    cleared, may_clear = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            await may_clear.wait()
            cleared.set()

    async def body(run: Run) -> Ending:
        branch = asyncio.create_task(current_task().step("work", work))
        await settle()
        branch.cancel()
        await asyncio.wait({branch})
        raise AssertionError("the step does not end before its run")

    await cancelled_in(body)
    may_clear.set()
    await settle()
    assert cleared.is_set()


async def test_a_step_that_a_tool_leaves_behind_when_it_returns_goes_on() -> None:
    may_end, done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await may_end.wait()
        done.set()

    async def body(run: Run) -> Ending:
        await _leaves_its_steps(current_task().step("slow", work), current_task().step("quick", asyncio.sleep, 0))
        return ok()

    async with running(body) as runtime:
        await until_final(runtime, await launch(runtime))
        await settle()
        may_end.set()
        await settle()
        assert done.is_set()


async def test_a_tool_may_do_steps_and_ask_from_a_thread_in_every_run() -> None:
    def work(run: Run) -> list[Any]:
        step = partial(current_task().step, "one", lambda: run.attempt)
        return [anyio.from_thread.run(step), anyio.from_thread.run(run.ask, question("Sure?"))]

    async def body(run: Run) -> Ending:
        return ok(await anyio.to_thread.run_sync(work, run))

    store = MemoryStore()
    async with running(body, store=store, policy=RERUN) as one:
        task = await until_asking(one, await launch(one))
        await one.abandon()
    async with running(body, store=store, policy=RERUN) as other:
        await until(other, task, lambda record: record.attempt == 2)
        await answer(other, task, elicitation_1="yes")
        assert (await until_final(other, task)).result == {"value": [1, "yes"]}


# Values, as the first run gets them and as later ones do


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


def giving(value: Any, annotation: Any = None) -> Callable[..., Any]:
    """A function that gives that, and says what it gives, if anything."""

    def function() -> Any:
        return value

    del function.__annotations__["return"]
    if annotation is not None:
        function.__annotations__["return"] = annotation
    return function


async def given(function: Callable[..., Any], later: Callable[..., Any] | None = None) -> list[Any]:
    """What the step gives in the first run, and in a later one, whose function may be another."""
    values: list[Any] = []

    async def body(run: Run) -> Ending:
        step = current_task().step("s", function if run.attempt == 1 else later or function)
        values.append(await step)
        return await asks(run)

    await twice(body)
    return values


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def excluding(*, raw: str = "", seen: int = 0) -> Excluding:
    value = Excluding(raw=raw)
    value._seen = seen  # pyright: ignore[reportPrivateUsage]
    return value


def counted(count: int) -> Counted:
    value = Counted()
    value.count = count
    return value


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
        (dict[str, Point], {"a": Point(1, 2)}),
        (Strict, Strict(when=NOON, path=Path("/tmp"))),
        (list[Strict], [Strict(when=NOON, path=Path("/tmp"))]),
        (list[Receipt], [Receipt(number=7, text="odd \udcff name")]),
        (Awaitable[Point], Point(1, 2)),
        (Coroutine[Any, Any, Point], Point(1, 2)),
        # Without any annotation, by a class of its own.
        *[(nothing, value) for nothing in (None, Any) for value in (Invoice(number=7), Point(1, 2), Pair(1, 2), NOON)],
        # An annotation that is not the whole truth changes nothing.
        (int, ["no", "number"]),
        (int, "5"),
        (int, True),
        (float, 1),
        (Invoice, {"number": "7"}),
        (Point, {"x": 1, "y": 2}),
        (str, Point(1, 2)),
        (Invoice, Receipt(number=7, text="paid")),
        (Point, Point3(1, 2, 3)),
        # Fields that are not kept do no harm while they are what they would be anyway.
        (Excluding, excluding()),
        (Counted, counted(0)),
    ],
    ids=str,
)
async def test_a_value_comes_back_as_it_was_given(annotation: Any, value: Any) -> None:
    for again in await given(giving(value, annotation)):
        assert again == value
        assert type(again) is type(value) or isinstance(again, dict)


@pytest.mark.parametrize(
    ("value", "plain"),
    [((1, 2), [1, 2]), ({1: "a"}, {"1": "a"}), (None, None), ("\ud800", "\ud800"), (1.5, 1.5), ([{"a": [1]}],) * 2],
    ids=str,
)
@pytest.mark.parametrize("annotation", [None, Any, object, NoReturn, "NoSuchName"], ids=str)
async def test_what_no_annotation_names_is_the_first_time_what_json_makes_of_it(
    annotation: Any, value: Any, plain: Any
) -> None:
    assert await given(giving(value, annotation)) == [plain, plain]
    assert await current_task().step("value", giving(value, annotation)) == plain


async def test_what_is_not_equal_to_itself_comes_back_too() -> None:
    for annotation in (None, float):
        assert all(math.isnan(again) for again in await given(giving(math.nan, annotation)))
    for spots in await given(giving([Spot(1.5), Spot(math.nan)], list[Spot])):
        assert [(type(spot), str(spot.x)) for spot in spots] == [(Spot, "1.5"), (Spot, "nan")]


@pytest.mark.parametrize(
    ("annotation", "value", "why"),
    [
        (Login, Login(token=SecretStr("hunter2")), "would not come back equal to what it is"),
        (Excluding, excluding(raw="full"), "would not come back equal to what it is"),
        (Excluding, excluding(seen=7), "would not come back equal to what it is"),
        (Counted, counted(7), "would not come back equal to what it is"),
        (list[Invoice], [Receipt(number=7, text="paid")], "would not come back equal to what it is"),
        (list[Point], [Point3(1, 2, 3)], "would not come back equal to what it is"),
        (None, {1: "a", "1": "b"}, "two of its keys are the same in JSON"),
        *[(None, value, "gave a value that cannot be kept as JSON") for value in (object(), {1, 2}, b"abc", int)],
    ],
)
async def test_a_value_that_would_come_back_changed_is_refused(annotation: Any, value: Any, why: str) -> None:
    with pytest.raises(UsageError, match=f"step 's' .*{why}") as refused:
        await current_task().step("s", giving(value, annotation))
    assert "hunter2" not in str(refused.value)


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
async def test_a_value_comes_back_as_it_was_kept_whatever_the_annotation_says_by_then(
    kept_as: Any, value: Any, later: Any
) -> None:
    first, again = await given(giving(value, kept_as), giving(value, later))
    assert (type(again), again) == (type(first), first)


async def test_a_value_that_cannot_be_read_any_more_comes_back_as_it_was_kept() -> None:
    assert await given(giving((7, "a"), tuple[int, str]), giving(None, Invoice)) == [(7, "a"), [7, "a"]]


class Surveyor:
    """What can be called has annotations in several places."""

    def measure(self) -> tuple[int, int]:
        return 1, 2

    async def measure_later(self) -> tuple[int, int]:
        return 1, 2

    def __call__(self, scale: int = 1) -> tuple[int, int]:
        return 1, 2


@pytest.mark.parametrize(
    "function",
    [Surveyor().measure, Surveyor().measure_later, Surveyor(), partial(Surveyor(), 2), partial(partial(Surveyor()))],
    ids=["method", "async", "object", "partial", "partials"],
)
async def test_the_annotation_is_found_wherever_it_stands(function: Callable[..., Any]) -> None:
    # Without it a tuple comes back as a list.
    assert await given(function) == [(1, 2), (1, 2)]


@pytest.mark.parametrize("annotation", [Iterator[int], AsyncIterator[int], Surveyor, [str]], ids=str)
async def test_a_function_whose_value_cannot_be_kept_is_refused_before_it_is_called(annotation: Any) -> None:
    def work() -> Any:
        raise AssertionError("it was called")

    work.__annotations__["return"] = annotation
    with pytest.raises(UsageError, match=r"step 's' would return .* cannot be kept"):
        await current_task().step("s", work)


# Failures


class Refused(Exception):
    """An exception that is made from its arguments."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code


class OutOfPaper(Exception):
    """One without anything of its own."""


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


class MadeElsewhere(Exception):
    """One that says it is made by a function."""

    def __init__(self, *, text: str) -> None:
        super().__init__(text)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(MadeElsewhere, text=self.args[0]), ()


def raised_by(function: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011  (whatever it raises)
        function()
    return caught.value


async def caught(work: Callable[[], object], **options: Any) -> list[Exception]:
    """What the tool catches of a step in the first run, and in a later one."""
    caught: list[Exception] = []

    async def body(run: Run) -> Ending:
        try:
            await current_task().step("s", work)
        except Exception as exc:
            caught.append(exc)
        return await asks(run)

    await twice(body, **options)
    return caught


async def raised(exc: Exception) -> list[Exception]:
    """What the tool catches of a step that raises that; it is done once."""
    done: list[int] = []

    def work() -> None:
        done.append(1)
        raise exc

    caught_ones = await caught(work)
    assert len(done) == 1
    return caught_ones


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
        OutOfPaper("tray", 2),
        UsageError("no"),
    ],
    ids=lambda exc: type(exc).__name__,
)
async def test_an_exception_comes_back_as_its_own_class(exc: Exception) -> None:
    for again in await raised(exc):
        assert (type(again), again.__reduce__(), str(again)) == (type(exc), exc.__reduce__(), str(exc))
        assert getattr(again, "code", None) == getattr(exc, "code", None), "made again of its arguments"


async def test_what_an_exception_was_given_besides_comes_back_if_it_is_json_and_the_original_is_its_cause() -> None:
    failed = subprocess.CalledProcessError(3, ["backup"], output=b"\xff", stderr="disk full")
    failed.response = object()  # pyright: ignore[reportAttributeAccessIssue]
    failed.add_note("while copying")
    first, later = await raised(failed)
    assert vars(first) == vars(later)
    assert isinstance(later, subprocess.CalledProcessError)
    assert (later.returncode, later.cmd, later.output, later.stderr) == (3, ["backup"], b"\xff", "disk full")
    assert later.__notes__ == ["while copying"]
    assert not hasattr(later, "response")
    assert first.__cause__ is failed


@pytest.mark.parametrize(
    ("exc", "said"),
    [
        (Told(7), "it was told 7"),
        (Picky(code=7), "7"),
        (ValueError(object), str(object)),
        (Unreducible("no"), "no"),
        (MadeElsewhere(text="no"), "no"),
        (ValueError("no", (1, 2)), "('no', (1, 2))"),
        (Unspeakable(), "(its text cannot be read: RuntimeError)"),
    ],
    ids=lambda exc: type(exc).__name__,
)
async def test_an_exception_that_cannot_be_made_again_comes_back_as_what_is_known_of_it(
    exc: Exception, said: str
) -> None:
    for again in await raised(exc):
        assert isinstance(again, StepError)
        assert (again.step, again.error_type, again.message) == ("s", type(exc).__qualname__, said)


def test_an_exception_of_a_module_that_only_the_step_imports_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_by_the_step.py").write_text("class Late(Exception): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    stored = keep_error(importlib.import_module("imported_by_the_step").Late("no"))
    # As in the next process.
    del sys.modules["imported_by_the_step"]
    assert type(restore_error("s", stored)).__qualname__ == "Late"


@pytest.mark.parametrize("name", ["gone.module:Gone", "builtins:print", "builtins:int", "builtins:BaseException", ""])
def test_what_is_no_exception_any_more_is_not_made(name: str) -> None:
    assert isinstance(restore_error("s", {"error": {"type": name, "arguments": ["no"], "message": "no"}}), StepError)
