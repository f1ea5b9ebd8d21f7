"""For how long large tasks hold a server's event loop, in this tree and in an older one.

    python -m bench.stall                              this tree
    python -m bench.stall --before ../before/src       both, taking turns; make the other with `git worktree add`
    python -m bench.stall --quick                      fewer rounds

A coroutine in the server sleeps for a millisecond over and over and writes down how late it wakes. Arguments are 3 MB
of JSON, results 10 MB. `worst` is the longest stall of all rounds, `median` the median of each round's longest, `CPU`
the same without the time that others had the machine, and `p99` is over all milliseconds: one timer in a hundred is
later than that. Each round lasts at least a second. On a busy machine, compare `CPU`.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.client import BenchError, Connection, listen, method_call, task_get, tool_call
from bench.machine import machine_facts
from bench.options import at_least
from bench.payload import ARGUMENT_BYTES, rows
from bench.report import print_facts
from bench.servers import ROOT
from bench.stall_report import Numbers, Ratio, Report, Row, Start
from bench.watched import Stalls, Tree, Watched, watched

LARGE = 10
"""Tasks with large arguments in the store. One of them runs: more would fill memory with what their tools hold, and
what was measured would be Python's garbage collector."""

BACKLOG = 100
REPEATS = 30
WINDOW = 1.0
"""Seconds that a round lasts at least."""

START_WINDOW = 5.0
"""Seconds that a start is watched after the server listens: several sweeps."""

POLLS = 40
"""Polls of each size in one round of the ratio."""

LIMIT = 60.0
"""Seconds to wait for a task; far more than one takes."""


@dataclass(frozen=True)
class Subject:
    """One tree's server with large tasks in it, by their ids."""

    tree: Tree
    watched: Watched
    large: str
    small: str
    string: str
    structure: str

    @property
    def connection(self) -> Connection:
        """The one connection to the server."""
        return self.watched.server.connection


@dataclass(frozen=True)
class Case:
    """One row: something that is done to a server while its loop is watched.

    `act` may name a task: it must have completed by the end of the round.
    """

    name: str
    title: str
    act: Callable[[Subject], str | None]


# What is done to a server


def _poll(which: Callable[[Subject], str]) -> Callable[[Subject], None]:
    def poll(subject: Subject) -> None:
        request = task_get(which(subject))
        until = time.monotonic() + WINDOW
        while time.monotonic() < until:
            subject.connection.exchange(request)

    return poll


def _list(subject: Subject) -> None:
    answer = subject.connection.result(tool_call("listing"))
    if int(answer["content"][0]["text"]) != LARGE + 3:
        raise BenchError(f"unexpected listing: {answer}")


def _listen(subject: Subject) -> None:
    subject.connection.first_notification(listen([subject.large] * REPEATS), "notifications/tasks")
    subject.connection.close()


def _save(tool: str) -> Callable[[Subject], str]:
    def save(subject: Subject) -> str:
        created = subject.connection.result(tool_call(tool))
        subject.watched.settle()
        return created["taskId"]

    return save


CASES = (
    Case("idle", "idle: the noise of the machine", lambda subject: None),
    Case("poll-small", "poll, small arguments", _poll(lambda subject: subject.small)),
    Case("poll-running", "poll, 3 MB arguments", _poll(lambda subject: subject.large)),
    Case("poll-string", "poll, 10 MB result, one string", _poll(lambda subject: subject.string)),
    Case("poll-structure", "poll, 10 MB result, many values", _poll(lambda subject: subject.structure)),
    Case("list", f"list {LARGE} with 3 MB, 2 with 10 MB", _list),
    Case("listen", f"listen to a 3 MB task, named {REPEATS} times", _listen),
    # Last: they add to what is listed.
    Case("save-string", "save 10 MB, one string", _save("return_string")),
    Case("save-structure", "save 10 MB, many values", _save("return_structure")),
)
START = "start"
RATIO = "ratio"
FLOOR = "floor"


def measure_cases(subjects: Sequence[Subject], cases: Sequence[Case], rounds: int) -> Generator[Row]:
    """Each case in each tree, the trees taking turns."""
    for case in cases:
        seen: dict[str, list[Stalls]] = {subject.tree.name: [] for subject in subjects}
        for _ in range(rounds):
            for subject in subjects:
                seen[subject.tree.name].append(_round(subject, case))
        yield Row(case.name, case.title, {tree: Numbers.of(stalls) for tree, stalls in seen.items()})


