"""A call that asks for a task: what is answered, how soon, and what the task is then."""

from __future__ import annotations

import asyncio
import base64
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import anyio
import pytest

from harness.http import HttpWire, serving
from harness.older import FINAL, IMMEDIATE, HttpClient, OlderClient, http_session
from harness.rpc import INTERNAL_ERROR, INVALID_PARAMS, PATIENCE, text_of
from harness.server import QUICK, Desk
from mcp_tasks import Tasks
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import TaskRecord, TaskRequest
from mcp_tasks.stores.memory import MemoryStore
from mcp_tasks.testing.clock import FakeClock
from tests.spec.legacy.furnished import ENDINGS, furnished

pytestmark = pytest.mark.anyio

TASK_FIELDS = {"taskId", "status", "createdAt", "lastUpdatedAt", "ttl", "pollInterval"}
HOUR_MS = 3_600_000


@pytest.mark.requirement("older/create-result", "older/create-has-no-outcome", "older/poll-interval")
async def test_a_created_task_has_exactly_the_fields_of_a_task(everywhere: OlderClient) -> None:
    created = (await everywhere.call("gated", task={})).result
    assert created.keys() - {"_meta"} == {"task"}
    assert created["task"].keys() - {"statusMessage"} == TASK_FIELDS
    assert created["task"]["pollInterval"] > 0


@pytest.mark.requirement("older/create-soon")
async def test_the_call_is_answered_while_the_tool_still_works(client: HttpClient, desk: Desk) -> None:
    task_id = await client.start("gated")
    with anyio.fail_after(PATIENCE):
        await desk.started.wait()
    assert not desk.stopped.is_set()
    assert (await client.get(task_id))["status"] == "working"


@pytest.mark.requirement("older/begins-working")
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_task_begins_as_working_however_soon_it_ends(client: HttpClient, ending: str) -> None:
    tool, arguments = ENDINGS[ending]
    for _ in range(5):
        assert (await client.create(tool, **arguments))["status"] == "working"


@pytest.mark.requirement("older/begins-working")
@pytest.mark.parametrize("tool", ["ask_name", "ask_both", "ask_model", "ask_roots", "ask_by_returning", "ask_before"])
async def test_a_task_begins_as_working_however_soon_it_asks(client: HttpClient, tool: str) -> None:
    created = await client.create(tool)
    assert created["status"] == "working"
    assert (await client.until(created["taskId"], "input_required"))["taskId"] == created["taskId"]


@pytest.mark.requirement("older/ids", "older/secure-ids")
async def test_ids_are_strings_of_at_least_128_random_bits(client: HttpClient) -> None:
    ids = await asyncio.gather(*(client.start("echo", value=1) for _ in range(64)))
    drawn = [_random_part(task_id) for task_id in ids]
    assert len(set(ids)) == 64
    assert all(len(part) >= 16 for part in drawn)
    seen_set, seen_clear = 0, 0
    for number in map(int.from_bytes, drawn):
        seen_set |= number
        seen_clear |= ~number
    assert (seen_set & seen_clear).bit_count() >= 128


def _random_part(task_id: str) -> bytes:
    text = task_id.removeprefix("task_")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@pytest.mark.requirement("older/ids")
async def test_an_id_that_the_client_wishes_for_is_not_used(client: HttpClient) -> None:
    created = await client.create("gated", task={"taskId": "mine", "ttl": 1000})
    assert created["taskId"] != "mine"
    assert (await client.ask("tasks/get", {"taskId": "mine"})).code == INVALID_PARAMS


