"""Questions of a run: put, answered, waited for, and asked again after the run left memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import pytest

from mcp_tasks.errors import QuestionTimedOut, QuestionTooLarge, StoreUnavailable, ValueNotStorable
from mcp_tasks.model import JournalEntry, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.json import encode_json
from mcp_tasks.model.record import Outcome
from mcp_tasks.runtime import Ending, Run, TaskRuntime, ToolPolicy, current_task
from mcp_tasks.runtime.questions import LARGEST_QUESTION, Asking
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import WorkLimits
from mcp_tasks.testing import FakeClock
from tests.unit.running import (
    CLIENT,
    ONCE,
    RERUN,
    FailingStore,
    PausingStore,
    Tool,
    answer,
    launch,
    ok,
    question,
    running,
    settle,
    until,
    until_asking,
    until_final,
)

pytestmark = pytest.mark.anyio

AT_ONCE = ToolPolicy(rerun=True, park_after=timedelta(0))
"""Leaves memory as soon as it waits."""


async def ask_one(run: Run) -> Ending:
    return ok(await run.ask(question("Sure?")))


async def ask_two_together(run: Run) -> Ending:
    return ok(await asyncio.gather(run.ask(question("Name?")), run.ask(question("Sure?"))))


async def ask_two_in_turn(run: Run) -> Ending:
    return ok([await run.ask(question("Name?")), await run.ask(question("Sure?"))])


async def until_parked(runtime: TaskRuntime, task: TaskRecord) -> TaskRecord:
    """The task once it asks and no run has it."""
    return await until(
        runtime, task, lambda record: record.status is TaskStatus.INPUT_REQUIRED and record.worker is None
    )


def answers(journal: Sequence[JournalEntry]) -> dict[str, object]:
    return {entry.key: entry.value for entry in journal if entry.kind == "answer"}


# Asking and answering


async def test_a_question_waits_for_its_answer() -> None:
    async with running(ask_one) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        assert {key: ask.params["message"] for key, ask in task.inputs.outstanding.items()} == {
            "elicitation-1": "Sure?"
        }
        await answer(runtime, task, elicitation_1={"action": "accept"})
        record = await until_final(runtime, task)
        assert (record.result, record.attempt) == ({"value": {"action": "accept"}}, 1)


async def test_questions_asked_at_the_same_moment_are_put_together() -> None:
    async with running(ask_two_together) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        assert list(task.inputs.outstanding) == ["elicitation-1", "elicitation-2"]
        # Created, taken, asked: one write for both.
        assert task.version == 3
        await answer(runtime, task, elicitation_1="Ann", elicitation_2=True)
        assert (await until_final(runtime, task)).result == {"value": ["Ann", True]}


async def test_questions_asked_in_turn_are_put_in_turn_under_keys_of_their_own() -> None:
    async with running(ask_two_in_turn) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        assert list(task.inputs.outstanding) == ["elicitation-1"]
        await answer(runtime, task, elicitation_1="Ann")
        task = await until_asking(runtime, task)
        assert list(task.inputs.outstanding) == ["elicitation-2"]
        await answer(runtime, task, elicitation_2=True)
        assert (await until_final(runtime, task)).result == {"value": ["Ann", True]}


async def test_several_questions_come_back_under_the_callers_labels() -> None:
    async def body(run: Run) -> Ending:
        return ok(await run.ask_all({"name": question("Name?"), "sure": question("Sure?")}))

    async with running(body) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await answer(runtime, task, elicitation_2=True, elicitation_1="Ann")
        assert (await until_final(runtime, task)).result == {"value": {"name": "Ann", "sure": True}}


@pytest.mark.parametrize("together", [False, True])
async def test_a_question_that_is_too_large_is_refused_and_the_tool_may_go_on(*, together: bool) -> None:
    async def body(run: Run) -> Ending:
        large = question("x" * LARGEST_QUESTION)
        try:
            if together:
                await run.ask_all({"small": question("Name?"), "large": large})
            else:
                await run.ask(large)
        except QuestionTooLarge as exc:
            said = str(exc)
            return ok([said, await run.ask(question("Sure?"))])
        return ok("it was asked")

    async with running(body) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        assert [ask.params["message"] for ask in task.inputs.outstanding.values()] == ["Sure?"]
        await answer(runtime, task, elicitation_1=True)
        result = (await until_final(runtime, task)).result
        assert result is not None
        said, sure = result["value"]
        assert sure is True
        assert said.startswith("A question of tool 'tool' has 262,")
        assert "at most 262,144 can be asked" in said


async def test_the_largest_question_is_asked() -> None:
    async def body(run: Run) -> Ending:
        empty = len(encode_json(question("").params))
        return ok(await run.ask(question("x" * (LARGEST_QUESTION - empty))))

    async with running(body) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await answer(runtime, task, elicitation_1=True)
        assert (await until_final(runtime, task)).result == {"value": True}


async def test_a_partial_answer_leaves_the_rest_open() -> None:
    async with running(ask_two_together) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        record = await answer(runtime, task, elicitation_2=True)
        assert (record.status, list(record.inputs.outstanding)) == (TaskStatus.INPUT_REQUIRED, ["elicitation-1"])
        await answer(runtime, task, elicitation_1="Ann")
        assert (await until_final(runtime, task)).result == {"value": ["Ann", True]}


async def test_an_answer_to_a_question_that_nobody_asked_is_ignored() -> None:
    async with running(ask_one) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        assert await answer(runtime, task, elicitation_99="what?") == await runtime.get(task.id, owner=None)
        await answer(runtime, task, elicitation_1="yes", elicitation_99="what?")
        assert (await until_final(runtime, task)).result == {"value": "yes"}
        assert answers(await runtime.store.journal(task.id)) == {"elicitation-1": "yes"}


async def test_a_second_answer_comes_too_late() -> None:
    async with running(ask_two_in_turn) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await answer(runtime, task, elicitation_1="first")
        await answer(runtime, task, elicitation_1="second")
        task = await until_asking(runtime, task)
        await answer(runtime, task, elicitation_1="third", elicitation_2="yes")
        assert (await until_final(runtime, task)).result == {"value": ["first", "yes"]}


async def test_an_answer_to_a_finished_task_changes_nothing() -> None:
    async with running(ask_one) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        cancelled = await runtime.cancel(task, "enough", actor=CLIENT)
        assert await runtime.answer(task, {"elicitation-1": "yes"}, actor=CLIENT) == cancelled
        assert answers(await runtime.store.journal(task.id)) == {}


async def test_of_answers_that_race_from_two_processes_exactly_one_is_taken() -> None:
    store = PausingStore()
    async with running(ask_one, store=store) as one, running(ask_one, store=store) as other:
        for _ in range(10):
            task = await until_asking(one, await launch(one))
            async with anyio.create_task_group() as group:
                for runtime, value in ((one, "one"), (other, "other"), (one, "third")):
                    group.start_soon(partial(runtime.answer, task, {"elicitation-1": value}, actor=CLIENT))
            record = await until_final(one, task)
            taken = answers(await store.journal(task.id))
            assert record.result == {"value": taken["elicitation-1"]}
            assert [entry.kind for entry in await store.journal(task.id)] == ["ask", "answer", "done"]


async def test_an_answer_from_an_old_view_of_the_task_is_taken() -> None:
    async with running(ask_two_together) as runtime:
        old = await until_asking(runtime, await launch(runtime))
        await runtime.answer(old, {"elicitation-1": "Ann"}, actor=CLIENT)
        await runtime.answer(old, {"elicitation-2": True}, actor=CLIENT)
        assert (await until_final(runtime, old)).result == {"value": ["Ann", True]}


async def impatient(run: Run) -> str:
    """Ask, and go on without an answer."""
    with anyio.move_on_after(0.01):
        return await run.ask(question("Sure?"))
    return "did not wait"


async def test_a_question_that_the_tool_gives_up_on_is_withdrawn() -> None:
    end = anyio.Event()

    async def body(run: Run) -> Ending:
        heard = await impatient(run)
        await end.wait()
        return ok(heard)

    async with running(body) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        task = await until(runtime, task, lambda record: record.status is TaskStatus.WORKING)
        assert not task.inputs.outstanding
        await answer(runtime, task, elicitation_1="too late")
        end.set()
        assert (await until_final(runtime, task)).result == {"value": "did not wait"}
        assert answers(await runtime.store.journal(task.id)) == {}


async def test_a_run_that_gave_up_on_a_question_can_be_started_again() -> None:
    store, begun = MemoryStore(), anyio.Event()

    async def body(run: Run) -> Ending:
        heard = await impatient(run)
        if run.attempt == 1:
            begun.set()
            await anyio.sleep_forever()
        return ok(heard)

    async with running(body, store=store, policy=RERUN) as one:
        task = await launch(one)
        with anyio.fail_after(5):
            await begun.wait()
        await one.abandon()
        async with running(body, store=store, policy=RERUN) as other:
            assert (await until_final(other, task)).result == {"value": "did not wait"}


async def test_open_questions_are_withdrawn_with_the_end_of_the_task() -> None:
    async def body(run: Run) -> Ending:
        asked = asyncio.ensure_future(run.ask(question("Sure?")))
        await asyncio.wait({asked}, timeout=0.01)
        return ok("did not wait")

    async with running(body) as runtime:
        record = await until_final(runtime, await launch(runtime))
        assert not record.inputs.outstanding


async def test_a_question_waits_for_a_store_that_is_away() -> None:
    store = FailingStore()
    async with running(ask_one, store=store) as runtime:
        store.refuse_save(lambda record: record.status is TaskStatus.INPUT_REQUIRED, times=3)
        task = await until_asking(runtime, await launch(runtime))
        assert [ask.params["message"] for ask in task.inputs.outstanding.values()] == ["Sure?"]
        await answer(runtime, task, elicitation_1="yes")
        assert (await until_final(runtime, task)).result == {"value": "yes"}


async def test_a_question_given_up_while_it_is_being_written_is_withdrawn_and_its_neighbour_is_unharmed() -> None:
    store = SlowSaves()
    given_up = asyncio.Event()

    async def body(run: Run) -> Ending:
        first = asyncio.create_task(run.ask(question("Name?")))
        second = asyncio.create_task(run.ask(question("Sure?")))
        await store.saving.wait()
        first.cancel()
        await asyncio.wait({first})
        given_up.set()
        return ok(await second)

    async with running(body, store=store) as runtime:
        task = await launch(runtime)
        await given_up.wait()
        store.go_on.set()
        task = await until(runtime, task, lambda record: list(record.inputs.outstanding) == ["elicitation-2"])
        assert task.inputs.used == {"elicitation-1", "elicitation-2"}
        await answer(runtime, task, elicitation_2="yes")
        assert (await until_final(runtime, task)).result == {"value": "yes"}


class SlowSaves(MemoryStore):
    """Holds the first save of a question until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.saving = asyncio.Event()
        self.go_on = asyncio.Event()

    async def save(
        self,
        record: TaskRecord,
        *,
        expected: int,
        entries: Sequence[JournalEntry] = (),
        outcome: Outcome | None = None,
        limits: WorkLimits | None = None,
    ) -> TaskRecord:
        if record.inputs.outstanding and not self.saving.is_set():
            self.saving.set()
            await self.go_on.wait()
        return await super().save(record, expected=expected, entries=entries, outcome=outcome, limits=limits)


