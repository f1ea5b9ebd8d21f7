"""Which of the states that come is the newest, with clocks that cannot be trusted."""

from __future__ import annotations

from mcp_tasks.client.handle import Order
from mcp_tasks.protocol.shapes import TaskSnapshot, parse_task
from tests.client.peer import completed, working


def state(step: int) -> TaskSnapshot:
    """The later the higher the step, as its server says."""
    return parse_task(working(step))


def test_what_crossed_something_newer_does_not_follow_it() -> None:
    order = Order()
    assert order.takes(state(1), looked=True)
    assert order.takes(state(5), looked=False)
    assert not order.takes(state(3), looked=True)
    assert not order.takes(state(4), looked=False)
    assert order.takes(state(5), looked=False)
    assert not order.takes(state(4), looked=True), "what was doubted before was settled"


def test_what_two_looks_in_a_row_have_found_follows_though_its_clock_went_back() -> None:
    order = Order()
    assert order.takes(state(5), looked=True)
    assert not order.takes(state(1), looked=True)
    assert order.takes(state(2), looked=True)
    assert order.takes(state(3), looked=False), "by the clock as it is now"


def test_the_end_follows_whatever_its_time() -> None:
    order = Order()
    assert order.takes(state(59), looked=True)
    assert order.takes(parse_task(completed(lastUpdatedAt="2026-08-01T10:00:01.000Z")), looked=False)