@pytest.mark.requirement("older/created-at", "older/last-updated-at", "older/ttl-on-the-wire")
async def test_every_answer_about_a_task_has_its_times(listener: HttpClient) -> None:
    created = await listener.create("gated", task={"ttl": HOUR_MS})
    task_id = created["taskId"]
    got = await listener.get(task_id)
    [listed] = await listener.listed()
    cancelled = await listener.cancel(task_id)
    told = (await listener.status(task_id, "cancelled")).params
    for task in (created, got, listed, cancelled, told):
        began, changed = (datetime.fromisoformat(task[key]) for key in ("createdAt", "lastUpdatedAt"))
        assert began.utcoffset() == changed.utcoffset() == timedelta(0)
        assert began <= changed
        assert task["createdAt"] == created["createdAt"]
        assert task["ttl"] >= HOUR_MS
    assert told["lastUpdatedAt"] == cancelled["lastUpdatedAt"]


@pytest.mark.requirement("older/ttl-asked-for", "older/ttl-on-the-wire")
async def test_the_ttl_that_was_asked_for_counts_from_the_end() -> None:
    clock, desk = FakeClock(), Desk()
    async with _served(Tasks("memory://", clock=clock, settings=QUICK), desk) as way, http_session(way) as client:
        created = await client.create("gated", task={"ttl": HOUR_MS})
        assert created["ttl"] >= HOUR_MS
        with anyio.fail_after(PATIENCE):
            await desk.started.wait()
        clock.advance(timedelta(hours=5))
        # Five times what was asked for, and it works: so the ttl on the wire has grown with it.
        assert (await client.get(created["taskId"]))["ttl"] > 5 * HOUR_MS
        desk.gate.set()
        done = await client.until(created["taskId"], "completed")
        assert done["ttl"] == 6 * HOUR_MS
        clock.advance(timedelta(minutes=59))
        assert (await client.get(created["taskId"]))["ttl"] == 6 * HOUR_MS
        assert text_of((await client.result(created["taskId"])).result) == "through"


@pytest.mark.requirement("older/ttl-elapsed", "older/expired")
async def test_a_task_whose_ttl_has_passed_is_not_there_any_more() -> None:
    clock = FakeClock()
    async with _served(Tasks("memory://", clock=clock, settings=QUICK)) as way, http_session(way) as client:
        task_id = await client.start("echo", value=1, task={"ttl": 1000})
        await client.until(task_id, "completed")
        clock.advance(timedelta(seconds=2))
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            assert (await client.ask(method, {"taskId": task_id})).code == INVALID_PARAMS
        assert await client.listed() == []


@pytest.mark.requirement("older/cleans-up")
async def test_an_expired_task_is_removed_from_the_store() -> None:
    clock, store = FakeClock(), MemoryStore()
    async with _served(Tasks(store, clock=clock, settings=QUICK)) as way, http_session(way) as client:
        task_id = await client.start("echo", value=1, task={"ttl": 1000})
        await client.until(task_id, "completed")
        clock.advance(timedelta(seconds=2))
        with anyio.fail_after(PATIENCE):
            while await store.get(task_id) is not None:  # noqa: ASYNC110
                await anyio.sleep(0.01)


@pytest.mark.requirement("older/ttl-may-be-overridden", "older/ttl-has-a-maximum")
async def test_a_ttl_beyond_the_maximum_is_cut_and_the_wire_says_so() -> None:
    tasks = Tasks("memory://", default_ttl=timedelta(hours=1), max_ttl=timedelta(hours=2), settings=QUICK)
    async with _served(tasks) as way, http_session(way) as client:
        for asked in (HOUR_MS * 24 * 365, 2**53, 1e300, None):
            task_id = await client.start("echo", value=1, task={"ttl": asked})
            assert 2 * HOUR_MS <= (await client.until(task_id, "completed"))["ttl"] < 3 * HOUR_MS


@pytest.mark.requirement("older/ttl-on-the-wire")
async def test_a_task_that_is_kept_for_good_has_a_null_ttl(store: MemoryStore) -> None:
    async with _served(Tasks(store, default_ttl=None, settings=QUICK)) as way, http_session(way) as client:
        created = await client.create("gated")
        assert created["ttl"] is None
        for task in (
            await client.get(created["taskId"]),
            *await client.listed(),
            await client.cancel(created["taskId"]),
        ):
            assert task["ttl"] is None


