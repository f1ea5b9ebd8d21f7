"""What the Python drivers share; standard library only, since each runs in a virtualenv of its own.

Drivers of the older era are told what to do in one JSON argument:

    {url} or {command: [...]}   the server, over Streamable HTTP or over stdio
    {pid}                       a file with its process id; at the end of the first visit it is killed
    {left}                      what the first visit left behind: this is the second
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

SCENARIO_LIMIT = 20.0
PARKED = 30.0  # seconds of the task that is cancelled: longer than any scenario may last
JOB = 6.0  # seconds of the task whose caller gives up: long enough for that to be heard of on a busy machine
PATIENCE = 1.5  # seconds in which a call is under way

Scenario = Callable[[], Awaitable[dict[str, Any]]]


async def run_all(scenarios: Mapping[str, Scenario]) -> dict[str, Any]:
    """All scenarios at the same time; what one raises is its outcome."""
    outcomes = await asyncio.gather(*(_run(scenario) for scenario in scenarios.values()))
    return dict(zip(scenarios, outcomes, strict=True))


async def _run(scenario: Scenario) -> dict[str, Any]:
    started = time.monotonic()
    try:
        outcome = await asyncio.wait_for(scenario(), SCENARIO_LIMIT)
    except Exception as exc:
        outcome = {"error": {"type": type(exc).__name__, "message": str(exc), "code": getattr(exc, "code", None)}}
    return {**outcome, "seconds": round(time.monotonic() - started, 3)}


async def give_up(begin: Callable[[dict[str, Any]], Awaitable[Any]]) -> dict[str, Any]:
    """Begin a call of `job` that gives up when the tool has begun, and see in its log whether that went on."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, "job.log")
        arguments = {"n": 1, "seconds": JOB, "log": str(log)}
        cancelled = await begin(arguments)
        return {"cancelled": cancelled, "went_on": await _comes_into(log, " end ", JOB + 4)}


async def until_begun(arguments: Mapping[str, Any]) -> None:
    """Return when the log of a `job` says that it has begun."""
    assert await _comes_into(Path(arguments["log"]), " start ", SCENARIO_LIMIT)


async def _comes_into(log: Path, text: str, seconds: float) -> bool:
    for _ in range(round(seconds * 20)):
        if _has(log, text):
            return True
        await asyncio.sleep(0.05)
    return False


def _has(log: Path, text: str) -> bool:
    return log.exists() and text in log.read_text()


async def cancelled_when_begun(call: Callable[[dict[str, Any]], Coroutine[Any, Any, Any]], job: dict[str, Any]) -> bool:
    """Cancel the asyncio task in which a call waits."""
    work = asyncio.create_task(call(job))
    await until_begun(job)
    work.cancel()
    await asyncio.wait([work])
    return work.cancelled()


def filled_in(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What the person says who is asked: yes, or a name."""
    return {"confirm": True} if "confirm" in schema["properties"] else {"name": "Ada"}


async def answer_fastmcp(message: str, response_type: Any, params: Any, context: Any) -> dict[str, Any]:
    """The same, as FastMCP's client asks it."""
    return filled_in(params.requested_schema)


async def drive_each(drive: Callable[[str], Awaitable[dict[str, Any]]], urls: Sequence[str]) -> list[dict[str, Any]]:
    """All servers at the same time."""
    return list(await asyncio.gather(*(drive(url) for url in urls)))


def report(outcomes: Sequence[Mapping[str, Any]], **versions: str) -> None:
    """The one line that the test reads."""
    print(json.dumps([{**versions, **outcome} for outcome in outcomes]))


# Drivers of the older era, and hosts

PLAN: dict[str, Any] = json.loads(sys.argv[1]) if sys.argv[1:] and sys.argv[1].startswith("{") else {}
RELATED = "io.modelcontextprotocol/related-task"


async def visit(
    version: str,
    scenarios: Mapping[str, Scenario],
    leave: Scenario | None,
    resume: Callable[[Any], Awaitable[dict[str, Any]]] | None,
) -> None:
    """One visit: all scenarios at the same time; the first visit leaves tasks behind, and a server that was killed."""
    left = PLAN.get("left")
    if left is not None:
        assert resume is not None
        outcomes = await run_all({"resume": lambda: resume(left)})
    else:
        outcomes = await run_all(scenarios)
    if left is None and leave is not None and "pid" in PLAN:
        outcomes.update(await run_all({"left": leave}))
        kill_server()
    print(json.dumps({"version": version, **outcomes}), flush=True)
    # The server may be gone, and nobody waits for a client to notice.
    os._exit(0)


def kill_server() -> None:
    with suppress(ProcessLookupError):  # a scenario may have been the one that did it
        os.kill(int(Path(PLAN["pid"]).read_text()), signal.SIGKILL)


def related(meta: Mapping[str, Any] | None) -> str | None:
    about: Mapping[str, str] = (meta or {}).get(RELATED) or {}
    return about.get("taskId")
