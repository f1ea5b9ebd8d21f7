"""How much code of ours one task runs through: a call that becomes a task, the run of its tool, and polls.

    python -m bench.walk                  functions, files, packages and switches, for both ways and both versions
    python -m bench.walk --list call      the functions of one part, in the order of their first call

The first poll reads the task and its outcome, and keeps the response. A poll after it finds that response, as long as
the task does not change. `all` is the call, the run and a poll, with all caches warm.

A profiler hook counts in a server in this process, on a SQLite file, once all caches are warm. Requests go straight to
its ASGI app. What runs between a request and its answer, and is entered from outside, is the call or the poll. What
begins in the runtime, an engine or a thread of a store is the run. Lambdas and comprehensions do not count.

A switch is a call from one package into another. `model`, `telemetry` and the modules at the top do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import types
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

import mcp_tasks
from bench.serve import build
from harness.rpc import LEGACY, MODERN, hello, legacy_request, notification, request

IGNORED: Final = frozenset({"model", "telemetry"})
INSIDE: Final = frozenset({"runtime", "engines", "stores"})
"""Packages that no request enters first: what begins in one of them is the run."""

WARM: Final = 5
"""Tasks that are run before one is counted."""

PARTS: Final = ("call", "run", "first poll", "poll")
TOGETHER: Final = ("call", "run", "poll")
SECONDS: Final = 30.0
"""For one task: only a server that hangs needs them."""


@dataclass
class Walk:
    """What one part ran through: each function with its calls, and how often a package was entered from another one."""

    functions: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    entries: Counter[str] = field(default_factory=Counter[str])


class Walker:
    """Counts calls of our functions for the part that is under way."""

    def __init__(self, source: Path) -> None:
        self._source = f"{source.resolve()}/"
        self._frames: set[types.FrameType] | None = None
        self._part = "run"
        self.walks: dict[str, Walk] = {}
        # From the beginning: a thread takes the hook over when it starts.
        threading.setprofile(self._hook)
        sys.setprofile(self._hook)

    def begin(self) -> None:
        """Count from now on."""
        self.walks = {part: Walk() for part in PARTS}
        self._frames = set()

    def end(self) -> None:
        """Count no more."""
        self._frames = None

    async def request(self, part: str, work: Awaitable[Any]) -> None:
        """Do the work of a request, which is this part."""
        self._part = part
        await work
        self._part = "run"

    def _hook(self, frame: types.FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if self._frames is None or event != "call" or not self._is_ours(frame) or code.co_name.startswith("<"):
            return
        # A coroutine that goes on is called again, in the same frame.
        if frame in self._frames:
            return
        self._frames.add(frame)
        file, callers = self._file(frame), self._callers(frame)
        package, root = _package(file), _package((callers or [file])[-1])
        walk = self.walks["run" if root in INSIDE else self._part]
        walk.functions[file, code.co_qualname] += 1
        caller = next((each for each in map(_package, callers) if each is not None), None)
        if package is not None and caller not in (None, package):
            walk.entries[package] += 1

    def _callers(self, frame: types.FrameType) -> list[str]:
        """The files of our functions that led here, the nearest first."""
        callers: list[str] = []
        above = frame.f_back
        while above is not None:
            if self._is_ours(above):
                callers.append(self._file(above))
            above = above.f_back
        return callers

    def _is_ours(self, frame: types.FrameType) -> bool:
        return frame.f_code.co_filename.startswith(self._source)

    def _file(self, frame: types.FrameType) -> str:
        return frame.f_code.co_filename.removeprefix(self._source)


def _package(file: str) -> str | None:
    """The package of a file, if it counts."""
    package, slash, _ = file.partition("/")
    return package if slash and package not in IGNORED else None


class Peer:
    """A client of one protocol version, beside the server.

    Args:
        app: The ASGI app of the server.
    """

    def __init__(self, app: Any, walker: Walker, *, is_legacy: bool) -> None:
        self._app = app
        self._walker = walker
        self._is_legacy = is_legacy
        self._session: str | None = None

    async def open(self) -> None:
        """Begin a session, if this version has any."""
        if self._is_legacy:
            await self._exchange("run", legacy_request("initialize", hello()), {})
            await self._exchange("run", notification("notifications/initialized"), {})

    async def task(self) -> None:
        """Have a task made and run, and poll it once it has ended."""
        params = {"name": "noop", "arguments": {}, **({"task": {"ttl": 60_000}} if self._is_legacy else {})}
        created = await self._ask("call", "tools/call", "noop", params)
        task_id = created["task"]["taskId"] if self._is_legacy else created["taskId"]
        # Its end is waited for without a look at it.
        await asyncio.sleep(0.2)
        last = "tasks/result" if self._is_legacy else "tasks/get"
        for part in ("first poll", "poll"):
            result = await self._ask(part, last, task_id, {"taskId": task_id})
            assert "content" in (result if self._is_legacy else result["result"]), result

    async def _ask(self, part: str, method: str, name: str, params: Mapping[str, Any]) -> Any:
        make = legacy_request if self._is_legacy else request
        return await self._exchange(part, make(method, params), {"mcp-method": method, "mcp-name": name})

    async def _exchange(self, part: str, message: Mapping[str, Any], headers: dict[str, str]) -> Any:
        version = {"mcp-protocol-version": LEGACY if self._is_legacy else MODERN}
        session = {} if self._session is None else {"mcp-session-id": self._session}
        standard = {"host": "127.0.0.1:8000", "content-type": "application/json"}
        accept = {"accept": "application/json, text/event-stream"}
        sent = [
            (name.encode(), value.encode()) for name, value in (standard | accept | version | session | headers).items()
        ]
        body, given, received = json.dumps(message).encode(), asyncio.Event(), bytearray()

        async def receive() -> dict[str, Any]:
            if given.is_set():
                await asyncio.Event().wait()
            given.set()
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(event: dict[str, Any]) -> None:
            for name, value in event.get("headers", ()):
                if name == b"mcp-session-id":
                    self._session = value.decode()
            received.extend(event.get("body", b""))

        scope: dict[str, Any] = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": "/mcp", "raw_path": b"/mcp", "query_string": b"", "root_path": "", "headers": sent,
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000), "state": {},
        }  # fmt: skip
        await asyncio.wait_for(
            asyncio.create_task(self._walker.request(part, self._app(scope, receive, send))), SECONDS
        )
        text = received.decode()
        if text.startswith(("event:", "id:", "data:")):
            text = [line for line in text.splitlines() if line.startswith("data: {")][-1].removeprefix("data: ")
        return json.loads(text)["result"] if text else None


async def walk(walker: Walker, *, fast: bool, is_legacy: bool) -> dict[str, Walk]:
    """Count one task of one client."""
    with tempfile.TemporaryDirectory() as folder:
        server = build(f"sqlite:///{folder}/tasks.db", short_way=fast)
        app = server.streamable_http_app(json_response=True)
        async with app.router.lifespan_context(app):
            peer = Peer(app, walker, is_legacy=is_legacy)
            await peer.open()
            for _ in range(WARM):
                await peer.task()
            walker.begin()
            await peer.task()
            walker.end()
    return walker.walks


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.walk", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", choices=PARTS, help="the functions of this part, on the fast path")
    options = parser.parse_args()
    walker = Walker(Path(mcp_tasks.__file__).parent)
    print(f"{'':31}{'functions':>10}{'files':>7}{'packages':>10}{'switches':>10}{'calls':>7}  entered")
    for fast, is_legacy in product((True, False), (False, True)):
        walks = asyncio.run(walk(walker, fast=fast, is_legacy=is_legacy))
        way = f"{'fast path' if fast else 'SDK'} {LEGACY if is_legacy else MODERN}"
        for part, one in walks.items():
            _print(f"{way} {part}", [one])
        _print(f"{way} all", [walks[part] for part in TOGETHER])
        if options.list is not None:
            for (file, function), calls in walks[options.list].functions.items():
                print(f"  {file} {function}{'' if calls == 1 else f' x {calls}'}")
            break


def _print(title: str, walks: Sequence[Walk]) -> None:
    functions = sum((walk.functions for walk in walks), Counter[tuple[str, str]]())
    entries = sum((walk.entries for walk in walks), Counter[str]())
    files = {file for file, _ in functions}
    packages = {package for file in files if (package := _package(file)) is not None}
    entered = ", ".join(f"{package} {times}" for package, times in entries.most_common())
    counts = f"{len(functions):10}{len(files):7}{len(packages):10}{entries.total():10}{functions.total():7}"
    print(f"{title:31}{counts}  {entered}")


if __name__ == "__main__":
    main()
