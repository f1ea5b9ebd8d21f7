"""Whose a task or a session is: who is refused where everybody needs a name, what code in the process has to say, and
what a rule of the author's own can go by."""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import httpx2
import pytest

from harness.auth import ISSUER
from harness.http import HttpWire, initialize, serving
from harness.older import HttpClient, http_session
from harness.rpc import (
    EVERYTHING,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    NOTHING,
    PATIENCE,
    Tasking,
    accept,
    hello,
    legacy_request,
    request,
)
from harness.waiting import eventually
from mcp_tasks import Limits, Tasks
from mcp_tasks.errors import OwnerRequired, UnknownTask, UsageError
from mcp_tasks.protocol.owners import MOST_NAMED, RULE_FAILED
from mcp_tasks.protocol.shapes import LIMIT_EXCEEDED
from mcp_tasks.server import Caller, LocalTask
from tests.trust.guarded import build, by_header, guarded, new_tasks, planted

UNKNOWN = "task_" + "A" * 27


def user(wire: HttpWire, token: str) -> Tasking:
    return Tasking(wire.as_user(token), EVERYTHING)


async def owner_of(tasks: Tasks, task_id: str) -> str | None:
    return (await tasks.handle(task_id, everybody=True).fetch()).owner


async def everything(tasks: Tasks) -> list[Any]:
    return [task async for task in tasks.list_all(everybody=True)]


def empty(_: Caller) -> str:
    return ""


def nobody(_: Caller) -> None:
    return None


# Requests


@pytest.mark.requirement("security/every-request-is-checked")
@pytest.mark.parametrize("capabilities", [EVERYTHING, NOTHING], ids=["takes tasks", "takes none"])
@pytest.mark.parametrize("short_way", [True, False])
async def test_a_request_without_an_owner_makes_no_task(short_way: bool, capabilities: Any) -> None:
    async with guarded(auth=False, principal=by_header, require_owner=True, short_way=short_way) as (wire, tasks):
        reply = await wire.send(request("tools/call", {"name": "echo", "arguments": {}}, capabilities=capabilities))
        assert reply.code == INVALID_REQUEST
        assert reply.error["data"] == {"reason": "owner_required"}
        assert await everything(tasks) == []
        # What is no task needs no owner: to list the tools, or to call one that is never a task.
        assert (await wire.send(request("tools/list", capabilities=capabilities))).result["tools"]


def by_tenant(caller: Caller) -> str:
    assert caller.identity is not None
    return str(caller.identity.claims["no such claim"])


@pytest.mark.parametrize("short_way", [True, False])
async def test_a_rule_that_raises_refuses_the_request_and_is_one_line_in_the_log(
    short_way: bool, caplog: pytest.LogCaptureFixture
) -> None:
    requests: list[tuple[str, dict[str, Any], Any]] = [
        ("tools/call", {"name": "echo", "arguments": {}}, EVERYTHING),
        ("tasks/get", {"taskId": UNKNOWN}, EVERYTHING),
        ("subscriptions/listen", {"notifications": {"taskIds": [UNKNOWN]}}, EVERYTHING),
        ("tools/call", {"name": "task_status", "arguments": {"task_id": UNKNOWN}}, NOTHING),
    ]
    async with guarded(principal=by_tenant, short_way=short_way) as (wire, tasks):
        for name, params, capabilities in requests:
            caplog.clear()
            reply = await wire.as_user("ada").send(request(name, params, capabilities=capabilities))
            assert (reply.status, reply.code, reply.error["message"]) == (200, INTERNAL_ERROR, RULE_FAILED)
            told = [each for each in caplog.records if each.name[:9] == "mcp_tasks" and each.levelno >= logging.ERROR]
            assert [("KeyError" in each.getMessage(), each.exc_info) for each in told] == [(True, None)]
            assert "by_tenant" in told[0].getMessage()
        assert await everything(tasks) == []
        assert (await wire.as_user("ada").send(request("tools/list", capabilities=EVERYTHING))).result["tools"]


