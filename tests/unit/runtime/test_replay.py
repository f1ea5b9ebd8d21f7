"""A run that is started again, maybe by another version of its tool: it finds what earlier runs did, in their order."""

from __future__ import annotations

import asyncio
import logging
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import anyio
import pytest

from mcp_tasks.model import InputRequest, Progress, TaskRecord, TaskStatus
from mcp_tasks.model.machine import RunStartedOver
from mcp_tasks.model.options import OnOtherVersion
from mcp_tasks.runtime import Body, Ending, Run, TaskChange, TaskOptions, TaskRuntime, current_task
from mcp_tasks.runtime.context import Asking
from mcp_tasks.runtime.journal import PATIENCE
from mcp_tasks.stores import MemoryStore
from mcp_tasks.testing.clock import NOON
from tests.unit.running import (
    HOUR,
    PARKS,
    RERUN,
    SECOND,
    Finished,
    answer,
    asks,
    create,
    error_type,
    launch,
    loop_time,
    never_ending,
    ok,
    question,
    running,
    settle,
    twice,
    until,
    until_asking,
    until_final,
    until_parked,
)
from tests.unit.virtual_time import SIMULATED, time_passes


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """No test here waits for the time it is about."""
    return SIMULATED


def clock() -> datetime:
    return NOON + timedelta(seconds=loop_time())


class Tale:
    """A tool that runs twice, and what each run learned of, in order."""

    run: Run

    def __init__(self, tool: Callable[[Tale], Awaitable[object]]) -> None:
        self._tool = tool
        self.logs: dict[int, list[str]] = {}

    @property
    def log(self) -> list[str]:
        return self.logs[self.attempt]

    @property
    def attempt(self) -> int:
        return max(self.logs)

    async def step(self, name: str, seconds: float = 0.0) -> None:
        """A step that takes so long the first time it is done."""
        await current_task().step(name, partial(asyncio.sleep, seconds))
        self.log.append(name)

    async def body(self, run: Run) -> Ending:
        self.run, self.logs[run.attempt] = run, []
        await self._tool(self)
        return await asks(run)

    async def told(self) -> list[str]:
        """What both runs learned of, in the same order."""
        assert (await twice(self.body)).result == {"value": "yes"}
        assert self.logs[1] == self.logs[2]
        return self.logs[1]

    async def after_a_crash(self) -> Finished:
        """How the second run ends, where the first one has died in the middle of everything."""

        async def body(run: Run) -> Ending:
            self.logs[run.attempt] = []
            await self._tool(self)
            return ok() if run.attempt == 2 else await never_ending(run)

        options: dict[str, Any] = {"store": MemoryStore(), "policy": RERUN, "clock": clock, "sweep_interval": SECOND}
        async with running(body, **options) as one:
            task = await launch(one)
            await time_passes(1)
            await one.abandon()
        async with running(body, **options) as other:
            return await until_final(other, task, limit=100 * PATIENCE)


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)], ids=str)
async def test_branches_learn_of_things_in_the_order_in_which_they_ended_first(order: tuple[int, ...]) -> None:
    async def branch(tale: Tale, seconds: int) -> None:
        await tale.step(f"{seconds}", seconds)
        for _ in range(3):
            await asyncio.sleep(0)
        # What follows from a result happens before the next is handed over.
        tale.log.append(f"after {seconds}")

    tale = Tale(lambda tale: asyncio.gather(*(branch(tale, seconds) for seconds in order)))
    assert await tale.told() == ["1", "after 1", "2", "after 2", "3", "after 3"]


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 10, 30])
async def test_nothing_new_begins_before_everything_recorded_was_handed_over(turns: int) -> None:
    """In whatever turn of the event loop a branch comes to it."""

    async def slow(tale: Tale) -> None:
        for name in ("a", "b"):
            for _ in range(turns):
                await asyncio.sleep(0)
            await asyncio.gather(asyncio.gather(asyncio.sleep(0)))
            await tale.step(name)

    async def new(tale: Tale) -> None:
        if tale.attempt == 2:
            await tale.step("new")

    tale = Tale(lambda tale: asyncio.gather(new(tale), slow(tale)))
    assert (await tale.after_a_crash()).status is TaskStatus.COMPLETED
    assert tale.logs == {1: ["a", "b"], 2: ["a", "b", "new"]}


