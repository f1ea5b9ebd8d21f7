"""A server that is killed while tools run whose tasks are not written yet."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from tests.chaos.serving import GATED, GONE, RpcError, Server, Site, site, until


@contextmanager
def nothing_written(place: Site) -> Generator[None]:
    """Keep every process from writing to the file while the block lasts."""
    with closing(sqlite3.connect(place.db, isolation_level=None, timeout=5)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            holder.execute("ROLLBACK")


def ran(folder: Path) -> set[int]:
    log = folder / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    return {int(line.split()[1]) for line in lines if line.startswith("ran ")}


def stored(place: Site) -> tuple[dict[str, str], int]:
    """The status of each task in the file, and how many have completed without an outcome."""
    with closing(sqlite3.connect(place.db)) as reader:
        statuses = dict(reader.execute("SELECT id, status FROM tasks").fetchall())
        lacking = "SELECT count(*) FROM tasks WHERE status = 'completed' AND key NOT IN (SELECT task FROM outcomes)"
        return statuses, reader.execute(lacking).fetchall()[0][0]


class Calls:
    """Calls of a tool, from a thread, until the server is gone; and what was acknowledged of them."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.acknowledged: dict[str, int] = {}
        self._server = server
        self._folder = str(folder)
        self._next = 0

    def one(self) -> int:
        """Make a call that has been answered when this returns."""
        self._next += 1
        self.acknowledged[self._server.call("instant", folder=self._folder, n=self._next)] = self._next
        return self._next

    def until_gone(self) -> None:
        with suppress(*GONE, RpcError):
            while True:
                self.one()

    def until_acknowledged(self, more: int) -> None:
        """Return when so many more have been."""
        enough = len(self.acknowledged) + more
        until(lambda: len(self.acknowledged) >= enough, 30, what="calls are acknowledged")

    def check(self) -> None:
        """See that nothing that was acknowledged is lost, or without its result."""
        for task_id, number in self.acknowledged.items():
            task = self._server.until_status(task_id, "completed")
            assert task["result"]["structuredContent"] == {"result": f"ran {number}"}


def killed_in_between(place: Site, server: Server, calls: Calls) -> int | None:
    """Kill the server when a tool has run whose task cannot be written. The number of that call; None if its tool
    waited for the write, because the last run was not quick: a busy machine has such moments."""
    number = calls.one() + 1
    with nothing_written(place):
        calling = threading.Thread(target=calls.until_gone)
        calling.start()
        with suppress(AssertionError):
            until(lambda: number in ran(place.folder), 2, what="the tool has run")
        server.kill()
        calling.join()
    return number if number in ran(place.folder) else None


def test_a_kill_between_a_tool_and_the_write_of_its_task_leaves_nothing_of_it() -> None:
    with site() as place:
        server = place.serve(module=GATED)
        calls = Calls(server, place.folder)
        for _ in range(5):
            number = killed_in_between(place, server, calls)
            # The file has what was acknowledged, and nothing else.
            statuses, lacking = stored(place)
            assert (set(statuses), lacking) == (set(calls.acknowledged), 0)
            server.start()
            if number is not None:
                break
        else:
            raise AssertionError("the tool never started early")
        assert number not in calls.acknowledged.values()
        calls.check()


def test_whenever_a_server_is_killed_nothing_acknowledged_is_lost_and_no_task_lacks_its_outcome() -> None:
    with site() as place:
        server = place.serve(module=GATED)
        calls = Calls(server, place.folder)
        for life in range(3):
            calling = threading.Thread(target=calls.until_gone)
            calling.start()
            calls.until_acknowledged(20 + 7 * life)
            server.kill()
            calling.join()
            statuses, lacking = stored(place)
            assert lacking == 0
            assert set(calls.acknowledged) <= set(statuses)
            server.start()
        assert calls.acknowledged
        calls.check()