# Waiting holds nothing


@pytest.mark.parametrize("policy", [ONCE, RERUN, AT_ONCE], ids=["once", "held", "unwound"])
async def test_a_hundred_tasks_wait_while_others_run_one_at_a_time(policy: ToolPolicy) -> None:
    async def work(run: Run) -> Ending:
        return ok("worked")

    tools = {"ask": Tool(ask_one, policy), "work": Tool(work)}
    async with running(tools, concurrency=1) as runtime:
        waiting = [await launch(runtime, "ask") for _ in range(100)]
        for task in waiting:
            await until_asking(runtime, task)
        working = [await launch(runtime, "work") for _ in range(20)]
        for task in working:
            assert (await until_final(runtime, task)).result == {"value": "worked"}
        for number, task in enumerate(waiting):
            await answer(runtime, task, elicitation_1=number)
        for number, task in enumerate(waiting):
            assert (await until_final(runtime, task)).result == {"value": number}


async def test_a_run_that_may_not_run_again_stays_in_memory_while_it_waits() -> None:
    async with running(ask_one, policy=ToolPolicy(rerun=False, park_after=timedelta(0))) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await settle()
        assert (await runtime.get(task.id, owner=None)).worker == runtime.worker
        await answer(runtime, task, elicitation_1="yes")
        assert (await until_final(runtime, task)).attempt == 1