@pytest.mark.parametrize(("busy", "order"), [(PATIENCE / 2, ["a", "new"]), (10 * PATIENCE, ["new", "a"])])
async def test_a_branch_that_is_busy_elsewhere_is_waited_for_and_not_for_ever(busy: float, order: list[str]) -> None:
    async def slow(tale: Tale) -> None:
        if tale.attempt == 2:
            await time_passes(busy)
        await tale.step("a")

    async def new(tale: Tale) -> None:
        if tale.attempt == 2:
            await tale.step("new")

    tale = Tale(lambda tale: asyncio.gather(new(tale), slow(tale)))
    assert (await tale.after_a_crash()).status is TaskStatus.COMPLETED
    assert tale.logs[2] == order


@pytest.mark.parametrize("what", ["step", "timer"])
async def test_a_tool_that_begins_something_new_without_what_was_recorded_is_refused(what: str) -> None:
    async def fickle(tale: Tale) -> None:
        if tale.attempt == 2:
            await tale.step("refund")
        elif what == "step":
            await tale.step("charge")
        else:
            await current_task().sleep(timedelta(seconds=30), name="charge")

    tale = Tale(fickle)
    ended = await tale.after_a_crash()
    assert error_type(ended) == "ReplayMismatch"
    said = str(ended.status_message)
    assert f"came to step 'refund', which is new, without coming to {what} '" in said
    assert tale.logs[2] == [], "it goes no further"


@pytest.mark.parametrize("loses", ["step", "question", "sleep"])
async def test_what_a_branch_that_lost_a_race_had_begun_is_not_missed(loses: str) -> None:
    async def losing(tale: Tale) -> None:
        if loses == "step":
            await tale.step("lost", 1_000)
        elif loses == "sleep":
            await current_task().sleep(HOUR, name="lost")
        else:
            await tale.run.ask(question("Lost?"))

    async def race(tale: Tale) -> None:
        branches = [asyncio.create_task(tale.step("won", 1)), asyncio.create_task(losing(tale))]
        await asyncio.wait(branches, return_when=asyncio.FIRST_COMPLETED)
        branches[1].cancel()
        await asyncio.wait(branches)
        await tale.step("after")

    assert await Tale(race).told() == ["won", "after"]


@pytest.mark.parametrize("turns", range(1, 30, 4))
async def test_a_branch_may_be_cancelled_at_any_moment_of_a_hand_over(turns: int) -> None:
    """Whoever hands over comes to it before or after the branch itself has noticed."""

    async def cancelled_meanwhile(tale: Tale) -> None:
        branch = asyncio.create_task(tale.step("second", 2))
        if tale.attempt == 2:
            for _ in range(turns):
                await asyncio.sleep(0)
            # By a timer, whose turn is after that of all who only gave way.
            asyncio.get_running_loop().call_later(0, branch.cancel)
        await asyncio.wait({branch})

    async def tool(tale: Tale) -> None:
        await asyncio.gather(tale.step("first", 1), cancelled_meanwhile(tale))
        await tale.step("last")

    tale = Tale(tool)
    assert (await twice(tale.body)).status is TaskStatus.COMPLETED
    assert [name for name in tale.logs[2] if name != "second"] == ["first", "last"]


# What is the same question


async def keys_of(*asked: InputRequest | tuple[str, InputRequest]) -> list[str]:
    """Under which keys these are known when they are asked in that order, and again in the other one."""
    requests = [each if isinstance(each, tuple) else (None, each) for each in asked]

    async def body(run: Run) -> Ending:
        order = requests if run.attempt == 1 else requests[::-1]
        for key, request in order:
            with anyio.move_on_after(60):
                await run.ask(request, Asking(key=key))
        return ok()

    async with running(body, policy=RERUN) as runtime:
        task = await launch(runtime)
        for _ in requests:
            asking = await until_asking(runtime, task)
            (key,) = asking.inputs.outstanding
            await answer(runtime, task, **{key.replace("-", "_"): key})
            await settle()
        return [entry.key for entry in await runtime.store.journal(task.id) if entry.kind == "ask"]


async def test_keys_are_numbered_unless_their_author_gives_one_and_none_is_used_twice() -> None:
    city = ("city", question("Which one?"))
    named = ("elicitation-1", question("Taken?"))
    keys = await keys_of(question("a"), question("a"), city, city, city, named)
    assert keys == ["elicitation-1", "elicitation-2", "city", "city-2", "city-3", "elicitation-1-2"]


