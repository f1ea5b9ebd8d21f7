"""Making tasks: who answers the original call, keys, slots, room, and owners."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest

from mcp_tasks.errors import LimitExceeded, OwnerRequired, StoreUnavailable, TaskExists, UnknownTask
from mcp_tasks.model import TaskRecord, TaskStatus
from mcp_tasks.model.limits import Limits
from mcp_tasks.runtime import AskedOnCall, Ending, Run, TaskRuntime, ToolPolicy
from mcp_tasks.runtime.changes import MAX_ID_LENGTH
from mcp_tasks.runtime.launch import LaunchSpec, new_task_id
from mcp_tasks.runtime.questions import ANNOUNCED_WITHIN
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import EVERYBODY
from tests.unit.losing import as_of_now
from tests.unit.running import (
    HOUR,
    PARKS,
    REQUEST,
    Held,
    MeddledStore,
    Seconds,
    Tool,
    answer,
    asks,
    at_once,
    cancel,
    error_type,
    launch,
    ok,
    opened_by,
    running,
    settle,
    until,
    until_asking,
    until_final,
)
from tests.unit.virtual_time import simulated, time_passes

pytestmark = pytest.mark.anyio

QUESTION = {"inputRequests": {"name": {"method": "elicitation/create"}}}


async def start(runtime: TaskRuntime, owner: str | None = None, **options: Any) -> TaskRecord:
    return await runtime.launch(LaunchSpec(request=REQUEST, owner=owner, **options))


async def asks_on_call(run: Run) -> Ending:
    if await run.ask_on_call(QUESTION):
        return AskedOnCall()
    return await asks(run)


# The call and the tool


async def test_a_tool_asks_on_the_call_while_its_task_is_not_announced() -> None:
    async with running(asks_on_call) as runtime:
        launched = await start(runtime, announced=False)
        task = await until_final(runtime, launched)
        assert (task.status, task.announced) == (TaskStatus.CANCELLED, False)
        outcome = await runtime.outcome(task.id)
        assert outcome is not None
        assert json.loads(outcome.body) == QUESTION
        late = await runtime.announce(launched)
        assert (late.is_final, late.announced) == (True, False)
        await runtime.discard(late)
        with pytest.raises(UnknownTask):
            await runtime.announce(launched)


async def test_an_announced_task_asks_in_the_task() -> None:
    async with running(asks_on_call) as runtime:
        assert (await until_asking(runtime, await start(runtime))).announced


async def test_of_the_call_and_the_tool_the_first_to_write_wins() -> None:
    store = MeddledStore()
    async with running(asks_on_call, store=store) as runtime, running(asks_on_call, store=store) as other:

        async def announce(record: TaskRecord, **options: Any) -> None:
            del store.before["save"]
            await other.announce(await as_of_now(other, record))

        store.before["save"] = announce
        task = await until_asking(runtime, await start(runtime, announced=False))
        assert task.announced
        assert await runtime.announce(task) == task, "once is enough"
        assert await runtime.outcome(task.id) is None


async def test_a_tool_whose_task_was_cancelled_does_not_go_on_after_asking_on_the_call() -> None:
    asking, went_on = anyio.Event(), False

    async def body(run: Run) -> Ending:
        nonlocal went_on
        with anyio.CancelScope(shield=True):
            await asking.wait()
        await run.ask_on_call(QUESTION)
        went_on = True
        return ok()

    async with running(body) as runtime:
        task = await until(runtime, await start(runtime, announced=False), lambda record: record.attempt == 1)
        await cancel(runtime, task)
        asking.set()
        await settle()
        assert await runtime.outcome(task.id) is None
        assert not went_on


@simulated
async def test_a_question_that_nobody_can_answer_ends_its_task() -> None:
    async with running(asks, policy=PARKS) as runtime:
        ended = await until_final(runtime, await start(runtime, announced=False), 2 * ANNOUNCED_WITHIN)
        assert ended.status is TaskStatus.FAILED
        assert "nobody can answer" in str(ended.status_message)


@simulated
@pytest.mark.parametrize("rerun", [True, False], ids=["parked", "in memory"])
async def test_a_task_that_is_announced_once_it_asks_waits_for_its_answer(rerun: bool) -> None:
    async with running(asks, policy=replace(PARKS, rerun=rerun)) as runtime:
        task = await start(runtime, announced=False)
        await until_asking(runtime, task)
        await settle()
        await runtime.announce(task)
        await until(runtime, task, lambda record: (record.worker is None) == rerun)
        await time_passes(2 * ANNOUNCED_WITHIN)
        assert (await as_of_now(runtime, task)).status is TaskStatus.INPUT_REQUIRED
        await answer(runtime, task, elicitation_1="Ada")
        assert (await until_final(runtime, task)).result == {"value": "Ada"}


# Keys and ids


async def test_a_task_under_an_idempotency_key_is_made_once() -> None:
    gate, runs = anyio.Event(), list[str]()

    async def body(run: Run) -> Ending:
        runs.append(run.record.id)
        return await opened_by(gate)(run)

    async with running(body, concurrency=1) as runtime:
        launched = [await start(runtime, owner="ann", key="k") for _ in range(3)]
        another = await start(runtime, owner="bob", key="k")
        await settle()
        assert len({task.id for task in launched}) == 1
        assert runs == [launched[0].id]
        assert (another.owner, another.attempt) == ("bob", 0), "the first has the only slot"
        gate.set()
        await until_final(runtime, another)
        assert (await start(runtime, owner="ann", key="k")).id == launched[0].id
        assert (await until_final(runtime, await start(runtime))).attempt == 1, "the slot that was kept is free again"


async def test_a_key_that_counts_until_the_end_gives_the_running_task_and_then_a_new_one() -> None:
    gate = anyio.Event()
    async with running(opened_by(gate), concurrency=1) as runtime:
        join = partial(start, runtime, owner="ann", key="k", key_until_end=True)
        first = await join(task_id="task_mine")
        assert first.id == "task_mine"
        assert (await join(task_id="task_never")).id == first.id
        gate.set()
        await until_final(runtime, first)
        second = await until_final(runtime, await join())
        assert second.id != first.id
        assert (await until_final(runtime, first)).result == second.result == {"value": "ok"}


async def test_an_id_that_the_caller_chose_is_refused_if_it_is_taken() -> None:
    async with running(asks, concurrency=1) as runtime:
        await start(runtime, task_id="task_mine")
        with pytest.raises(TaskExists):
            await start(runtime, task_id="task_mine")


def test_ids_are_not_to_be_guessed() -> None:
    ids = {new_task_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(task_id) == len("task_") + 27 and len(task_id) <= MAX_ID_LENGTH for task_id in ids)


@pytest.mark.parametrize("owner", [None, ""])
async def test_where_every_task_has_an_owner_none_is_made_without_one(owner: str | None) -> None:
    async with running(asks, requires_owner=True) as runtime:
        with pytest.raises(OwnerRequired, match="'tool' has to have an owner"):
            await start(runtime, owner=owner)
        assert (await start(runtime, owner="ann")).owner == "ann"


# Room


class KeyBlindStore(MemoryStore):
    """Cannot find a task by its key without making one."""

    id_under: Any = None


@pytest.mark.parametrize("store", [MemoryStore, KeyBlindStore])
async def test_who_comes_for_a_task_that_is_there_needs_no_room_for_one_where_the_store_finds_it(
    store: type[MemoryStore],
) -> None:
    async with running(asks, store=store(), limits=Limits(open_tasks=1)) as runtime:
        task = await start(runtime, key="mine")
        if store is MemoryStore:
            assert (await start(runtime, key="mine")).id == task.id
        else:
            with pytest.raises(LimitExceeded):
                await start(runtime, key="mine")


@pytest.mark.parametrize("room", [100_000, 85_000], ids=["for both", "for one"])
async def test_results_that_are_being_written_take_room_but_never_twice(room: int) -> None:
    """The store has the first, and its process has not heard so yet: it seems to be there and on its way as well."""
    sizes = {"first": 40_000, "second": 50_000}

    async def body(run: Run) -> Ending:
        return ok("x" * sizes[run.request.name])

    store = MeddledStore()
    store.after["save"] = hold = Held(lambda saved, _: saved.is_final)
    tools = {name: Tool(body) for name in sizes}
    limits, monotonic = Limits(owner_stored_bytes=room), Seconds()
    async with running(tools, store=store, limits=limits, monotonic=monotonic) as runtime:
        first, second = [replace(REQUEST, name=name) for name in sizes]
        first = await runtime.launch(LaunchSpec(request=first, owner="ann"))
        await hold.came.wait()
        monotonic.advance(HOUR)
        second = await runtime.launch(LaunchSpec(request=second, owner="ann"))
        await settle()
        is_early = (await as_of_now(runtime, second)).is_final
        hold.goes_on.set()
        assert is_early is (room == 85_000), "it waits where there is room as soon as the first is counted once"
        assert (await until_final(runtime, first)).status is TaskStatus.COMPLETED
        ended = await until_final(runtime, second)
        assert error_type(ended) == (None if room == 100_000 else "LimitExceeded")


async def test_a_task_for_which_there_is_room_is_written_as_taken_and_another_is_queued() -> None:
    store, gate = MeddledStore(), anyio.Event()
    async with running(opened_by(gate), store=store, concurrency=1) as runtime:
        tasks = [await start(runtime) for _ in range(3)]
        assert [(task.attempt, task.worker) for task in tasks] == [(1, runtime.worker), (0, None), (0, None)]
        gate.set()
        for task in tasks:
            assert (await until_final(runtime, task)).attempt == 1
    assert store.calls["save"] == 1 + 2 + 2


async def test_a_task_that_could_not_be_kept_takes_no_place() -> None:
    store = MeddledStore()
    store.refuse(StoreUnavailable("the disk is full"), "create", times=3)
    async with running(at_once, store=store, concurrency=1) as runtime:
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await start(runtime)
        task = await start(runtime)
        assert task.attempt == 1
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


async def test_a_request_that_is_given_up_while_its_task_is_kept_does_not_leave_it_behind() -> None:
    hold = Held()
    async with running(at_once, store=MeddledStore(create=hold)) as runtime:
        async with anyio.create_task_group() as group:
            group.start_soon(start, runtime)
            await hold.came.wait()
            group.cancel_scope.cancel()
            hold.goes_on.set()
        (task,) = (await runtime.list(EVERYBODY)).records
        assert (await until_final(runtime, task)).status is TaskStatus.COMPLETED


async def test_a_start_that_is_cancelled_while_its_answer_is_on_its_way_leaves_a_task_that_runs() -> None:
    store, hold = MeddledStore(), Held()
    store.after["create"] = hold
    async with running(at_once, store=store) as runtime:
        starting = asyncio.create_task(start(runtime, task_id="task"))
        await hold.came.wait()
        starting.cancel()
        await settle()
        hold.goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert (await until_final(runtime, await runtime.find("task"))).status is TaskStatus.COMPLETED


async def test_a_task_that_was_kept_while_its_process_stopped_is_run_by_the_next_one() -> None:
    hold = Held()
    store = MeddledStore(create=hold)
    async with running(at_once, store=store) as runtime:
        calling = asyncio.ensure_future(start(runtime))
        await hold.came.wait()
        await runtime.stop()
        hold.goes_on.set()
        task = await calling
    async with running(at_once, store=store) as other:
        # It never began, and nobody died: there is nothing that it could have done in part.
        assert (await until_final(other, task)).status is TaskStatus.COMPLETED


async def test_a_task_that_is_cancelled_before_its_run_has_begun_is_not_run() -> None:
    seen, looked_up = list[str](), anyio.Event()

    async def noted(run: Run) -> Ending:
        await anyio.lowlevel.checkpoint()
        seen.append(run.record.id)
        return ok()

    async with running(noted) as runtime:
        policy = runtime.policy

        async def slow_policy(method: str, name: str) -> ToolPolicy | None:
            await looked_up.wait()
            return await policy(method, name)

        # Asked for by whoever claims the task, before the run begins.
        runtime.policy = slow_policy
        task = await launch(runtime)
        await settle()
        await cancel(runtime, task)
        looked_up.set()
        await settle()
        assert seen == []