def _round(subject: Subject, case: Case) -> Stalls:
    subject.watched.settle()
    subject.connection.renew()
    began = time.monotonic()
    subject.watched.start()
    ended = case.act(subject)
    time.sleep(max(0.0, began + WINDOW - time.monotonic()))
    stalls = subject.watched.stop()
    if ended is not None:
        _until_completed(subject.watched, ended)
    return stalls


@contextmanager
def subject_of(tree: Tree, folder: Path) -> Generator[Subject]:
    """A server of that tree with large tasks in it, while the block lasts."""
    with watched(tree, folder / f"{tree.name}.db") as server:
        large = _create(server, tool_call("park", scene=rows(ARGUMENT_BYTES)))
        ended = [_create(server, tool_call("take", scene=rows(ARGUMENT_BYTES))) for _ in range(LARGE - 1)]
        small = _create(server, tool_call("park", scene=[]))
        string, structure = (_create(server, tool_call(f"return_{kind}")) for kind in ("string", "structure"))
        for task_id in (*ended, string, structure):
            _until_completed(server, task_id)
        yield Subject(tree, server, large, small, string, structure)


def _create(server: Watched, call: bytes) -> str:
    server.server.connection.renew()
    return server.server.connection.result(call)["taskId"]


def _until_completed(server: Watched, task_id: str) -> None:
    deadline = time.monotonic() + LIMIT
    while True:
        server.server.connection.renew()
        status = server.server.connection.result(task_get(task_id))["status"]
        if status == "completed":
            return
        if status != "working" or time.monotonic() > deadline:
            raise BenchError(f"expected a task that has completed; it is {status}")
        time.sleep(0.1)


# A start with a backlog


STARTS = (
    ("start-empty", "start, no tasks", False, 1),
    ("start-queued", f"start, {BACKLOG} queued with 3 MB, 1 may run", True, 1),
    ("start-running", f"start, {BACKLOG} queued with 3 MB, all may run", True, 1 + BACKLOG),
)


def measure_starts(trees: Sequence[Tree], folder: Path, rounds: int) -> Generator[Start]:
    """Start on nothing and on a backlog, the trees taking turns."""
    backlogs = {tree.name: _backlog(tree, folder) for tree in trees}
    for name, title, large, concurrency in STARTS:
        seen: dict[str, list[_Started]] = {tree.name: [] for tree in trees}
        for number in range(rounds):
            for tree in trees:
                copy = folder / f"{name}-{tree.name}-{number}"
                copy.mkdir()
                if large:
                    shutil.copytree(backlogs[tree.name], copy, dirs_exist_ok=True)
                seen[tree.name].append(_start(tree, copy / "tasks.db", concurrency))
                shutil.rmtree(copy)
        yield Start(
            Row(name, title, {tree: Numbers.of([run.stalls for run in runs]) for tree, runs in seen.items()}),
            peak={tree: max(run.peak for run in runs) for tree, runs in seen.items()},
            cpu={tree: statistics.median(run.cpu for run in runs) for tree, runs in seen.items()},
            ready_after={tree: statistics.median(run.ready_after for run in runs) for tree, runs in seen.items()},
        )


@dataclass(frozen=True)
class _Started:
    stalls: Stalls
    peak: int
    cpu: float
    ready_after: float


def _backlog(tree: Tree, folder: Path) -> Path:
    """A folder with the file of a server that was killed with many tasks queued."""
    home = folder / f"backlog-{tree.name}"
    home.mkdir()
    call = tool_call("park", scene=rows(ARGUMENT_BYTES))
    with watched(tree, home / "tasks.db", "--concurrency", "1") as server:
        # One that runs keeps the others from it.
        for _ in range(1 + BACKLOG):
            _create(server, call)
    return home


def _start(tree: Tree, db: Path, concurrency: int) -> _Started:
    with watched(tree, db, "--concurrency", str(concurrency), "--tick") as server:
        time.sleep(START_WINDOW)
        server.settle()
        stalls = server.stop()
        return _Started(stalls, server.server.peak(), server.server.cpu() / 1e9, server.ready_after)


