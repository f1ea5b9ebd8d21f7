"""What both protocol versions say of a task, each in its own words."""

import asyncio
import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
import pytest

from harness.http import serving
from harness.lowlevel import build_lowlevel
from harness.older import RELATED
from harness.rpc import INTERNAL_ERROR, INVALID_PARAMS, LEGACY, MODERN, PATIENCE, Tasking
from harness.schema import check_legacy_result
from harness.server import CUSTOM_ERROR, QUICK, Desk
from harness.stored import all_tasks
from harness.waiting import eventually
from mcp_tasks import Tasks
from mcp_tasks.errors import StoreCorrupt, StoreUnavailable
from mcp_tasks.stores.memory import MemoryStore
from mcp_tasks.testing.clock import FakeClock
from tests.spec.calling import Caller, calling, in_both_eras
from tests.spec.furnished import ENDINGS, furnished
from tests.unit.running import MeddledStore

FAILURES = (StoreUnavailable("secret-host:5432 refused"), StoreCorrupt("secret row"), RuntimeError("secret defect"))

SERVER_INFO = "io.modelcontextprotocol/serverInfo"


@asynccontextmanager
async def served(era: str, tasks: Tasks, desk: Desk | None = None) -> AsyncGenerator[Caller]:
    async with serving(furnished(tasks, desk)) as wire, calling(wire, era) as caller:
        yield caller


# Ids


@pytest.mark.requirement("security/unguessable", "older/ids", "older/secure-ids")
async def test_ids_carry_at_least_128_random_bits(caller: Caller) -> None:
    ids = await asyncio.gather(*(caller.start("echo", value=1) for _ in range(64)))
    drawn = [_random_part(task_id) for task_id in ids]
    assert len(set(ids)) == 64
    assert all(len(part) >= 16 for part in drawn)
    # A bit that never changes in 64 ids carries nothing; by chance that is one in 2**55 for all bits together.
    seen_set, seen_clear = 0, 0
    for number in map(int.from_bytes, drawn):
        seen_set |= number
        seen_clear |= ~number
    assert (seen_set & seen_clear).bit_count() >= 128


def _random_part(task_id: str) -> bytes:
    text = task_id.removeprefix("task_")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@pytest.mark.requirement(
    "errors/get-unknown",
    "errors/update-and-cancel-unknown",
    "errors/clearly-invalid",
    "errors/informative",
    "update/unknown-task",
    "cancel/unknown-task",
    "older/unknown-task",
    "older/informative",
)
async def test_an_id_that_names_no_task_is_an_invalid_param_and_the_error_says_so(caller: Caller) -> None:
    for method in caller.methods:
        for task_id in ("", "nope", "task_" + "A" * 27, "../../etc/passwd", "' OR 1=1"):
            error = await caller.refused(method, task_id)
            assert "not found" in error["message"].lower()
        misfits: list[Any] = [None, 7, 7.5, True, [], {}, ["task_1"]]
        for wrong in misfits:
            await caller.refused(method, wrong)
        assert (await caller.ask(method)).code == INVALID_PARAMS


@pytest.mark.requirement("errors/get-unknown", "older/ttl-elapsed", "older/expired")
@in_both_eras
async def test_an_expired_task_looks_like_one_that_never_was(era: str) -> None:
    clock = FakeClock()
    async with served(era, Tasks("memory://", clock=clock, default_ttl_ms=60_000, settings=QUICK)) as caller:
        task_id = await caller.start("echo", value=1)
        await caller.until(task_id, "completed")
        clock.advance(timedelta(seconds=59))
        assert (await caller.get(task_id))["status"] == "completed"
        clock.advance(timedelta(seconds=1))
        for method in caller.methods:
            assert await caller.refused(method, task_id) == await caller.refused(method, "nope")


@pytest.mark.requirement("older/cleans-up")
@in_both_eras
async def test_an_expired_task_is_removed_from_the_store(era: str) -> None:
    clock, store = FakeClock(), MemoryStore()
    async with served(era, Tasks(store, clock=clock, default_ttl_ms=1000, settings=QUICK)) as caller:
        await caller.until(await caller.start("echo", value=1), "completed")
        clock.advance(timedelta(seconds=2))
        await eventually(lambda: _is_empty(store))


async def _is_empty(store: MemoryStore) -> bool:
    return not await all_tasks(store)


