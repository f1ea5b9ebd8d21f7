"""Requests about tasks that are wrong, and a server that fails."""

from __future__ import annotations

from typing import Any

import pytest

from harness.http import HttpWire, serving
from harness.older import RELATED, HttpClient, OlderClient, http_session
from harness.rpc import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND
from harness.server import QUICK
from mcp_tasks import Tasks
from tests.spec.failing import with_each_failure
from tests.spec.legacy.furnished import furnished
from tests.unit.running import UnreliableStore

pytestmark = pytest.mark.anyio

BY_ID = ("tasks/get", "tasks/result", "tasks/cancel")


@pytest.mark.requirement("older/unknown-task", "older/informative")
async def test_a_task_that_is_not_there_is_an_invalid_param(everywhere: OlderClient) -> None:
    for method in BY_ID:
        await _refuses_ids(everywhere, method)


async def _refuses_ids(everywhere: OlderClient, method: str) -> None:
    for task_id in (
        "",
        "nope",
        "task_AAAAAAAAAAAAAAAAAAAAAAAAAAA",
        "../../etc/passwd",
        "' OR 1=1",
        "\u0000",
        "x" * 9999,
    ):
        reply = await everywhere.ask(method, {"taskId": task_id})
        assert reply.code == INVALID_PARAMS
        assert "task" in reply.error["message"].lower()
        assert len(reply.error["message"]) < 500


@pytest.mark.requirement("older/unknown-task")
@pytest.mark.parametrize("method", BY_ID)
async def test_an_id_of_the_wrong_type_is_an_invalid_param(client: HttpClient, method: str) -> None:
    wrong: tuple[Any, ...] = (None, 7, 7.5, True, [], {}, ["task_1"])
    for task_id in wrong:
        assert (await client.ask(method, {"taskId": task_id})).code == INVALID_PARAMS
    assert (await client.ask(method)).code == INVALID_PARAMS


@pytest.mark.requirement("older/internal-error")
@pytest.mark.parametrize("method", BY_ID)
@with_each_failure
async def test_a_store_that_fails_is_an_internal_error_that_gives_nothing_away(method: str, failure: Exception) -> None:
    store = UnreliableStore()
    async with serving(furnished(Tasks(store, settings=QUICK))) as way, http_session(way) as client:
        task_id = await client.start("nothing")
        await client.until(task_id, "completed")
        store.failure = failure
        reply = await client.ask(method, {"taskId": task_id})
        assert reply.code == INTERNAL_ERROR
        assert "secret" not in str(reply.message)
        store.failure = None
        assert (await client.get(task_id))["status"] == "completed"


@pytest.mark.requirement("older/task-id-is-the-truth")
async def test_the_task_id_counts_and_not_what_the_meta_says(client: HttpClient) -> None:
    wanted, other = await client.start("gated"), await client.start("gated")
    meta = {"_meta": {RELATED: {"taskId": other}}}
    assert (await client.ask("tasks/get", {"taskId": wanted, **meta})).result["taskId"] == wanted
    assert (await client.ask("tasks/cancel", {"taskId": wanted, **meta})).result["taskId"] == wanted
    assert (await client.get(other))["status"] == "working"
    reply = await client.ask("tasks/result", {"taskId": wanted, **meta})
    assert reply.error["data"]["_meta"][RELATED] == {"taskId": wanted}
    nonsense: tuple[dict[str, Any], ...] = ({RELATED: 7}, {RELATED: {}}, {RELATED: None})
    for malformed in nonsense:
        assert (await client.ask("tasks/get", {"taskId": other, "_meta": malformed})).result["taskId"] == other


@pytest.mark.requirement("older/no-related-task-in-results")
async def test_answers_about_a_task_do_not_name_it_twice(client: HttpClient) -> None:
    task_id = await client.start("gated")
    for method in ("tasks/get", "tasks/list", "tasks/cancel"):
        params = {} if method == "tasks/list" else {"taskId": task_id}
        assert RELATED not in (await client.ask(method, params)).result.get("_meta", {})


@pytest.mark.requirement("older/reject-others")
@pytest.mark.parametrize("method", [*BY_ID, "tasks/sendInput"])
async def test_somebody_elses_task_looks_exactly_like_no_task(guarded: HttpWire, method: str) -> None:
    async with http_session(guarded.as_user("alice")) as alice, http_session(guarded.as_user("bob")) as bob:
        task_id = await alice.start("gated")
        foreign = await bob.ask(method, {"taskId": task_id})
        absent = await bob.ask(method, {"taskId": task_id[:-1] + ("_" if task_id[-1] != "_" else "-")})
        assert foreign.code == INVALID_PARAMS
        assert (foreign.error, foreign.status) == (absent.error, absent.status)
        assert (await alice.get(task_id))["status"] == "working"


@pytest.mark.requirement("older/bound-to-its-owner")
async def test_a_task_belongs_to_its_owner_and_not_to_a_session_or_a_token(guarded: HttpWire) -> None:
    async with http_session(guarded.as_user("alice")) as alice:
        task_id = await alice.start("gated")
    async with http_session(guarded.as_user("alice-2")) as again:
        assert (await again.get(task_id))["status"] == "working"
        assert (await again.cancel(task_id))["status"] == "cancelled"


@pytest.mark.requirement("older/no-other-methods")
@pytest.mark.parametrize("method", ["tasks/update", "tasks/sendInput", "tasks/delete", "subscriptions/listen"])
async def test_methods_that_the_era_does_not_have_are_not_found(client: HttpClient, method: str) -> None:
    task_id = await client.start("ask_name")
    reply = await client.ask(method, {"taskId": task_id, "inputResponses": {}})
    assert reply.code == METHOD_NOT_FOUND