async def test_a_run_that_waits_for_long_leaves_memory_and_comes_back_with_its_answer() -> None:
    entered: Counter[int] = Counter()

    async def body(run: Run) -> Ending:
        entered[run.attempt] += 1
        return await ask_two_in_turn(run)

    async with running(body, policy=AT_ONCE) as runtime:
        task = await until_parked(runtime, await launch(runtime))
        await settle()
        await answer(runtime, task, elicitation_1="Ann")
        task = await until(runtime, task, lambda record: "elicitation-2" in record.inputs.outstanding)
        task = await until_parked(runtime, task)
        await settle()
        await answer(runtime, task, elicitation_2=True)
        record = await until_final(runtime, task)
        assert (record.result, record.attempt) == ({"value": ["Ann", True]}, 3)
    assert entered == {1: 1, 2: 1, 3: 1}


async def test_questions_asked_from_branches_wait_in_memory() -> None:
    async with running(ask_two_together, policy=AT_ONCE) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await settle()
        await answer(runtime, task, elicitation_1="Ann")
        await settle()
        waiting = await runtime.get(task.id, owner=None)
        assert (waiting.worker, list(waiting.inputs.outstanding)) == (runtime.worker, ["elicitation-2"])
        await answer(runtime, task, elicitation_2=True)
        record = await until_final(runtime, task)
        assert (record.result, record.attempt) == ({"value": ["Ann", True]}, 1)


