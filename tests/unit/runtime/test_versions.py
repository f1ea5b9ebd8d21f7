"""A task that was begun with one version of its tool is run by another: it goes on, starts over, or fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest

from mcp_tasks.model import Progress, TaskRecord, TaskStatus
from mcp_tasks.model.machine import RunStartedOver
from mcp_tasks.runtime import Body, Ending, Run, TaskChange, TaskRuntime, ToolPolicy, current_task
from mcp_tasks.runtime.policy import OnOtherVersion
from mcp_tasks.stores import MemoryStore
from tests.unit.running import (
    HOUR,
    PARKS,
    SECOND,
    Finished,
    answer,
    asks,
    create,
    launch,
    ok,
    question,
    running,
    until,
    until_asking,
    until_final,
    until_parked,
)

pytestmark = pytest.mark.anyio


def policy(version: str | None, on_other: OnOtherVersion = "continue") -> ToolPolicy:
    return replace(PARKS, version=version, on_other_version=on_other)


@asynccontextmanager
async def version(
    store: MemoryStore, body: Body, number: str | None, on_other: OnOtherVersion = "continue", **options: Any
) -> AsyncGenerator[TaskRuntime]:
    """A server with the tool in that version."""
    async with running(body, store=store, policy=policy(number, on_other), **options) as runtime:
        yield runtime


class Work:
    """A tool that does a step, asks, and does another step; and what was done, by which version."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def body(self, version: str, *, asks: str = "Sure?", first: str = "first") -> Body:
        async def body(run: Run) -> Ending:
            await self._step(first, version)
            await run.report(Progress(progress=1))
            given = await run.ask(question(asks))
            await self._step("second", version)
            return ok([version, given])

        return body

    async def _step(self, name: str, version: str) -> None:
        async def do() -> None:
            self.done.append(f"{name} {version}")

        await current_task().step(name, do)


async def parked(store: MemoryStore, work: Work, number: str | None = "1") -> TaskRecord:
    """A task that version 1 of the tool has begun, and that waits for an answer."""
    async with version(store, work.body("1"), number) as runtime:
        return await until_parked(runtime, await launch(runtime), "elicitation-1")


def error(task: Finished) -> tuple[str, str]:
    assert task.error is not None, task
    return task.error["data"]["type"], task.error["message"]


async def test_a_new_version_goes_on_from_what_the_old_one_recorded_unless_its_author_says_otherwise() -> None:
    store, work = MemoryStore(), Work()
    task = await parked(store, work)
    async with version(store, work.body("2"), "2") as runtime:
        await answer(runtime, task, elicitation_1="yes")
        ended = await until_final(runtime, task)
        assert (ended.result, ended.tool_version) == ({"value": ["2", "yes"]}, "2")
    assert work.done == ["first 1", "second 2"]


@pytest.mark.parametrize(("before", "now"), [("1", "2"), ("2", "1"), (None, "1"), ("1", None)])
async def test_a_version_that_starts_over_does_everything_again(
    before: str | None, now: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="mcp_tasks.runtime.observers")
    store, work = MemoryStore(), Work()
    task = await parked(store, work, before)
    changes: list[TaskChange] = []
    async with version(store, work.body("2"), now, "restart", observers=[changes.append]) as runtime:
        await answer(runtime, task, elicitation_1="yes")
        again = await until(runtime, task, lambda record: "elicitation-2" in record.inputs.outstanding)
        assert again.inputs.outstanding.keys() == {"elicitation-2"}
        assert again.tool_version == now
        await answer(runtime, task, elicitation_2="no")
        ended = await until_final(runtime, task)
        assert ended.result == {"value": ["2", "no"]}
    assert work.done == ["first 1", "first 2", "second 2"]
    over = [change.event for change in changes if isinstance(change.event, RunStartedOver)]
    assert over == [RunStartedOver(attempt=2)]
    assert "(tool) starts over in run 2: its tool is another version than it was" in caplog.text


async def test_open_questions_and_progress_are_gone_once_a_run_has_started_over() -> None:
    store, gate = MemoryStore(), anyio.Event()

    async def asks_two(run: Run) -> Ending:
        await run.report(Progress(progress=1, total=2, message="half"))
        await asyncio.gather(run.ask(question("a")), run.ask(question("b")))
        return ok()

    async def waits_first(run: Run) -> Ending:
        await gate.wait()
        return ok(await run.ask(question("c")))

    async with version(store, asks_two, "1") as runtime:
        task = await launch(runtime)
        await until(runtime, task, lambda record: len(record.inputs.outstanding) == 2 and record.progress is not None)
    async with version(store, waits_first, "2", "restart") as runtime:
        over = await until(runtime, task, lambda record: record.attempt == 2)
        assert (over.status, dict(over.inputs.outstanding), over.progress) == (TaskStatus.WORKING, {}, None)
        # Nobody asks that any more, and a late answer is nobody's.
        assert await answer(runtime, task, elicitation_1="late") == over
        gate.set()
        asking = await until_asking(runtime, task)
        assert {key: ask.params["message"] for key, ask in asking.inputs.outstanding.items()} == {"elicitation-3": "c"}