@pytest.mark.parametrize(
    ("options", "owner"),
    [
        ({}, f'["app","{ISSUER}","ada"]'),
        ({"auth": False}, None),
        ({"auth": False, "principal": empty}, None),
        ({"principal": nobody, "require_owner": False}, None),
    ],
    ids=["tokens", "open", "an empty name", "no name"],
)
async def test_a_task_belongs_to_client_issuer_and_subject_or_to_nobody(
    options: dict[str, Any], owner: str | None
) -> None:
    async with guarded(**options) as (wire, tasks):
        assert await owner_of(tasks, await user(wire, "ada@app").create("echo")) == owner
    if options.get("principal") is nobody:
        # A server that requires authentication requires an owner, unless it says otherwise.
        async with guarded(principal=nobody) as (wire, _):
            assert (await user(wire, "ada").ask("tasks/get", {"taskId": UNKNOWN})).code == INVALID_REQUEST


# Code in the process


async def test_code_in_the_process_names_an_owner() -> None:
    async with guarded() as (_, tasks):
        for owner in ({}, {"owner": None}):
            with pytest.raises(OwnerRequired, match=r"tasks\.start\(\.\.\., owner="):
                await tasks.start("echo", **owner)
        assert await everything(tasks) == []
        with pytest.raises(OwnerRequired, match="everybody=True"):
            tasks.handle(UNKNOWN)
        started = await tasks.start("echo", owner="ada")
        assert (await tasks.handle(started.id, owner="ada").fetch()).owner == "ada"
        with pytest.raises(UsageError, match="not both"):
            tasks.handle(started.id, owner="ada", everybody=True)


LOOKS: list[Callable[[LocalTask[Any]], Awaitable[object]]] = [
    lambda task: task.fetch(),
    lambda task: task.wait(5),
    lambda task: task.until_asked(5),
    lambda task: task.send_input("decline"),
    lambda task: task.cancel(),
]


async def test_another_owners_task_is_not_there_for_code_that_says_whose_it_wants() -> None:
    async with guarded() as (_, tasks):
        ids = await planted(tasks, "ada")
        for look in LOOKS:
            for task_id in (*ids.values(), UNKNOWN):
                with pytest.raises(UnknownTask) as raised:
                    await look(tasks.handle(task_id, owner="bob"))
                assert str(raised.value).replace(task_id, UNKNOWN) == str(UnknownTask(UNKNOWN))
        assert (await tasks.handle(ids["gated"], owner="ada").fetch()).status == "working"


async def test_a_tool_sees_the_tasks_of_its_caller_alone() -> None:
    async with guarded() as (wire, _):
        ada, bob = user(wire, "ada"), user(wire, "bob")
        task_id = await ada.create("gated")
        seen = await ada.until(await ada.create("peek", task_id=task_id), "completed")
        assert "working" in json.dumps(seen["result"])
        told = [
            (await bob.until(await bob.create("peek", task_id=looked_at), "completed"))["result"]["content"]
            for looked_at in (task_id, UNKNOWN)
        ]
        assert json.dumps(told[0]).replace(task_id, UNKNOWN) == json.dumps(told[1])


async def test_a_child_has_the_owner_of_its_parent() -> None:
    tasks = new_tasks()
    server = build(tasks, auth=True)
    children: list[str] = []

    @server.tool()
    @tasks.task()
    async def parents(foreign: str | None = None) -> str:
        children.append((await tasks.start("echo")).id)
        # A stranger's task, or its children, are not shown for having been named.
        page = await tasks.list(parent=foreign) if foreign is not None else None
        return "" if page is None else str([task.id for task in page.tasks])

    async with tasks.running(server):
        parent = await tasks.start("parents", owner="ada")
        await parent.wait(30)
        assert await owner_of(tasks, children[0]) == "ada"
        assert [task.id for task in (await tasks.list(parent=parent.id)).tasks] == children[:1]
        looked = await (await tasks.start("parents", {"foreign": parent.id}, owner="bob")).wait(30)
        assert children[0] not in str(looked)


