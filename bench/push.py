"""How soon a caller has the result of a task, pushed and polled, and what a thousand listeners cost the server.

    python -m bench.push                     everything, in about two minutes
    python -m bench.push --quick             the same with fewer calls, in about one
    python -m bench.push --only listeners    one of the two; `waits` is the other

A tool writes the time of its return into its result; the wait is from there to the caller's `call_tool` returning.
Server and clients are on one machine and read one clock. Durable on SQLite with synchronous=FULL. Both ways are in the
same run, by turns: the short one, and through the SDK (`short_way=False`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.server import MCPServer
from mcp_types import CallToolResult, TextContent

from bench.client import BenchError, listen, tool_call
from bench.compat import wiring
from bench.machine import machine_facts
from bench.report import print_facts
from bench.serve import knows, unlimited
from bench.servers import Server, serving
from harness.ports import mcp_url
from mcp_tasks import Tasks
from mcp_tasks.client import TasksClient

TARGET = 10.0
"""Milliseconds: the median wait with push. A poll at its shortest interval has a median of a hundred."""

NOT_WORSE = 1.05
"""How much longer the median of the short way may be for it to be no worse: what two runs of one way differ by."""

MEMORY_TARGET = 25 * 1024
"""Bytes of memory for a listener that is served the short way."""

TURNS = 5
"""In how many turns the ways are measured."""

LISTENERS = 1_000
WARM_UP = 20
"""Listeners before the first reading: they fill caches and pools that do not grow with their number. All together
stay below the 1,024 streams that the SDK serves at once."""

AT_ONCE = 50
LIMIT = 60.0


def main() -> None:
    """Measure and print; or serve, for the process that does."""
    options = _options()
    if options.serve is not None:
        _serve(options)
        return
    if not sys.platform.startswith("linux"):
        sys.exit("the bench reads the CPU clock and the memory of other processes as Linux shows them")
    with tempfile.TemporaryDirectory(prefix="mcp-tasks-bench-", dir=options.dir) as name:
        folder = Path(name)
        print_facts(machine_facts(folder))
        ways: list[Way] = [SHORT, LONG] if knows("short_way") else [LONG]
        if options.only != "listeners":
            _print_waits(_measure_waits(folder, ways, calls=40 if options.quick else 200))
        if options.only != "waits":
            _print_crowds({way.title: _measure_crowd(folder, way) for way in ways})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.push", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer calls")
    parser.add_argument("--only", choices=("waits", "listeners"), help="measure this and not the other")
    parser.add_argument(
        "--dir", type=Path, help="where to put the SQLite files; a file system in memory proves nothing"
    )
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--json-response", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--long-way", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


# The server


@dataclass(frozen=True)
class Way:
    """How requests come to the tasks, and what makes a server take them so."""

    title: str
    flags: Sequence[str] = ()


SHORT = Way("the short way")
LONG = Way("through the SDK", ["--long-way"])


def _serve(options: argparse.Namespace) -> None:
    # Not said where it is not wanted: an older tree does not know it.
    said: dict[str, Any] = {"short_way": False} if options.long_way and knows("short_way") else {}
    tasks = Tasks(f"sqlite:///{options.serve}", concurrency=2 * LISTENERS, **unlimited(), **said)
    server: MCPServer[Any] = MCPServer("push-bench", version="1", log_level="WARNING", **wiring(tasks))
    _add_tools(server, tasks)
    server.run("streamable-http", host="127.0.0.1", port=options.port, json_response=options.json_response)


def _add_tools(server: MCPServer[Any], tasks: Tasks) -> None:
    released = asyncio.Event()

    @server.tool()
    @tasks.task()
    async def stamped(seconds: float) -> str:
        """Take some time; the result is the time of the return."""
        await anyio.sleep(seconds)
        return repr(time.time())

    @server.tool()
    @tasks.task()
    async def held() -> str:
        """The same, when all are released."""
        await released.wait()
        return repr(time.time())

    @server.tool()
    async def release() -> str:
        """Let all go that are held."""
        released.set()
        return "ok"


def _server(folder: Path, flags: Sequence[str]) -> AbstractContextManager[Server]:
    """A server process with a new SQLite file, while the block lasts."""
    db = folder / f"push-{time.monotonic_ns()}.db"
    return serving("bench.push", "--serve", str(db), *flags, db=db)


# Waits


@dataclass(frozen=True)
class Waits:
    """Waits of one kind, in milliseconds."""

    title: str
    all: Sequence[float]
    limit: float | None = None

    @property
    def median(self) -> float:
        """Half of the waits are shorter."""
        return statistics.median(self.all)

    @property
    def p99(self) -> float:
        """One wait in a hundred is longer."""
        return sorted(self.all)[len(self.all) * 99 // 100]

    @property
    def verdict(self) -> str:
        """Whether the target is met; nothing where there is none."""
        if self.limit is None:
            return ""
        return f"median ≤ {self.limit:.3g}  {'ok' if self.median <= self.limit else 'MISSED'}"


def _measure_waits(folder: Path, ways: Sequence[Way], calls: int) -> list[Waits]:
    with ExitStack() as stack:
        ports: dict[str, int] = {}
        waits: dict[str, list[float]] = {}
        for way in ways:
            for kind, flags in (("SSE", []), ("JSON", ["--json-response"])):
                server = stack.enter_context(_server(folder, [*way.flags, *flags]))
                ports[f"push, {kind} responses, {way.title}"] = server.connection.port
        for _ in range(TURNS):
            for title, port in ports.items():
                waits.setdefault(title, []).extend(asyncio.run(_waits(port, calls // TURNS, push=True)))
        polls = asyncio.run(_waits(next(iter(ports.values())), calls, push=False))
    rows = [Waits(title, taken, _limit(title, waits)) for title, taken in waits.items()]
    return [*rows, Waits("polls, at the interval advertised", polls)]


def _limit(title: str, waits: Mapping[str, Sequence[float]]) -> float:
    """The target for the median: beside the other way, no worse than that one is."""
    other = waits.get(title.replace(SHORT.title, LONG.title))
    return TARGET if other is None or LONG.title in title else statistics.median(other) * NOT_WORSE


async def _waits(port: int, calls: int, *, push: bool, clients: int = 4) -> list[float]:
    """Wait for some tasks, a few at a time and each on a connection of its own."""
    url = mcp_url(port)
    waits: list[float] = []

    async def wait_for(share: int) -> None:
        async with Client(url, extensions=[TasksClient(push=push)]) as client:
            await client.list_tools()
            for _ in range(share):
                # Long enough for the stream to be there, and never the same: polls must not fall into step.
                result = await client.call_tool("stamped", {"seconds": random.uniform(0.15, 0.35)})
                waits.append((time.time() - _stamp(result)) * 1e3)

    async with anyio.create_task_group() as group:
        for _ in range(clients):
            group.start_soon(wait_for, calls // clients)
    return waits


def _stamp(result: CallToolResult) -> float:
    match result.content:
        case [TextContent(text=text)]:
            return float(text)
        case _:
            raise BenchError(f"unexpected result: {result}")


# Listeners


@dataclass(frozen=True)
class Crowd:
    """What many listeners cost the server, each with a task of its own.

    Attributes:
        open_cpu: Microseconds of CPU to open one stream and tell the first state on it.
        tell_cpu: Microseconds of CPU for one task to end and its listener to be told.
        resident: Bytes of memory for one listener.
        waits: From the return of each tool to the arrival at its listener, when all end at once.
    """

    listeners: int
    delivered: int
    open_cpu: float
    tell_cpu: float
    resident: float
    waits: Waits


def _measure_crowd(folder: Path, way: Way) -> Crowd:
    total = WARM_UP + LISTENERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * total + 200)), hard))
    with _server(folder, way.flags) as server:
        held = tool_call("held")
        ids: list[str] = [server.connection.result(held)["taskId"] for _ in range(total)]
        return asyncio.run(_crowd(server, server.connection.port, ids))


async def _crowd(server: Server, port: int, ids: Sequence[str]) -> Crowd:
    warm = await _open_all(port, ids[:WARM_UP])
    await asyncio.sleep(0.5)
    memory, cpu = server.resident(), server.cpu()
    streams = await _open_all(port, ids[WARM_UP:])
    await asyncio.sleep(0.5)
    memory, opened = server.resident() - memory, server.cpu() - cpu
    cpu = server.cpu()
    server.connection.renew()
    arrivals = [asyncio.create_task(_arrival(reader)) for reader, _ in streams]
    await asyncio.to_thread(server.connection.result, tool_call("release"))
    await asyncio.wait(arrivals, timeout=LIMIT)
    told = server.cpu() - cpu
    waits = [arrival.result() for arrival in arrivals if arrival.done() and arrival.exception() is None]
    for arrival in arrivals:
        arrival.cancel()
    for _, writer in (*warm, *streams):
        writer.close()
    return Crowd(
        listeners=len(streams),
        delivered=len(waits),
        open_cpu=opened / len(streams) / 1e3,
        tell_cpu=told / len(ids) / 1e3,
        resident=memory / len(streams),
        waits=Waits("from return to listener, all at once", waits or [float("inf")]),
    )


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _open_all(port: int, ids: Sequence[str]) -> list[Stream]:
    turn = asyncio.Semaphore(AT_ONCE)

    async def open_one(task_id: str) -> Stream:
        async with turn:
            return await _open(port, task_id)

    return await asyncio.gather(*map(open_one, ids))


async def _open(port: int, task_id: str) -> Stream:
    """A stream on a connection of its own, after the task's first state."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    writer.write(listen([task_id]))
    while (await _frame(reader))["method"] != "notifications/tasks":
        pass
    return reader, writer