async def test_one_of_several_answers_wakes_a_task_that_another_process_left_waiting() -> None:
    async def first_answer(run: Run) -> Ending:
        asks = [asyncio.create_task(run.ask(question(name))) for name in ("Ann?", "Bob?")]
        done, rest = await asyncio.wait(asks, return_when=asyncio.FIRST_COMPLETED)
        for ask in rest:
            ask.cancel()
        return ok([ask.result() for ask in done])

    store = MemoryStore()
    async with running(first_answer, store=store, policy=RERUN) as runtime:
        task = await until(runtime, await launch(runtime), lambda record: len(record.inputs.outstanding) == 2)
        await settle()
    async with running({}, store=store) as elsewhere:
        # A process that cannot run the tool takes the answer.
        await answer(elsewhere, task, elicitation_2="Bob")
    async with running(first_answer, store=store, policy=RERUN) as runtime:
        assert (await until_final(runtime, task)).result == {"value": ["Bob"]}


async def test_a_parked_task_is_answered_and_finished_by_another_process() -> None:
    store = MemoryStore()
    async with running(ask_one, store=store, policy=AT_ONCE) as one:
        task = await until_parked(one, await launch(one))
        await settle()
        async with running(ask_one, store=store, policy=AT_ONCE) as other:
            await answer(other, task, elicitation_1="yes")
            record = await until_final(other, task)
            assert (record.result, record.attempt) == ({"value": "yes"}, 2)


async def test_a_task_that_waits_outlives_any_number_of_processes() -> None:
    store = MemoryStore()
    async with running(ask_one, store=store, policy=RERUN) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await settle()
    for _ in range(3):
        async with running(ask_one, store=store, policy=RERUN) as runtime:
            await settle()
            task = await runtime.get(task.id, owner=None)
            assert (task.status, task.attempt, task.worker) == (TaskStatus.INPUT_REQUIRED, 1, None)
    async with running(ask_one, store=store, policy=RERUN) as runtime:
        await answer(runtime, task, elicitation_1="yes")
        assert (await until_final(runtime, task)).result == {"value": "yes"}


async def test_a_waiting_run_does_not_hold_a_shutdown_up() -> None:
    async with running(ask_one, policy=RERUN, drain_timeout=timedelta(hours=1)) as runtime:
        await until_asking(runtime, await launch(runtime))
        with anyio.fail_after(5):
            await runtime.stop()


async def test_a_parked_task_can_be_cancelled() -> None:
    async with running(ask_one, policy=AT_ONCE) as runtime:
        task = await until_parked(runtime, await launch(runtime))
        assert (await runtime.cancel(task, "enough", actor=CLIENT)).status is TaskStatus.CANCELLED
        await runtime.answer(task, {"elicitation-1": "yes"}, actor=CLIENT)
        await settle()
        assert (await runtime.get(task.id, owner=None)).attempt == 1


