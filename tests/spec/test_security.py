"""Ids that cannot be guessed, and tasks that are there for their owner only."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest
from mcp.server.auth.provider import AccessToken

from harness.http import HttpWire, modern_headers, serving
from harness.rpc import EVERYTHING, INVALID_PARAMS, PATIENCE, Reply, Tasking, accept, request, text_of
from harness.server import QUICK, Desk, build
from mcp_tasks import Tasks

pytestmark = pytest.mark.anyio

METHODS = ("tasks/get", "tasks/update", "tasks/cancel")

USERS = {
    "alice-1": ("app", "alice"),
    "alice-2": ("app", "alice"),
    "bob-1": ("app", "bob"),
    "other-alice": ("another-app", "alice"),
    "service": ("service", None),
}
"""Token to OAuth client and user."""


class Verifier:
    """Knows the tokens above."""

    async def verify_token(self, token: str) -> AccessToken | None:
        if token not in USERS:
            return None
        client_id, subject = USERS[token]
        issuer = {"iss": "https://issuer.example"}
        return AccessToken(token=token, client_id=client_id, scopes=[], subject=subject, claims=issuer)


@pytest.fixture
async def guarded(desk: Desk) -> AsyncGenerator[HttpWire]:
    """A way to a server that lets nobody in without a token."""
    async with serving(build(Tasks("memory://", settings=QUICK), desk, verifier=Verifier())) as way:
        yield way


def _user(wire: HttpWire, token: str) -> Tasking:
    return Tasking(wire.as_user(token), EVERYTHING)


async def _about(client: Tasking, method: str, task_id: str) -> Reply:
    answers: dict[str, Any] = {"inputResponses": {"elicitation-1": accept(name="Eve")}}
    return await client.ask(method, {"taskId": task_id, **(answers if method == "tasks/update" else {})})


@pytest.mark.requirement("security/unguessable")
async def test_ids_carry_at_least_128_random_bits(client: Tasking) -> None:
    ids = await asyncio.gather(*(client.create("echo", value=1) for _ in range(64)))
    drawn = [int.from_bytes(_random_part(task_id)) for task_id in ids]
    assert len(set(ids)) == 64
    assert all(len(_random_part(task_id)) >= 16 for task_id in ids)
    # A bit that never changes in 64 ids carries nothing; by chance that is one in 2**55 for all bits together.
    seen_set, seen_clear = 0, 0
    for number in drawn:
        seen_set |= number
        seen_clear |= ~number
    assert (seen_set & seen_clear).bit_count() >= 128


def _random_part(task_id: str) -> bytes:
    text = task_id.removeprefix("task_")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@pytest.mark.requirement("security/every-request-is-checked")
async def test_a_task_is_there_for_its_owner_only(guarded: HttpWire) -> None:
    alice, bob = _user(guarded, "alice-1"), _user(guarded, "bob-1")
    task_id = await alice.create("ask_name")
    await alice.until(task_id, "input_required")
    for method in METHODS:
        assert (await _about(bob, method, task_id)).code == INVALID_PARAMS
    assert (await alice.get(task_id))["status"] == "input_required"
    await alice.update(task_id, **{"elicitation-1": accept(name="Ada")})
    assert text_of((await alice.until(task_id, "completed"))["result"]) == "Hello, Ada!"
    for method in METHODS:
        assert (await _about(bob, method, task_id)).code == INVALID_PARAMS


@pytest.mark.requirement("security/every-request-is-checked")
@pytest.mark.parametrize("method", METHODS)
async def test_somebody_elses_task_looks_exactly_like_no_task(guarded: HttpWire, method: str) -> None:
    theirs = await _user(guarded, "alice-1").create("gated")
    bob = _user(guarded, "bob-1")
    foreign, absent = await _about(bob, method, theirs), await _about(bob, method, theirs[:-1] + "_")
    assert foreign.error == absent.error
    assert foreign.status == absent.status


@pytest.mark.requirement("security/every-request-is-checked")
@pytest.mark.parametrize("other", ["bob-1", "other-alice", "service"])
async def test_users_of_one_oauth_client_do_not_share_tasks(guarded: HttpWire, other: str) -> None:
    task_id = await _user(guarded, "alice-1").create("gated")
    assert (await _about(_user(guarded, other), "tasks/get", task_id)).code == INVALID_PARAMS


@pytest.mark.requirement("security/every-request-is-checked")
async def test_nobody_listens_to_somebody_elses_task(guarded: HttpWire, desk: Desk) -> None:
    alice, bob = _user(guarded, "alice-1"), _user(guarded, "bob-1")
    theirs, own = await alice.create("gated"), await bob.create("gated")
    listen = request("subscriptions/listen", {"notifications": {"taskIds": [theirs, own]}}, capabilities=EVERYTHING)
    with anyio.fail_after(PATIENCE):
        async with guarded.as_user("bob-1").stream(listen) as messages:
            acknowledged = await anext(messages)
            assert acknowledged["params"]["notifications"]["taskIds"] == [own]
            desk.gate.set()
            await alice.until(theirs, "completed")
            seen = [await anext(messages)]
            while seen[-1]["params"]["status"] != "completed":
                seen.append(await anext(messages))
    assert {message["params"]["taskId"] for message in seen} == {own}


@pytest.mark.requirement("security/every-request-is-checked")
async def test_a_new_token_of_the_same_user_reaches_the_task(guarded: HttpWire, desk: Desk) -> None:
    task_id = await _user(guarded, "alice-1").create("introspect")
    assert (await _user(guarded, "alice-2").until(task_id, "completed"))["taskId"] == task_id
    [seen] = desk.seen
    assert "alice" in seen["owner"]
    # The tool has the identity, and nothing of the request it could be impersonated with.
    assert seen["headers"] is None


@pytest.mark.requirement("security/every-request-is-checked")
@pytest.mark.parametrize("token", [None, "forged"])
async def test_a_request_without_a_valid_token_is_refused_before_anything_is_looked_up(
    guarded: HttpWire, token: str | None
) -> None:
    task_id = await _user(guarded, "alice-1").create("gated")
    nobody = guarded if token is None else guarded.as_user(token)
    for method in METHODS:
        message = request(method, {"taskId": task_id, "inputResponses": {}})
        assert (await nobody.raw_post(json.dumps(message), modern_headers(message))).status_code == 401
    assert (await _user(guarded, "alice-1").get(task_id))["status"] == "working"