@pytest.mark.requirement("older/ttl-asked-for")
@pytest.mark.parametrize("ttl", [0, 1, 1500.0, 60_000])
async def test_any_number_of_milliseconds_can_be_asked_for(client: HttpClient, ttl: float) -> None:
    created = await client.create("gated", task={"ttl": ttl})
    assert isinstance(created["ttl"], int)
    assert (await client.get(created["taskId"]))["status"] == "working"


@pytest.mark.requirement("older/immediate-response")
async def test_what_the_model_may_be_told_at_once_is_in_the_meta_of_the_created_task(desk: Desk) -> None:
    tasks = Tasks("memory://", settings=QUICK)
    server = furnished(tasks, desk)

    @server.tool()
    @tasks.task(immediate_response="Rendering has begun.")
    async def render() -> str:
        """Take a while."""
        await desk.gate.wait()
        return "done"

    async with serving(server) as way, http_session(way) as client:
        created = (await client.call("render", task={})).result
        assert created["_meta"][IMMEDIATE] == "Rendering has begun."
        task_id = created["task"]["taskId"]
        desk.gate.set()
        assert IMMEDIATE not in (await client.result(task_id)).result["_meta"]
        assert IMMEDIATE not in (await client.call("gated", task={})).result.get("_meta", {})


@pytest.mark.requirement("older/create-soon", "older/internal-error")
@pytest.mark.parametrize("failure", [StoreUnavailable("secret disk is full"), RuntimeError("secret defect")], ids=repr)
async def test_a_call_whose_task_cannot_be_kept_is_an_error_and_runs_nothing(desk: Desk, failure: Exception) -> None:
    store = _FullStore()
    store.failure = failure
    async with _served(Tasks(store, settings=QUICK), desk) as way, http_session(way) as client:
        reply = await client.call("gated", task={})
        assert reply.code == INTERNAL_ERROR
        assert "secret" not in str(reply.message)
    assert not desk.started.is_set()


class _FullStore(MemoryStore):
    """A store with no room left."""

    failure: Exception

    async def create(self, record: TaskRecord, request: TaskRequest, **options: Any) -> TaskRecord:
        raise self.failure


@pytest.mark.requirement("older/transitions")
async def test_a_task_goes_only_where_the_protocol_lets_it(listener: HttpClient) -> None:
    task_id = await listener.start("ask_again")
    for number in range(3):
        question = await listener.question(task_id, after=len(listener.arrived) if number else 0)
        await listener.answer(question, {"action": "accept", "content": {"name": f"n{number}"}})
    await listener.until(task_id, "completed")
    await listener.status(task_id, "completed")
    seen = [
        "working",
        *(one.params["status"] for one in listener.arrived if one.method == "notifications/tasks/status"),
    ]
    changes = [(before, now) for before, now in pairwise(seen) if before != now]
    assert set(changes) <= {("working", "input_required"), ("input_required", "working"), ("working", "completed")} | {
        ("input_required", "completed")
    }
    assert seen[-1] == "completed"


@pytest.mark.requirement("older/final-is-final")
@pytest.mark.parametrize("tool", ["echo", "fails", "breaks", "gated"])
async def test_a_final_status_is_final(client: HttpClient, desk: Desk, tool: str) -> None:
    task_id = await client.start(tool, **({"value": 1} if tool == "echo" else {}))
    if tool == "gated":
        await client.cancel(task_id)
    final = await client.until(task_id, *FINAL)
    desk.gate.set()
    await client.ask("tasks/cancel", {"taskId": task_id})
    await client.result(task_id)
    assert await client.get(task_id) == final


def _served(tasks: Tasks, desk: Desk | None = None) -> AbstractAsyncContextManager[HttpWire]:
    return serving(furnished(tasks, desk))
