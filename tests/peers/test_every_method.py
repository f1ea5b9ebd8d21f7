"""Every method of both eras, spoilt in thousands of ways: a defined error or a right answer, and nothing else.

`python -m tests.peers.soak` goes on for as long as one likes.
"""

from __future__ import annotations

import pytest

from harness.rpc import request
from harness.thoroughness import examples
from tests.peers.nasty import Raw, written
from tests.peers.stage import Fuzz, call, fault_in, messages_of, modern_messages, older_messages, result_of, stage
from tests.short.raw import Answer

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]


@pytest.mark.requirement("errors/clearly-invalid")
async def test_whatever_is_sent_is_refused_or_answered_and_nothing_is_left_behind() -> None:
    async with stage() as staged:
        fuzz = Fuzz(staged, seed=13)
        faults = [fault for _ in range(examples(400)) if (fault := await fuzz.one()) is not None]
        assert faults == []
        await staged.still_answers()
        # Each call that became a task has one that can be read: none is half there.
        async for task in staged.tasks.list_all(everybody=True):
            seen = await staged.modern(request("tasks/get", {"taskId": task.id}))
            assert result_of(seen)["taskId"] == task.id


def is_refused(answer: Answer) -> bool:
    return answer.status != 200 or any("error" in message for message in messages_of(answer))


async def test_the_messages_that_are_spoilt_were_good() -> None:
    """Otherwise all would be refused at the first look, and nothing behind it be seen."""
    async with stage() as staged:
        refused: list[str] = []
        for good in modern_messages(staged):
            refused += [good["method"]] if is_refused(await staged.modern(good)) else []
        # Unknown tasks, and a question that is none.
        assert sorted(refused) == ["tasks/cancel", "tasks/get"]
        older: list[str] = []
        for good in older_messages(staged):
            answer = await staged.older(good)
            older += [good.get("method", "answer")] if is_refused(answer) and answer.status != 202 else []
        # An unknown task, a task that has ended, a cursor that is none, and the outcome of a call that failed.
        assert sorted(older) == ["tasks/cancel", "tasks/get", "tasks/list", "tasks/result"]


async def test_brackets_within_brackets_are_refused_or_answered() -> None:
    async with stage() as staged:
        for depth in (60, 100, 500, 20_000):
            deep = call("echo", {"value": Raw("[" * depth + "]" * depth)})
            answer = await staged.modern(call("echo", {}), written(deep).encode())
            assert fault_in(answer, 0) is None
        await staged.still_answers()
        assert staged.complaints.lines == []
