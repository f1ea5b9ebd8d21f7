"""Three tasks, a server that is killed in the middle of them, and what becomes of them.

Run it with `make demo`. It starts a real server on a SQLite file, drives it with a real client over HTTP, kills it
with SIGKILL, starts it again, and ends by itself: with exit code 0 only if everything came out right.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, TypeAlias

from mcp import Client, MCPError
from mcp.client.session import ClientRequestContext
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, TextContent
from server_process import ServerProcess

from mcp_tasks.client import TaskHandle, TasksClient, TaskSnapshot, reconnecting_http, start_task

FRAMES = 20
KILL_AT_FRAME = 7
BAR = 24

Outcomes: TypeAlias = dict[str, CallToolResult | MCPError]


class Screen:
    """The tasks as they go on: redrawn in place on a terminal, as lines anywhere else."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._rows: dict[str, str] = {}
        self._drawn = 0

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._live and self._drawn:
            print(f"\x1b[{self._drawn}A\x1b[J", end="")
            self._drawn = 0
        print(text, flush=True)
        self._draw()

    def show(self, name: str, snapshot: TaskSnapshot) -> None:
        """The present state of one task."""
        row = f"  {name:<12} {_bar(snapshot)} {snapshot.status.value:<15} {snapshot.message or ''}"
        if self._rows.get(name) == row:
            return
        self._rows[name] = row
        if self._live:
            self._draw()
        else:
            print(row, flush=True)

    def settle(self) -> None:
        """Leave the tasks as they stand, and go on below them."""
        self._rows = {}
        self._drawn = 0

    def _draw(self) -> None:
        if not self._live:
            return
        if self._drawn:
            print(f"\x1b[{self._drawn}A", end="")
        for row in self._rows.values():
            print(f"\x1b[2K{row[: shutil.get_terminal_size().columns - 1]}")
        self._drawn = len(self._rows)
        sys.stdout.flush()


def _bar(snapshot: TaskSnapshot) -> str:
    progress = snapshot.progress
    share = 0.0 if progress is None or not progress.total else progress.progress / progress.total
    filled = BAR if snapshot.status == "completed" else int(BAR * share)
    return "█" * filled + "░" * (BAR - filled)


class Person:
    """Whoever is asked for approval. Takes some time to notice, then says yes."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self.ready = asyncio.Event()
        self.asked: list[str] = []

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params.message)
        await self.ready.wait()
        self._screen.say(f"\n  The person is asked: {params.message}  …and says yes.\n")
        return ElicitResult(action="accept", content={"publish": True})


async def main() -> int:
    """The demo from beginning to end; the exit code."""
    screen = Screen()
    with tempfile.TemporaryDirectory(prefix="mcp-tasks-demo-") as folder:
        script = Path(__file__).with_name("demo_server.py")
        server = ServerProcess(script, "--db", Path(folder) / "tasks.db", "--log", Path(folder) / "work.log")
        await server.start()
        try:
            outcomes, person = await _play(screen, server)
            return _verdict(screen, outcomes, person, _work_done(Path(folder) / "work.log"))
        finally:
            server.stop()


async def _play(screen: Screen, server: ServerProcess) -> tuple[Outcomes, Person]:
    person = Person(screen)
    screen.say(f"An MCP server (pid {server.pid}) keeps its tasks in a SQLite file. Three tools are called:\n")
    transport = reconnecting_http(server.url)
    async with Client(transport, extensions=[TasksClient()], elicitation_callback=person) as client:
        handles = {
            "render": await _start(screen, client, "render", {"frames": FRAMES}),
            "release": await _start(screen, client, "release", {"version": "2.0"}),
            "charge_card": await _start(screen, client, "charge_card", {"amount": 40}),
        }
        screen.say("\nEach call was answered at once, with a task. The tools work in the background:\n")
        frame = asyncio.Event()
        watches = [asyncio.create_task(_watch(screen, name, handle, frame)) for name, handle in handles.items()]
        waits = {name: asyncio.create_task(_outcome(handle)) for name, handle in handles.items()}
        await asyncio.wait_for(frame.wait(), 30)
        first_pid = server.pid
        server.kill()
        screen.say(f"\n  kill -9 {first_pid}: the server is gone, in the middle of everything.\n")
        await asyncio.sleep(1)
        await server.start()
        screen.say(f"\n  A new server (pid {server.pid}) is started on the same file. It picks up what was left.\n")
        person.ready.set()
        outcomes = dict(zip(waits, await asyncio.wait_for(asyncio.gather(*waits.values()), 60), strict=True))
        await asyncio.gather(*watches)
    return outcomes, person


def _work_done(log: Path) -> Counter[str]:
    """How often each piece of work was really done."""
    return Counter(line.split()[0] for line in log.read_text().splitlines())


async def _start(screen: Screen, client: Client, tool: str, arguments: dict[str, Any]) -> TaskHandle:
    began = time.perf_counter()
    handle = await start_task(client, tool, arguments)
    assert isinstance(handle, TaskHandle), f"{tool} answered inline"
    screen.say(f"  {tool:<12} answered in {(time.perf_counter() - began) * 1000:.0f} ms with {handle.id}")
    return handle


async def _watch(screen: Screen, name: str, handle: TaskHandle, frame: asyncio.Event) -> None:
    async for snapshot in handle.watch():
        screen.show(name, snapshot)
        if name == "render" and snapshot.progress is not None and snapshot.progress.progress >= KILL_AT_FRAME:
            frame.set()


async def _outcome(handle: TaskHandle) -> CallToolResult | MCPError:
    try:
        return await handle.result()
    except MCPError as exc:
        return exc


def _verdict(screen: Screen, outcomes: Outcomes, person: Person, done: Counter[str]) -> int:
    screen.settle()
    screen.say("\nWhat came of them:\n")
    for name, outcome in outcomes.items():
        screen.say(f"  {name:<12} {_text(outcome)}")
    frames = [done[f"frame-{number}"] for number in range(1, FRAMES + 1)]
    checks = {
        f"all {FRAMES} frames were drawn, each exactly once": all(count == 1 for count in frames),
        "the release was built once, approved by one person asked once, and published once": (
            done["build-2.0"] == done["publish-2.0"] == len(person.asked) == 1
        ),
        "the card was not charged twice: that task says that it was interrupted": (
            done["charge-40"] == 0 and isinstance(outcomes["charge_card"], MCPError)
        ),
    }
    screen.say("")
    for what, true in checks.items():
        screen.say(f"  {'✓' if true else '✗ NOT SO:'} {what}")
    return 0 if all(checks.values()) else 1


def _text(outcome: CallToolResult | MCPError) -> str:
    if isinstance(outcome, MCPError):
        return f"failed: {outcome.message}"
    return " ".join(block.text for block in outcome.content if isinstance(block, TextContent))


if __name__ == "__main__":
    # The SDK logs a broken stream as an error; here that is the point of the exercise.
    logging.disable(logging.CRITICAL)
    sys.exit(asyncio.run(main()))
