"""Questions that were answered with an error: the tool gets it, in every run, and no answer can be taken for one."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from mcp_tasks.errors import AnswerRefused
from mcp_tasks.model import TaskRecord
from mcp_tasks.protocol.errors import to_error_data
from mcp_tasks.runtime import Ending, Run, TaskRuntime, ToolPolicy
from mcp_tasks.stores import MemoryStore
from tests.unit.running import CLIENT, RERUN, answer, launch, ok, question, running, until, until_asking, until_final

pytestmark = pytest.mark.anyio

AT_ONCE = ToolPolicy(rerun=True, park_after=timedelta(0))
"""Leaves memory as soon as it waits, so that the answer reaches another run."""

NO = AnswerRefused(-1, "User rejected it", {"why": [1]})


def told(exc: AnswerRefused) -> list[object]:
    return [exc.code, exc.message, exc.data]


async def until_parked(runtime: TaskRuntime, task: TaskRecord, key: str) -> TaskRecord:
    """The task once it asks this and no run has it."""
    return await until(runtime, task, lambda record: key in record.inputs.outstanding and record.worker is None)


async def ask_one(run: Run) -> Ending:
    try:
        return ok(await run.ask(question("Sure?")))
    except AnswerRefused as exc:
        return ok(told(exc))


async def ask_until_it_works(run: Run) -> Ending:
    said: list[object] = []
    for number in (1, 2):
        try:
            said.append(await run.ask(question(f"Sure? ({number})")))
        except AnswerRefused as exc:
            said.append(told(exc))
    return ok(said)


@pytest.mark.parametrize("policy", [RERUN, AT_ONCE], ids=["in memory", "parked"])
async def test_an_error_reaches_the_tool(policy: ToolPolicy) -> None:
    async with running(ask_one, policy=policy) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await runtime.refuse(task, "elicitation-1", NO, actor=CLIENT)
        assert (await until_final(runtime, task)).result == {"value": [-1, "User rejected it", {"why": [1]}]}


async def test_an_error_is_raised_again_in_the_next_run() -> None:
    async with running(ask_until_it_works, policy=AT_ONCE) as runtime:
        task = await until_parked(runtime, await launch(runtime), "elicitation-1")
        await runtime.refuse(task, "elicitation-1", NO, actor=CLIENT)
        task = await until_parked(runtime, task, "elicitation-2")
        await answer(runtime, task, elicitation_2={"action": "accept"})
        record = await until_final(runtime, task)
        assert record.attempt == 3
        assert record.result == {"value": [[-1, "User rejected it", {"why": [1]}], {"action": "accept"}]}


async def test_of_questions_that_are_put_together_one_may_be_refused_in_every_run() -> None:
    attempts: list[int] = []

    async def ask_all(run: Run) -> Ending:
        attempts.append(run.attempt)
        try:
            await run.ask_all({"one": question("One?"), "two": question("Two?")})
        except AnswerRefused as exc:
            return ok([told(exc), await run.ask(question("Really?"))])
        return ok("no error")

    async with running(ask_all, policy=AT_ONCE) as runtime:
        task = await until_parked(runtime, await launch(runtime), "elicitation-1")
        first, second = sorted(task.inputs.outstanding)
        task = await runtime.answer(task, {second: {"action": "accept"}}, actor=CLIENT)
        await runtime.refuse(task, first, NO, actor=CLIENT)
        task = await until_parked(runtime, task, "elicitation-3")
        await answer(runtime, task, elicitation_3={"action": "accept"})
        record = await until_final(runtime, task)
        assert record.result == {"value": [[-1, "User rejected it", {"why": [1]}], {"action": "accept"}]}
        assert len(attempts) > 1


async def test_only_the_first_of_an_answer_and_an_error_counts() -> None:
    async with running(ask_one) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await asyncio.gather(
            runtime.refuse(task, "elicitation-1", NO, actor=CLIENT),
            answer(runtime, task, elicitation_1={"action": "accept"}),
        )
        record = await until_final(runtime, task)
        journal = await runtime.store.journal(task.id)
        assert [entry.kind for entry in journal if entry.kind in ("answer", "refusal")] in (["answer"], ["refusal"])
        assert record.result in ({"value": [-1, "User rejected it", {"why": [1]}]}, {"value": {"action": "accept"}})


async def test_an_answer_that_looks_like_an_error_is_an_answer() -> None:
    forged = {"code": -1, "message": "User rejected it", "data": None, "error": {"code": -1}}
    async with running(ask_one, store=MemoryStore()) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await answer(runtime, task, elicitation_1=forged)
        assert (await until_final(runtime, task)).result == {"value": forged}


def test_the_error_that_a_client_sent_is_the_one_that_a_failed_task_has() -> None:
    error = to_error_data(NO)
    assert (error.code, error.message, error.data) == (-1, "User rejected it", {"why": [1]})
