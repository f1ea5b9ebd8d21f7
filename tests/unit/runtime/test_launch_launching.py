"""The original call: answered with the task, or by the tool itself, whichever is written first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import anyio
import pytest

from mcp_tasks.engines.local import ReservedLocalSlot
from mcp_tasks.errors import LimitExceeded, OwnerRequired, TaskExists, UnknownTask
from mcp_tasks.model import InputRequest, JournalEntry, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.limits import Limits
from mcp_tasks.model.record import Outcome
from mcp_tasks.runtime import AskedOnCall, Ending, Run, TaskRuntime, ToolPolicy
from mcp_tasks.runtime.questions import ANNOUNCED_WITHIN
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import WorkLimits
from tests.unit.running import (
    FailingStore,
    answer,
    cancel,
    ok,
    running,
    settle,
    until,
    until_asking,
    until_final,
)
from tests.unit.virtual_time import simulated, time_passes

pytestmark = pytest.mark.anyio

REQUEST = TaskRequest(name="tool", arguments={})
QUESTION = {"inputRequests": {"name": {"method": "elicitation/create"}}}


async def launch_unannounced(runtime: TaskRuntime) -> TaskRecord:
    return await runtime.launch(REQUEST, owner=None, retention=None, announced=False)


async def asks_on_call(run: Run) -> Ending:
    if await run.ask_on_call(QUESTION):
        return AskedOnCall()
    return ok(await run.ask(InputRequest(method="elicitation/create", params={"message": "Name?"})))


async def test_a_tool_asks_on_the_call_while_its_task_is_not_announced() -> None:
    async with running(asks_on_call) as runtime:
        task = await until_final(runtime, await launch_unannounced(runtime))
        assert (task.status, task.announced) == (TaskStatus.CANCELLED, False)
        outcome = await runtime.outcome(task.id)
        assert outcome is not None
        assert json.loads(outcome.body) == QUESTION


async def test_an_announced_task_asks_in_the_task() -> None:
    async with running(asks_on_call) as runtime:
        task = await runtime.launch(REQUEST, owner=None, retention=None)
        await until_asking(runtime, task)
        await answer(runtime, task, elicitation_1="Ada")
        assert (await until_final(runtime, task)).result == {"value": "Ada"}


async def test_what_is_announced_first_is_asked_in_the_task() -> None:
    announced = anyio.Event()

    async def body(run: Run) -> Ending:
        await announced.wait()
        return await asks_on_call(run)

    async with running(body) as runtime:
        task = await runtime.announce(await launch_unannounced(runtime))
        assert (task.announced, task.is_final) == (True, False)
        announced.set()
        assert (await until_asking(runtime, task)).announced


class AnnouncedMeanwhile(MemoryStore):
    """Another process announces the task in the moment in which its tool asks on the call."""

    other: TaskRuntime | None = None

    async def save(
        self,
        record: TaskRecord,
        *,
        expected: int,
        entries: Sequence[JournalEntry] = (),
        outcome: Outcome | None = None,
        limits: WorkLimits | None = None,
    ) -> TaskRecord:
        other, self.other = self.other, None
        if other is not None:
            standing = await self.get(record.id)
            assert standing is not None
            await other.announce(standing)
        return await super().save(record, expected=expected, entries=entries, outcome=outcome, limits=limits)


async def test_of_the_call_and_the_tool_the_first_to_write_wins() -> None:
    store = AnnouncedMeanwhile()
    async with running(asks_on_call, store=store) as runtime, running(asks_on_call, store=store) as other:
        store.other = other
        task = await until_asking(runtime, await launch_unannounced(runtime))
        assert task.announced
        assert await runtime.outcome(task.id) is None


async def test_announcing_after_the_tool_asked_shows_how_it_ended() -> None:
    async with running(asks_on_call) as runtime:
        launched = await launch_unannounced(runtime)
        await until_final(runtime, launched)
        task = await runtime.announce(launched)
        assert (task.is_final, task.announced) == (True, False)


async def test_announcing_twice_is_announcing_once() -> None:
    async def body(run: Run) -> Ending:
        await anyio.sleep_forever()
        return ok()

    async with running(body) as runtime:
        once = await runtime.announce(await launch_unannounced(runtime))
        assert await runtime.announce(once) == once


async def test_a_task_that_is_gone_cannot_be_announced() -> None:
    async with running(asks_on_call) as runtime:
        launched = await launch_unannounced(runtime)
        await runtime.discard(await runtime.store.get((await until_final(runtime, launched)).id) or launched)
        with pytest.raises(UnknownTask):
            await runtime.announce(launched)


async def test_a_question_on_the_call_waits_for_a_store_that_is_away() -> None:
    store = FailingStore()
    store.refuse_save(lambda record: record.is_final, times=2)
    async with running(asks_on_call, store=store) as runtime:
        assert (await until_final(runtime, await launch_unannounced(runtime))).status is TaskStatus.CANCELLED


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
        task = await until(runtime, await launch_unannounced(runtime), lambda record: record.attempt == 1)
        await cancel(runtime, task)
        asking.set()
        await settle()
        assert await runtime.outcome(task.id) is None
        assert not went_on


async def test_a_task_under_an_idempotency_key_is_made_once() -> None:
    runs: list[str] = []

    async def body(run: Run) -> Ending:
        runs.append(run.record.id)
        await anyio.sleep_forever()
        return ok()

    async with running(body, concurrency=1) as runtime:
        launched = [await runtime.launch(REQUEST, owner="ann", retention=None, key="k") for _ in range(3)]
        another = await runtime.launch(REQUEST, owner="bob", retention=None, key="k")
        await settle()
        assert len({task.id for task in launched}) == 1
        assert runs == [launched[0].id]
        assert (another.owner, another.attempt) == ("bob", 0), "the first has the only slot"


async def test_a_slot_that_was_kept_for_a_task_that_stands_already_is_free_again() -> None:
    async def body(run: Run) -> Ending:
        return ok()

    async with running(body, concurrency=1) as runtime:
        first = await until_final(runtime, await runtime.launch(REQUEST, owner=None, retention=None, key="k"))
        again = await runtime.launch(REQUEST, owner=None, retention=None, key="k")
        assert again.id == first.id
        assert (await until_final(runtime, await runtime.launch(REQUEST, owner=None, retention=None))).attempt == 1


async def test_a_task_that_was_made_while_the_server_stops_is_given_though_the_store_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(run: Run) -> Ending:
        return ok()

    def refuse(slot: ReservedLocalSlot, task_id: str) -> bool:
        slot.release()
        return False

    monkeypatch.setattr(ReservedLocalSlot, "start", refuse)
    store = FailingStore()
    store.refuse_save(lambda record: record.worker is None)
    async with running(body, store=store) as runtime:
        made = await runtime.launch(REQUEST, owner=None, retention=None)
        assert await store.get(made.id) == made


async def test_a_key_that_counts_until_the_end_gives_the_running_task_and_then_a_new_one() -> None:
    go_on = anyio.Event()

    async def body(run: Run) -> Ending:
        await go_on.wait()
        return ok(run.record.id)

    async def join(runtime: TaskRuntime, *, task_id: str | None = None) -> TaskRecord:
        return await runtime.launch(REQUEST, owner="ann", retention=None, key="k", key_until_end=True, task_id=task_id)

    async with running(body, concurrency=1) as runtime:
        first = await join(runtime, task_id="task_mine")
        assert first.id == "task_mine"
        assert (await join(runtime, task_id="task_never")).id == first.id
        go_on.set()
        ended = await until_final(runtime, first)
        # The slot that was kept for the second is free again, and the first is there with its result.
        second = await until_final(runtime, await join(runtime))
        assert second.result == {"value": second.id}
        assert (await until_final(runtime, first)).result == ended.result == {"value": "task_mine"}
        assert second.id != first.id


async def test_an_id_that_the_caller_chose_is_refused_if_it_is_taken() -> None:
    async with running(asks_in_the_middle, concurrency=1) as runtime:
        await runtime.launch(REQUEST, owner=None, retention=None, task_id="task_mine")
        with pytest.raises(TaskExists):
            await runtime.launch(REQUEST, owner=None, retention=None, task_id="task_mine")


async def asks_in_the_middle(run: Run) -> Ending:
    return ok(await run.ask(InputRequest(method="elicitation/create", params={"message": "Name?"})))


@simulated
async def test_a_question_that_nobody_can_answer_ends_its_task() -> None:
    policy = ToolPolicy(rerun=True, park_after=timedelta(0))
    async with running(asks_in_the_middle, policy=policy) as runtime:
        ended = await until_final(runtime, await launch_unannounced(runtime), 2 * ANNOUNCED_WITHIN)
        assert ended.status is TaskStatus.FAILED
        assert "nobody can answer" in str(ended.status_message)


@simulated
@pytest.mark.parametrize("rerun", [True, False], ids=["parked", "in memory"])
async def test_a_task_that_is_announced_once_it_asks_waits_for_its_answer(rerun: bool) -> None:
    policy = ToolPolicy(rerun=rerun, park_after=timedelta(0))
    async with running(asks_in_the_middle, policy=policy) as runtime:
        task = await launch_unannounced(runtime)
        await until_asking(runtime, task)
        await settle()
        await runtime.announce(task)
        await until(runtime, task, lambda record: (record.worker is None) == rerun)
        await time_passes(2 * ANNOUNCED_WITHIN)
        assert (await runtime.get(task.id, owner=None)).status is TaskStatus.INPUT_REQUIRED
        await answer(runtime, task, elicitation_1="Ada")
        assert (await until_final(runtime, task)).result == {"value": "Ada"}


@pytest.mark.parametrize("owner", [None, ""])
async def test_where_every_task_has_an_owner_none_is_made_without_one(owner: str | None) -> None:
    async with running(asks_in_the_middle, requires_owner=True) as runtime:
        with pytest.raises(OwnerRequired, match="'tool' has to have an owner"):
            await runtime.launch(REQUEST, owner=owner, retention=None)
        assert (await runtime.launch(REQUEST, owner="ann", retention=None)).owner == "ann"


class KeyBlindStore(MemoryStore):
    """Cannot find a task by its key without making one."""

    id_under: Any = None


@pytest.mark.parametrize("finds_keys", [True, False])
async def test_who_comes_for_a_task_that_is_there_needs_no_room_for_one_where_the_store_finds_it(
    finds_keys: bool,
) -> None:
    store = MemoryStore() if finds_keys else KeyBlindStore()
    async with running(asks_in_the_middle, store=store, limits=Limits(open_tasks=1)) as runtime:
        task = await runtime.launch(REQUEST, owner=None, retention=None, key="mine")
        if finds_keys:
            again = await runtime.launch(REQUEST, owner=None, retention=None, key="mine")
            assert again.id == task.id
        else:
            with pytest.raises(LimitExceeded):
                await runtime.launch(REQUEST, owner=None, retention=None, key="mine")
