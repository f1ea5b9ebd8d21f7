"""Answers that are given once: what becomes of those that cannot be written."""

from __future__ import annotations

import pytest

from mcp_tasks.core import TaskRecord
from mcp_tasks.errors import AnswerRefused
from mcp_tasks.protocol.taking import take_answer
from mcp_tasks.runtime import Ending, Run
from mcp_tasks.testing import make_record
from tests.unit.running import launch, ok, question, running, until_asking, until_final

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


async def test_an_answer_to_a_task_that_is_gone_comes_to_nothing() -> None:
    gone: TaskRecord = make_record()
    async with running(asking) as runtime:
        await take_answer(lambda: runtime, gone, "elicitation-1", {"action": "decline"})
        assert await runtime.store.get(gone.id) is None
