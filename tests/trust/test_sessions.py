"""Only its owner uses a session of an older version, and an owner has only so many."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio
import httpx2
import pytest

from harness.http import HttpWire, initialize, serving
from harness.older import HttpClient, http_session
from harness.rpc import PATIENCE, hello, legacy_request
from harness.waiting import eventually
from mcp_tasks import Limits
from mcp_tasks.protocol.shapes import LIMIT_EXCEEDED
from tests.trust.guarded import build, by_header, guarded, new_tasks

pytestmark = pytest.mark.anyio

UNKNOWN = "0123456789abcdef0123456789abcdef"

BY_HEADER: Mapping[str, Any] = {"auth": False, "principal": by_header, "require_owner": True}


def told(response: httpx2.Response) -> tuple[int, dict[str, str], bytes]:
    """All of an answer but when it was given."""
    headers = {name: value for name, value in response.headers.items() if name != "date"}
    return response.status_code, headers, response.content


async def sent(wire: HttpWire, method: str, session_id: str, token: str) -> httpx2.Response:
    """The answer to a request for a session, which must be whole at once."""
    headers = {
        "authorization": f"Bearer {token}",
        "mcp-session-id": session_id,
        "mcp-protocol-version": "2025-11-25",
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
    }
    content = json.dumps(legacy_request("tasks/list", {})) if method == "POST" else None
    with anyio.fail_after(PATIENCE):
        return await wire.client.request(method, wire.url, headers=headers, content=content)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_a_session_of_another_owner_is_not_there(method: str) -> None:
    async with guarded(**BY_HEADER) as (wire, _), http_session(wire.as_user("ada")) as ada:
        assert ada.session_id is not None
        task_id = await ada.start("ask")
        foreign = await sent(wire, method, ada.session_id, "eve")
        assert foreign.status_code == 404
        assert told(foreign) == told(await sent(wire, method, UNKNOWN, "eve"))
        # And goes on as if nothing had been asked.
        async with ada.listening():
            assert (await ada.question(task_id)).params["message"] == "Who?"
        assert (await sent(wire, "DELETE", ada.session_id, "ada")).status_code == 200
        assert (await sent(wire, "GET", ada.session_id, "ada")).status_code == 404


async def test_another_owner_cannot_answer_a_question_of_a_session() -> None:
    async with guarded(**BY_HEADER) as (wire, _), http_session(wire.as_user("ada")) as ada, ada.listening():
        task_id = await ada.start("ask")
        question = await ada.question(task_id)
        eve = HttpClient(wire.as_user("eve"))
        eve.session_id, eve.version = ada.session_id, ada.version
        answer = {"action": "accept", "content": {"name": "Eve"}}
        with pytest.raises(AssertionError, match="Session not found"):
            await eve.answer(question, answer)
        assert (await ada.get(task_id))["status"] == "input_required"
        await ada.answer(question, {"action": "accept", "content": {"name": "Ada"}})
        assert "Ada" in json.dumps((await ada.result(task_id)).result)


async def test_sessions_without_a_name_and_of_versions_before_tasks_are_kept_apart_as_well() -> None:
    async with guarded(auth=False, principal=by_header) as (wire, _), http_session(wire) as nobody:
        assert nobody.session_id is not None
        assert (await sent(wire, "POST", nobody.session_id, "ada")).status_code == 404
        assert (await nobody.get(await nobody.start("hold")))["status"] == "working"
        session, _ = await initialize(wire.as_user("ada"), {}, "2025-06-18")
        session_id = dict(session.headers)["mcp-session-id"]
        assert (await sent(wire, "GET", session_id, "eve")).status_code == 404
        assert (await session.ask("tools/list")).result["tools"]


async def test_an_owner_has_only_so_many_sessions() -> None:
    limits = Limits(owner_sessions=2)
    async with guarded(**BY_HEADER, limits=limits) as (wire, _):
        ada = wire.as_user("ada")
        first, _ = await initialize(ada, {})
        await initialize(ada, {})
        opening = json.dumps(legacy_request("initialize", hello({})))
        refused = await ada.raw_post(opening, [])
        assert refused.status_code == 429
        error = refused.json()["error"]
        assert (error["code"], error["data"]["limit"]) == (LIMIT_EXCEEDED, "owner_sessions")
        assert error["data"]["retryAfterMs"] > 0
        # Others have their own, and one that has ended makes room.
        await initialize(wire.as_user("eve"), {})
        session_id = dict(first.headers)["mcp-session-id"]
        assert (await sent(wire, "DELETE", session_id, "ada")).status_code == 200
        await initialize(ada, {})


async def test_what_opens_no_session_and_one_that_the_sdk_has_ended_take_no_place() -> None:
    server = build(new_tasks(principal=by_header, limits=Limits(owner_sessions=1)))
    async with serving(server) as wire:
        server.session_manager.session_idle_timeout = 0.1
        ada = wire.as_user("ada")
        for _ in range(3):
            assert (await ada.raw_post("{", [])).status_code == 400
        await initialize(ada, {})

        async def opened() -> bool:
            return (await ada.raw_post(json.dumps(legacy_request("initialize", hello({}))), [])).status_code == 200

        await eventually(opened)
