"""Questions of a run: put, answered, refused, waited for, and asked again after the run left memory."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import pytest

from harness.waiting import eventually
from mcp_tasks.errors import AnswerRefused, QuestionTimedOut, StoreUnavailable, TooLarge, ValueNotStorable
from mcp_tasks.model import JournalEntry, TaskRecord, TaskStatus
from mcp_tasks.model.json import encode_json
from mcp_tasks.runtime import Ending, Run, TaskOptions, TaskRuntime, current_task
from mcp_tasks.runtime.context import Asking
from mcp_tasks.runtime.launch import LaunchSpec
from mcp_tasks.runtime.waits import LARGEST_QUESTION
from mcp_tasks.stores import MemoryStore
from mcp_tasks.testing import FakeClock
from tests.unit.losing import as_of_now
from tests.unit.running import (
    CLIENT,
    HOUR,
    ONCE,
    PARKS,
    REQUEST,
    RERUN,
    Held,
    MeddledStore,
    PausingStore,
    answer,
    asks,
    error_type,
    launch,
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


async def ask_two_together(run: Run) -> Ending:
    return ok(await asyncio.gather(run.ask(question("Name?")), run.ask(question("Sure?"))))


async def ask_two_in_turn(run: Run) -> Ending:
    return ok([await run.ask(question("Name?")), await run.ask(question("Sure?"))])


async def answers(runtime: TaskRuntime, task: TaskRecord) -> dict[str, object]:
    return {entry.key: entry.value for entry in await runtime.store.journal(task.id) if entry.kind == "answer"}


def put(task: TaskRecord) -> dict[str, str]:
    """What is asked, by key."""
    return {key: ask.params["message"] for key, ask in task.inputs.outstanding.items()}


async def until_putting(runtime: TaskRuntime, task: TaskRecord, key: str) -> TaskRecord:
    return await until(runtime, task, lambda record: key in record.inputs.outstanding)


# Asking and answering


async def test_questions_asked_at_the_same_moment_are_put_together_and_answered_one_by_one() -> None:
    async with running(ask_two_together) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        assert put(task) == {"elicitation-1": "Name?", "elicitation-2": "Sure?"}
        # Created, taken, asked: one write for both.
        assert task.version == 3
        record = await answer(runtime, task, elicitation_2=True)
        assert (record.status, list(record.inputs.outstanding)) == (TaskStatus.INPUT_REQUIRED, ["elicitation-1"])
        # From an old view of the task.
        await runtime.answer(task, {"elicitation-1": "Ann"}, actor=CLIENT)
        assert (await until_final(runtime, task)).result == {"value": ["Ann", True]}


async def test_questions_asked_in_turn_are_put_in_turn_and_an_answer_counts_for_the_one_it_was_given_to() -> None:
    async with running(ask_two_in_turn) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        assert put(task) == {"elicitation-1": "Name?"}
        # One to a question that nobody asked is ignored.
        assert await answer(runtime, task, elicitation_99="what?") == await as_of_now(runtime, task)
        await answer(runtime, task, elicitation_1="first", elicitation_99="what?")
        await answer(runtime, task, elicitation_1="second")
        task = await until_asking(runtime, task)
        assert put(task) == {"elicitation-2": "Sure?"}
        await answer(runtime, task, elicitation_1="third", elicitation_2="yes")
        assert (await until_final(runtime, task)).result == {"value": ["first", "yes"]}
        assert await answers(runtime, task) == {"elicitation-1": "first", "elicitation-2": "yes"}


@pytest.mark.parametrize("together", [False, True])
async def test_a_question_that_is_too_large_is_refused_and_the_tool_may_go_on(*, together: bool) -> None:
    async def body(run: Run) -> Ending:
        large = question("x" * LARGEST_QUESTION)
        with pytest.raises(TooLarge) as refused:
            await (run.ask_all({"small": question("Name?"), "large": large}) if together else run.ask(large))
        return ok([str(refused.value), await run.ask(question("Sure?"))])

    async with running(body) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        assert put(task) == {"elicitation-1": "Sure?"}
        await answer(runtime, task, elicitation_1=True)
        result = (await until_final(runtime, task)).result
        assert result is not None
        said, sure = result["value"]
        assert sure is True
        assert said.startswith("A question of tool 'tool' has 262,")
        assert "at most 262,144 can be asked" in said


async def test_the_largest_question_is_asked_and_several_come_back_under_the_callers_labels() -> None:
    async def body(run: Run) -> Ending:
        empty = len(encode_json(question("").params))
        return ok(await run.ask_all({"large": question("x" * (LARGEST_QUESTION - empty)), "small": question("")}))

    async with running(body) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await answer(runtime, task, elicitation_1=True, elicitation_2=False)
        assert (await until_final(runtime, task)).result == {"value": {"large": True, "small": False}}


async def test_an_answer_to_a_process_that_has_ended_is_refused_as_an_outage() -> None:
    async with running(asks) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await runtime.abandon()
        with pytest.raises(StoreUnavailable):
            await runtime.answer(task, {"elicitation-1": "yes"}, actor=CLIENT)


async def test_of_answers_that_race_from_two_processes_exactly_one_is_taken() -> None:
    store = PausingStore()
    async with running(asks, store=store) as one, running(asks, store=store, runs_tools=False) as other:
        for _ in range(10):
            task = await until_asking(one, await launch(one))
            async with anyio.create_task_group() as group:
                for runtime, value in ((one, "one"), (other, "other"), (one, "third")):
                    group.start_soon(partial(runtime.answer, task, {"elicitation-1": value}, actor=CLIENT))
            record = await until_final(one, task)
            assert record.result == {"value": (await answers(one, task))["elicitation-1"]}
            assert [entry.kind for entry in await store.journal(task.id)] == ["ask", "answer", "done"]


async def test_answers_are_checked_against_the_questions_they_are_written_for() -> None:
    checked: list[set[str]] = []

    def check(record: TaskRecord) -> None:
        checked.append(set(record.inputs.outstanding))
        if "elicitation-2" in record.inputs.outstanding:
            raise ValueError("no answer to that")

    async with running(ask_two_in_turn) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await answer(runtime, task, elicitation_1="Ada")
        await until_putting(runtime, task, "elicitation-2")
        with pytest.raises(ValueError, match="no answer"):
            # `task` is from before: the answer to the first question is in, and the second one is open by now.
            await runtime.answer(task, {"elicitation-1": "Ada", "elicitation-2": "garbage"}, actor=CLIENT, check=check)
        assert checked == [{"elicitation-1"}, {"elicitation-2"}]
        assert put(await as_of_now(runtime, task)) == {"elicitation-2": "Sure?"}


# Giving up


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
        assert await answers(runtime, task) == {}


async def test_a_question_given_up_while_it_is_being_written_is_withdrawn_and_its_neighbour_is_unharmed() -> None:
    hold, given_up = Held(lambda record, _: record.inputs.outstanding), anyio.Event()

    async def body(run: Run) -> Ending:
        first, second = [asyncio.create_task(run.ask(question(what))) for what in ("Name?", "Sure?")]
        await hold.came.wait()
        first.cancel()
        await asyncio.wait({first})
        given_up.set()
        return ok(await second)

    async with running(body, store=MeddledStore(save=hold)) as runtime:
        task = await launch(runtime)
        await given_up.wait()
        hold.goes_on.set()
        task = await until(runtime, task, lambda record: list(record.inputs.outstanding) == ["elicitation-2"])
        assert task.inputs.used == {"elicitation-1", "elicitation-2"}
        await answer(runtime, task, elicitation_2="yes")
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

    store = MemoryStore()
    ended = await twice(body, store=store)
    assert ended.result == {"value": "yes"}
    asked = [entry.value for entry in await store.journal(ended.id) if entry.kind == "ask"]
    assert [each["params"]["message"] for each in asked] == ["Really?"]


async def test_of_questions_that_are_put_together_one_that_cannot_be_stored_fails_alone() -> None:
    async def body(run: Run) -> Ending:
        asked = (run.ask(question(message)) for message in ("Name?", "Odd?", "Sure?"))
        name, odd, sure = await asyncio.gather(*asked, return_exceptions=True)
        return ok([name, str(odd), sure])

    store = MeddledStore()
    store.refuse(ValueNotStorable("a value is too odd"), "save", when=lambda _, entries: "Odd?" in str(entries))
    async with running(body, store=store) as runtime:
        task = await until(runtime, await launch(runtime), lambda record: len(record.inputs.outstanding) == 2)
        await runtime.answer(task, put(task), actor=CLIENT)
        assert (await until_final(runtime, task)).result == {"value": ["Name?", "a value is too odd", "Sure?"]}


# Between two runs


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


async def test_a_task_that_waits_outlives_any_number_of_processes() -> None:
    store = MemoryStore()
    async with running(asks, store=store, policy=RERUN) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await settle()
    for _ in range(2):
        async with running(asks, store=store, policy=RERUN) as runtime:
            await settle()
            task = await as_of_now(runtime, task)
            assert (task.status, task.attempt, task.worker) == (TaskStatus.INPUT_REQUIRED, 1, None)
    async with running(asks, store=store, policy=RERUN) as runtime:
        await answer(runtime, task, elicitation_1="yes")
        assert (await until_final(runtime, task)).result == {"value": "yes"}


async def test_an_answer_that_comes_while_the_run_leaves_memory_is_acted_on_at_once() -> None:
    hold = Held(lambda record, _: record.attempt and record.worker is None and not record.is_final)
    async with running(asks, store=MeddledStore(save=hold), policy=PARKS) as runtime:
        task = await launch(runtime)
        await hold.came.wait()
        await answer(runtime, task, elicitation_1="yes")
        hold.goes_on.set()
        assert (await until_final(runtime, task, limit=5)).result == {"value": "yes"}


async def test_an_answer_that_comes_while_the_old_run_tidies_up_is_acted_on_at_once() -> None:
    tidied = anyio.Event()

    async def body(run: Run) -> Ending:
        try:
            return await asks(run)
        finally:
            if run.attempt == 1:
                with anyio.CancelScope(shield=True):
                    await tidied.wait()

    async with running(body, policy=PARKS) as runtime:
        task = await until_parked(runtime, await launch(runtime), "elicitation-1")
        await answer(runtime, task, elicitation_1="yes")
        tidied.set()
        assert (await until_final(runtime, task, limit=5)).result == {"value": "yes"}


async def test_a_run_whose_task_is_gone_by_the_time_it_would_be_parked_just_ends() -> None:
    store = MeddledStore()

    async def gone(record: TaskRecord, *, expected: int, **options: Any) -> None:
        if record.status is TaskStatus.INPUT_REQUIRED and record.worker is None:
            await store.delete(record.id, expected=expected, now=record.updated_at)

    store.before["save"] = gone
    async with running(asks, store=store, policy=PARKS) as runtime:
        task = await launch(runtime)
        await eventually(lambda: store.calls["delete"] and not runtime.runs())
        await settle()
        assert (await store.get(task.id), runtime.runs()) == (None, [])


async def test_a_question_that_times_out_is_not_parked_again_while_its_answer_is_looked_up() -> None:
    clock = FakeClock()

    async def ask(run: Run) -> Ending:
        with suppress(QuestionTimedOut):
            await run.ask(question("Sure?"), Asking(timeout=timedelta(minutes=1)))
        return ok(run.attempt)

    async def slowly(*args: Any, **options: Any) -> None:
        await settle()

    async with running(ask, store=MeddledStore(journal=slowly), policy=PARKS, clock=clock) as runtime:
        task = await until_parked(runtime, await launch(runtime), "elicitation-1")
        await eventually(lambda: not runtime.runs())
        clock.advance(timedelta(minutes=2))
        await runtime.janitor.sweep()
        assert (await until_final(runtime, task)).result == {"value": 2}


# A limit that the call brought along


@pytest.mark.parametrize(
    ("of_tool", "of_call", "limit"),
    [(None, 60, 60), (600, 60, 60), (60, 600, 60), (60, None, 60), (None, None, None), (None, "max", None)],
)
@pytest.mark.parametrize("policy", [PARKS, ONCE], ids=["parks", "once"])
async def test_the_smaller_limit_of_tool_and_call_ends_a_wait(
    of_tool: int | None, of_call: int | str | None, limit: int | None, policy: TaskOptions
) -> None:
    def duration(number: int | str | None) -> timedelta | None:
        # A limit longer than time itself is none.
        return timedelta.max if number == "max" else None if number is None else timedelta(seconds=float(number))

    clock = FakeClock()
    request = replace(REQUEST, max_wait=duration(of_call))
    async with running(asks, policy=replace(policy, max_wait=duration(of_tool)), clock=clock) as runtime:
        task = await until_asking(runtime, await runtime.launch(LaunchSpec(request=request)))
        await settle()
        for seconds, is_over in ((59, False), (1, limit is not None)):
            clock.advance(timedelta(seconds=seconds))
            runtime.alarms.recheck()
            await runtime.janitor.sweep()
            await settle()
            assert (await as_of_now(runtime, task)).is_final is is_over
        if limit is not None:
            assert "nobody answered 'tool' within 60 s" in str((await until_final(runtime, task)).error)


# Asking the same things again


async def test_a_run_that_asks_something_else_the_second_time_is_refused_with_the_difference() -> None:
    async def fickle(run: Run) -> Ending:
        return ok(await run.ask(question(f"Question of run {run.attempt}?")))

    record = await twice(fickle)
    assert error_type(record) == "ReplayMismatch"
    for asked in ("'Question of run 1?'", "'Question of run 2?'"):
        assert asked in (record.status_message or "")


@pytest.mark.parametrize("park_after", [timedelta(0), HOUR], ids=["parked", "in memory"])
async def test_no_entry_of_the_journal_is_read_twice_by_a_run(park_after: timedelta) -> None:
    store, read, asked = MeddledStore(), list[int](), 5

    async def body(run: Run) -> Ending:
        for number in range(20):
            await current_task().step(f"step {number}", lambda: 1)
        return ok([await run.ask(question(f"{number}?")) for number in range(asked)])

    async def count(entries: Sequence[JournalEntry], *args: Any, **options: Any) -> None:
        read.append(len(entries))

    store.after["journal"] = count
    async with running(body, store=store, policy=TaskOptions(recover="rerun", park_after=park_after)) as runtime:
        task = await launch(runtime)
        for number in range(1, asked + 1):
            key = f"elicitation-{number}"
            await until_putting(runtime, task, key)
            await answer(runtime, task, **{key: number})
        record = await until_final(runtime, task)
        assert record.result == {"value": list(range(1, asked + 1))}
        total = sum(read)
        assert total <= len(await runtime.store.journal(task.id)) * record.attempt


# Answered with an error

NO = AnswerRefused(-1, "User rejected it", {"why": [1]})
TOLD = [-1, "User rejected it", {"why": [1]}]


async def ask_until_it_works(run: Run) -> Ending:
    said: list[object] = []
    for number in (1, 2):
        try:
            said.append(await run.ask(question(f"Sure? ({number})")))
        except AnswerRefused as exc:
            said.append([exc.code, exc.message, exc.data])
    return ok(said)


@pytest.mark.parametrize(("policy", "attempts"), [(RERUN, 1), (PARKS, 3)], ids=["in memory", "parked"])
async def test_an_error_reaches_the_tool_in_every_run(policy: TaskOptions, attempts: int) -> None:
    reached = until_parked if policy is PARKS else until_putting
    async with running(ask_until_it_works, policy=policy) as runtime:
        task = await reached(runtime, await launch(runtime), "elicitation-1")
        await runtime.refuse(task, "elicitation-1", NO, actor=CLIENT)
        await reached(runtime, task, "elicitation-2")
        await answer(runtime, task, elicitation_2={"action": "accept"})
        record = await until_final(runtime, task)
        assert (record.attempt, record.result) == (attempts, {"value": [TOLD, {"action": "accept"}]})


async def test_of_questions_that_are_put_together_one_may_be_refused_in_every_run() -> None:
    async def ask_all(run: Run) -> Ending:
        with pytest.raises(AnswerRefused) as refused:
            await run.ask_all({"one": question("One?"), "two": question("Two?")})
        return ok([refused.value.code, await run.ask(question("Really?"))])

    async with running(ask_all, policy=PARKS) as runtime:
        task = await until_parked(runtime, await launch(runtime), "elicitation-1")
        task = await answer(runtime, task, elicitation_2={"action": "accept"})
        await runtime.refuse(task, "elicitation-1", NO, actor=CLIENT)
        await answer(runtime, await until_parked(runtime, task, "elicitation-3"), elicitation_3=True)
        record = await until_final(runtime, task)
        assert record.result == {"value": [-1, True]}
        assert record.attempt > 1


async def test_only_the_first_of_an_answer_and_an_error_counts_and_none_is_taken_for_the_other() -> None:
    forged = {"code": -1, "message": "User rejected it", "data": None, "error": {"code": -1}}
    async with running(ask_until_it_works) as runtime:
        task = await until_asking(runtime, await launch(runtime))
        await asyncio.gather(
            runtime.refuse(task, "elicitation-1", NO, actor=CLIENT), answer(runtime, task, elicitation_1="yes")
        )
        await until_putting(runtime, task, "elicitation-2")
        await answer(runtime, task, elicitation_2=forged)
        record = await until_final(runtime, task)
        assert record.result in ({"value": [TOLD, forged]}, {"value": ["yes", forged]})
        kinds = [entry.kind for entry in await runtime.store.journal(task.id)]
        assert sum(kind in ("answer", "refusal") for kind in kinds) == 2
