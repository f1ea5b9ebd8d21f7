"""Sleeps that survive restarts: each is set once in the life of the task."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from mcp_tasks.core.events import StepRecorded
from mcp_tasks.runtime.alarms import Bell, later
from mcp_tasks.runtime.replay import Replay, ResultId, Timer, done_entry, timer_entry

if TYPE_CHECKING:
    from mcp_tasks.runtime.run import Run


class Timers:
    """The sleeps of one run."""

    def __init__(self, run: Run, replay: Replay) -> None:
        self._run = run
        self._replay = replay

    async def sleep(self, duration: timedelta | None, until: datetime | None, name: str | None) -> None:
        """Wait for a time that is set once in the life of the task."""
        run = self._run
        await run.make_sure()
        key, recorded = self._replay.find_timer(_identity(duration, until, name))
        result = ResultId("timer", key)
        run.deliveries.met(result)
        if self._replay.gives_up(result):
            await run.give_up_again()
        async with run.recording.giving_up(result):
            if run.deliveries.has(result):
                await run.deliveries.recorded(result)
            else:
                await self._sleep(result, recorded or _end(run.now(), duration, until), is_set=recorded is not None)

    async def _sleep(self, result: ResultId, until: datetime, *, is_set: bool) -> None:
        run = self._run
        place = run.place
        if not is_set:
            run.recording.require_room()
            timer = Timer(key=result.key, until=until)
            await run.deliveries.caught_up(str(result))
            await run.recording.record(StepRecorded(attempt=run.attempt), entries=[timer_entry(timer, place)])
        async with run.leaving.while_waiting(wake_at=until):
            await run.alarms.wait(Bell(), until)
        await run.deliveries.caught_up(f"the end of {result}")
        entry = done_entry(result, "over", place)
        await run.recording.record_in_turn(StepRecorded(attempt=run.attempt), entries=[entry])


def _identity(duration: timedelta | None, until: datetime | None, name: str | None) -> str:
    if name is not None:
        return f"name:{name}"
    return f"until:{until.isoformat()}" if until is not None else f"sleep:{duration}"


def _end(now: datetime, duration: timedelta | None, until: datetime | None) -> datetime:
    return until if until is not None else later(now, duration or timedelta(0))