async def _arrival(reader: asyncio.StreamReader) -> float:
    """Milliseconds from the return of the stream's tool to now, once its result is here."""
    while (frame := await _frame(reader))["params"]["status"] != "completed":
        pass
    return (time.time() - float(frame["params"]["result"]["content"][0]["text"])) * 1e3


async def _frame(reader: asyncio.StreamReader) -> dict[str, Any]:
    while line := await reader.readline():
        if line.startswith(b"data:"):
            return json.loads(line[len(b"data:") :])
    raise BenchError("a stream ended")


# Tables


def _print_waits(rows: Sequence[Waits]) -> None:
    print(
        f"\nFrom the tool's return to the caller having the result\n  {'':44}{'median ms':>10}{'p99 ms':>10}   target"
    )
    for row in rows:
        print(f"  {row.title:44}{row.median:10.2f}{row.p99:10.2f}   {row.verdict}".rstrip())


def _print_crowds(crowds: Mapping[str, Crowd]) -> None:
    for title, crowd in crowds.items():
        verdict = "ok" if crowd.delivered == crowd.listeners else "MISSED"
        print(f"\n{crowd.listeners:,} listeners on one server, each with a task of its own, {title}")
        print(f"  {'delivered':44}{crowd.delivered:10,}{'':10}   all  {verdict}")
        print(f"  {crowd.waits.title:44}{crowd.waits.median:10.2f}{crowd.waits.p99:10.2f}   (median ms, p99 ms)")
        print(f"  {'CPU to open a stream':44}{crowd.open_cpu:10.0f} µs each")
        print(f"  {'CPU to end a task and tell of it':44}{crowd.tell_cpu:10.0f} µs each")
        print(f"  {'memory':44}{crowd.resident / 1024:10.1f} KiB each   {_memory_verdict(title, crowd)}".rstrip())


def _memory_verdict(title: str, crowd: Crowd) -> str:
    if title != SHORT.title:
        return ""
    return f"≤ {MEMORY_TARGET // 1024}  {'ok' if crowd.resident <= MEMORY_TARGET else 'MISSED'}"


if __name__ == "__main__":
    main()