class SlowReleaseStore(MemoryStore):
    """Stops before a task is released, until told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.releasing, self.go_on = anyio.Event(), anyio.Event()

    async def save(
        self,
        record: TaskRecord,
        *,
        expected: int,
        entries: Sequence[JournalEntry] = (),
        outcome: Outcome | None = None,
        limits: WorkLimits | None = None,
    ) -> TaskRecord:
        if record.attempt and record.worker is None and not record.is_final:
            self.releasing.set()
            await self.go_on.wait()
        return await super().save(record, expected=expected, entries=entries, outcome=outcome, limits=limits)


async def test_an_answer_that_comes_while_the_run_leaves_memory_is_acted_on_at_once() -> None:
    store = SlowReleaseStore()
    async with running(ask_one, store=store, policy=AT_ONCE) as runtime:
        task = await launch(runtime)
        await store.releasing.wait()
        await answer(runtime, task, elicitation_1="yes")
        store.go_on.set()
        assert (await until_final(runtime, task, limit=5)).result == {"value": "yes"}


async def test_an_answer_that_comes_while_the_old_run_tidies_up_is_acted_on_at_once() -> None:
    tidied = anyio.Event()

    async def body(run: Run) -> Ending:
        try:
            return await ask_one(run)
        finally:
            if run.attempt == 1:
                with anyio.CancelScope(shield=True):
                    await tidied.wait()

    async with running(body, policy=AT_ONCE) as runtime:
        task = await until_parked(runtime, await launch(runtime))
        await answer(runtime, task, elicitation_1="yes")
        tidied.set()
        assert (await until_final(runtime, task, limit=5)).result == {"value": "yes"}


async def test_no_branch_of_a_tool_waits_on_after_its_run_is_over() -> None:
    branches: list[asyncio.Task[object]] = []

    async def body(run: Run) -> Ending:
        # Waiting for a branch does not cancel it, as `gather` would.
        branches.append(asyncio.create_task(run.ask(question("Sure?"))))
        await asyncio.wait(branches)
        return ok()

    async with running(body, policy=AT_ONCE) as runtime:
        await until_asking(runtime, await launch(runtime))
        await settle()
    await settle()
    assert [branch.cancelled() for branch in branches] == [True]


async def test_a_run_that_waits_in_one_branch_and_works_in_another_stays_in_memory() -> None:
    begun: list[int] = []
    worked = anyio.Event()

    async def work() -> str:
        begun.append(1)
        await worked.wait()
        return "worked"

    async def body(run: Run) -> Ending:
        return ok(await asyncio.gather(run.ask(question("Sure?")), current_task().step("work", work)))

    async with running(body, policy=AT_ONCE) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await settle()
        worked.set()
        await settle()
        await answer(runtime, task, elicitation_1="yes")
        assert (await until_final(runtime, task)).result == {"value": ["yes", "worked"]}
        assert begun == [1]


# Asking the same things again


async def test_a_run_that_asks_something_else_the_second_time_is_refused_with_the_difference() -> None:
    async def fickle(run: Run) -> Ending:
        return ok(await run.ask(question(f"Question of run {run.attempt}?")))

    async with running(fickle, policy=AT_ONCE) as runtime:
        task = await until_parked(runtime, await launch(runtime))
        await settle()
        await answer(runtime, task, elicitation_1="yes")
        record = await until_final(runtime, task)
        assert record.status is TaskStatus.FAILED
        assert record.error is not None
        assert record.error["data"] == {"type": "ReplayMismatch"}
        assert "'Question of run 1?'" in (record.status_message or "")
        assert "'Question of run 2?'" in (record.status_message or "")


async def test_a_recorded_answer_never_goes_to_another_question() -> None:
    heard: list[object] = []

    async def fickle(run: Run) -> Ending:
        first, second = ("a", "b") if run.attempt == 1 else ("b", "a")
        heard.append((first, await run.ask(question(first))))
        heard.append((second, await run.ask(question(second))))
        return ok()

    async with running(fickle, policy=AT_ONCE) as runtime:
        task = await until_parked(runtime, await launch(runtime))
        await settle()
        await answer(runtime, task, elicitation_1="answer to a")
        assert (await until_final(runtime, task)).status is TaskStatus.FAILED
    assert heard == []


async def test_what_varies_is_kept_still_by_a_step() -> None:
    async def careful(run: Run) -> Ending:
        number = await current_task().step("number", lambda: run.attempt)
        return ok([number, await run.ask(question(f"Question {number}?"))])

    async with running(careful, policy=AT_ONCE) as runtime:
        task = await until_parked(runtime, await launch(runtime))
        await settle()
        await answer(runtime, task, elicitation_1="yes")
        assert (await until_final(runtime, task)).result == {"value": [1, "yes"]}


async def test_answers_are_checked_against_the_questions_they_are_written_for() -> None:
    async def body(run: Run) -> Ending:
        return ok([await run.ask(question("Name?")), await run.ask(question("Sure?"))])

    checked: list[set[str]] = []

    def check(record: TaskRecord) -> None:
        checked.append(set(record.inputs.outstanding))
        if "elicitation-2" in record.inputs.outstanding:
            raise ValueError("no answer to that")

    async with running(body) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await answer(runtime, task, elicitation_1="Ada")
        await until(runtime, task, lambda record: "elicitation-2" in record.inputs.outstanding)
        with pytest.raises(ValueError, match="no answer"):
            # `task` is from before: the answer to the first question is in, and the second one is open by now.
            await runtime.answer(task, {"elicitation-1": "Ada", "elicitation-2": "garbage"}, actor=CLIENT, check=check)
        assert checked == [{"elicitation-1"}, {"elicitation-2"}]
        assert "elicitation-2" in (await runtime.get(task.id, owner=None)).inputs.outstanding


# Reading the journal


class WatchedJournal(MemoryStore):
    """Keeps how many entries each look at a journal gave."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[int] = []

    async def journal(self, task_id: str, *, after: int = 0) -> Sequence[JournalEntry]:
        entries = await super().journal(task_id, after=after)
        self.read.append(len(entries))
        return entries


