"""A task as it is announced, and when it may be."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.http import serving
from harness.rpc import EVERYTHING, INTERNAL_ERROR, TASKS, Tasking, accept, text_of
from harness.server import QUICK, Desk, build
from harness.stored import all_tasks
from mcp_tasks import Tasks
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import TaskRecord, TaskRequest
from mcp_tasks.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio

TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.mark.requirement("results/task-is-marked", "task/fields")
async def test_a_created_task_has_exactly_the_fields_of_a_task(client: Tasking) -> None:
    created = await client.call("echo", value=1)
    expected = {"resultType", "taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs", "_meta"}
    assert created.keys() == expected
    assert (created["resultType"], created["status"]) == ("task", "working")
    assert created["_meta"] == {"io.modelcontextprotocol/serverInfo": {"name": "furnished", "version": "1"}}
    assert created["createdAt"] == created["lastUpdatedAt"]


@pytest.mark.requirement("task/fields")
async def test_a_task_that_is_kept_for_good_has_a_null_ttl() -> None:
    async with serving(build(Tasks("memory://", default_ttl_ms=None, settings=QUICK))) as wire:
        client = Tasking(wire)
        created = await client.call("echo", value=1)
        done = await client.until(created["taskId"], "completed")
    assert "ttlMs" in created
    assert "ttlMs" in done
    assert (created["ttlMs"], done["ttlMs"]) == (None, None)


@pytest.mark.requirement("task/fields")
async def test_durations_are_whole_milliseconds() -> None:
    odd = timedelta(microseconds=1234567)
    tasks = Tasks("memory://", default_ttl=odd, settings=QUICK)
    desk = Desk()
    server = build(tasks, desk)
    tasks.mark("gated", poll_interval=odd)
    async with serving(server) as wire:
        client = Tasking(wire)
        created = await client.call("gated")
        desk.gate.set()
        done = await client.until(created["taskId"], "completed")
    for task in (created, done):
        assert type(task["ttlMs"]) is int
        assert type(task["pollIntervalMs"]) is int
    assert (created["ttlMs"], created["pollIntervalMs"]) == (1235, 1235)


@pytest.mark.requirement("task/fields")
async def test_timestamps_are_utc_with_a_z(client: Tasking) -> None:
    before = datetime.now().astimezone()
    done = await client.finish("echo", value=1)
    after = datetime.now().astimezone()
    for field in ("createdAt", "lastUpdatedAt"):
        assert TIMESTAMP.fullmatch(done[field])
        instant = datetime.fromisoformat(done[field])
        assert before - timedelta(milliseconds=1) <= instant <= after


@pytest.mark.requirement("creation/durable")
async def test_a_task_can_be_read_as_soon_as_it_is_announced(client: Tasking) -> None:
    async def create_and_read() -> str:
        task_id = await client.create("gated")
        return (await client.get(task_id))["status"]

    statuses = await asyncio.gather(*(create_and_read() for _ in range(20)))
    assert set(statuses) == {"working"}


@pytest.mark.requirement("creation/durable")
async def test_a_task_can_be_read_at_another_server_as_soon_as_it_is_announced(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    here, there = (build(Tasks(url, settings=QUICK)) for _ in range(2))
    async with serving(here) as near, serving(there) as far:
        task_id = await Tasking(near, EVERYTHING).create("ask_name")
        assert (await Tasking(far, EVERYTHING).get(task_id))["taskId"] == task_id


class FullStore(MemoryStore):
    """A store with no room left."""

    async def create(self, record: TaskRecord, request: TaskRequest, **options: Any) -> TaskRecord:
        raise StoreUnavailable("the disk is full")


@pytest.mark.requirement("creation/durable")
async def test_a_call_whose_task_cannot_be_kept_is_an_error_and_runs_nothing() -> None:
    desk = Desk()
    async with serving(build(Tasks(FullStore(), settings=QUICK), desk)) as wire:
        reply = await Tasking(wire).ask("tools/call", {"name": "introspect", "arguments": {}})
        assert (reply.status, reply.code) == (200, INTERNAL_ERROR)
        assert text_of(await Tasking(wire).call("greet", name="Ada")) == "Hello, Ada!"
    assert desk.seen == []


class SlowStore(MemoryStore):
    """A store that takes as long to keep a task as the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()
        self.consistent = asyncio.Event()

    async def create(self, record: TaskRecord, request: TaskRequest, **options: Any) -> TaskRecord:
        self.reached.set()
        await self.consistent.wait()
        return await super().create(record, request, **options)


@pytest.mark.requirement("creation/consistent")
async def test_a_call_is_not_answered_before_the_store_has_kept_its_task() -> None:
    store = SlowStore()
    async with serving(build(Tasks(store, settings=QUICK))) as wire:
        client = Tasking(wire)
        call = asyncio.create_task(client.create("echo", value=1))
        await store.reached.wait()
        # Another call goes all the way meanwhile, so this one had the time to be answered too early.
        await client.call("greet", name="Ada")
        assert not call.done()
        store.consistent.set()
        assert (await client.get(await call))["taskId"] == call.result()


@pytest.mark.requirement("creation/questions-before")
async def test_a_question_returned_before_the_work_is_asked_on_the_call_itself(
    client: Tasking, store: MemoryStore
) -> None:
    asked = await client.call("ask_by_returning")
    assert asked["resultType"] == "input_required"
    assert asked["inputRequests"].keys() == {"who"}
    assert await all_tasks(store) == []

    answered = {"name": "ask_by_returning", "arguments": {}, "inputResponses": {"who": accept(name="Ada")}}
    created = (await client.ask("tools/call", answered)).result
    assert created["resultType"] == "task"
    assert text_of((await client.until(created["taskId"], "completed"))["result"]) == "Hello, Ada!"


@pytest.mark.requirement("creation/questions-before")
async def test_a_question_for_a_parameter_is_asked_on_the_call_itself(client: Tasking, store: MemoryStore) -> None:
    asked = await client.call("ask_before")
    assert asked["resultType"] == "input_required"
    [key] = asked["inputRequests"]
    assert await all_tasks(store) == []

    answered = {
        "name": "ask_before",
        "arguments": {},
        "inputResponses": {key: accept(name="Ada")},
        "requestState": asked["requestState"],
    }
    created = (await client.ask("tools/call", answered)).result
    assert created["resultType"] == "task"
    assert text_of((await client.until(created["taskId"], "completed"))["result"]) == "Hello, Ada!"


@pytest.mark.requirement("methods/more-may-come")
async def test_a_task_remembers_which_method_it_answers(client: Tasking, store: MemoryStore) -> None:
    record = await store.get(await client.declaring(TASKS).create("echo", value=1))
    assert record is not None
    assert record.method == "tools/call"