async def test_a_version_that_fails_says_which_two_there_were_and_runs_nothing() -> None:
    store, work = MemoryStore(), Work()
    task = await parked(store, work)
    async with version(store, work.body("2"), "2", "fail") as runtime:
        await answer(runtime, task, elicitation_1="yes")
        ended = await until_final(runtime, task)
        assert (ended.status, ended.tool_version) == (TaskStatus.FAILED, "1")
        kind, message = error(ended)
        assert kind == "OtherVersion"
        assert "version 1 of 'tool'" in message
        assert "version 2" in message
    assert work.done == ["first 1"]


@pytest.mark.parametrize("on_other", ["continue", "restart", "fail"])
async def test_a_task_that_never_began_has_no_other_version(on_other: OnOtherVersion) -> None:
    store, work = MemoryStore(), Work()
    async with version(store, work.body("1"), "1", runs_tools=False) as runtime:
        task = await create(runtime)
    async with version(store, work.body("2"), "2", on_other) as runtime:
        await until_asking(runtime, task)
        await answer(runtime, task, elicitation_1="yes")
        assert (await until_final(runtime, task)).result == {"value": ["2", "yes"]}
    assert work.done == ["first 2", "second 2"]


# Replays that do not fit


async def test_a_version_that_does_something_else_is_refused_and_both_are_named() -> None:
    store, work = MemoryStore(), Work()
    task = await parked(store, work)
    async with version(store, work.body("2", first="renamed"), "2") as runtime:
        await answer(runtime, task, elicitation_1="yes")
        kind, message = error(await until_final(runtime, task))
    assert kind == "ReplayMismatch"
    assert "as version 2 and came to step 'renamed'" in message
    assert "step 'first', which version 1 of it recorded" in message
    assert 'on_other_version="restart"' in message


async def test_what_an_older_version_recorded_is_known_as_its_own_also_in_later_runs() -> None:
    store = MemoryStore()
    task = await parked(store, Work())

    def asks_twice(first: str) -> Body:
        async def body(run: Run) -> Ending:
            await current_task().step(first, lambda: None)
            await run.ask(question("Sure?"))
            return ok(await run.ask(question("Really?")))

        return body

    async with version(store, asks_twice("first"), "2") as runtime:
        await answer(runtime, task, elicitation_1="yes")
        await until_parked(runtime, task, "elicitation-2")
    async with version(store, asks_twice("renamed"), "2") as runtime:
        await answer(runtime, task, elicitation_2="yes")
        assert "step 'first', which version 1 of it recorded" in error(await until_final(runtime, task))[1]


@pytest.mark.parametrize("number", ["1", None])
async def test_without_another_version_no_version_is_named(number: str | None) -> None:
    store, work = MemoryStore(), Work()
    task = await parked(store, work, number)
    async with version(store, work.body("1", first="renamed"), number) as runtime:
        await answer(runtime, task, elicitation_1="yes")
        assert "version" not in error(await until_final(runtime, task))[1]


# Timers and children


async def test_a_sleep_is_slept_again_by_a_version_that_starts_over() -> None:
    store = MemoryStore()
    ends: list[str] = []

    async def sleeps(run: Run) -> Ending:
        await run.sleep(HOUR)
        ends.append("slept")
        return ok()

    async with version(store, sleeps, "1") as runtime:
        task = await until(runtime, await launch(runtime), lambda record: record.wake_at is not None)
    assert task.wake_at is not None
    later = task.wake_at + SECOND
    async with version(store, sleeps, "2", "restart", clock=lambda: later) as runtime:
        await runtime.janitor.sweep()
        again = await until(runtime, task, lambda record: record.attempt == 2 and record.wake_at is not None)
        assert again.wake_at == later + HOUR
    assert ends == []


async def test_a_version_that_starts_over_has_children_of_its_own() -> None:
    store, keys = MemoryStore(), list[str]()

    async def parent(run: Run) -> Ending:
        async def start(key: str) -> str:
            keys.append(key)
            return key

        await run.children.start("render", start)
        return await asks(run)

    async with version(store, parent, "1") as runtime:
        task = await until_parked(runtime, await launch(runtime), "elicitation-1")
    async with version(store, parent, "2", "restart") as runtime:
        await answer(runtime, task, elicitation_1="yes")
        await until_parked(runtime, task, "elicitation-2")
    assert len(set(keys)) == len(keys) == 2
    # And the same ones in every run since.
    async with version(store, parent, "2", "restart") as runtime:
        await answer(runtime, task, elicitation_2="yes")
        await until_final(runtime, task)
    assert len(keys) == 2