@pytest.mark.parametrize("park_after", [timedelta(0), timedelta(hours=1)], ids=["parked", "in memory"])
async def test_no_entry_of_the_journal_is_read_twice_by_a_run(park_after: timedelta) -> None:
    store = WatchedJournal()
    asked = 5

    async def body(run: Run) -> Ending:
        for number in range(20):
            await current_task().step(f"step {number}", lambda: 1)
        return ok([await run.ask(question(f"{number}?")) for number in range(asked)])

    async with running(body, store=store, policy=ToolPolicy(rerun=True, park_after=park_after)) as runtime:
        task = await launch(runtime)
        for number in range(1, asked + 1):
            key = f"elicitation-{number}"
            await until(runtime, task, lambda record, key=key: key in record.inputs.outstanding)
            await answer(runtime, task, **{key: number})
        record = await until_final(runtime, task)
        assert record.result == {"value": list(range(1, asked + 1))}
        journal = await runtime.store.journal(task.id)
    assert sum(store.read[:-1]) <= len(journal) * record.attempt


# A limit that the call brought along


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of_tool", "of_call", "limit"),
    [(None, 60, 60), (600, 60, 60), (60, 600, 60), (60, None, 60), (None, None, None)],
)
@pytest.mark.parametrize("parks", [True, False])
async def test_the_smaller_limit_of_tool_and_call_ends_a_wait(
    of_tool: int | None, of_call: int | None, limit: int | None, parks: bool
) -> None:
    def seconds(number: int | None) -> timedelta | None:
        return None if number is None else timedelta(seconds=number)

    clock = FakeClock()
    policy = replace(AT_ONCE if parks else ONCE, max_wait=seconds(of_tool))
    request = TaskRequest(name="tool", arguments={}, max_wait=seconds(of_call))
    async with running(ask_one, policy=policy, clock=clock) as runtime:
        task = await until_asking(runtime, await runtime.launch(request, owner=None, retention=None))
        await settle()
        clock.advance(timedelta(seconds=59))
        await runtime.janitor.sweep()
        await settle()
        assert (await runtime.find(task.id)).status is TaskStatus.INPUT_REQUIRED
        clock.advance(timedelta(seconds=1))
        await runtime.janitor.sweep()
        if limit is None:
            await settle()
            assert (await runtime.find(task.id)).status is TaskStatus.INPUT_REQUIRED
            return
        ended = await until_final(runtime, task)
        assert ended.error is not None
        assert "nobody answered 'tool' within 60 s" in ended.error["message"]


