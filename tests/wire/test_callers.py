"""Whom a task belongs to, by a rule of the author's over who calls."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from harness import stored
from harness.http import HttpWire, modern_headers, serving
from harness.rpc import EVERYTHING, INVALID_PARAMS, MODERN, Reply, Tasking, request
from harness.server import QUICK, Desk, build
from mcp_tasks import Tasks
from mcp_tasks.protocol.owners import RULE_FAILED
from mcp_tasks.server import Caller
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.sqlite import SqliteStore

pytestmark = pytest.mark.anyio


class UserWire:
    """A way to a server through a proxy that says who the user is."""

    def __init__(self, wire: HttpWire, user: str | None) -> None:
        self._wire = wire
        self._user = user

    async def send(self, message: Mapping[str, Any]) -> Reply:
        headers = modern_headers(message)
        if self._user is not None:
            headers.append(("X-User", self._user))
        return await self._wire.post(json.dumps(message), headers)


def by_header(caller: Caller) -> str | None:
    return caller.headers.get("x-user")


@asynccontextmanager
async def behind_a_proxy(**options: Any) -> AsyncGenerator[HttpWire]:
    async with serving(build(Tasks("memory://", settings=QUICK, **options), Desk())) as wire:
        yield wire


async def test_a_rule_over_headers_decides_whose_a_task_is() -> None:
    async with behind_a_proxy(principal=by_header) as wire:
        alice, bob, nobody = (UserWire(wire, user) for user in ("alice", "bob", None))
        created = await alice.send(request("tools/call", {"name": "gated", "arguments": {}}, capabilities=EVERYTHING))
        look = {"taskId": created.result["taskId"]}
        assert (await alice.send(request("tasks/get", look))).result["status"] == "working"
        for other in (bob, nobody):
            for method in ("tasks/get", "tasks/cancel"):
                assert (await other.send(request(method, look))).code == INVALID_PARAMS
        assert (await alice.send(request("tasks/get", look))).result["status"] == "working"


async def test_the_rule_sees_the_caller_whole() -> None:
    callers: list[Caller] = []

    def rule(caller: Caller) -> str | None:
        callers.append(caller)
        return "everybody"

    async with behind_a_proxy(principal=rule) as wire:
        client = Tasking(wire, EVERYTHING)
        task_id = await client.create("ask_name")
        await client.get(task_id)
    created, looked = callers
    assert (created.protocol_version, created.principal) == (MODERN, None)
    assert created.client_info == {"name": "raw", "version": "1"}
    assert created.capabilities == EVERYTHING
    assert (created.headers["mcp-name"], looked.headers["mcp-name"]) == ("ask_name", task_id)


async def a_name() -> str:
    return "alice"


@pytest.mark.parametrize("kept", ["memory", "sqlite"])
@pytest.mark.parametrize("owner", [lambda: 7, lambda: b"alice", a_name], ids=["int", "bytes", "coroutine"])
@pytest.mark.filterwarnings("error")
async def test_a_rule_that_returns_no_name_is_reported_and_nothing_is_written(
    owner: Callable[[], Any], kept: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store: Store = MemoryStore() if kept == "memory" else SqliteStore(tmp_path / "tasks.db")
    returned: list[Callable[[], Any]] = [lambda: "alice"]
    tasks = Tasks(store, settings=QUICK, principal=lambda _: returned[0]())
    async with serving(build(tasks, Desk())) as wire:
        client = Tasking(wire, EVERYTHING)
        task_id = await client.create("gated")
        returned[0] = owner
        calls: list[tuple[str, dict[str, Any]]] = [
            ("tools/call", {"name": "gated", "arguments": {}}),
            ("tasks/get", {"taskId": task_id}),
            ("tasks/cancel", {"taskId": task_id}),
            ("subscriptions/listen", {"notifications": {"taskIds": [task_id]}}),
        ]
        for method, params in calls:
            caplog.clear()
            reply = await wire.send(request(method, params, capabilities=EVERYTHING))
            assert reply.message["error"] == {"code": -32603, "message": RULE_FAILED}, method
            said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
            [line] = [line for line in said if "principal=" in line]
            assert "a str or None" in line
        gc.collect()
        returned[0] = lambda: "alice"
        assert (await client.get(task_id))["status"] == "working"
        assert [task.id for task in await stored.all_tasks(store)] == [task_id]
