"""What a wait is made of."""

from __future__ import annotations

import asyncio

import anyio

from mcp_tasks.client.waiting import Budget


def test_a_time_limit_runs_on_after_an_answer_in_a_plain_event_loop() -> None:
    """Answers end in a callback of the loop. Under `asyncio.run`, unlike in a test runner of anyio's, such a callback
    does not know what library it runs under."""

    async def wait() -> bool:
        loop = asyncio.get_running_loop()
        with anyio.CancelScope() as scope:
            budget = Budget(scope, 0.02)
            budget.pause(True)
            loop.call_later(0.05, budget.pause, False)
            await asyncio.sleep(10)
        return scope.cancelled_caught

    assert asyncio.run(wait())
