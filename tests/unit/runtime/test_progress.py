"""Progress on its way to the store: the newest counts, and not every report is written."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from mcp_tasks.core import Progress
from mcp_tasks.core.text import LONGEST_MESSAGE
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.runtime.progress import ProgressThrottle
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

    def __init__(self) -> None:
        self.written: list[float] = []
        self.refuses: Exception | None = None
        self.is_over = False
        self.throttle = ProgressThrottle(self._write, PAUSE)
        self.flushing: set[asyncio.Task[None]] = set()

    def report(self, *numbers: float) -> None:
        for number in numbers:
            if self.throttle.put(Progress(progress=number)):
                self.flushing.add(asyncio.create_task(self.throttle.flush()))

    async def _write(self, progress: Progress) -> bool:
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


@pytest.mark.parametrize("refusal", [StoreUnavailable("full"), TypeError("no JSON")], ids=["away", "no JSON"])
async def test_a_report_that_cannot_be_written_is_dropped_and_the_next_is_not(
    refusal: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    run = Reporting()
    run.refuses = refusal
    run.report(1)
    await settle()
    run.refuses = None
    run.report(2)
    await time_passes(2 * PAUSE.total_seconds())
    assert run.written == [2]
    assert "progress is not stored" in caplog.text


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
