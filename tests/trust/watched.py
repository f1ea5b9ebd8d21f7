"""A server whose tasks are watched, with users, over real HTTP; and what its audit log says."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from harness.auth import USERS
from harness.http import HttpWire, serving
from harness.rpc import EVERYTHING, Tasking
from harness.server import Desk, build
from harness.waiting import eventually
from mcp_tasks import Tasks
from mcp_tasks.telemetry.audit import digest_of


@asynccontextmanager
async def guarded(tasks: Tasks, desk: Desk | None = None, *, page: bool = False) -> AsyncGenerator[HttpWire]:
    """A way to a server that lets nobody in without a token: alice, bob and robot have one."""
    server = build(tasks, desk, verifier=USERS)
    if page:
        server.custom_route("/metrics", methods=["GET"])(tasks.metrics.endpoint)
    async with serving(server) as way:
        yield way


def user(wire: HttpWire, token: str) -> Tasking:
    return Tasking(wire.as_user(token), EVERYTHING)


async def _scrape(wire: HttpWire) -> dict[str, float]:
    """What the server's page of metrics says, by name and labels."""
    response: httpx2.Response = await wire.client.get(wire.url.removesuffix("/mcp") + "/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    lines = [line for line in response.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def until_scraped(wire: HttpWire, wanted: Mapping[str, float]) -> dict[str, float]:
    """The page of metrics once these are at least so large: observers are told a moment later."""

    async def look() -> dict[str, float]:
        found = await _scrape(wire)
        return found if all(found.get(name, 0) >= value for name, value in wanted.items()) else {}

    return await eventually(look)


def entries(path: Path, task_id: str | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    return [each for each in found if task_id is None or each.get("taskDigest") == digest_of(task_id)]


def events(path: Path, task_id: str | None = None) -> list[str]:
    return [each["event"] for each in entries(path, task_id)]
