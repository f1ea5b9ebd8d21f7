"""Every method, era and transport: to whom is it there, and is what is not there told from nothing by any answer?

For each way to a server the same is asked about tasks of every kind: one's own, another's, one that has expired and one
that never was; and by somebody who has no name. Whole answers are compared, with the ids blanked.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest

from harness.http import HttpWire, modern_headers
from harness.older import OlderClient, http_session, pipe_session
from harness.rpc import EVERYTHING, INVALID_PARAMS, INVALID_REQUEST, NOTHING, accept, loads, request
from harness.stdio import StdioWire, stdio_process
from tests.trust.guarded import by_header, guarded, planted

UNKNOWN: Final = "task_" + "A" * 27
KINDS: Final = ("small", "large", "ask", "gated", "gone")

COMPANIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "task_status": {"wait_seconds": 0},
    "task_answer": {"action": "decline"},
    "task_cancel": {},
}


def blanked(message: Mapping[str, Any], task_id: str) -> str:
    """An answer without its id, and without the id of the task."""
    text = json.dumps({key: value for key, value in message.items() if key != "id"}, sort_keys=True)
    return text.replace(task_id, "ID")


class Modern:
    """A caller of 2026-07-28, one that takes tasks and one that does not."""

    def __init__(self, wire: HttpWire | StdioWire) -> None:
        self._wire = wire

    async def all(self, task_id: str) -> dict[str, dict[str, Any]]:
        """What every method says of a task; those that end it come last."""
        look = {"taskId": task_id}
        said = {"tasks/get": await self.ask("tasks/get", look)}
        # Once more: what was said of a task may be kept.
        said["tasks/get again"] = await self.ask("tasks/get", look)
        said["subscriptions/listen"] = await self.listen(task_id)
        answers = {**look, "inputResponses": {"elicitation-1": accept(name="Eve")}}
        for name, arguments in COMPANIONS.items():
            call = {"name": name, "arguments": {"task_id": task_id, **arguments}}
            if name != "task_cancel":
                said[name] = await self.ask("tools/call", call, capabilities=NOTHING)
        said["tasks/update"] = await self.ask("tasks/update", answers)
        said["tasks/cancel"] = await self.ask("tasks/cancel", look)
        call = {"name": "task_cancel", "arguments": {"task_id": task_id}}
        said["task_cancel"] = await self.ask("tools/call", call, capabilities=NOTHING)
        return said

    async def ask(self, method: str, params: Any, *, capabilities: Any = EVERYTHING) -> dict[str, Any]:
        reply = await self._wire.send(request(method, params, capabilities=capabilities))
        return {"status": reply.status, **reply.message}

    async def listen(self, task_id: str) -> dict[str, Any]:
        message = request("subscriptions/listen", {"notifications": {"taskIds": [task_id]}}, capabilities=EVERYTHING)
        first = await (
            self._over_http(self._wire, message) if isinstance(self._wire, HttpWire) else self._piped(message)
        )
        # Its id is that of the request.
        first.get("params", {}).pop("_meta", None)
        return first

    async def _over_http(self, wire: HttpWire, message: dict[str, Any]) -> dict[str, Any]:
        token = [] if wire.token is None else [("authorization", f"Bearer {wire.token}")]
        headers = [("content-type", "application/json"), ("accept", "application/json, text/event-stream"), *token]
        headers += modern_headers(message)
        async with wire.client.stream("POST", wire.url, content=json.dumps(message), headers=headers) as response:
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                return {"status": response.status_code, **loads(await response.aread())}
            async for line in response.aiter_lines():
                if line.startswith("data:") and line[5:].strip():
                    return loads(line[5:])
        raise AssertionError("the stream ended without a word")

    async def _piped(self, message: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(self._wire, StdioWire)
        await self._wire.write(json.dumps(message))

        def is_first(said: dict[str, Any]) -> bool:
            return said.get("id") == message["id"] or message["id"] in said.get("params", {}).get("_meta", {}).values()

        return await self._wire.wait_for(is_first)


class Older:
    def __init__(self, client: OlderClient) -> None:
        self._client = client

    async def all(self, task_id: str) -> dict[str, dict[str, Any]]:
        look = {"taskId": task_id}
        said = {"tasks/get": (await self._client.ask("tasks/get", look)).message}
        for name, arguments in COMPANIONS.items():
            call = {"name": name, "arguments": {"task_id": task_id, **arguments}}
            if name != "task_cancel":
                said[name] = (await self._client.ask("tools/call", call)).message
        said["tasks/list"] = {"listed": task_id in str((await self._client.ask("tasks/list")).message)}
        said["tasks/cancel"] = (await self._client.ask("tasks/cancel", look)).message
        # Of a task that has ended by now, so that nobody waits.
        said["tasks/result"] = (await self._client.ask("tasks/result", look)).message
        call = {"name": "task_cancel", "arguments": look and {"task_id": task_id}}
        said["task_cancel"] = (await self._client.ask("tools/call", call)).message
        return said


# What must be


async def about(probe: Modern | Older, task_id: str) -> dict[str, str]:
    """What every method says of a task, blanked."""
    return {method: blanked(said, task_id) for method, said in (await probe.all(task_id)).items()}


async def nothing_is_told(probe: Modern | Older, ids: Mapping[str, str], *, gone: str) -> None:
    """Another's tasks, whatever they are, and what has expired, are what never was."""
    unknown = await about(probe, UNKNOWN)
    assert unknown == await about(probe, UNKNOWN)
    for kind in KINDS:
        assert await about(probe, ids[kind]) == unknown, kind
    assert await about(probe, gone) == unknown
    assert all(
        str(INVALID_PARAMS) in said for method, said in unknown.items() if method in ("tasks/get", "tasks/cancel")
    )


