"""The servers that are measured: the SDK's own with one tool, and the same with tasks.

    python -m bench.serve --port 8000                      the yardstick: the SDK's server, no tasks
    python -m bench.serve --port 8000 --db tasks.db        with tasks, and with tools for them
    python -m bench.serve --port 8000 --memory --inline    callers without tasks get plain calls

All are served alike, without an access log: at the SDK's usual level it would cost each of them some 55 µs a request.
"""

from __future__ import annotations

import argparse
import cProfile
import inspect
import json
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import anyio
import uvicorn
from mcp.server import MCPServer
from mcp_types import ToolAnnotations

import mcp_tasks
from bench.compat import wiring
from bench.options import at_least
from mcp_tasks import Tasks

NAME = "bench"
"""Of the server, and so of the namespace that its tasks are in."""

_LAYERS: Mapping[bool, tuple[Literal["asyncio", "uvloop"], Literal["h11", "httptools"]]] = {
    False: ("asyncio", "h11"),
    True: ("uvloop", "httptools"),
}


def knows(option: str) -> bool:
    """Whether `Tasks` has an option: an older tree may not."""
    return option in inspect.signature(Tasks).parameters


def unlimited(**limits: Any) -> dict[str, Any]:
    """Options of `Tasks` for a client without a name that asks as quickly as it can; an older tree limits none."""
    if not knows("limits"):
        return {}
    if "anonymous" in inspect.signature(mcp_tasks.Limits).parameters:
        limits["anonymous"] = False
    return {"limits": mcp_tasks.Limits(**limits)}


def build(url: str | None, **options: Any) -> MCPServer[Any]:
    """A server whose tools do nothing, with tasks if there is a place to keep them in."""
    tasks = None if url is None else Tasks(url, **{**unlimited(), **options})
    server: MCPServer[Any] = MCPServer(
        NAME, version="1", log_level="WARNING", **({} if tasks is None else wiring(tasks))
    )

    # Async, as the tool behind a measured task is: the SDK runs sync tools on a thread, and a yardstick with a
    # thread in it would flatter everything measured by it.
    @server.tool()
    async def plain_noop() -> str:
        """Do nothing."""
        return "ok"

    if tasks is not None:
        _add_tasks(server, tasks)
    return server


def _add_tasks(server: MCPServer[Any], tasks: Tasks) -> None:
    repeatable = ToolAnnotations(idempotent_hint=True)

    @server.tool()
    async def answered() -> str:
        """How many requests went the short way, and why others that have to do with tasks did not: JSON."""
        counts = tasks.short_way
        return json.dumps([counts.answered.total(), counts.handed_over])

    @server.tool(annotations=repeatable)
    @tasks.task()
    async def noop() -> str:
        """Do nothing, as a task."""
        return "ok"

    @server.tool(annotations=repeatable)
    @tasks.task()
    async def park(seconds: float) -> str:
        """Sleep."""
        await anyio.sleep(seconds)
        return "ok"


def main() -> None:
    """Serve until stopped."""
    options = _options()
    url = "memory://" if options.memory else None if options.db is None else f"sqlite:///{options.db}"
    server = build(url, **_said(options))
    if options.profile is not None:
        _profile_between_signals(options.profile)
    loop, http = _LAYERS[options.fast]
    uvicorn.run(
        server.streamable_http_app(json_response=options.json),
        host="127.0.0.1",
        port=options.port,
        loop=loop,
        http=http,
        log_level="warning",
        access_log=False,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.serve", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="port on 127.0.0.1")
    parser.add_argument("--json", action="store_true", help="answer with JSON instead of SSE streams")
    parser.add_argument("--fast", action="store_true", help="on uvloop and httptools instead of asyncio and h11")
    parser.add_argument("--db", type=Path, help="SQLite file for tasks; without it or --memory, there are none")
    parser.add_argument("--memory", action="store_true", help="keep tasks in memory")
    parser.add_argument("--inline", action="store_true", help="callers without tasks get plain calls")
    parser.add_argument("--concurrency", type=at_least(1), help="how many tools run at a time")
    parser.add_argument("--long-way", action="store_true", help="every request through the SDK")
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="profile from SIGUSR1 to SIGUSR2, and write it there"
    )
    return parser.parse_args()


def _said(options: argparse.Namespace) -> dict[str, Any]:
    """What is said to `Tasks`; nothing that is not wanted, because an older tree does not know it."""
    said: dict[str, Any] = {}
    if options.inline:
        said["fallback"] = "inline"
    if options.concurrency is not None:
        said["concurrency"] = options.concurrency
    if options.long_way and knows("short_way"):
        said["short_way"] = False
    return said


def _profile_between_signals(path: Path) -> None:
    """Of the thread of the event loop, which is the one that signals are handled in."""
    # By the processor time of the thread: by the clock, whatever lets go of the interpreter's lock would look dear.
    profile = cProfile.Profile(time.thread_time_ns, 1e-9)

    def stop(number: int, frame: object) -> None:
        profile.disable()
        unfinished = path.with_suffix(".part")
        profile.dump_stats(unfinished)
        unfinished.rename(path)

    signal.signal(signal.SIGUSR1, lambda number, frame: profile.enable())
    signal.signal(signal.SIGUSR2, stop)


if __name__ == "__main__":
    main()