@pytest.mark.requirement("task/fields", "older/ttl-on-the-wire")
@in_both_eras
async def test_a_task_that_is_kept_for_good_has_a_null_ttl(era: str) -> None:
    async with served(era, Tasks("memory://", default_ttl=None, settings=QUICK)) as caller:
        task_id = await caller.start("echo", value=1)
        done = await caller.until(task_id, "completed")
    assert done["ttlMs" if era == MODERN else "ttl"] is None


# A store that fails


@pytest.mark.requirement("errors/internal", "older/internal-error", "creation/durable", "older/create-soon")
@in_both_eras
async def test_a_store_that_fails_is_an_internal_error_that_gives_nothing_away_and_runs_nothing(era: str) -> None:
    store, desk = MeddledStore(), Desk()
    async with served(era, Tasks(store, settings=QUICK), desk) as caller:
        task_id = await caller.start("echo", value=1)
        await caller.until(task_id, "completed")
        for failure in FAILURES:
            store.refuse(failure, "create", "get", "versions")
            for method in caller.methods:
                assert "secret" not in str(await caller.refused(method, task_id, INTERNAL_ERROR))
            reply = await caller.call("gated")
            assert (reply.status, reply.code) == (200, INTERNAL_ERROR)
            assert "secret" not in str(reply.message)
        store.before.clear()
        assert (await caller.get(task_id))["status"] == "completed"
        assert [task.id for task in await all_tasks(store)] == [task_id]
    assert not desk.started.is_set()


# How it ends


@pytest.mark.requirement(
    "get/completed",
    "errors/result-is-that-result",
    "errors/failed-has-an-error",
    "errors/error-is-that-error",
    "errors/is-error-is-no-failure",
    "errors/is-error-completes",
    "status/failed-is-for-protocol-errors",
    "older/result-is-exact",
    "older/result-of-final",
    "older/result-has-related-task",
    "older/same-error",
    "older/result-is-a-response",
    "older/related-task-on-errors",
)
async def test_a_task_ends_as_the_plain_call_does(caller: Caller) -> None:
    for tool, arguments in ENDINGS.items():
        plain = (await caller.plainly(tool, **arguments)).message
        task_id = await caller.start(tool, **arguments)
        outcome = await caller.outcome(task_id)
        if "error" in plain:
            assert outcome == plain["error"], tool
            continue
        expected = plain["result"]
        # What the server itself says in this place, of a task or of itself.
        not_theirs = SERVER_INFO if caller.era == MODERN else RELATED
        meta = {key: value for key, value in expected.pop("_meta", {}).items() if key != not_theirs}
        assert outcome == expected | ({"_meta": meta} if meta else {}), tool
        if caller.era == LEGACY:
            check_legacy_result("CallToolResult", outcome)
        # Asked again, it is the same again.
        assert await caller.outcome(task_id) == outcome


@pytest.mark.requirement(
    "errors/internal", "errors/error-is-that-error", "older/uncaught-crash", "older/internal-error"
)
@in_both_eras
async def test_a_crash_that_the_server_does_not_catch_is_an_internal_error_that_gives_nothing_away(era: str) -> None:
    server = build_lowlevel(Tasks("memory://", settings=QUICK))
    async with serving(server) as wire, calling(wire, era) as caller:
        task_id = await caller.start("crashes")
        error = await caller.outcome(task_id)
        assert error["code"] == INTERNAL_ERROR
        if era == MODERN:
            assert error == (await caller.plainly("crashes")).error
        assert "secret" not in str(error)
        assert "secret" not in str(await caller.until(task_id, "failed"))


@pytest.mark.requirement("errors/failed-has-a-message", "older/failed", "older/failed-says-why", "older/completed")
@in_both_eras
async def test_a_task_that_failed_says_why_and_each_era_has_its_own_word_for_a_tool_that_failed(era: str) -> None:
    said = {
        "fails": "Error executing tool fails: it did not work out",
        "crashes": "Error executing tool crashes",
        "fails_by_result": "the printer is on fire",
        "fails_silently": "The tool reported an error",
        "breaks": "the protocol says no",
        "breaks_without_a_word": "The request failed",
        "echo": None,
    }
    async with served(era, Tasks("memory://", settings=QUICK)) as caller:
        for tool, message in said.items():
            task_id = await caller.start(tool, **({"value": 1} if tool == "echo" else {}))
            ends_well = tool == "echo" or (era == MODERN and not tool.startswith("breaks"))
            task = await caller.until(task_id, "completed" if ends_well else "failed")
            if not ends_well:
                assert task["statusMessage"] == ("" if era == MODERN and message == "The request failed" else message)
            if era == MODERN and tool == "breaks":
                expected = {"code": CUSTOM_ERROR, "message": "the protocol says no", "data": {"hint": "ask again"}}
                assert task["error"] == expected


