"""A server that is killed in the middle of its work, and started again."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections import Counter
from typing import Any

import pytest

from tests.chaos.serving import FINAL, GONE, RpcError, Server, Site, Task, site, until


def test_fifty_tasks_that_may_run_again_are_all_completed_after_a_kill() -> None:
    with site() as place:
        server = place.serve()
        began = time.monotonic()
        tasks = [place.job(server, "job", number, 5) for number in range(50)]
        until(lambda: len(set(place.logged("start"))) == 50, 10, what="all jobs have started")
        until(lambda: time.monotonic() - began >= 2.5, 5, what="half of their time is over")
        assert place.logged("end") == []
        server.kill()
        server.start()
        # Right after the restart every id that was answered is known, and none has ended badly.
        assert {server.status(task) for task in tasks} <= {"working", "completed"}
        ended = server.until_all_final(tasks, limit=10)
        assert {task["status"] for task in ended.values()} == {"completed"}
        assert set(place.logged("end")) == set(range(50))
        assert max(Counter(place.logged("start")).values()) == 2


def test_tasks_that_may_not_run_again_end_as_interrupted_and_those_that_never_began_are_run() -> None:
    with site() as place:
        server = place.serve("--concurrency", "2")
        running = [place.job(server, "fragile_job", number, 30) for number in range(2)]
        until(lambda: len(place.logged("start")) == 2, 10, what="both slots are used")
        queued = [place.job(server, "fragile_job", number, 0.2) for number in range(2, 8)]
        server.kill()
        assert sorted(place.logged("start")) == [0, 1]
        server.start()
        for task in server.until_all_final(running, limit=10).values():
            assert task["status"] == "failed"
            assert task["error"]["data"] == {"reason": "interrupted"}
            assert "nterrupted" in task["statusMessage"]
        assert {task["status"] for task in server.until_all_final(queued, limit=15).values()} == {"completed"}
        # Nothing was started twice, in this life or the last.
        assert sorted(place.logged("start")) == list(range(8))
        assert sorted(place.logged("end")) == list(range(2, 8))


class Storm:
    """Random requests to a server that may be gone at any moment, and what was acknowledged of them."""

    def __init__(self, place: Site, dice: random.Random) -> None:
        self.place = place
        self.dice = dice
        self.tools: dict[str, str] = {}
        self.numbers: dict[str, int] = {}
        self.fragile: set[int] = set()
        self.cancelled: set[str] = set()
        self.ended: dict[str, Task] = {}
        self._next_number = 0

    def rage(self, server: Server) -> None:
        """Create, look at, answer and cancel until the server is gone."""
        acts = (self._create, self._create, self._create, self._look, self._look, self._cancel)
        while True:
            try:
                self.dice.choice(acts)(server)
            except GONE:
                return

    def settle(self, server: Server, limit: float) -> None:
        """See every task to its end, answering what it asks."""
        deadline = time.monotonic() + limit
        while open_ := [task_id for task_id in self.tools if task_id not in self.ended]:
            assert time.monotonic() < deadline, f"{len(open_)} tasks have not ended, {self.tools[open_[0]]} among them"
            for task_id in open_:
                self._look_at(server, task_id)

    def _create(self, server: Server) -> None:
        tool = self.dice.choice(("job", "fragile_job", "noop", "slow_compute", "confirm_delete", "multi_input"))
        self._next_number += 1
        seconds = self.dice.choice((0.0, 0.1, 0.5))
        log = str(self.place.log)
        arguments: dict[str, dict[str, Any]] = {
            "job": {"n": self._next_number, "seconds": seconds, "log": log},
            "fragile_job": {"n": self._next_number, "seconds": seconds, "log": log},
            "slow_compute": {"seconds": seconds, "label": "storm"},
            "confirm_delete": {"filename": "a.txt"},
        }
        if tool == "fragile_job":
            # Also if the server dies before it answers: then the task may be there, and must not run twice either.
            self.fragile.add(self._next_number)
        task_id = server.call(tool, **arguments.get(tool, {}))
        self.tools[task_id] = tool
        self.numbers[task_id] = self._next_number

    def _look(self, server: Server) -> None:
        if self.tools:
            self._look_at(server, self.dice.choice(list(self.tools)))

    def _cancel(self, server: Server) -> None:
        if self.tools and self.dice.random() < 0.3:
            task_id = self.dice.choice(list(self.tools))
            # Also if the server dies before it answers: then it may have been cancelled.
            self.cancelled.add(task_id)
            server.cancel(task_id)
            assert server.status(task_id) in FINAL

    def _look_at(self, server: Server, task_id: str) -> None:
        task = server.get(task_id)
        # A final status is final: whatever was seen once is what is seen ever after.
        assert self._outcome(self.ended.get(task_id, task)) == self._outcome(task)
        if task["status"] in FINAL:
            self.ended[task_id] = task
        elif task["status"] == "input_required":
            content = {"elicitation-1": {"name": "Ann"}, "elicitation-2": {"confirm": True}}
            if self.tools[task_id] == "confirm_delete":
                content = {"elicitation-1": {"confirm": True}}
            server.answer(task_id, **{key: content[key] for key in task["inputRequests"]})

    def _outcome(self, task: Task) -> Any:
        if task["status"] not in FINAL:
            return None
        return task["status"], task.get("result"), task.get("error")


def test_a_server_that_is_killed_again_and_again_loses_nothing_and_does_nothing_twice() -> None:
    seed = secrets.randbits(32)
    with site() as place:
        storm = Storm(place, random.Random(seed))
        # It is not the tools that take the process down, so none of them is given up for it.
        server = place.serve("--max-lost-runs", "1000")
        kills = 0
        # More than ten where the machine is so busy that little is acknowledged in between.
        while kills < 10 or (len(storm.tools) <= 50 and kills < 30):
            kills += 1
            killer = threading.Timer(storm.dice.uniform(0.02, 0.8), server.kill)
            killer.start()
            try:
                storm.rage(server)
            finally:
                killer.join()
            server.start()
        storm.settle(server, limit=30)
        _check_endings(storm, seed)
        _check_log(storm, seed)
        # And it stays so.
        for task_id, task in storm.ended.items():
            assert server.get(task_id)["status"] == task["status"]


def _check_endings(storm: Storm, seed: int) -> None:
    assert len(storm.tools) > 50, f"seed {seed}"
    for task_id, task in storm.ended.items():
        tool = storm.tools[task_id]
        told = f"seed {seed}: {tool} ended as {task}"
        if task["status"] == "failed":
            assert tool == "fragile_job", told
            assert task["error"]["data"] == {"reason": "interrupted"}, told
        elif task["status"] == "cancelled":
            assert task_id in storm.cancelled, told
        else:
            assert not task["result"].get("isError"), told


def _check_log(storm: Storm, seed: int) -> None:
    starts, ends = Counter(storm.place.logged("start")), Counter(storm.place.logged("end"))
    assert [number for number in storm.fragile if starts[number] > 1] == [], f"seed {seed}"
    for task_id, task in storm.ended.items():
        if storm.tools[task_id] in ("job", "fragile_job") and task["status"] == "completed":
            assert ends[storm.numbers[task_id]] >= 1, f"seed {seed}: {task}"


def test_a_task_that_was_never_answered_for_is_not_known() -> None:
    with site() as place:
        server = place.serve()
        kept = server.call("park", seconds=60)
        server.kill()
        server.start()
        assert server.status(kept) == "working"
        with pytest.raises(RpcError, match="-32602"):
            server.get("task_that_nobody_made")
