"""Two servers on one database."""

from __future__ import annotations

import time
from pathlib import Path

from tests.chaos.serving import GATED, site, until


def lines(folder: Path) -> list[str]:
    path = folder / "log"
    return path.read_text().splitlines() if path.exists() else []


def test_a_task_is_seen_and_cancelled_from_the_other_server() -> None:
    with site() as place:
        one, other = place.serve(module=GATED), place.serve(module=GATED)
        for _ in range(20):
            task = one.call("watched", folder=str(place.folder))
            assert other.status(task) == "working"
            one.cancel(task)
        task = one.call("watched", folder=str(place.folder))
        until(lambda: lines(place.folder).count("started") == 21, 10, what="it has started")
        before = lines(place.folder).count("cancelled")
        asked = time.monotonic()
        other.cancel(task)
        assert other.status(task) == one.status(task) == "cancelled"
        until(lambda: lines(place.folder).count("cancelled") > before, 5, what="its body was stopped")
        assert time.monotonic() - asked < 1


def test_the_other_server_takes_over_what_a_killed_one_had() -> None:
    with site() as place:
        one, other = place.serve(), place.serve()
        again = [place.job(one, "job", number, 2) for number in range(5)]
        once = [place.job(one, "fragile_job", number, 30) for number in range(5, 8)]
        waiting = one.call("confirm_delete", filename="a.txt")
        one.until_status(waiting, "input_required")
        until(lambda: len(place.logged("start")) == 8, 10, what="all have started")
        assert {pid for number in range(8) for pid in place.pids("start", number)} == {one.pid}
        one.kill()
        killed = time.monotonic()
        ended = other.until_all_final([*again, *once], limit=15)
        assert {ended[task]["status"] for task in again} == {"completed"}
        assert {ended[task]["status"] for task in once} == {"failed"}
        assert time.monotonic() - killed < 10, "a dead process of this machine is noticed, not waited out"
        assert {pid for number in range(5) for pid in place.pids("end", number)} == {other.pid}
        assert all(place.logged("start").count(number) == 1 for number in range(5, 8))
        other.answer(waiting, elicitation_1={"confirm": True})
        assert other.until_status(waiting, "completed")["result"]["structuredContent"] == {"result": "deleted a.txt"}
