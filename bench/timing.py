"""Whether another's task can be told from no task by the time of the answer: `python -m bench.timing [--samples 1500]`.

    --store URL     another store than a SQLite file of its own
    --only NAME     one path; may be given several times
    --plant 50      microseconds by which the planted difference delays the answer about another's task

Somebody asks about tasks of somebody else and about ids that nobody has, in turn and in random order, on every path:
the methods of both eras, on the short way and past it, and the companion tools. The tasks are small, have a result of
1 MiB, ask something with a large schema, or were just fetched by their owner, so that the text of the answer is kept.
The whole of the server's handling is timed, from the ASGI app on: there is no network, which would only add noise.

The two samples are compared by the test of Mann and Whitney. A path on which they differ (p below 0.001) is measured
again, and only if they differ then too is it said to be beyond noise: of forty paths one differs by chance in every
twenty-five runs, and none twice. That the test would see it is shown with a delay that is planted in the store.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel, Field
from starlette.types import ASGIApp, Message

from bench.machine import machine_facts
from bench.options import at_least
from bench.report import print_facts
from harness.http import modern_headers
from harness.rpc import LEGACY, NOTHING, TASKS, hello, legacy_request, notification, request
from mcp_tasks import Fallback, Limits, Tasks
from mcp_tasks.runtime.launch import new_task_id
from mcp_tasks.stores import Store
from mcp_tasks.stores.sqlite import SqliteStore

MIB: Final = 1024 * 1024
TASKS_OF_EACH: Final = 8
"""Tasks of each kind, and as many ids that nobody has: one alone might lie badly."""

WARM_UP: Final = 50
CHANCE: Final = 0.001
DECLARED: Final[Mapping[str, Any]] = {**TASKS, "elicitation": {}}


class LargeForm(BaseModel):
    """A question of tens of kilobytes, which is kept with its task."""

    name: str = Field(description="x" * 50_000)


class PlantedStore(SqliteStore):
    """Takes longer to say that somebody has no such task if somebody else has."""

    delay: float = 0.0
    late: frozenset[str] = frozenset()

    async def _read(self, task_id: str, *part: Any, **options: Any) -> Any:
        found = await super()._read(task_id, *part, **options)
        if self.delay and found is None and task_id in self.late:
            until = time.perf_counter() + self.delay
            while time.perf_counter() < until:
                pass
        return found


# The server, and requests to it


@dataclass
class House:
    """A server's app, and its tasks."""

    app: ASGIApp
    tasks: Tasks
    sessions: dict[str, str]

    async def post(self, user: str, message: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Answer:
        """Send one request, and see the beginning of its answer; a stream is left then."""
        body = json.dumps(message).encode()
        sent = {
            "host": "127.0.0.1:80",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "content-length": str(len(body)),
            "x-user": user,
            **(headers or {}),
        }
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/mcp",
            "raw_path": b"/mcp",
            "query_string": b"",
            "scheme": "http",
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 1),
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
        }
        answer = Answer()
        left = asyncio.Event()
        told = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if told:
                return told.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            answer.take(message)
            if answer.body:
                left.set()

        await self.app(scope, receive, send)
        return answer


@dataclass
class Answer:
    """As much of an answer as was looked at."""

    status: int = 0
    headers: Sequence[tuple[bytes, bytes]] = ()
    body: bytes = b""
    at: float = 0.0

    def take(self, message: Message) -> None:
        """Take what the server sends."""
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], message["headers"]
        elif not self.body:
            self.body = message.get("body", b"")
            self.at = time.perf_counter()


def modern(method: str, params: Mapping[str, Any], *, declares: bool = True) -> tuple[dict[str, Any], dict[str, str]]:
    """A request of the newest wire, and its headers."""
    # One id for all: a longer one would be a difference.
    message = request(method, params, capabilities=DECLARED if declares else NOTHING, request_id=1)
    return message, dict(modern_headers(message))


