"""Questions on the original call, and that nothing is kept of a call that is over."""

from __future__ import annotations

import contextlib

import anyio
import pytest
from mcp_types import InputRequiredResult

from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.server.guard import Guards

pytestmark = pytest.mark.anyio

ASKED = InputRequiredResult(request_state="where we were")


def test_what_is_asked_while_the_call_is_open_is_its_answer() -> None:
    guards = Guards()
    with guards.call() as guard:
        guard.open("task_1")
        assert guards.offer("task_1", ASKED)
        assert guard.close() is ASKED
        assert not guards.offer("task_1", ASKED)


def test_a_call_on_which_nothing_was_asked_has_no_answer() -> None:
    guards = Guards()
    with guards.call() as guard:
        assert guard.close() is None
        guard.open("task_1")
        assert guard.close() is None


def test_a_call_that_failed_can_be_asked_nothing_any_more() -> None:
    guards = Guards()
    with contextlib.suppress(StoreUnavailable), guards.call() as guard:
        guard.open("task_1")
        raise StoreUnavailable("full")
    assert not guards.offer("task_1", ASKED)


async def test_a_call_that_was_given_up_can_be_asked_nothing_any_more() -> None:
    guards = Guards()
    with anyio.CancelScope() as scope, guards.call() as guard:
        guard.open("task_1")
        scope.cancel()
        await anyio.sleep_forever()
    assert not guards.offer("task_1", ASKED)


def test_calls_do_not_mix() -> None:
    guards = Guards()
    with guards.call() as first, guards.call() as second:
        first.open("task_1")
        second.open("task_2")
        guards.offer("task_2", ASKED)
        assert first.close() is None
        assert second.close() is ASKED
