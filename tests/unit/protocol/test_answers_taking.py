"""Answers that are given once: what becomes of those that cannot be written."""

from __future__ import annotations

import logging

import pytest
from mcp_types import INVALID_PARAMS

from mcp_tasks.errors import AnswerRefused
from mcp_tasks.model import InputBook
from mcp_tasks.model.limits import Limits
from mcp_tasks.protocol.answers import misfit, misfits, take_answer
from mcp_tasks.runtime import Ending, Run
from mcp_tasks.testing import make_record
from tests.unit.running import FailingStore, launch, ok, question, running, until_asking, until_final

pytestmark = pytest.mark.anyio


async def asking(run: Run) -> Ending:
    try:
        return ok(await run.ask(question("Sure?")))
    except AnswerRefused as exc:
        return ok(str(exc))


async def test_an_answer_that_cannot_be_stored_reaches_the_tool_as_a_refusal(caplog: pytest.LogCaptureFixture) -> None:
    async with running(asking) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await take_answer(lambda: runtime, task, "elicitation-1", {"action": "accept", "content": {"a": {1, 2}}})
        ended = await until_final(runtime, task)
    assert ended.result is not None
    assert "cannot be stored" in ended.result["value"]
    assert "cannot be stored" in caplog.text


async def test_an_answer_to_a_task_that_is_gone_comes_to_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mcp_tasks.protocol.answers")
    gone = make_record(inputs=InputBook().ask({"q": question("Sure?")}))
    async with running(asking) as runtime:
        await take_answer(lambda: runtime, gone, "q", {"action": "decline"})
        assert await runtime.store.get(gone.id) is None
    assert "came to nothing" in caplog.text


async def test_an_answer_waits_for_a_store_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    store = FailingStore()
    async with running(asking, store=store) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        store.refuse_save(lambda record: True, times=1)
        await take_answer(lambda: runtime, task, "elicitation-1", {"action": "decline"})
        ended = await until_final(runtime, task)
    assert ended.result == {"value": {"action": "decline"}}
    assert "is not stored yet" in caplog.text


def test_what_is_wrong_with_an_answer_is_for_its_tool_to_see() -> None:
    record = make_record(inputs=InputBook().ask({"q": question("Sure?")}))
    assert misfit(record, "q", {"action": "decline"}, Limits()) is None
    wrong = misfit(record, "q", {"action": "perhaps"}, Limits())
    assert wrong is not None
    assert (wrong.code, "does not fit" in wrong.message) == (INVALID_PARAMS, True)
    large = misfit(record, "q", {"action": "decline", "_meta": {"a": "x" * 100}}, Limits(answer_bytes=50))
    assert large is not None
    assert (large.code, "50" in large.message) == (INVALID_PARAMS, True)


def test_answers_that_came_together_are_refused_together_where_they_are_too_many_values() -> None:
    asked = InputBook().ask({"p": question("Sure?"), "q": question("Sure?")})
    record, long = make_record(inputs=asked), {"action": "accept", "content": {"more": ["x"] * 1_500}}
    assert misfits(record, {"p": long, "q": {"action": "decline"}}, Limits()) == {"p": None, "q": None}
    refused = misfits(record, {"p": long, "q": long}, Limits())
    assert all(each is not None and "2,000 values in all" in str(each) for each in refused.values())
