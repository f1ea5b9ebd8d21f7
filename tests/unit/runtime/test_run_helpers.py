"""What is done for a run beside its tool."""

from __future__ import annotations

import asyncio
import contextvars

import anyio
import pytest

from mcp_tasks.runtime.run import Helpers
from tests.unit.running import settle

pytestmark = pytest.mark.anyio


async def test_a_helper_that_fails_says_so_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    async def fails() -> None:
        raise RuntimeError("out of paper")

    async def works() -> None:
        await settle(5)
        done.append("work")

    helpers = Helpers("task_0123456789")
    for work in (fails(), works()):
        helpers.start(work, contextvars.copy_context())
    await settle()
    assert done == ["work"]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "task task_0123456…" in caplog.text


async def test_when_a_run_is_over_nothing_is_done_for_it_any_more(caplog: pytest.LogCaptureFixture) -> None:
    helpers = Helpers("task_0123456789")
    helper = helpers.start(anyio.sleep_forever(), contextvars.copy_context())
    await settle()
    helpers.cancel()
    await asyncio.wait({helper})
    assert helper.cancelled()
    assert caplog.records == []