@asynccontextmanager
async def house(store: Store | str, *, short_way: bool) -> AsyncGenerator[House]:
    """A server whose users are told apart by a header."""
    limits = Limits(owner_requests=None, owner_creates=None, owner_streams=None, owner_stored_bytes=None)
    tasks = Tasks(
        store,
        principal=lambda caller: caller.headers.get("x-user"),
        require_owner=True,
        limits=limits,
        short_way=short_way,
        companions="always",
        fallback=Fallback(model_may_answer=True),
    )
    server: MCPServer[Any] = MCPServer("timing", **tasks.wiring(), log_level="CRITICAL")

    @server.tool()
    @tasks.task()
    def give(size: int) -> str:
        """Give so many characters."""
        return "x" * size

    @server.tool()
    @tasks.task()
    async def ask(ctx: Context[Any, Any]) -> str:
        """Ask for a great deal."""
        return str(await ctx.elicit("Fill this in", LargeForm))

    app = server.streamable_http_app(json_response=True, host="127.0.0.1")
    async with app.router.lifespan_context(app):
        yield House(app, tasks, {})


Ask = Callable[[House, str], Awaitable[Answer]]


def _method(name: str, more: Mapping[str, Any] | None = None) -> Ask:
    async def ask(place: House, task_id: str) -> Answer:
        return await place.post("eve", *modern(name, {"taskId": task_id, **(more or {})}))

    return ask


def _companion(name: str, more: Mapping[str, Any] | None = None) -> Ask:
    async def ask(place: House, task_id: str) -> Answer:
        call = {"name": name, "arguments": {"task_id": task_id, **(more or {})}}
        return await place.post("eve", *modern("tools/call", call, declares=False))

    return ask


async def _listen(place: House, task_id: str) -> Answer:
    return await place.post("eve", *modern("subscriptions/listen", {"notifications": {"taskIds": [task_id]}}))


def _older(name: str) -> Ask:
    async def ask(place: House, task_id: str) -> Answer:
        session = place.sessions.get("eve") or await _greet(place)
        message = legacy_request(name, {"taskId": task_id}, 1)
        return await place.post("eve", message, {"mcp-session-id": session, "mcp-protocol-version": LEGACY})

    return ask


async def _greet(place: House) -> str:
    answer = await place.post("eve", legacy_request("initialize", hello()))
    session = dict(answer.headers)[b"mcp-session-id"].decode()
    told = notification("notifications/initialized")
    await place.post("eve", told, {"mcp-session-id": session, "mcp-protocol-version": LEGACY})
    place.sessions["eve"] = session
    return session


ANSWERS: Final = {"inputResponses": {"elicitation-1": {"action": "decline"}}}
PATHS: Final[Mapping[str, Ask]] = {
    "tasks/get": _method("tasks/get"),
    "tasks/update": _method("tasks/update", ANSWERS),
    "tasks/cancel": _method("tasks/cancel"),
    "subscriptions/listen": _listen,
    "task_status": _companion("task_status", {"wait_seconds": 0}),
    "task_answer": _companion("task_answer", {"action": "decline"}),
    "task_cancel": _companion("task_cancel"),
    "older tasks/get": _older("tasks/get"),
    "older tasks/result": _older("tasks/result"),
    "older tasks/cancel": _older("tasks/cancel"),
}
LONG_WAY: Final = ("tasks/get", "tasks/update", "tasks/cancel", "subscriptions/listen")
"""What is measured past the short way as well; the others are the SDK's in any case."""


# What is measured


@dataclass(frozen=True, kw_only=True)
class Compared:
    """How long answers took about another's tasks, and about none, in microseconds."""

    foreign: Sequence[float]
    unknown: Sequence[float]

    @property
    def difference(self) -> float:
        """Of the medians."""
        return statistics.median(self.foreign) - statistics.median(self.unknown)

    @property
    def chance(self) -> float:
        """How likely it is that the two differ so much, or more, if there is nothing between them: the test of Mann and
        Whitney, with the normal distribution for so many."""
        ranked = sorted([(value, True) for value in self.foreign] + [(value, False) for value in self.unknown])
        n, m = len(self.foreign), len(self.unknown)
        # Equal times are next to none, at nanoseconds.
        ranks = sum(rank for rank, (_, is_foreign) in enumerate(ranked, start=1) if is_foreign)
        mean, deviation = n * (n + m + 1) / 2, math.sqrt(n * m * (n + m + 1) / 12)
        return math.erfc(abs(ranks - mean) / deviation / math.sqrt(2))


