"""How a run ends, as it is kept: results as bytes without the mark of an era, errors, and the largest result."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from mcp_tasks.errors import InvalidOption, ResultTooLarge, UsageError
from mcp_tasks.model import TaskStatus
from mcp_tasks.model.json import LARGE, LONGEST_MESSAGE
from mcp_tasks.model.limits import Limits
from mcp_tasks.runtime import AskedOnCall, Ending, Failure, Run, Success
from mcp_tasks.runtime.run import completed, failed, last_words
from tests.unit.running import launch, ok, running, until_final

pytestmark = pytest.mark.anyio


async def test_the_meta_of_a_result_is_kept_apart() -> None:
    _, outcome = await completed(1, {"content": [], "_meta": {"a": "b"}}, tool="tool", max_size=100)
    assert (outcome.body, outcome.meta) == (b'{"content":[]}', b'{"a":"b"}')


async def test_a_result_without_meta_has_none() -> None:
    _, outcome = await completed(1, {"content": []}, tool="tool", max_size=100)
    assert outcome.meta is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([{"type": "text", "text": "no paper"}, {"type": "text", "text": "really"}], "no paper"),
        ([{"type": "image", "data": "AA"}, {"type": "text", "text": " "}, {"type": "text", "text": "b"}], "b"),
        ([{"type": "text", "text": "x" * (LONGEST_MESSAGE + 1)}], "x" * (LONGEST_MESSAGE - len("…".encode())) + "…"),
        ([], None),
        ([7, {"text": 7}], None),
        ("odd", None),
    ],
)
async def test_what_a_tool_says_of_its_error_is_kept_with_the_end(content: Any, said: str | None) -> None:
    event, _ = await completed(1, {"content": content, "isError": True}, tool="tool", max_size=10_000)
    assert (event.is_error, event.message) == (True, said)
    event, _ = await completed(1, {"content": content, "isError": False}, tool="tool", max_size=10_000)
    assert (event.is_error, event.message) == (False, None)


@pytest.mark.parametrize("size", [10, LARGE * 3])
async def test_text_that_is_not_unicode_is_refused_whatever_the_size(size: int) -> None:
    with pytest.raises(UsageError, match="The result of tool 'tool' holds text that is not valid Unicode"):
        await completed(1, {"text": "x" * size + "\ud800"}, tool="tool", max_size=LARGE * 10)


async def test_a_large_result_is_encoded_in_another_thread() -> None:
    threads: set[int] = set()

    class Watched(dict[str, Any]):
        def items(self) -> Any:
            threads.add(threading.get_ident())
            return super().items()

    result = {"large": Watched({str(n): "x" * 1_000 for n in range(200)})}
    _, outcome = await completed(1, result, tool="tool", max_size=LARGE * 10)
    assert json.loads(outcome.body) == result
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("result", [{"content": "x" * 91}, {"_meta": {"of": "x" * 93}}], ids=["body", "meta"])
async def test_the_largest_result_that_is_kept_is_a_limit_in_bytes(result: dict[str, Any]) -> None:
    size = sum(len(part) for part in _parts((await completed(1, result, tool="tool", max_size=10_000))[1]))
    await completed(1, result, tool="tool", max_size=size)
    with pytest.raises(ResultTooLarge) as refused:
        await completed(1, result, tool="tool", max_size=size - 1)
    assert (refused.value.size, refused.value.limit) == (size, size - 1)


def _parts(outcome: Any) -> list[bytes]:
    return [outcome.body, outcome.meta or b""]


async def test_a_task_with_too_large_a_result_fails_and_says_what_the_limit_is() -> None:
    async def body(run: Run) -> Ending:
        return ok("x" * 2_000)

    async with running(body, limits=Limits(result_bytes=1_000)) as runtime:
        task = await until_final(runtime, await launch(runtime))
        assert task.status is TaskStatus.FAILED
        assert task.error is not None
        assert task.error["data"] == {"type": "ResultTooLarge"}
        assert "'tool'" in task.error["message"]
        assert "1,000" in task.error["message"]
        assert "Limits.result_bytes" in task.error["message"]


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "16 MB"])
def test_a_limit_that_is_not_a_number_of_bytes_is_refused(size: Any) -> None:
    with pytest.raises(InvalidOption, match="result_bytes"):
        Limits(result_bytes=size)


def test_the_message_of_an_error_is_what_the_task_says() -> None:
    event, outcome = failed(3, {"code": -1, "message": "out of paper"})
    assert (event.attempt, event.message) == (3, "out of paper")
    assert json.loads(outcome.body) == {"code": -1, "message": "out of paper"}


async def test_a_long_message_of_an_error_is_cut_in_the_record_and_whole_in_the_outcome() -> None:
    long = "x" * 100_000

    async def body(run: Run) -> Ending:
        return Failure({"code": -1, "message": long})

    async with running(body) as runtime:
        task = await until_final(runtime, await launch(runtime))
        record = await runtime.get(task.id, owner=None)
        assert record.status_message == long[: LONGEST_MESSAGE - len("…".encode())] + "…"
        assert task.error == {"code": -1, "message": long}


@pytest.mark.parametrize("error", [{"message": "x" * 2_000}, {"message": "", "data": ["x" * 2_000]}])
async def test_a_task_with_too_large_an_error_fails_with_one_that_says_so(error: dict[str, Any]) -> None:
    async def body(run: Run) -> Ending:
        return Failure({"code": -1, **error})

    async with running(body, limits=Limits(result_bytes=1_000)) as runtime:
        task = await until_final(runtime, await launch(runtime))
        assert task.status is TaskStatus.FAILED
        assert task.error is not None
        assert task.error["data"] == {"type": "ErrorTooLarge"}
        assert "The error of tool 'tool' has 2,0" in task.error["message"]
        assert "at most 1,000 are kept (Limits.result_bytes)" in task.error["message"]


async def test_a_large_error_is_encoded_in_another_thread() -> None:
    threads: set[int] = set()

    class Watched(dict[str, Any]):
        def items(self) -> Any:
            threads.add(threading.get_ident())
            return super().items()

    error = {"code": -1, "message": "odd", "data": Watched({str(n): "x" * 1_000 for n in range(200)})}
    _, outcome = await last_words(Failure(error), 1, tool="tool", describe=lambda _: {}, limits=Limits())
    assert json.loads(outcome.body) == error
    assert threads
    assert threading.get_ident() not in threads


async def test_a_task_keeps_its_result_and_its_record_stays_small() -> None:
    async def body(run: Run) -> Ending:
        return Success({"content": ["x" * 100_000]})

    async with running(body) as runtime:
        task = await until_final(runtime, await launch(runtime))
        record = await runtime.get(task.id, owner=None)
        assert task.result == {"content": ["x" * 100_000]}
        assert len(repr(record)) < 2_000


async def test_an_error_that_is_not_json_still_ends_its_task() -> None:
    async def body(run: Run) -> Ending:
        return Failure({"code": -1, "message": "odd", "data": object()})

    async with running(body) as runtime:
        assert (await until_final(runtime, await launch(runtime))).status is TaskStatus.FAILED


async def test_a_body_that_only_says_that_it_asked_on_the_call_fails() -> None:
    async def body(run: Run) -> Ending:
        return AskedOnCall()

    async with running(body) as runtime:
        assert (await until_final(runtime, await launch(runtime))).status is TaskStatus.FAILED
