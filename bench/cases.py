"""What is measured: each case does a number of operations, several at a time, and says what they cost the server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from bench.client import BenchError, task_get, tool_call
from bench.load import Load, Script, status_in, task_id_in
from bench.serve import knows
from bench.servers import SETTLE, Mode, Server, bare_server, task_server
from bench.watch import Watch, watching

PLAIN = "plain_noop"
"""The tool that is no task."""

CONNECTIONS = 16
"""That are kept alive and have a request under way at the same time."""

LONG = 3600.0
"""Seconds that a parked tool sleeps: longer than any run of this."""

POLL_PAUSE = 0.02
"""Seconds between two polls: about what a task takes with 16 under way, and a tenth of what the server advertises. With
less the polls would slow the task they ask for."""

MAX_POLLS = 5_000
"""Ten seconds of polling."""

Install: TypeAlias = Literal["stock", "fast"]
"""What a server runs on: asyncio and h11, or uvloop and httptools; the bare server too."""

Way: TypeAlias = Literal["short", "long"]
"""How requests come to the tasks: before the SDK's app, or through it."""

_FLAGS: Mapping[Way, Sequence[str]] = {"short": (), "long": ("--long-way",)}
_NEEDS: Mapping[Way, str] = {"short": "short_way"}


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
class Target:
    """A server with tasks. One of them is `working` and stays so, one is `finished`."""

    server: Server
    watch: Watch
    working: bytes
    finished: bytes

    def answered(self) -> tuple[int, dict[str, int]]:
        """How many requests the server has answered the short way, and how many it handed over to the SDK, by reason;
        without those that have nothing to do with tasks."""
        self.server.connection.renew()
        told = self.server.connection.result(tool_call("answered"))["content"][0]["text"]
        answered, handed_over = json.loads(told)
        return answered, {reason: count for reason, count in handed_over.items() if reason != "other method"}


@dataclass(frozen=True)
class Rig:
    """The servers of one install, ready to be measured."""

    bare: Server
    ours: Mapping[Way, Target]


@dataclass(frozen=True)
class Case:
    """One row of the table. `limits` are the targets by install: the CPU of the bare call, so many times."""

    name: str
    title: str
    run: Callable[[Target, int], Sample]
    way: Way = "short"
    limits: Mapping[Install, float] = field(default_factory=dict[Install, float])


def ways() -> list[Way]:
    """Those that this tree has."""
    return [way for way in _FLAGS if way not in _NEEDS or knows(_NEEDS[way])]


@contextmanager
def rigged(mode: Mode, install: Install, folder: Path, wanted: Sequence[Case]) -> Generator[Rig]:
    """The servers that these cases need, while the block lasts."""
    fast = install == "fast"
    with ExitStack() as stack:
        bare = stack.enter_context(bare_server(mode, fast=fast))
        needed: set[Way] = {case.way for case in wanted}
        yield Rig(bare, {way: stack.enter_context(targeted(mode, install, folder, way)) for way in needed})


@contextmanager
def targeted(mode: Mode, install: Install, folder: Path, way: Way, flags: Sequence[str] = ()) -> Generator[Target]:
    """One server with tasks, while the block lasts."""
    flags = [*_FLAGS[way], *flags]
    with task_server(mode, folder, fast=install == "fast", flags=flags) as server, watching(server.db) as watch:
        working = _create(server, "park", seconds=LONG)
        finished = _create(server, "noop")
        watch.until_one_works()
        yield Target(server, watch, task_get(working), task_get(finished))


def bare_call(rig: Rig, operations: int) -> Sample:
    """The yardstick: a plain call of a tool that does nothing, on the bare server."""
    return _measure(rig.bare, lambda: _one(tool_call(PLAIN)), operations)


def _plain(target: Target, operations: int) -> Sample:
    return _measure(target.server, lambda: _one(tool_call(PLAIN)), operations)


def _get_working(target: Target, operations: int) -> Sample:
    return _measure(target.server, lambda: _one(target.working, "working"), operations)


def _get_finished(target: Target, operations: int) -> Sample:
    return _measure(target.server, lambda: _one(target.finished, "completed"), operations)


def _create_and_run(target: Target, operations: int) -> Sample:
    # The tasks run beside the calls; what is left when the last call is answered belongs to the sample as well.
    call = tool_call("noop")
    return _measure(target.server, lambda: _made(call), operations, after=target.watch.until_one_works)


def _create_to_result(target: Target, operations: int) -> Sample:
    call = tool_call("noop")
    polls: list[int] = []
    return _measure(target.server, lambda: _polled(call, polls), operations, polls=polls)


def _one(request: bytes, status: str | None = None) -> Script:
    """One request, whose answer says that the task has that status."""
    body = yield request
    if status is not None and status_in(body) != status:
        raise BenchError(f"expected a task that is {status}, got {body[:500]!r}")
    if b'"error"' in body or b'"isError":true' in body:
        raise BenchError(f"unexpected answer: {body[:500]!r}")


def _made(call: bytes) -> Script:
    """A call that becomes a task."""
    task_id_in((yield call))


def _polled(call: bytes, polls: list[int]) -> Script:
    """Call a tool and ask for its task until the result is there; notes how often that was.

    A task that has ended when the call is answered is asked for at once: the next answer has its result.
    """
    body = yield call
    poll = task_get(task_id_in(body))
    for asked in range(1, MAX_POLLS):
        if status_in(body) == "working":
            yield POLL_PAUSE
        body = yield poll
        status = status_in(body)
        if status == "completed":
            polls.append(asked)
            return
        if status != "working":
            raise BenchError(f"a task ended as {status}")
    raise BenchError(f"a task did not end in {MAX_POLLS} polls")


_GET: Mapping[Install, float] = {"stock": 0.33, "fast": 0.2}
_RUN: Mapping[Install, float] = {"stock": 1.0, "fast": 0.95}
_RESULT: Mapping[Install, float] = {"stock": 2.2, "fast": 2.2}

CASES = (
    Case("plain", "plain call, server with tasks", _plain, limits={"stock": 1.05, "fast": 1.05}),
    Case("get-working", "tasks/get, working", _get_working, limits=_GET),
    Case("get-finished", "tasks/get, finished", _get_finished, limits=_GET),
    Case("create-and-run", "create and run, no polls", _create_and_run, limits=_RUN),
    Case("create-to-result", "create, run, poll to the result", _create_to_result, limits=_RESULT),
    Case("plain", "plain call, server with tasks", _plain, way="long"),
    Case("get-working", "tasks/get, working", _get_working, way="long"),
    Case("get-finished", "tasks/get, finished", _get_finished, way="long"),
    Case("create-and-run", "create and run, no polls", _create_and_run, way="long"),
    Case("create-to-result", "create, run, poll to the result", _create_to_result, way="long"),
)


def _create(server: Server, tool: str, **arguments: Any) -> str:
    created = server.connection.result(tool_call(tool, **arguments))
    return created["taskId"]


def _measure(
    server: Server,
    script: Callable[[], Script],
    operations: int,
    *,
    after: Callable[[], object] = lambda: None,
    polls: list[int] | None = None,
) -> Sample:
    """Do the operations over new connections, each of which has done one before the CPU is read."""
    asked = [] if polls is None else polls
    with Load(server.connection.port, CONNECTIONS) as load:
        load.drive(script, CONNECTIONS)
        after()
        asked.clear()
        started = server.cpu()
        waits = load.drive(script, operations)
        after()
        time.sleep(SETTLE)
        return Sample(operations, server.cpu() - started, waits, sum(asked))
