"""This release and the next one on one store, as while a fleet is rolled from one to the other.

The next one has one more field in each record and request, and one more column (`next_release.py`).
"""

import json
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from redis import Redis

from harness.backends import Backend, BackendName
from harness.processes import PIPE, environment, python, read_line, start, tell
from mcp_tasks.stores.codec import FORMAT
from tests.rolling.next_release import COLOUR, PACKAGE, SHADE, build_next_release

LIMIT = 15.0
THIS, NEXT = FORMAT, FORMAT + 1


class Process:
    def __init__(self, package: Path, url: str) -> None:
        self._command = python("tests.rolling.release", url)
        self._environment = environment(package)
        self._process: subprocess.Popen[str] | None = None

    def load(self) -> None:
        """Have its code loaded, which takes longest; several processes do so at the same time."""
        self._process = start(self._command, env=self._environment, stdin=PIPE, stdout=PIPE, text=True)

    def start(self) -> int:
        """Let it open the store and begin; gives its format."""
        if self._process is None:
            self.load()
        return self._told("\n")

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.communicate(timeout=LIMIT)
            assert process.returncode == 0

    def tell(self, verb: str, **more: Any) -> Any:
        return self._told(json.dumps({"do": verb, **more}) + "\n")

    def until(self, task: str, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + LIMIT
        while True:
            shown = self.tell("show", task=task)
            if reached(shown):
                return shown
            assert time.monotonic() < deadline, shown
            time.sleep(0.05)

    def until_parked(self, task: str, number: int) -> dict[str, Any]:
        return self.until(task, lambda shown: shown["open"] == [f"elicitation-{number}"] and shown["parked"])

    def until_done(self, task: str) -> dict[str, Any]:
        return self.until(task, lambda shown: shown["status"] == "completed")

    def _told(self, words: str) -> Any:
        assert self._process is not None
        tell(self._process, words)
        line = read_line(self._process)
        return json.loads(line)


@pytest.fixture(scope="module")
def next_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_next_release(tmp_path_factory.mktemp("next"))


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, shared_backend: Callable[[BackendName], Backend]) -> str:
    return shared_backend(request.param).fresh()


@pytest.fixture
def releases(url: str, next_release: Path) -> Iterator[tuple[Process, Process]]:
    with ExitStack() as stack:
        this, following = Process(PACKAGE.parent, url), Process(next_release, url)
        for process in (this, following):
            stack.callback(process.stop)
            process.load()
        assert [process.start() for process in (this, following)] == [THIS, NEXT]
        yield this, following


def column_of(task: str, url: str) -> str:
    """What the store has in the column, or the field, that is new."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
            return database.execute("SELECT colour FROM tasks WHERE id = ?", (task,)).fetchall()[0][0]
    if url.startswith("postgresql"):
        with psycopg.connect(url) as database:
            rows = database.execute("SELECT colour FROM mcp_tasks_tasks WHERE id = %s", (task,)).fetchall()
            return str(rows[0][0])
    with closing(Redis.from_url(url, decode_responses=True)) as client:
        [row] = cast("Iterator[str]", client.scan_iter(f"*t:{task}"))
        return str(client.hget(row, "colour"))


def run_by(one: Process, other: Process) -> None:
    """Let only one of the two run tools from now on."""
    other.tell("serve", tools=[])
    one.tell("serve", tools=["tool", "quick"])


def test_two_adjacent_releases_work_side_by_side(releases: tuple[Process, Process], url: str) -> None:
    this, following = releases
    of_this, of_next = this.tell("create", name="tool"), following.tell("create", name="tool")

    run_by(this, following)
    for task in (of_this, of_next):
        following.until_parked(task, 1)
    run_by(following, this)
    for task in (of_this, of_next):
        this.tell("answer", task=task)
        this.until_parked(task, 2)
    # What is new is there for the next release, and this one holds on to it.
    assert following.tell("show", task=of_next)["colour"] == COLOUR
    assert this.tell("show", task=of_next)["unknown"] == {"format": NEXT, "readable": THIS, "colour": COLOUR}

    # The store is one of the next release by now; this one opens it all the same.
    this.stop()
    assert this.start() == THIS
    run_by(this, following)
    for task in (of_this, of_next):
        following.tell("answer", task=task)
        assert this.until_done(task)["done"] == [THIS, NEXT, THIS]
    shown = following.tell("show", task=of_next)
    assert (shown["colour"], shown["shade"], shown["done"]) == (COLOUR, SHADE, [THIS, NEXT, THIS])
    assert following.tell("show", task=of_this)["shade"] is None
    # The last to write was this release, in the middle the next one, and the column is the next one's alone.
    assert [column_of(task, url) for task in (of_this, of_next)] == [COLOUR, COLOUR]

    both = [process.tell("create", name="quick") for process in (this, following) for _ in range(10)]
    for process in (this, following):
        process.tell("serve", tools=["quick"])
    for task in both:
        assert following.until_done(task)["done"] in ([THIS], [NEXT])