# What is there to compare with


def measure_ratio(subjects: Sequence[Subject], rounds: int) -> Generator[Ratio]:
    """CPU of a poll of a task with large arguments, over that of one with small ones."""
    for subject in subjects:
        subject.watched.settle()
        costs: dict[str, list[float]] = {"small": [], "large": []}
        for _ in range(max(10, 4 * rounds)):
            for size, task_id in (("small", subject.small), ("large", subject.large)):
                costs[size].append(_poll_cpu(subject, task_get(task_id)))
        yield Ratio(subject.tree.name, statistics.median(costs["small"]), statistics.median(costs["large"]))


def _poll_cpu(subject: Subject, request: bytes) -> float:
    """Microseconds of the server's CPU for one poll."""
    subject.connection.renew()
    subject.connection.exchange(request)
    began = subject.watched.server.cpu()
    for _ in range(POLLS):
        subject.connection.exchange(request)
    return (subject.watched.server.cpu() - began) / POLLS / 1e3


def measure_floor(tree: Tree, rounds: int) -> Generator[Row]:
    """The same bytes on a bare server: what the SDK and HTTP take by themselves."""
    with watched(tree, None) as server:
        for name, title, call in (
            ("plain-arguments", "call with 3 MB arguments", tool_call("take", scene=rows(ARGUMENT_BYTES))),
            ("plain-string", "call, 10 MB result, one string", tool_call("return_string")),
            ("plain-structure", "call, 10 MB result, many values", tool_call("return_structure")),
            ("ready-string", "method, 10 MB ready, one string", method_call("ready/string")),
            ("ready-structure", "method, 10 MB ready, many values", method_call("ready/structure")),
        ):
            seen: list[Stalls] = []
            for _ in range(rounds):
                server.settle()
                server.server.connection.renew()
                server.start()
                server.server.connection.exchange(call)
                time.sleep(WINDOW)
                seen.append(server.stop())
            yield Row(name, title, {"bare SDK": Numbers.of(seen)})


# The command


def main() -> None:
    """Measure and print."""
    options = _options()
    if not sys.platform.startswith("linux"):
        sys.exit("the bench reads the CPU clock and the memory of other processes as Linux shows them")
    trees = [Tree("after", options.after.resolve())]
    if options.before is not None:
        trees.insert(0, Tree("before", options.before.resolve()))
    rounds = 2 if options.quick else options.rounds
    with tempfile.TemporaryDirectory(prefix="mcp-tasks-bench-", dir=options.dir) as name:
        folder = Path(name)
        facts = {**machine_facts(folder), **{tree.name: str(tree.src) for tree in trees}}
        print_facts(facts)
        report = Report(facts, [tree.name for tree in trees])
        _measure(report, trees, folder, options.only, rounds)
    if options.json is not None:
        report.write(options.json)


def _measure(report: Report, trees: Sequence[Tree], folder: Path, only: Sequence[str] | None, rounds: int) -> None:
    def wanted(name: str) -> bool:
        return not only or name in only

    if wanted(FLOOR):
        report.floor(measure_floor(trees[-1], rounds))
    cases = [case for case in CASES if wanted(case.name)]
    if cases or wanted(RATIO):
        with ExitStack() as stack:
            subjects = [stack.enter_context(subject_of(tree, folder)) for tree in trees]
            if wanted(RATIO):
                report.ratios(measure_ratio(subjects, rounds))
            if cases:
                report.rows(measure_cases(subjects, cases, rounds))
    if wanted(START):
        report.starts(measure_starts(trees, folder, min(rounds, 3)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.stall", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, metavar="SRC", help="the older tree: a folder with mcp_tasks in it")
    parser.add_argument("--after", type=Path, metavar="SRC", default=ROOT / "src", help="the newer one; this tree's")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="of each case")
    parser.add_argument("--quick", action="store_true", help="two rounds")
    names = [FLOOR, RATIO, *(case.name for case in CASES), START]
    parser.add_argument("--only", action="append", choices=names, help="measure this and no other")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    parser.add_argument(
        "--dir", type=Path, help="where to put the SQLite files; a file system in memory proves nothing"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
