"""What a wait is made of."""

from __future__ import annotations

import asyncio
import math

import anyio

from mcp_tasks.client.answers import Budget


def test_a_time_limit_runs_on_after_an_answer_in_a_plain_event_loop() -> None:
    """Answers end in a callback of the loop. Under `asyncio.run`, unlike in a test runner of anyio's, such a callback
    does not know what library it runs under."""

    async def wait() -> bool:
        loop = asyncio.get_running_loop()
        with anyio.CancelScope() as scope:

            def move(end: float | None) -> None:
                scope.deadline = math.inf if end is None else end

            budget = Budget(0.02, move)
            budget.pause(True)
            loop.call_later(0.05, budget.pause, False)
            await anyio.sleep_forever()
        return scope.cancelled_caught

    assert asyncio.run(wait())


def test_a_time_limit_stands_still_until_the_last_of_several_has_answered() -> None:
    async def ends() -> list[float | None]:
        moved: list[float | None] = []
        budget = Budget(60, moved.append)
        with budget.paused():
            with budget.paused():
                pass
            # Somebody is still at work.
            assert moved[-1] is None
        return moved

    first, paused, last = asyncio.run(ends())
    assert paused is None
    assert first is not None
    assert last is not None
    assert last >= first


def test_no_limit_is_never_over() -> None:
    async def ends() -> list[float | None]:
        moved: list[float | None] = []
        with Budget(None, moved.append).paused():
            pass
        return moved

    assert asyncio.run(ends()) == [None]