async def own_are_there(probe: Modern | Older, ids: Mapping[str, str]) -> None:
    """One's own are there, and every method says so."""
    unknown = await about(probe, UNKNOWN)
    # In a list it is the same to have no such task, and to have it and not be asked about it.
    for kind in ("small", "gated"):
        said = await about(probe, ids[kind])
        assert said.keys() == unknown.keys()
        alike = {method for method in said if said[method] == unknown[method]}
        assert alike == set(), kind


async def nobody_is_let_in(probe: Modern | Older, ids: Mapping[str, str]) -> None:
    """Who has no name is refused, whatever is asked about."""
    unknown = await about(probe, UNKNOWN)
    for kind in KINDS:
        assert await about(probe, ids[kind]) == unknown, kind
    assert all(str(INVALID_REQUEST) in said for said in unknown.values()), unknown


# Ways to a server

TOKENS: Final = {"auth": True}
HEADERS: Final = {"auth": False, "principal": by_header, "require_owner": True}


@pytest.mark.requirement("security/every-request-is-checked")
@pytest.mark.parametrize("setup", [TOKENS, HEADERS], ids=["tokens", "own rule"])
@pytest.mark.parametrize("short_way", [True, False], ids=["short", "long"])
async def test_over_http(setup: Mapping[str, Any], short_way: bool) -> None:
    async with guarded(**setup, short_way=short_way) as (wire, tasks):
        ada, bob = Modern(wire.as_user("ada")), Modern(wire.as_user("bob"))
        owner = await _owner_of(ada, tasks)
        ids, mine = await planted(tasks, owner), await planted(tasks, owner)
        # What is kept of answers to their owner is not what others are answered with.
        for task_id in ids.values():
            await ada.ask("tasks/get", {"taskId": task_id})
        await nothing_is_told(bob, ids, gone=ids["gone"])
        await nothing_is_told(ada, dict.fromkeys(KINDS, ids["gone"]), gone=ids["gone"])
        await own_are_there(ada, mine)
        if setup is HEADERS:
            await nobody_is_let_in(Modern(wire), ids)
            return
        # The SDK lets nobody in without a token that is valid.
        for wanted in (wire.as_user("ada!1"), wire):
            said = await Modern(wanted).all(ids["small"])
            assert {message["status"] for message in said.values()} == {401}


@pytest.mark.requirement("older/reject-others", "older/list-is-own")
@pytest.mark.parametrize("setup", [TOKENS, HEADERS], ids=["tokens", "own rule"])
async def test_over_http_in_older_sessions(setup: Mapping[str, Any]) -> None:
    async with guarded(**setup) as (wire, tasks):
        owner = await _owner_of(Modern(wire.as_user("ada")), tasks)
        ids, mine = await planted(tasks, owner), await planted(tasks, owner)
        async with http_session(wire.as_user("ada")) as ada, http_session(wire.as_user("bob")) as bob:
            await nothing_is_told(Older(bob), ids, gone=ids["gone"])
            await nothing_is_told(Older(ada), dict.fromkeys(KINDS, ids["gone"]), gone=ids["gone"])
            await own_are_there(Older(ada), mine)
        if setup is HEADERS:
            async with http_session(wire) as nobody:
                said = await Older(nobody).all(ids["small"])
                assert said.pop("tasks/list") == {"listed": False}
                assert {message["error"]["code"] for message in said.values()} == {INVALID_REQUEST}
                assert (await nobody.ask("tasks/list")).code == INVALID_REQUEST


@pytest.mark.requirement("security/every-request-is-checked")
@pytest.mark.parametrize("arguments", [(), ("--auth",)], ids=["open", "authenticated elsewhere"])
async def test_over_pipes(arguments: tuple[str, ...]) -> None:
    async with stdio_process(*arguments, module="tests.trust.guarded") as wire:
        me = Modern(wire)
        ids = await _planted_by_tool(me, "bob")
        await nothing_is_told(me, ids, gone=ids["gone"])
        mine = {"small": await _created(me, "echo"), "gated": await _created(me, "gated")}
        await own_are_there(me, mine)
    async with stdio_process(*arguments, module="tests.trust.guarded") as wire, pipe_session(wire) as older:
        planted_for_bob = await older.ask("tools/call", {"name": "plant", "arguments": {"owner": "bob"}})
        ids = json.loads(planted_for_bob.result["content"][0]["text"])
        await nothing_is_told(Older(older), ids, gone=ids["gone"])
        mine = {"small": await older.start("echo"), "gated": await older.start("gated")}
        await own_are_there(Older(older), mine)


@pytest.mark.requirement("security/every-request-is-checked")
async def test_over_pipes_where_an_owner_is_required_everywhere() -> None:
    async with stdio_process("--required", module="tests.trust.guarded") as wire:
        nobody = Modern(wire)
        await nobody_is_let_in(nobody, await _planted_by_tool(nobody, "bob"))


async def _created(probe: Modern, tool: str) -> str:
    reply = await probe.ask("tools/call", {"name": tool, "arguments": {}})
    return reply["result"]["taskId"]


async def _planted_by_tool(probe: Modern, owner: str) -> dict[str, str]:
    reply = await probe.ask("tools/call", {"name": "plant", "arguments": {"owner": owner}})
    return json.loads(reply["result"]["content"][0]["text"])


async def _owner_of(probe: Modern, tasks: Any) -> str:
    snapshot = await tasks.handle(await _created(probe, "echo"), everybody=True).fetch()
    assert snapshot.owner is not None
    return snapshot.owner
