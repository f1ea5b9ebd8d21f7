"""Who takes its process down, and what becomes of work whose process lost touch with the store."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mcp_tasks.core import JournalEntry, RunStarted, StepRecorded, apply
from mcp_tasks.core.record import Trial
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.runtime import ToolPolicy
from mcp_tasks.runtime.lease import Lease
from mcp_tasks.runtime.trials import Trials, is_guilty
from mcp_tasks.testing import make_record
from mcp_tasks.testing.clock import NOON
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
        said.append("beat")

    lease = Lease(
        timedelta(seconds=15),
        beat=beat,
        look=look,
        stop_runs=lambda: said.append("stop"),
        take_up=look,
        clock=lambda: time[0],
    )
    await lease.make_sure()
    assert said == [], "a good lease costs nothing"
    time[0] = 60.0
    await lease.make_sure()
    assert said[0] == "look"
    assert (said[-1], lease.is_valid) == (("stop", False) if store_is_away else ("beat", True))


@pytest.mark.anyio
async def test_a_step_that_was_done_when_the_lease_was_lost_is_recorded_when_it_is_renewed() -> None:
    async def body(run: object) -> object:
        return ok()

    async with running(body, policy=ONCE) as runtime:  # pyright: ignore[reportArgumentType]
        record = apply(make_record(), RunStarted(worker=runtime.worker), NOON)
        await runtime.store.create(record)
        runtime.lease.is_valid = False
        entry = JournalEntry(kind="step", key="pay", value={"value": 1})
        runtime.write_later(record, [StepRecorded(attempt=1)], [entry])
        await runtime.write_late()
        assert list(await runtime.store.journal(record.id)) == [entry]