# Rules of the author's own


async def test_one_person_who_uses_two_hosts() -> None:
    def person(caller: Caller) -> str | None:
        return caller.identity and caller.identity.person

    async with guarded(principal=person) as (wire, tasks):
        task_id = await user(wire, "ada@desktop").create("echo")
        assert (await user(wire, "ada@phone").get(task_id))["taskId"] == task_id
        assert (await user(wire, "bob@desktop").ask("tasks/get", {"taskId": task_id})).code == INVALID_PARAMS
        # A machine is no person: it has no owner, and is refused.
        refused = await user(wire, "machine@batch").ask("tasks/get", {"taskId": task_id})
        assert refused.code == INVALID_REQUEST
        assert json.loads(str(await owner_of(tasks, task_id))) == [ISSUER, "ada"]


async def test_tokens_without_a_subject_are_warned_about_once_each_and_not_without_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "mcp_tasks.protocol.owners")
    async with guarded() as (wire, _):
        await user(wire, "ada").create("echo")
        for number in range(MOST_NAMED + 20):
            for _ in range(2):
                await user(wire, f"machine@batch{number}").ask("tasks/get", {"taskId": UNKNOWN})
    told = [record.getMessage() for record in caplog.records if record.name == "mcp_tasks.protocol.owners"]
    assert len(told) == MOST_NAMED
    assert all(word in told[0] for word in ("'batch0'", "subject", "principal="))


# Sessions of an older version

UNKNOWN_SESSION = "0123456789abcdef0123456789abcdef"

BY_HEADER: Mapping[str, Any] = {"auth": False, "principal": by_header, "require_owner": True}


def told(response: httpx2.Response) -> tuple[int, dict[str, str], bytes]:
    headers = {name: value for name, value in response.headers.items() if name != "date"}
    return response.status_code, headers, response.content


async def answer_to(wire: HttpWire, method: str, session_id: str, token: str) -> httpx2.Response:
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


async def test_a_session_of_another_owner_is_not_there_and_its_questions_are_not_answered() -> None:
    async with guarded(**BY_HEADER) as (wire, _), http_session(wire.as_user("ada")) as ada, ada.listening():
        assert ada.session_id is not None
        task_id = await ada.start("ask")
        question = await ada.question(task_id)
        for method in ("GET", "POST", "DELETE"):
            foreign = await answer_to(wire, method, ada.session_id, "eve")
            assert foreign.status_code == 404
            assert told(foreign) == told(await answer_to(wire, method, UNKNOWN_SESSION, "eve"))
        eve = HttpClient(wire.as_user("eve"))
        eve.session_id, eve.version = ada.session_id, ada.version
        with pytest.raises(AssertionError, match="Session not found"):
            await eve.answer(question, accept(name="Eve"))
        # And goes on as if nothing had been asked.
        assert (await ada.get(task_id))["status"] == "input_required"
        await ada.answer(question, accept(name="Ada"))
        assert "Ada" in json.dumps((await ada.result(task_id)).result)
        assert (await answer_to(wire, "DELETE", ada.session_id, "ada")).status_code == 200
        assert (await answer_to(wire, "GET", ada.session_id, "ada")).status_code == 404


async def test_sessions_without_a_name_and_of_versions_before_tasks_are_kept_apart_as_well() -> None:
    async with guarded(auth=False, principal=by_header) as (wire, _), http_session(wire) as nobody:
        assert nobody.session_id is not None
        assert (await answer_to(wire, "POST", nobody.session_id, "ada")).status_code == 404
        assert (await nobody.get(await nobody.start("gated")))["status"] == "working"
        session, _ = await initialize(wire.as_user("ada"), {}, "2025-06-18")
        session_id = dict(session.headers)["mcp-session-id"]
        assert (await answer_to(wire, "GET", session_id, "eve")).status_code == 404
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
        assert (await answer_to(wire, "DELETE", session_id, "ada")).status_code == 200
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