# Cancelling


@pytest.mark.requirement("cancel/status", "older/cancel-stops-the-work")
async def test_a_running_tool_is_stopped(caller: Caller, desk: Desk) -> None:
    task_id = await caller.start("gated")
    with anyio.fail_after(PATIENCE):
        await desk.started.wait()
        await caller.cancel(task_id)
        await desk.stopped.wait()
    assert not desk.gate.is_set()
    assert (await caller.until(task_id, "cancelled"))["statusMessage"] == "Cancelled by the client"


@pytest.mark.requirement("cancel/status", "older/stays-cancelled", "older/cancelled-before-the-answer")
async def test_a_task_is_cancelled_before_the_answer_and_a_later_result_changes_nothing(
    caller: Caller, desk: Desk, store: MemoryStore
) -> None:
    task_id = await caller.start("stubborn")
    with anyio.fail_after(PATIENCE):
        await desk.started.wait()
        await caller.cancel(task_id)
        record = await store.get(task_id)
        assert record is not None
        assert record.status.value == "cancelled"
        await desk.stopped.wait()
    # A later task runs to its end on the same engine, so the late result has had its chance.
    await caller.until(await caller.start("echo", value=1), "completed")
    task = await caller.get(task_id)
    assert task["status"] == "cancelled"
    assert "result" not in task
    if caller.era == LEGACY:
        assert "nobody asked for" not in str(await caller.outcome(task_id))


@pytest.mark.requirement("cancel/ack", "cancel/status", "older/final-is-final", "older/cancel-refused")
async def test_a_final_status_is_final(caller: Caller, desk: Desk) -> None:
    ended = {"gated": "cancelled", "nothing": "completed", "fails": "completed", "breaks": "failed"}
    if caller.era == LEGACY:
        ended["fails"] = "failed"
    for tool, status in ended.items():
        task_id = await caller.start(tool)
        if tool == "gated":
            await caller.cancel(task_id)
        final = await caller.until(task_id, status)
        desk.gate.set()
        if caller.era == MODERN:
            await caller.cancel(task_id)
        else:
            assert f"'{status}'" in (await caller.refused("tasks/cancel", task_id))["message"]
        await caller.about(caller.methods[-1], task_id)
        # The suggested interval is no state: it follows the age of the task.
        interval = "pollIntervalMs" if caller.era == MODERN else "pollInterval"
        assert {**await caller.get(task_id), interval: 0} == {**final, interval: 0}


# What the tool sees


@pytest.mark.requirement("methods/more-may-come")
async def test_a_tool_sees_its_caller_and_nothing_of_the_request_that_is_over(
    caller: Caller, desk: Desk, store: MemoryStore
) -> None:
    params: dict[str, Any] = {"name": "introspect", "arguments": {}}
    meta: dict[str, Any] = {"example.com/trace": "abc", "progressToken": 7}
    if isinstance(caller.client, Tasking):
        created = (await caller.client.ask("tools/call", params, meta=meta)).result
    else:
        meta |= {RELATED: {"taskId": "another"}}
        created = (await caller.ask("tools/call", params | {"task": {"ttl": 5000}, "_meta": meta})).result["task"]
    await caller.until(created["taskId"], "completed")
    request = await store.request(created["taskId"])
    [seen] = desk.seen
    assert (seen["task"], seen["attempt"], seen["version"]) == (created["taskId"], 1, caller.era)
    assert (seen["owner"], seen["headers"], seen["meta"]) == (None, None, {"example.com/trace": "abc"})
    assert request is not None
    assert (request.client_info, request.meta) == ({"name": "raw", "version": "1"}, {"example.com/trace": "abc"})
    assert (request.method, request.name, request.arguments) == ("tools/call", "introspect", {})
