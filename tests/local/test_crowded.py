"""Two workers, one Redis, and a limit that the parents of one owner use up: their children run all the same."""

from __future__ import annotations

from pathlib import Path

from harness.databases import valkey
from harness.forking import Forked, fork

LIMIT = 60.0
"""Seconds for the processes to start and do their part on a busy machine."""


def test_parents_that_wait_make_room_for_their_children_over_all_processes(tmp_path: Path) -> None:
    def worker(*owner: str) -> Forked:
        return fork("tests.local.crowded", url, str(tmp_path), *owner)

    with valkey() as server:
        url = server.new_database()
        workers = worker("ann"), worker()
        try:
            assert [process.wait(LIMIT) for process in workers] == [0, 0]
        finally:
            for process in workers:
                process.kill()
    at_work, most, began = set[str](), 0, 0
    for line in (tmp_path / "log").read_text().splitlines():
        what, task_id = line.split()
        at_work ^= {task_id}
        began += what == "begins"
        most = max(most, len(at_work))
    assert (began, at_work) == (10, set())
    assert most <= 2
