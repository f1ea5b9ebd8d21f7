"""What is measured: each case does a number of operations and says what they cost the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.client import BenchError, task_get, tool_call
from bench.servers import Mode, Server, bare_server, mixed_server, task_server
from bench.watch import Watch, watching

PLAIN = "plain_noop"
"""The tool that is no task."""

LONG = 3600.0
"""Seconds that a parked tool sleeps: longer than any run of this."""

POLL_PAUSE = 0.002
"""Seconds between two polls: about what the task takes. Without a pause the polls would slow the task they ask for."""

MAX_POLLS = 5_000
"""Ten seconds of polling."""

_SETTLE = 0.005
"""Seconds for a server to finish what it does after its last answer, before its CPU is read."""


@dataclass(frozen=True)
class Sample:
    """What some operations cost: nanoseconds of the server's CPU for all of them, nanoseconds of waiting for each.

    `polls` is how often a client asked for the outcome, where it did.
    """

    operations: int
    cpu: int
    waits: list[int]
    polls: int = 0


@dataclass(frozen=True)
class Rig:
    """The servers of one response mode, ready to be measured.

    Attributes:
        mixed: The bare server's tool, on a server with tasks.
        busy: Runs tasks. One of its tasks is `working` and stays so, one is `finished`.
        full: Has no room to run anything: its tasks stay queued.
    """

    bare: Server
    mixed: Server
    busy: Server
    full: Server
    watch: Watch
    working: bytes
    finished: bytes


@dataclass(frozen=True)
class Case:
    """One row of the table. `limit` is the target: the CPU of the bare call, so many times."""

    name: str
    title: str
    run: Callable[[Rig, int], Sample]
    limit: float | None = None


@contextmanager
def rigged(mode: Mode, folder: Path) -> Generator[Rig]:
    """Servers for one response mode, while the block lasts."""
    with (
        bare_server(mode) as bare,
        mixed_server(mode, folder) as mixed,
        task_server(mode, folder) as busy,
        task_server(mode, folder, concurrency=1) as full,
        watching(busy.db) as watch,
    ):
        _create(full, "park", seconds=LONG)
        working = _create(busy, "park", seconds=LONG)
        finished = _create(busy, "noop")
        watch.until_one_works()
        yield Rig(bare, mixed, busy, full, watch, task_get(working), task_get(finished))


def bare_call(rig: Rig, operations: int) -> Sample:
    """The yardstick: a plain call of a tool that does nothing, on the bare server."""
    return plain_calls(rig.bare, operations)


def _plain(rig: Rig, operations: int) -> Sample:
    return plain_calls(rig.mixed, operations)


def _get_working(rig: Rig, operations: int) -> Sample:
    return _repeat(rig.busy, rig.working, operations, status="working")


def _get_finished(rig: Rig, operations: int) -> Sample:
    return _repeat(rig.busy, rig.finished, operations, status="completed")


def _create_only(rig: Rig, operations: int) -> Sample:
    return _repeat(rig.full, tool_call("park", seconds=LONG), operations, status="working")


def _create_and_run(rig: Rig, operations: int) -> Sample:
    # The tasks run beside the calls; what is left when the last call is answered belongs to the sample as well.
    return _repeat(rig.busy, tool_call("noop"), operations, status="working", after=rig.watch.until_one_works)


def _end_to_end(rig: Rig, operations: int) -> Sample:
    polls: list[int] = []
    rig.busy.connection.renew()
    sample = _measure(rig.busy, lambda: polls.append(_call_and_poll(rig.busy)), operations)
    return replace(sample, polls=sum(polls))


def _call_and_poll(server: Server) -> int:
    """Call a tool and ask for its task until it has ended; says how often that was."""
    poll = task_get(_create(server, "noop"))
    for asked in range(1, MAX_POLLS):
        time.sleep(POLL_PAUSE)
        status = server.connection.result(poll)["status"]
        if status == "completed":
            return asked
        if status != "working":
            raise BenchError(f"a task ended as {status}")
    raise BenchError(f"a task did not end in {MAX_POLLS} polls")


CASES = (
    Case("plain", "plain call, server with tasks", _plain, limit=1.05),
    Case("get-working", "tasks/get, working", _get_working, limit=1.3),
    Case("get-finished", "tasks/get, finished", _get_finished, limit=1.3),
    Case("create", "create, stays queued", _create_only),
    Case("create-and-run", "create and run, no polls", _create_and_run, limit=2.5),
    Case("end-to-end", "create, run, poll to the end", _end_to_end),
)


def plain_calls(server: Server, operations: int, call: bytes | None = None) -> Sample:
    """Plain calls of a tool that does nothing, of the newer wire unless `call` is another."""
    return _repeat(server, call or tool_call(PLAIN), operations)


def _create(server: Server, tool: str, **arguments: Any) -> str:
    created = server.connection.result(tool_call(tool, **arguments))
    return created["taskId"]


def _repeat(
    server: Server,
    request: bytes,
    operations: int,
    *,
    status: str | None = None,
    after: Callable[[], object] = lambda: None,
) -> Sample:
    """Send one request over and over. The first answer is looked at and not counted: looking takes time too."""
    server.connection.renew()
    answer = server.connection.result(request)
    if answer.get("status") != status:
        raise BenchError(f"expected a task that is {status}, got {answer}")
    after()
    return _measure(server, lambda: server.connection.exchange(request), operations, after=after)


def _measure(
    server: Server, act: Callable[[], object], operations: int, *, after: Callable[[], object] = lambda: None
) -> Sample:
    started = server.cpu()
    waits = [_timed(act) for _ in range(operations)]
    after()
    time.sleep(_SETTLE)
    return Sample(operations, server.cpu() - started, waits)


def _timed(act: Callable[[], object]) -> int:
    began = time.perf_counter_ns()
    act()
    return time.perf_counter_ns() - began
