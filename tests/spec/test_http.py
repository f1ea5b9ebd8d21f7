"""Who gets a task on 2026-07-28 and who may use it: declarations, eras, routing headers, statuses and tokens."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from harness.http import HttpWire, initialize, modern_headers, serving
from harness.older import http_session
from harness.rpc import (
    EVERYTHING,
    EXTENSION,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    LEGACY,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    NOTHING,
    TASKS,
    Reply,
    Tasking,
    accept,
    request,
    text_of,
)
from harness.schema import check_legacy_result
from harness.server import QUICK, Desk, build
from harness.stored import all_tasks
from mcp_tasks import Tasks
from mcp_tasks.stores.memory import MemoryStore
from tests.spec.calling import calling, in_both_eras

METHODS = ("tasks/get", "tasks/update", "tasks/cancel")


def _about(method: str, task_id: str) -> dict[str, Any]:
    answers: dict[str, Any] = {"inputResponses": {}} if method == "tasks/update" else {}
    return request(method, {"taskId": task_id, **answers})


async def _named(wire: HttpWire, message: Mapping[str, Any], *names: str) -> Reply:
    """Send a request with these values of Mcp-Name, however many they are."""
    headers = [header for header in modern_headers(message) if header[0] != "mcp-name"]
    return await wire.post(json.dumps(message), [*headers, *(("mcp-name", name) for name in names)])


def _encoded(text: str) -> str:
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


@pytest.mark.requirement("errors/http-status", "errors/standard")
async def test_http_statuses_follow_the_kind_of_error(client: Tasking, wire: HttpWire) -> None:
    replies = {
        INVALID_PARAMS: [await client.ask("tasks/get", {"taskId": "nope"}), await client.ask("tasks/get")],
        MISSING_CAPABILITY: [await client.declaring(NOTHING).ask("tasks/get", {"taskId": "nope"})],
        METHOD_NOT_FOUND: [await client.ask("tasks/list"), await client.ask("tasks/frobnicate")],
        HEADER_MISMATCH: [await _named(wire, _about("tasks/get", "nope"), "other")],
    }
    for code, answers in replies.items():
        assert {reply.code for reply in answers} == {code}
        assert {reply.status for reply in answers} == {404 if code == METHOD_NOT_FOUND else 400}
    assert (await client.ask("tools/call", {"name": "echo", "arguments": {"value": 1}})).status == 200


@pytest.mark.requirement("headers/name")
@pytest.mark.parametrize("method", METHODS)
async def test_a_name_that_is_not_the_tasks_is_a_header_mismatch(client: Tasking, wire: HttpWire, method: str) -> None:
    task_id, other = await client.create("gated"), await client.create("gated")
    *letters, last, padding = base64.b64encode(task_id.encode()).decode()
    # The last one says the same of the id, and is not how it is written.
    respelled = f"=?base64?{''.join(letters)}{chr(ord(last) + 1)}{padding}?="
    undecodable = ("=?base64?***?=", "=?base64?/w==?=", "=?base64??=", respelled)
    for name in (other, "", task_id.upper(), f"{task_id}x", _encoded(other), *undecodable):
        reply = await _named(wire, _about(method, task_id), name)
        assert (reply.status, reply.code) == (400, HEADER_MISMATCH), name
    assert (await client.get(task_id))["status"] == "working"
    assert (await _named(wire, _about(method, task_id), _encoded(task_id))).result["resultType"] == "complete"


@pytest.mark.requirement("headers/name")
@pytest.mark.parametrize("method", METHODS)
async def test_a_missing_name_is_accepted_unless_the_author_is_strict(
    client: Tasking, wire: HttpWire, method: str
) -> None:
    assert (await _named(wire, _about(method, await client.create("gated")))).result["resultType"] == "complete"
    async with serving(build(Tasks("memory://", require_name_header=True, settings=QUICK))) as strict:
        task_id = await Tasking(strict).create("gated")
        reply = await _named(strict, _about(method, task_id))
        assert (reply.status, reply.code) == (400, HEADER_MISMATCH)
        assert "missing" in reply.error["message"]
        assert (await _named(strict, _about(method, task_id), task_id)).result["resultType"] == "complete"
        # The header is none of the older version.
        async with http_session(strict) as older:
            assert text_of((await older.result(await older.start("must"))).result) == "as a task"


@pytest.mark.requirement("headers/method", "headers/name")
async def test_routing_headers_that_contradict_the_request_or_themselves_are_a_header_mismatch(
    client: Tasking, wire: HttpWire
) -> None:
    message = _about("tasks/get", await client.create("gated"))
    headers = modern_headers(message)
    for sent in ("tasks/cancel", "tools/call", "TASKS/GET", ""):
        changed = [(key, sent if key == "mcp-method" else value) for key, value in headers]
        reply = await wire.post(json.dumps(message), changed)
        assert (reply.status, reply.code) == (400, HEADER_MISMATCH)
    for twice in ("mcp-name", "mcp-method", "mcp-protocol-version"):
        reply = await wire.post(json.dumps(message), [*headers, *(each for each in headers if each[0] == twice)])
        assert (reply.status, reply.code) == (400, HEADER_MISMATCH)


# Owners. `tests/trust` has every method, transport and rule.


@pytest.mark.requirement("security/every-request-is-checked", "older/bound-to-its-owner", "older/reject-others")
@in_both_eras
async def test_a_task_is_there_for_its_owner_only_and_looks_like_none_to_others(guarded: HttpWire, era: str) -> None:
    async with calling(guarded.as_user("alice"), era) as alice, calling(guarded.as_user("bob"), era) as bob:
        task_id = await alice.start("gated")
        absent = task_id[:-1] + ("_" if task_id[-1] != "_" else "-")
        for method in bob.methods:
            assert await bob.refused(method, task_id) == await bob.refused(method, absent)
        assert (await alice.get(task_id))["status"] == "working"
    # It belongs to the user, and not to a token, a session or an OAuth client of another user.
    async with calling(guarded.as_user("alice-2"), era) as again, calling(guarded.as_user("alice@other"), era) as other:
        await other.refused("tasks/get", task_id)
        await again.cancel(task_id)
        assert (await again.get(task_id))["status"] == "cancelled"


@pytest.mark.requirement("security/every-request-is-checked")
async def test_an_answer_of_another_user_changes_nothing_in_either_era(guarded: HttpWire) -> None:
    alice, bob = (Tasking(guarded.as_user(user), EVERYTHING) for user in ("alice", "bob"))
    task_id = await alice.create("ask_name")
    await alice.until(task_id, "input_required")
    answer = {"taskId": task_id, "inputResponses": {"elicitation-1": accept(name="Eve")}}
    assert (await bob.ask("tasks/update", answer)).code == INVALID_PARAMS
    async with calling(guarded.as_user("bob"), LEGACY) as older:
        assert await older.refused("tasks/sendInput", task_id) == await older.refused("tasks/sendInput", "nope")
    await alice.update(task_id, **{"elicitation-1": accept(name="Ada")})
    assert text_of((await alice.until(task_id, "completed"))["result"]) == "Hello, Ada!"


@pytest.mark.requirement("security/every-request-is-checked")
async def test_the_tool_has_the_identity_and_nothing_to_impersonate_it_with(guarded: HttpWire, desk: Desk) -> None:
    alice = Tasking(guarded.as_user("alice"), EVERYTHING)
    await alice.finish("introspect")
    [seen] = desk.seen
    assert "alice" in seen["owner"]
    assert seen["headers"] is None


@pytest.mark.requirement("security/every-request-is-checked")
async def test_a_request_without_a_valid_token_is_refused_before_anything_is_looked_up(guarded: HttpWire) -> None:
    task_id = await Tasking(guarded.as_user("alice"), EVERYTHING).create("gated")
    for nobody in (guarded, guarded.as_user("forged")):
        for method in METHODS:
            message = request(method, {"taskId": task_id, "inputResponses": {}})
            assert (await nobody.raw_post(json.dumps(message), modern_headers(message))).status_code == 401
    assert (await Tasking(guarded.as_user("alice"), EVERYTHING).get(task_id))["status"] == "working"


LEGACY_TASKS: dict[str, Any] = {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}
ECHO: dict[str, Any] = {"name": "echo", "arguments": {"value": "plain"}}
MUST: dict[str, Any] = {"name": "must", "arguments": {}}


@pytest.mark.requirement("negotiation/advertised", "eras/migrated", "eras/no-legacy-capabilities")
async def test_discover_names_the_extension_and_nothing_of_the_older_tasks(client: Tasking) -> None:
    capabilities = (await client.ask("server/discover")).result["capabilities"]
    assert capabilities["extensions"] == {EXTENSION: {}}
    assert "tasks" not in capabilities
    tools = (await client.ask("tools/list")).result["tools"]
    assert [tool["name"] for tool in tools if "execution" in tool] == []


@pytest.mark.requirement("negotiation/no-task-without-declaration")
async def test_a_task_is_for_requests_that_declare_the_extension_whatever_was_declared_earlier(client: Tasking) -> None:
    assert (await client.call("echo", value=1))["resultType"] == "task"
    plain = await client.declaring(NOTHING).call("echo", value="plain")
    assert (plain["resultType"], text_of(plain)) == ("complete", "plain")
    assert (await client.call("echo", value=3))["resultType"] == "task"


@pytest.mark.requirement("negotiation/no-task-without-declaration")
async def test_capabilities_that_do_not_fit_declare_nothing(client: Tasking, wire: HttpWire) -> None:
    task_id = await client.create("gated")
    declared: list[Any] = [None, True, "all", [EXTENSION], {EXTENSION: None}, {EXTENSION: True}]
    misfits: list[Any] = [None, "all", [], *({"extensions": each} for each in declared)]
    for capabilities in misfits:
        for message in (request("tools/call", ECHO), request("tasks/get", {"taskId": task_id})):
            message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities
            reply = await wire.post(json.dumps(message), modern_headers(message))
            if message["method"] == "tasks/get" or reply.status == 400:
                assert (reply.status, reply.code in (INVALID_PARAMS, MISSING_CAPABILITY)) == (400, True), capabilities
            else:
                assert reply.result["resultType"] == "complete", capabilities


@pytest.mark.requirement(
    "negotiation/missing-capability", "eras/legacy-capability-is-no-declaration", "errors/missing-capability"
)
@pytest.mark.parametrize("declared", [NOTHING, LEGACY_TASKS], ids=["nothing", "older tasks"])
async def test_a_client_that_does_not_declare_the_extension_is_told_what_is_missing(
    client: Tasking, declared: dict[str, Any]
) -> None:
    other = client.declaring(declared)
    replies = [await other.ask("tools/call", MUST)]
    for task_id in (await client.create("gated"), "nope"):
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            replies.append(await other.ask(method, {"taskId": task_id, "inputResponses": {}}))
    for reply in replies:
        assert (reply.status, reply.code) == (400, MISSING_CAPABILITY)
        assert reply.error["data"] == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        assert EXTENSION in reply.error["message"]
    assert (await other.call("echo", value=1))["resultType"] == "complete"
    assert (await client.declaring(TASKS).call("must"))["resultType"] == "task"


@pytest.mark.requirement("results/nothing-else-is-marked")
async def test_only_a_created_task_has_the_result_type_task(client: Tasking) -> None:
    results = [
        (await client.ask("server/discover")).result,
        (await client.ask("tools/list")).result,
        await client.call("greet", name="Ada"),
        await client.call("never"),
        await client.call("ask_by_returning"),
    ]
    running, asking = await client.create("gated"), await client.create("ask_name")
    results += [await client.get(running), await client.until(asking, "input_required")]
    results.append(await client.update(asking, **{"elicitation-1": accept(name="Ada")}))
    done = await client.until(asking, "completed")
    failed = await client.until(await client.create("breaks"), "failed")
    results += [done, done["result"], failed, await client.cancel(running), await client.get(running)]
    assert {result["resultType"] for result in results} == {"complete", "input_required"}


@pytest.mark.requirement("eras/no-tasks-result")
async def test_the_removed_methods_are_not_found_whatever_their_params(client: Tasking) -> None:
    for method in ("tasks/result", "tasks/list"):
        for params in ({}, {"taskId": "nope"}, {"taskId": 7}, {"cursor": "x"}):
            reply = await client.ask(method, params)
            assert (reply.status, reply.code) == (404, METHOD_NOT_FOUND)


@pytest.mark.requirement("eras/task-param-is-ignored")
async def test_the_task_parameter_changes_nothing(client: Tasking, wire: HttpWire, store: MemoryStore) -> None:
    for number, task in enumerate(({"ttl": 1}, None, 7, "soon", [], {"ttl": "soon"}), start=1):
        call = {**ECHO, "task": task}
        created = (await client.ask("tools/call", call)).result
        assert (created["resultType"], created["ttlMs"] > 1) == ("task", True)
        assert (await wire.send(request("tools/call", call, capabilities={}))).result["resultType"] == "complete"
        unmarked = {"name": "greet", "arguments": {"name": "Ada"}, "task": task}
        assert (await client.ask("tools/call", unmarked)).result["resultType"] == "complete"
        assert len(await all_tasks(store)) == number


# Clients of earlier versions


@pytest.mark.requirement("eras/extension-means-nothing-before")
async def test_a_legacy_client_that_declares_the_extension_gets_plain_results(
    client: Tasking, wire: HttpWire, store: MemoryStore
) -> None:
    session, _ = await initialize(wire, TASKS)
    for meta in ({}, {"io.modelcontextprotocol/clientCapabilities": dict(TASKS)}):
        reply = await session.ask("tools/call", {**ECHO, "_meta": meta})
        check_legacy_result("CallToolResult", reply.result)
        assert text_of(reply.result) == "plain"
        assert "resultType" not in reply.result
    assert await all_tasks(store) == []
    task_id = await client.create("gated")
    for params in ({}, {"taskId": 7}):
        reply = await session.ask("tasks/update", {"taskId": task_id, "inputResponses": {}, **params})
        assert reply.code == METHOD_NOT_FOUND
    assert (await client.get(task_id))["status"] == "working"


@pytest.mark.requirement("eras/extension-means-nothing-before", "older/capability")
@pytest.mark.parametrize("version", [v for v in HANDSHAKE_PROTOCOL_VERSIONS if v != LEGACY])
async def test_versions_before_tasks_have_none(
    client: Tasking, wire: HttpWire, store: MemoryStore, version: str
) -> None:
    task_id = await client.create("gated")
    session, hello = await initialize(wire, {**TASKS, **LEGACY_TASKS}, version)
    assert hello["protocolVersion"] == version
    assert "tasks" not in hello["capabilities"]
    for method in ("tasks/get", "tasks/update", "tasks/cancel", "tasks/result", "tasks/list"):
        both: list[dict[str, Any]] = [{"taskId": task_id, "inputResponses": {}}, {"taskId": 7}]
        for params in both:
            assert (await session.ask(method, params)).code == METHOD_NOT_FOUND
    tools = (await session.ask("tools/list")).result["tools"]
    assert [tool["name"] for tool in tools if "execution" in tool] == []
    assert text_of((await session.ask("tools/call", {**ECHO, "task": {"ttl": 1}})).result) == "plain"
    assert (await session.ask("tools/call", MUST)).code == METHOD_NOT_FOUND
    assert [task.id for task in await all_tasks(store)] == [task_id]
    assert (await client.get(task_id))["status"] == "working"
