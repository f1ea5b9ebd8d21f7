"""The log: one line for each thing that an operator wants to know of a task, and nothing of what it was about."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

import anyio
import pytest

from harness.waiting import eventually
from mcp_tasks.model import TaskRequest
from mcp_tasks.runtime import AskedOnCall, Ending, Failure, Run, Success, TaskRuntime, ToolPolicy
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import EVERYBODY
from mcp_tasks.testing import FakeClock
from tests.unit.running import (
    ONCE,
    RERUN,
    answer,
    cancel,
    launch,
    ok,
    question,
    running,
    until,
    until_asking,
    until_final,
)

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)
SECRET = "hunter2"


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="mcp_tasks.runtime.observers")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said of the tasks, without which task it was."""
    said = [record.getMessage() for record in caplog.records if record.name == "mcp_tasks.runtime.observers"]
    return [re.sub(r"^task task_[\w-]{7}… \(tool\) ", "", line) for line in said]


async def at_once(run: Run) -> Ending:
    return ok(SECRET)


async def asking(run: Run) -> Ending:
    return ok(await run.ask(question(SECRET)))


async def test_the_life_of_a_task_that_completes(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    go_on = anyio.Event()

    async def body(run: Run) -> Ending:
        await go_on.wait()
        return ok(SECRET)

    async with running(body, clock=clock) as runtime:
        task = await until(runtime, await launch(runtime, secret=SECRET), lambda record: record.attempt == 1)
        clock.advance(timedelta(seconds=12.34))
        go_on.set()
        await until_final(runtime, task)
    assert lines(caplog) == ["was created", "was started: run 1", "completed after 12.3 s, in run 1"]


async def test_nothing_of_arguments_questions_answers_results_and_errors_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(run: Run) -> Ending:
        await asking(run)
        return Failure({"code": -1, "message": SECRET})

    async with running(body) as runtime:
        task = await until_asking(runtime, await launch(runtime, secret=SECRET))
        await answer(runtime, task, elicitation_1=SECRET)
        await until_final(runtime, task)
        await cancel(runtime, await until_asking(runtime, await launch(runtime)), SECRET)
    said = lines(caplog)
    assert "failed after 0 s, in run 1" in re.sub(r"after \S+ s", "after 0 s", "\n".join(said))
    assert SECRET not in "\n".join(said)


async def test_waiting_is_said_when_it_asks_and_when_it_is_parked(caplog: pytest.LogCaptureFixture) -> None:
    async with running(asking, policy=ToolPolicy(rerun=True, park_after=timedelta(0))) as runtime:
        task = await until(
            runtime, await launch(runtime), lambda record: record.worker is None and bool(record.inputs.outstanding)
        )
        await answer(runtime, task, elicitation_1="yes")
        await until_final(runtime, task)
    assert lines(caplog)[2:5] == [
        "waits: it asks the client 1 question (1 open)",
        "was parked: run 1 waits and has left memory",
        "was started: run 2",
    ]


@asynccontextmanager
async def after_a_crash(policy: ToolPolicy) -> AsyncGenerator[TaskRuntime]:
    """A process that takes over from one that died in the middle of a task."""
    store = MemoryStore()

    async def body(run: Run) -> Ending:
        await anyio.sleep_forever()
        return ok()

    async with running(body, store=store, policy=policy) as one:
        await until(one, await launch(one), lambda record: record.attempt == 1)
        await one.abandon()
    async with running(at_once, store=store, policy=policy) as other:
        (task,) = (await other.list(EVERYBODY)).records
        await until_final(other, task)
        yield other


async def test_a_lost_run_that_is_started_again_is_said_to_be_recovered(caplog: pytest.LogCaptureFixture) -> None:
    async with after_a_crash(RERUN):
        pass
    assert "was recovered: run 1 died with its process, and it will run again" in lines(caplog)
    assert lines(caplog)[-1].endswith("in run 2")


async def test_a_lost_run_that_is_not_started_again_is_said_to_be_interrupted(caplog: pytest.LogCaptureFixture) -> None:
    async with after_a_crash(ONCE):
        pass
    assert re.fullmatch(r"failed after \S+ s, in run 1: interrupted", lines(caplog)[-1])


async def test_a_tool_that_asks_on_the_call_is_said_to(caplog: pytest.LogCaptureFixture) -> None:
    async def body(run: Run) -> Ending:
        await run.ask_on_call({"question": SECRET})
        return AskedOnCall()

    async with running(body) as runtime:
        request = TaskRequest(name="tool", arguments={})
        await until_final(runtime, await runtime.launch(request, owner=None, retention=None, announced=False))
    assert lines(caplog)[-1].endswith("its tool asks on the original call")
    assert SECRET not in caplog.text


async def test_deletion_is_for_those_who_want_to_know_everything(caplog: pytest.LogCaptureFixture) -> None:
    for level, said in ((logging.INFO, False), (logging.DEBUG, True)):
        caplog.set_level(level, logger="mcp_tasks.runtime.observers")
        async with running(at_once) as runtime:
            task = await until_final(runtime, await launch(runtime))
            await runtime.discard(task)
        assert ("was deleted" in lines(caplog)) is said


async def test_where_nobody_reads_it_nothing_is_queued(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="mcp_tasks.runtime.observers")
    async with running(at_once) as runtime:
        await until_final(runtime, await launch(runtime))
        assert "mcp-tasks-observers" not in {thread.name for thread in threading.enumerate()}
    assert lines(caplog) == []


async def test_a_log_level_that_is_changed_while_the_server_runs_counts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="mcp_tasks.runtime.observers")
    async with running(at_once, look_interval=timedelta(milliseconds=5)) as runtime:
        await until_final(runtime, await launch(runtime))
        assert lines(caplog) == []
        caplog.set_level(logging.INFO, logger="mcp_tasks.runtime.observers")

        async def another_is_told_of() -> bool:
            await until_final(runtime, await launch(runtime))
            return "was created" in lines(caplog)

        await eventually(another_is_told_of)


async def test_a_failure_that_is_not_the_tools_is_a_warning_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    async def endless(run: Run) -> Ending:
        await anyio.sleep_forever()
        return ok()

    policy = ToolPolicy(max_runtime=timedelta(milliseconds=10))
    async with running(endless, policy=policy) as runtime:
        await until_final(runtime, await launch(runtime))
    (warning,) = [
        record
        for record in caplog.records
        if record.name == "mcp_tasks.runtime.observers" and record.levelno == logging.WARNING
    ]
    assert warning.getMessage().endswith("in run 1: max_runtime")


async def test_a_result_that_is_an_error_is_said_to_be_one(caplog: pytest.LogCaptureFixture) -> None:
    async def wrong(run: Run) -> Ending:
        return Success({"content": [], "isError": True})

    async with running(wrong) as runtime:
        await until_final(runtime, await launch(runtime))
    assert lines(caplog)[-1].startswith("completed with an error of its tool (isError) after")


async def test_a_run_that_is_given_up_when_its_process_stops_is_said_to_be_released(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(run: Run) -> Ending:
        await anyio.sleep_forever()
        return ok()

    async with running(body, policy=RERUN) as runtime:
        await until(runtime, await launch(runtime), lambda record: record.attempt == 1)
    assert lines(caplog)[-1] == "was released: run 1 was given up, and it will run again"