@pytest.mark.parametrize(
    ("before", "now", "is_same"),
    [
        ((None, question("a")), (None, question("a")), True),
        ((None, question("a")), (None, question("b")), False),
        ((None, question("a")), (None, InputRequest(method="sampling/createMessage", params={"message": "a"})), False),
        ((None, question("a")), (None, InputRequest(method="elicitation/create", params={})), False),
        (
            (None, InputRequest(method="m", params={"a": 1, "b": 2})),
            (None, InputRequest(method="m", params={"b": 2, "a": 1})),
            True,
        ),
        (("city", question("Which one, at 12:00?")), ("city", question("Which one, at 12:05?")), True),
        (("city", question("Which one?")), (None, question("Which one?")), False),
    ],
)
async def test_a_question_is_the_same_if_it_asks_the_same_or_has_the_same_key(
    before: tuple[str | None, InputRequest], now: tuple[str | None, InputRequest], is_same: bool
) -> None:
    async def body(run: Run) -> Ending:
        key, request = before if run.attempt == 1 else now
        return ok(await run.ask(request, Asking(key=key)))

    ended = await twice(body)
    assert (ended.result, error_type(ended)) == (({"value": "yes"}, None) if is_same else (None, "ReplayMismatch"))


# A tool whose branches are of every kind


async def _has_a_group_of_anyio(tale: Tale) -> None:
    async with anyio.create_task_group() as group:
        for name, seconds in (("c", 3), ("a", 1), ("b", 2)):
            group.start_soon(tale.step, name, seconds)


async def _waits_in_a_generator(tale: Tale) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @types.coroutine
    def waits() -> Generator[Any, Any, None]:
        yield from future

    async def ends_it() -> None:
        await tale.step("a", 1)
        await tale.step("b", 1)
        future.set_result(None)

    async with asyncio.TaskGroup() as group:
        group.create_task(ends_it())
        await waits()
        await tale.step("c")


async def _takes_turns(tale: Tale) -> None:
    stepping = asyncio.gather(tale.step("a", 0.001), tale.step("b", 0.002))
    while not stepping.done():  # noqa: ASYNC110 - this is what it is about
        await asyncio.sleep(0.0001)
    await tale.step("c")


@pytest.mark.parametrize(
    "tool", [_has_a_group_of_anyio, _waits_in_a_generator, _takes_turns], ids=lambda tool: tool.__name__
)
async def test_whatever_kind_of_branches_a_tool_has_it_learns_of_things_in_the_same_order(
    tool: Callable[[Tale], Awaitable[object]],
) -> None:
    assert await Tale(tool).told() == ["a", "b", "c"]


# Another version of the tool


def policy(version: str | None, on_other: OnOtherVersion = "continue") -> TaskOptions:
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


@pytest.mark.parametrize("anyio_backend", ["asyncio"], ids=["observers have threads"])
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
        assert (again.inputs.outstanding.keys(), again.tool_version) == ({"elicitation-2"}, now)
        await answer(runtime, task, elicitation_2="no")
        ended = await until_final(runtime, task)
        assert ended.result == {"value": ["2", "no"]}
    assert work.done == ["first 1", "first 2", "second 2"]
    over = [change.event for change in changes if isinstance(change.event, RunStartedOver)]
    assert over == [RunStartedOver(attempt=2)]
    assert "(tool) starts over in run 2: its tool is another version than it was" in caplog.text


async def test_a_version_that_fails_says_which_two_there_were_and_runs_nothing() -> None:
    store, work = MemoryStore(), Work()
    task = await parked(store, work)
    async with version(store, work.body("2"), "2", "fail") as runtime:
        await answer(runtime, task, elicitation_1="yes")
        ended = await until_final(runtime, task)
        assert (ended.status, ended.tool_version) == (TaskStatus.FAILED, "1")
        kind, message = error(ended)
        assert kind == "tool_version"
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


async def test_a_version_that_starts_over_has_children_of_its_own() -> None:
    store, keys = MemoryStore(), list[str]()

    async def parent(run: Run) -> Ending:
        async def start(key: str) -> str:
            keys.append(key)
            return key

        await run.waits.start_child("render", start)
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
