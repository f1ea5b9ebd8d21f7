"""Tools that block their threads, as many as may run at a time."""

from __future__ import annotations

import time

from tests.chaos.serving import Server, site


def timed(server: Server, task_id: str) -> float:
    """The slowest of some requests that need no tool, and of some that need one."""
    slowest = 0.0
    for _ in range(20):
        began = time.monotonic()
        assert server.status(task_id) == "working"
        server.plain("greet", name="Ann")
        slowest = max(slowest, time.monotonic() - began)
    return slowest


def test_blocking_tools_in_every_slot_delay_neither_looking_nor_plain_calls() -> None:
    with site() as place:
        server = place.serve("--concurrency", "50")
        blocked = [server.call("blocking_job", seconds=20) for _ in range(60)]
        # A slot is used by each of the first fifty; the last one waits in line. An answer takes
        # milliseconds; one that waited for a slot would take twenty seconds.
        assert timed(server, blocked[-1]) < 6
        assert {server.status(task_id) for task_id in blocked} == {"working"}
        assert "Traceback" not in server.output
