"""Callers without a name over HTTP: how often one connection may ask, and all together; and who is not limited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final, cast

import anyio
import httpx2
import pytest

from harness.http import HttpWire, http_client
from harness.rpc import NOTHING, TASKS, Reply, Tasking, request, text_of
from harness.stdio import stdio_process
from mcp_tasks import Limits
from mcp_tasks.errors import InvalidOption
from mcp_tasks.protocol.shapes import LIMIT_EXCEEDED
from tests.legacy.tasking import OldTasks, over_http
from tests.trust.limited import call, check_refused, limited

pytestmark = pytest.mark.anyio

SELDOM: Final = 0.2
"""A second: of many requests the first passes, however busy this machine is."""

MANY: Final = 30

Ask = Callable[[], Awaitable[Reply]]


@asynccontextmanager
async def forwarded(wire: HttpWire, address: str) -> AsyncGenerator[HttpWire]:
    """Requests as a proxy on this machine sends them for one client, over as many connections as it likes."""
    # uvicorn trusts a proxy on its own machine, if nothing else is said.
    async with http_client() as client:
        client.headers["x-forwarded-for"] = address
        yield HttpWire(wire.url, client)


def asks(kind: str, client: Tasking, old: OldTasks) -> Mapping[str, Ask]:
    """Ways to ask for what is counted, by the eras."""
    unknown = {"taskId": "task_unknown"}
    ways: Mapping[str, Mapping[str, Ask]] = {
        "creates": {"modern": lambda: call(client, "quick"), "older": lambda: old.try_create("quick")},
        "cancels": {
            "modern": lambda: client.ask("tasks/cancel", unknown),
            "older": lambda: old.ask("tasks/cancel", unknown),
        },
        "unknown": {
            "modern": lambda: client.ask("tasks/get", unknown),
            "older": lambda: old.ask("tasks/get", unknown),
        },
    }
    return ways[kind]


def _limits(*names: str) -> Limits:
    return replace(Limits(), **cast("dict[str, Any]", dict.fromkeys(names, SELDOM)))


def refused(replies: list[Reply]) -> list[Reply]:
    return [reply for reply in replies if "error" in reply.message and reply.code == LIMIT_EXCEEDED]


@pytest.mark.parametrize("short_way", [True, False], ids=["short way", "SDK"])
@pytest.mark.parametrize("kind", ["creates", "cancels", "unknown"])
async def test_one_connection_is_slowed_by_default(kind: str, short_way: bool) -> None:
    async with limited(auth=False, short_way=short_way) as server, http_client() as shared:
        transport = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=1))
        async with httpx2.AsyncClient(transport=transport, timeout=shared.timeout, trust_env=False) as one:
            wire = HttpWire(server.wire.url, one)
            ask = asks(kind, Tasking(wire), OldTasks(_NoSession()))["modern"]
            began, passed = anyio.current_time(), 0
            while anyio.current_time() < began + 1.2:
                passed += not refused([await ask()])
            took = anyio.current_time() - began
    rate = getattr(Limits(), f"connection_{kind}")
    assert 5 < passed <= rate + rate * took + 1


class _NoSession:
    async def ask(self, method: str, params: Any = None) -> Reply:
        raise AssertionError(method)


@pytest.mark.parametrize("era", ["modern", "older"])
@pytest.mark.parametrize("kind", ["creates", "cancels", "unknown"])
async def test_a_connection_that_asks_far_too_often_is_refused_and_others_are_not(kind: str, era: str) -> None:
    limits = _limits(f"connection_{kind}")
    async with (
        limited(limits, auth=False) as server,
        forwarded(server.wire, "192.0.2.1") as loud,
        forwarded(server.wire, "192.0.2.2") as quiet,
    ):
        flood, honest = [asks(kind, Tasking(way), await over_http(way))[era] for way in (loud, quiet)]
        replies, one = await asyncio.gather(asyncio.gather(*(flood() for _ in range(MANY))), honest())
    turned_away = refused(list(replies))
    assert 1 <= MANY - len(turned_away) < MANY
    check_refused(turned_away[0], f"connection_{kind}", come_back=True)
    assert not refused([one])


@pytest.mark.parametrize("kind", ["creates", "cancels", "unknown"])
async def test_all_connections_have_a_total(kind: str) -> None:
    async with limited(_limits(kind), auth=False) as server:
        replies: list[Reply] = []

        async def come_from(address: str) -> None:
            async with forwarded(server.wire, address) as way:
                ask = asks(kind, Tasking(way), OldTasks(_NoSession()))["modern"]
                replies.extend([await ask() for _ in range(3)])

        await asyncio.gather(*(come_from(f"192.0.2.{number}") for number in range(6)))
        turned_away = refused(replies)
        assert turned_away
        check_refused(turned_away[0], kind, come_back=True)


@pytest.mark.parametrize(("tool", "kind"), [("task_cancel", "cancels"), ("task_status", "unknown")])
async def test_companion_tools_count_too(tool: str, kind: str) -> None:
    limits = _limits(f"connection_{kind}")
    async with (
        limited(limits, auth=False, companions="always") as server,
        forwarded(server.wire, "192.0.2.1") as way,
    ):
        client = Tasking(way, NOTHING)
        asked = (client.call(tool, task_id="task_unknown") for _ in range(MANY))
        said = [text_of(result) for result in await asyncio.gather(*asked)]
    assert 0 < len([text for text in said if "callers without a name" in text]) <= MANY - 1


async def test_streams_that_name_unknown_tasks_count_too() -> None:
    wanted = {"notifications": {"taskIds": ["task_unknown"]}}
    named = request("subscriptions/listen", wanted, capabilities=TASKS)
    async with (
        limited(Limits(connection_unknown=0.001), auth=False) as server,
        forwarded(server.wire, "192.0.2.1") as way,
    ):
        async with way.stream(named) as messages:
            await anext(messages)
        check_refused(await way.send(named), "connection_unknown", come_back=True)


async def test_polls_of_a_task_that_is_there_pass_while_others_on_the_connection_guess() -> None:
    limits = Limits(connection_unknown=SELDOM, unknown=SELDOM)
    async with limited(limits, auth=False) as server, forwarded(server.wire, "192.0.2.1") as way:
        client = Tasking(way)
        task_id = await client.create("gated")
        guesses = [client.ask("tasks/get", {"taskId": f"task_{number}"}) for number in range(MANY)]
        polls = [client.ask("tasks/get", {"taskId": task_id}) for _ in range(MANY)]
        replies = await asyncio.gather(*guesses, *polls)
    assert refused(replies[:MANY])
    assert [reply.result["status"] for reply in replies[MANY:]] == ["working"] * MANY


async def test_an_address_is_read_only_from_a_proxy_that_the_operator_trusts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "192.0.2.99")
    limits = Limits(connection_unknown=SELDOM)
    async with limited(limits, auth=False) as server, http_client() as client:
        transport = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=1))
        async with httpx2.AsyncClient(transport=transport, timeout=client.timeout, trust_env=False) as one:
            began, passed = anyio.current_time(), 0
            while anyio.current_time() < began + 1.2:
                one.headers["x-forwarded-for"] = f"192.0.2.{passed % 90}"
                asking = Tasking(HttpWire(server.wire.url, one)).ask("tasks/get", {"taskId": "task_unknown"})
                passed += not refused([await asking])
            took = anyio.current_time() - began
    assert passed <= SELDOM + SELDOM * took + 1


async def test_one_option_switches_all_of_it_off() -> None:
    names = ("creates", "cancels", "unknown")
    limits = replace(_limits(*names, *(f"connection_{name}" for name in names)), anonymous=False)
    async with limited(limits, auth=False) as server, forwarded(server.wire, "192.0.2.1") as way:
        old = await over_http(way)
        for name in names:
            for ask in asks(name, Tasking(way), old).values():
                assert not refused(list(await asyncio.gather(*(ask() for _ in range(MANY)))))


async def test_who_has_a_name_is_not_counted_among_those_who_have_none() -> None:
    limits = Limits(creates=1, cancels=1, unknown=1, owner_creates=None, owner_requests=None)
    async with limited(limits) as server, forwarded(server.wire, "192.0.2.1") as way:
        alice = Tasking(way.as_user("alice"))
        for name in ("creates", "cancels", "unknown"):
            ask = asks(name, alice, OldTasks(_NoSession()))["modern"]
            assert not refused(list(await asyncio.gather(*(ask() for _ in range(MANY)))))


async def test_a_pipe_is_not_limited() -> None:
    async with stdio_process(module="tests.trust.seldom") as wire:
        client = Tasking(wire)
        for name in ("creates", "cancels", "unknown"):
            ask = asks(name, client, OldTasks(_NoSession()))["modern"]
            assert not refused(list(await asyncio.gather(*(ask() for _ in range(MANY)))))


@pytest.mark.parametrize(
    "bad", [{"anonymous": None}, {"anonymous": 1}, {"connection_creates": 0}, {"unknown": -1}, {"cancels": True}]
)
def test_a_value_that_is_none_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(bad))):
        Limits(**bad)
