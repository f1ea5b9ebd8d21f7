"""Who takes its process down, and what becomes of work whose process lost touch with the store."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import JournalEntry, StepRecorded
from mcp_tasks.model.record import Actor, Trial
from mcp_tasks.runtime import Ending, Run, ToolPolicy
from mcp_tasks.runtime.changes import Write
from mcp_tasks.runtime.claims import MAX_TURNED_AWAY, Trials, is_guilty
from mcp_tasks.runtime.lease import Lease, LeaseTimes
from mcp_tasks.testing import make_record
from tests.unit.losing import claimed_by
from tests.unit.running import ONCE, ok, running

POLICY = ToolPolicy(rerun=True, max_lost_runs=3)


@pytest.mark.parametrize(
    ("lost", "trial", "guilty"),
    [
        (1, "alone", False),
        (2, None, False),
        (2, "beside", False),
        (2, "alone", True),
        (10, None, False),
        (11, None, True),
    ],
)
def test_only_who_is_lost_alone_or_for_ever_is_ended(lost: int, trial: Trial | None, guilty: bool) -> None:
    assert is_guilty(make_record(lost=lost, trial=trial), POLICY) is guilty


def test_who_came_while_another_was_on_trial_is_called_when_that_is_over() -> None:
    trials = Trials(timedelta(seconds=10))
    assert trials.called() == []
    first = make_record(lost=2)
    trials.begin(first, POLICY)
    for number in range(2 * MAX_TURNED_AWAY):
        trials.turn_away(f"task {number}")
        trials.turn_away("task 0")
    assert trials.called() == []
    trials.passed(first.id)
    assert trials.called() == [f"task {number}" for number in range(MAX_TURNED_AWAY)]
    assert trials.called() == []


def test_suspects_are_tried_one_after_the_other() -> None:
    trials = Trials(timedelta(seconds=10))
    first, second = make_record(lost=2), make_record(lost=2)
    assert trials.begin(first, POLICY) == "alone"
    assert not trials.may_start(second, POLICY)
    assert trials.may_start(make_record(lost=1), POLICY)
    trials.passed(first.id)
    assert trials.begin(second, POLICY) == "beside"
    assert trials.watched_for(make_record(lost=4), POLICY) == timedelta(seconds=40)


@pytest.mark.anyio
@pytest.mark.parametrize("store_is_away", [False, True])
async def test_work_begins_after_a_gap_only_once_the_store_was_looked_at(store_is_away: bool) -> None:
    said: list[str] = []
    time = [0.0]

    async def look() -> None:
        said.append("look")

    async def heartbeat() -> None:
        if store_is_away:
            raise StoreUnavailable("away")
        said.append("heartbeat")

    lease = Lease(
        LeaseTimes.of(timedelta(seconds=15), timedelta(seconds=3)),
        heartbeat=heartbeat,
        look=look,
        stop_runs=lambda: said.append("stop"),
        kill_children=lambda: said.append("kill"),
        take_up=look,
        clock=lambda: time[0],
    )
    await lease.make_sure()
    assert said == [], "a good lease costs nothing"
    time[0] = 60.0
    await lease.make_sure()
    assert (said, lease.is_valid) == (
        (["look", "stop"], False) if store_is_away else (["look", "heartbeat", "look"], True)
    )


@pytest.mark.anyio
async def test_a_step_that_was_done_when_the_lease_was_lost_is_recorded_when_it_is_renewed() -> None:
    async def body(run: Run) -> Ending:
        return ok()

    async with running(body, policy=ONCE) as runtime:
        task = await claimed_by(runtime, runtime.worker)
        entry = JournalEntry(kind="step", key="pay", value={"value": 1})
        write = Write(events=[StepRecorded(attempt=1)], actor=Actor("run", runtime.worker), entries=[entry])
        runtime.late_writes.add(task, write)
        await runtime.janitor.take_up()
        written = await runtime.store.journal(task.id)
        assert [(record.kind, record.key, record.value) for record in written] == [("step", "pay", {"value": 1})]
