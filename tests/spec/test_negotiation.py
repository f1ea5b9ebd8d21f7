"""Who gets a task: only a client that says on this very request that it takes one."""

from __future__ import annotations

import json

import pytest

from harness.http import HttpWire, modern_headers
from harness.rpc import EXTENSION, MISSING_CAPABILITY, NOTHING, TASKS, Tasking, accept, request, text_of

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("negotiation/advertised")
async def test_discover_names_the_extension_with_an_empty_object(client: Tasking) -> None:
    discovered = (await client.ask("server/discover")).result
    assert discovered["capabilities"]["extensions"] == {EXTENSION: {}}


@pytest.mark.requirement("negotiation/no-task-without-declaration")
async def test_a_client_that_declares_nothing_gets_the_plain_result(client: Tasking) -> None:
    result = await client.declaring(NOTHING).call("echo", value="plain")
    assert result["resultType"] == "complete"
    assert text_of(result) == "plain"


@pytest.mark.requirement("negotiation/no-task-without-declaration")
async def test_an_earlier_declaration_on_the_same_connection_does_not_count(client: Tasking) -> None:
    assert (await client.call("echo", value=1))["resultType"] == "task"
    assert (await client.declaring(NOTHING).call("echo", value=2))["resultType"] == "complete"
    assert (await client.call("echo", value=3))["resultType"] == "task"


@pytest.mark.requirement("negotiation/no-task-without-declaration")
@pytest.mark.parametrize("declared", [None, True, [EXTENSION], {EXTENSION: None}, {EXTENSION: True}], ids=repr)
async def test_a_declaration_that_is_not_an_object_is_none(wire: HttpWire, declared: object) -> None:
    message = request("tools/call", {"name": "echo", "arguments": {"value": 1}}, capabilities={"extensions": declared})
    reply = await wire.post(json.dumps(message), modern_headers(message))
    if "result" in reply.message:
        assert reply.result["resultType"] == "complete"
    else:
        assert reply.status == 400


@pytest.mark.requirement("negotiation/missing-capability")
async def test_a_tool_that_must_be_a_task_is_refused_to_a_client_that_cannot_have_one(client: Tasking) -> None:
    reply = await client.declaring(NOTHING).ask("tools/call", {"name": "must", "arguments": {}})
    assert (reply.status, reply.code) == (400, MISSING_CAPABILITY)
    assert reply.error["data"] == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
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
