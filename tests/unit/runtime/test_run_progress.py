"""Progress on its way to the store: the newest counts, and not every report is written."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import Progress
from mcp_tasks.model.json import LONGEST_MESSAGE
from mcp_tasks.runtime.run import AT_ONCE, LONGEST, ProgressThrottle
from tests.unit.running import settle
from tests.unit.virtual_time import SIMULATED, time_passes

pytestmark = pytest.mark.anyio

PAUSE = timedelta(seconds=1)


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """No test here waits for the time it is about."""
    return SIMULATED


class Reporting:
    """A run that reports, and what of it was written."""

    def __init__(self, turns: asyncio.Semaphore | None = None) -> None:
        self.written: list[float] = []
        self.refuses: Exception | None = None
        self.is_over = False
        self.hangs = False
        self.writing = 0
        self.throttle = ProgressThrottle(self._write, PAUSE, turns or asyncio.Semaphore(AT_ONCE))
        self.flushing: set[asyncio.Task[None]] = set()

    def report(self, *numbers: float) -> None:
        for number in numbers:
            if self.throttle.put(Progress(progress=number)):
                self.flushing.add(asyncio.create_task(self.throttle.flush()))

    async def _write(self, progress: Progress) -> bool:
        self.writing += 1
        try:
            if self.hangs:
                await asyncio.Event().wait()
        finally:
            self.writing -= 1
        if self.refuses is not None:
            raise self.refuses
        self.written.append(progress.progress)
        return not self.is_over


async def test_the_first_report_is_written_at_once_and_then_the_newest_after_each_pause() -> None:
    run = Reporting()
    run.report(1)
    await settle()
    assert run.written == [1]
    run.report(2, 3, 4)
    await settle()
    assert run.written == [1]
    await time_passes(PAUSE.total_seconds())
    assert run.written == [1, 4]
    await time_passes(10 * PAUSE.total_seconds())
    assert run.written == [1, 4], "what is no news is not written again"
    run.report(5)
    await settle()
    assert run.written == [1, 4, 5], "after a long silence a report is written at once"


async def test_many_reports_share_one_writer() -> None:
    run = Reporting()
    run.report(*range(1_000))
    await settle()
    assert len(run.flushing) == 1


async def test_what_was_not_written_yet_goes_with_the_outcome() -> None:
    run = Reporting()
    run.report(1)
    await settle()
    run.report(2)
    assert run.throttle.take() == Progress(progress=2)
    assert run.throttle.take() is None
    await time_passes(10 * PAUSE.total_seconds())
    assert run.written == [1], "it is written once"


async def test_a_report_that_cannot_be_stored_is_dropped_and_the_next_is_not(caplog: pytest.LogCaptureFixture) -> None:
    run = Reporting()
    run.refuses = TypeError("no JSON")
    run.report(1)
    await settle()
    run.refuses = None
    run.report(2)
    await time_passes(2 * PAUSE.total_seconds())
    assert run.written == [2]
    assert "progress is not stored" in caplog.text


async def test_a_report_that_the_store_did_not_take_is_written_later_unless_there_is_a_newer_one() -> None:
    run = Reporting()
    run.refuses = StoreUnavailable("away")
    run.report(1)
    await time_passes(10 * PAUSE.total_seconds())
    run.report(2)
    await time_passes(10 * PAUSE.total_seconds())
    assert len(run.flushing) == 1, "it is tried again by the one that writes"
    run.refuses = None
    await time_passes(10 * PAUSE.total_seconds())
    assert run.written == [2]


async def test_a_write_that_hangs_is_given_up() -> None:
    run = Reporting()
    run.hangs = True
    run.report(1)
    await settle()
    run.report(2)
    run.hangs = False
    await time_passes(LONGEST - 1)
    assert run.written == []
    await time_passes(1 + 2 * PAUSE.total_seconds())
    assert run.written == [2]


async def test_only_so_many_reports_of_a_process_are_being_written_at_a_time() -> None:
    turns = asyncio.Semaphore(AT_ONCE)
    runs = [Reporting(turns) for _ in range(3 * AT_ONCE)]
    for run in runs:
        run.hangs = True
        run.report(1)
    await settle()
    assert sum(run.writing for run in runs) == AT_ONCE
    for run in runs:
        run.report(2)
        run.hangs = False
    await time_passes(LONGEST + 2 * PAUSE.total_seconds())
    assert [run.written for run in runs] == [[2]] * len(runs)


async def test_a_writer_that_learns_that_the_run_is_over_ends_at_once() -> None:
    run = Reporting()
    run.report(1)
    await settle()
    assert [flushing.done() for flushing in run.flushing] == [False], "it waits for what comes next"
    run.is_over = True
    run.report(2, 3)
    await time_passes(PAUSE.total_seconds())
    assert (run.written, [flushing.done() for flushing in run.flushing]) == ([1, 3], [True])


def test_a_long_message_is_cut() -> None:
    throttle = Reporting().throttle
    throttle.put(Progress(progress=1, message="x" * LONGEST_MESSAGE))
    assert throttle.take() == Progress(progress=1, message="x" * LONGEST_MESSAGE)
    throttle.put(Progress(progress=1, message="x" * (LONGEST_MESSAGE + 1)))
    assert throttle.take() == Progress(progress=1, message="x" * (LONGEST_MESSAGE - len("…".encode())) + "…")
