"""A task is told of to its owner, and to nobody else it is there."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from harness.auth import USERS
from harness.http import HttpWire, serving
from harness.rpc import EVERYTHING, Tasking
from harness.server import QUICK, Desk, build
from mcp_tasks import Tasks
from tests.push.listening import listen, listening

pytestmark = pytest.mark.anyio


@pytest.fixture
async def guarded(desk: Desk) -> AsyncGenerator[HttpWire]:
    """A way to a server that wants to know who is there."""
    async with serving(build(Tasks("memory://", settings=QUICK), desk, verifier=USERS)) as way:
        yield way


async def test_only_tasks_of_the_caller_are_honoured_and_told_of(guarded: HttpWire, desk: Desk) -> None:
    tasks = {token: await Tasking(guarded.as_user(token), EVERYTHING).create("gated") for token in ("alice", "bob")}
    asked = [tasks["bob"], tasks["alice"], "task_unknown"]
    async with (
        listening(guarded.as_user("alice"), asked) as to_alice,
        listening(guarded.as_user("bob"), asked) as to_bob,
    ):
        assert await to_alice.acknowledged() == {"taskIds": [tasks["alice"]]}
        assert await to_bob.acknowledged() == {"taskIds": [tasks["bob"]]}
        desk.gate.set()
        for stream, token in ((to_alice, "alice"), (to_bob, "bob")):
            assert {state["taskId"] for state in await stream.until("completed")} == {tasks[token]}


async def test_the_owner_is_the_user_and_not_the_token(guarded: HttpWire) -> None:
    task_id = await Tasking(guarded.as_user("alice"), EVERYTHING).create("gated")
    async with listening(guarded.as_user("alice-again"), [task_id]) as stream:
        assert await stream.acknowledged() == {"taskIds": [task_id]}


@pytest.mark.parametrize("token", ["bob", "robot"])
async def test_another_users_task_and_one_that_is_not_there_look_alike(guarded: HttpWire, token: str) -> None:
    task_id = await Tasking(guarded.as_user("alice"), EVERYTHING).create("gated")
    honoured: list[object] = []
    for asked in (task_id, "task_unknown"):
        async with listening(guarded.as_user(token), [asked]) as stream:
            honoured.append(await stream.acknowledged())
    assert honoured == [{"taskIds": []}, {"taskIds": []}]


@pytest.mark.parametrize("token", [None, "nobody"])
async def test_without_a_token_there_is_no_stream(guarded: HttpWire, token: str | None) -> None:
    wire = guarded if token is None else guarded.as_user(token)
    message = listen(["task_unknown"])
    response = await wire.raw_post(b"{}", [("mcp-method", message["method"])])
    assert response.status_code == 401