async def test_a_limit_longer_than_time_itself_is_none() -> None:
    request = TaskRequest(name="tool", arguments={}, max_wait=timedelta.max)
    async with running(ask_one) as runtime:
        task = await until_asking(runtime, await runtime.launch(request, owner=None, retention=None))
        await answer(runtime, task, elicitation_1="yes")
        assert (await until_final(runtime, task)).result == {"value": "yes"}


async def test_a_question_that_is_given_up_before_it_is_put_is_put_in_no_run() -> None:
    async def body(run: Run) -> Ending:
        branch = asyncio.ensure_future(run.ask(question("Sure?")))
        # It waits for the other questions of this moment, and is not being written yet.
        await asyncio.sleep(0)
        branch.cancel()
        await asyncio.wait({branch})
        assert branch.cancelled()
        return ok(await run.ask(question("Really?")))

    async with running(body, policy=AT_ONCE) as runtime:
        task = await until_parked(runtime, await launch(runtime))
        await answer(runtime, task, elicitation_1="yes")
        ended = await until_final(runtime, task)
        assert (ended.result, ended.attempt) == ({"value": "yes"}, 2)
        journal = await runtime.store.journal(task.id)
        assert [entry.value["params"]["message"] for entry in journal if entry.kind == "ask"] == ["Really?"]


class ChoosyStore(MemoryStore):
    """Does not keep some questions."""

    async def save(self, record: TaskRecord, *, entries: Sequence[JournalEntry] = (), **options: Any) -> TaskRecord:
        if any(entry.kind == "ask" and entry.value["params"]["message"] == "Odd?" for entry in entries):
            raise ValueNotStorable("a value is too odd")
        return await super().save(record, entries=entries, **options)


async def test_of_questions_that_are_put_together_one_that_cannot_be_stored_fails_alone() -> None:
    async def body(run: Run) -> Ending:
        asked = (run.ask(question(message)) for message in ("Name?", "Odd?", "Sure?"))
        name, odd, sure = await asyncio.gather(*asked, return_exceptions=True)
        return ok([name, str(odd), sure])

    async with running(body, store=ChoosyStore()) as runtime:
        task = await until(runtime, await launch(runtime), lambda record: len(record.inputs.outstanding) == 2)
        said = {key: ask.params["message"] for key, ask in task.inputs.outstanding.items()}
        await runtime.answer(task, said, actor=CLIENT)
        assert (await until_final(runtime, task)).result == {"value": ["Name?", "a value is too odd", "Sure?"]}


async def test_that_a_client_holds_a_question_as_a_task_of_its_own_is_kept_with_the_question() -> None:
    async with running(ask_one) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        held = await runtime.host(task, "elicitation-1", "theirs", actor=CLIENT)
        assert {key: ask.hosted_as for key, ask in held.inputs.outstanding.items()} == {"elicitation-1": "theirs"}


class SlowReadingStore(MemoryStore):
    """Takes some turns of the event loop to give a journal, and none to write."""

    async def journal(self, task_id: str, *, after: int = 0) -> Sequence[JournalEntry]:
        await settle()
        return await super().journal(task_id, after=after)


async def test_a_question_that_times_out_is_not_parked_again_while_its_answer_is_looked_up() -> None:
    clock = FakeClock()

    async def ask(run: Run) -> Ending:
        with suppress(QuestionTimedOut):
            await run.ask(question("Sure?"), Asking(timeout=timedelta(minutes=1)))
        return ok(run.attempt)

    async with running(ask, store=SlowReadingStore(), policy=AT_ONCE, clock=clock) as runtime:
        task = await launch(runtime)
        await until(runtime, task, lambda record: record.wake_at is not None and record.worker is None)
        await settle()
        assert not runtime.runs()
        clock.advance(timedelta(minutes=2))
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).result == {"value": 2}


async def test_an_answer_to_a_process_that_has_ended_is_refused_as_an_outage() -> None:
    async with running(ask_one) as runtime:
        task = await launch(runtime)
        record = await until_asking(runtime, task)
        await runtime.abandon()
        with pytest.raises(StoreUnavailable):
            await runtime.answer(record, {next(iter(record.inputs.outstanding)): "yes"}, actor=CLIENT)