async def compare(place: House, ask: Ask, foreign: Sequence[str], unknown: Sequence[str], samples: int) -> Compared:
    """Ask about both, in turn and in random order."""
    times: tuple[list[float], list[float]] = ([], [])
    bodies: set[bytes] = set()
    for number in range(-WARM_UP, samples):
        kinds = [0, 1] if random.random() < 0.5 else [1, 0]
        for kind in kinds:
            ids = (foreign, unknown)[kind]
            task_id = ids[number % len(ids)]
            began = time.perf_counter()
            answer = await ask(place, task_id)
            if number >= 0:
                times[kind].append((answer.at - began) * 1e6)
            bodies.add(answer.body.replace(task_id.encode(), b"ID"))
    # The refusal of an id, an acknowledgement that names no task, or a companion's words; and the same for both.
    [body] = bodies if len(bodies) == 1 else [b""]
    if not any(expected in body for expected in (b"-32602", b'"taskIds":[]', b"There is no task")):
        sys.exit(f"answers about another's task and about none differ, or are about something else: {bodies}")
    return Compared(foreign=times[0], unknown=times[1])


async def owned(place: House, kind: str) -> list[str]:
    """Tasks of somebody else."""
    ids: list[str] = []
    for _ in range(TASKS_OF_EACH):
        if kind == "asking":
            task = await place.tasks.start("ask", owner="ada")
            await task.until_asked(60)
        else:
            task = await place.tasks.start("give", {"size": MIB if kind == "1 MiB" else 10}, owner="ada")
            await task.wait(60)
        ids.append(task.id)
    return ids


async def measure(url: str | None, only: Sequence[str], samples: int, plant: float, folder: Path) -> None:
    """Measure every path, and print what came out."""
    print(f"\n{'path':34}{'tasks':10}{'median':>11}{'difference':>12}{'p':>9}   (µs; {samples} of each)")
    beyond: list[str] = []
    for short_way in (True, False):
        async with house(url or SqliteStore(folder / f"{short_way}.db"), short_way=short_way) as place:
            kinds = {kind: await owned(place, kind) for kind in ("small", "1 MiB", "asking", "kept")}
            for name in PATHS if short_way else LONG_WAY:
                if only and name not in only:
                    continue
                for kind, ids in kinds.items():
                    if kind == "kept":
                        # By their owner, so that the text of the answer is kept.
                        for task_id in ids:
                            await place.post("ada", *modern("tasks/get", {"taskId": task_id}))
                    shown = name if short_way else f"{name}, past the short way"
                    if await _is_beyond(place, shown, PATHS[name], kind, ids, samples):
                        beyond.append(f"{shown} ({kind})")
    print(f"\n{'beyond noise: ' + ', '.join(beyond) if beyond else 'no difference beyond noise on any path'}")
    await _show_planted(folder, samples, plant)


async def _is_beyond(place: House, shown: str, ask: Ask, kind: str, ids: Sequence[str], samples: int) -> bool:
    unknown = [new_task_id() for _ in ids]
    for _ in range(2):
        compared = await compare(place, ask, ids, unknown, samples)
        _print(shown, kind, compared)
        if compared.chance >= CHANCE:
            return False
    return True


async def _show_planted(folder: Path, samples: int, plant: float) -> None:
    for short_way in (True, False):
        store = PlantedStore(folder / f"planted-{short_way}.db")
        async with house(store, short_way=short_way) as place:
            ids = await owned(place, "small")
            store.delay, store.late = plant / 1e6, frozenset(ids)
            compared = await compare(place, PATHS["tasks/get"], ids, [new_task_id() for _ in ids], samples)
            way = "short way" if short_way else "past it"
            seen = "seen" if compared.chance < CHANCE else "NOT SEEN: take more samples"
            _print(f"planted {plant:g} µs, tasks/get, {way}", "small", compared, seen)


def _print(name: str, kind: str, compared: Compared, seen: str = "") -> None:
    median = statistics.median(compared.unknown)
    print(f"{name:44}{kind:8}{median:9.0f}{compared.difference:+12.1f}{compared.chance:9.3f}   {seen}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=at_least(1), default=1_500)
    parser.add_argument("--plant", type=at_least(0.0), default=50.0)
    parser.add_argument("--store", default=None)
    parser.add_argument("--only", action="append", choices=PATHS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mcp-tasks-timing-") as name:
        print_facts(machine_facts(Path(name)))
        asyncio.run(measure(options.store, options.only or (), options.samples, options.plant, Path(name)))


if __name__ == "__main__":
    main()
