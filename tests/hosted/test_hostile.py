"""Servers that mean no good: each gets an error that says why, and the client goes on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio
import pytest
from mcp import Client

from harness.rpc import PATIENCE
from harness.waiting import eventually
from mcp_tasks.client import Hosting, TasksClient, with_tasks
from mcp_tasks.errors import InvalidOption, UsageError
from mcp_tasks.legacy.hosting import MAX_OPEN, MAX_UNREAD
from tests.hosted.raw_server import ELICIT, SAMPLE, Host, RawServer, Refused, connected

pytestmark = pytest.mark.anyio


async def code_of(server: RawServer, method: str, params: Any) -> int:
    with pytest.raises(Refused) as refused:
        await server.ask(method, params)
    assert refused.value.message
    return refused.value.code


NO_IDS: list[Any] = [None, 7, True, [], {}, "", "no such task", "x" * 100_000, "' OR 1=1 --", "\x00"]
NO_CURSORS: list[Any] = ["", "x", "AAAA", "MQ==", 7, [], "é", "9" * 10_000, "LTE="]
NO_TASKS: list[Any] = [None, 7, "x", [], {"ttl": "60"}, {"ttl": -1}, {"ttl": True}, {"ttl": {}}]


MISTAKES: list[tuple[str, list[dict[str, Any]]]] = [
    *((f"tasks/{verb}", [{}, *({"taskId": each} for each in NO_IDS)]) for verb in ("get", "result", "cancel")),
    ("tasks/list", [{"cursor": cursor} for cursor in NO_CURSORS]),
    ("elicitation/create", [{**ELICIT, "task": task} for task in NO_TASKS]),
    ("elicitation/create", [{"task": {}}, {"message": 7, "requestedSchema": 8, "task": {}}]),
    ("sampling/createMessage", [{**SAMPLE, "maxTokens": "many", "task": {}}]),
]


@pytest.mark.requirement("hosted/unknown-id", "hosted/cursors", "hosted/max-ttl")
@pytest.mark.parametrize(("method", "params"), MISTAKES)
async def test_a_request_that_cannot_be_understood_is_refused_and_makes_no_task(
    method: str, params: list[dict[str, Any]], host: Host
) -> None:
    async with connected(host) as server:
        for each in params:
            assert await code_of(server, method, each) == -32602
        assert (await server.ask("tasks/list"))["tasks"] == []
    assert host.asked == []


@pytest.mark.requirement("hosted/limits")
async def test_tasks_over_a_limit_are_refused_and_make_no_task(host: Host) -> None:
    async with connected(host, hosting=Hosting(max_running=3)) as server:
        made = [await server.create() for _ in range(3)]
        assert await code_of(server, "elicitation/create", {**ELICIT, "task": {}}) == -32603
        assert len((await server.ask("tasks/list"))["tasks"]) == 3
        await server.ask("tasks/cancel", {"taskId": made[0]["taskId"]})
        await server.create()
    host.ready.set()
    async with connected(host, hosting=Hosting(max_tasks=2)) as server:
        for _ in range(2):
            await server.until((await server.create(ttl=100))["taskId"], "completed")
        assert await code_of(server, "elicitation/create", {**ELICIT, "task": {}}) == -32603
        await server.until_none_is_left()
        await server.create()
    async with connected(host, hosting=Hosting(max_request_size=1000)) as server:
        assert await code_of(server, "elicitation/create", {**ELICIT, "message": "x" * 2000, "task": {}}) == -32603
        await server.create()


async def test_four_callbacks_work_at_a_time_and_the_other_tasks_wait_for_their_turns(host: Host) -> None:
    async with connected(host, hosting=Hosting(max_running=16)) as server:
        made = [await server.create() for _ in range(12)]
        await server.ask("ping")
        assert len(host.asked) == 4
        # One that still waits can be cancelled like any other.
        await server.ask("tasks/cancel", {"taskId": made[-1]["taskId"]})
        host.ready.set()
        for task in made[:-1]:
            await server.until(task["taskId"], "completed")
        assert len(host.asked) == 11


@pytest.mark.requirement("hosted/limits")
async def test_one_server_does_not_use_up_what_another_may_have(host: Host) -> None:
    tasks = TasksClient(hosting=Hosting(max_running=2, max_total=3))
    async with (
        connected(host, tasks=tasks, address="raw:one") as one,
        connected(host, tasks=tasks, address="raw:two") as two,
    ):
        for _ in range(2):
            await one.create()
        await two.create()
        assert await code_of(two, "elicitation/create", {**ELICIT, "task": {}}) == -32603


@pytest.mark.requirement("hosted/limits")
async def test_a_flood_of_waits_is_bounded_and_the_rest_goes_on(host: Host) -> None:
    async with connected(host) as server:
        task = await server.create()
        waits = [await server.send("tasks/result", {"taskId": task["taskId"]}) for _ in range(MAX_UNREAD * 2)]
        await eventually(lambda: sum(wait.done() for wait in waits) > 0)
        assert {wait.result()["error"]["code"] for wait in waits if wait.done()} == {-32603}
        host.ready.set()
        with anyio.fail_after(PATIENCE):
            for wait in waits[:MAX_OPEN]:
                assert "result" in await wait
        assert await server.status(task["taskId"]) == "completed"


async def test_a_wait_that_the_server_gives_up_is_not_answered(host: Host) -> None:
    async with connected(host) as server:
        task = await server.create()
        wait = await server.send("tasks/result", {"taskId": task["taskId"]}, "wait")
        assert await server.status(task["taskId"]) == "working"
        await server.tell("notifications/cancelled", {"requestId": "wait"})
        host.ready.set()
        await server.until(task["taskId"], "completed")
        assert not wait.done()


async def test_a_transport_that_does_not_know_of_hosting_is_a_clear_error() -> None:
    tasks = TasksClient(hosting=Hosting())
    with pytest.raises(UsageError, match=r"tasks\.host\(transport\)"):
        Client("http://localhost/mcp", extensions=[tasks])
    with pytest.raises(UsageError, match="hosts no tasks"):
        TasksClient().host(with_tasks(RawServer().transport()))
    with pytest.raises(UsageError, match="address"):
        TasksClient(hosting=Hosting(ledger="never.db")).host(with_tasks(RawServer().transport()))


WRONG: list[tuple[str, Any]] = [
    ("max_ttl", 60),
    ("max_ttl", timedelta(0)),
    ("default_ttl", timedelta(seconds=-1)),
    ("max_running", 0),
    ("max_tasks", True),
    ("max_total", "many"),
    ("max_request_size", None),
    ("ledger", 7),
    ("poll_interval", 1),
]


def test_an_option_that_cannot_be_is_refused_where_it_stands() -> None:
    for name, value in WRONG:
        with pytest.raises(InvalidOption, match=name):
            Hosting(**{name: value})
