"""Streams that are refused, before anything was sent on them."""

from __future__ import annotations

from typing import Any

import pytest

from harness.http import HttpWire, serving
from harness.lowlevel import build_lowlevel
from harness.rpc import (
    EVERYTHING,
    EXTENSION,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    NOTHING,
    Tasking,
)
from harness.schema import check_message
from harness.server import QUICK
from mcp_tasks import Tasks
from tests.push.listening import Stream, listen

pytestmark = pytest.mark.anyio

WRONG_IDS = [
    pytest.param("task_1", id="a string"),
    pytest.param(5, id="a number"),
    pytest.param({"0": "task_1"}, id="an object"),
    pytest.param(True, id="a boolean"),
    pytest.param(["task_1", 5], id="a number among strings"),
    pytest.param(["task_1", None], id="a null among strings"),
    pytest.param([["task_1"]], id="a list in a list"),
]
"""What `taskIds` cannot be."""


@pytest.mark.parametrize(
    "capabilities", [NOTHING, {"elicitation": {}}, {"extensions": {}}, {"extensions": {"com.example/tasks": {}}}]
)
@pytest.mark.parametrize("ids", [[], ["task_unknown"]])
async def test_a_client_that_did_not_declare_the_extension_is_told_what_is_missing(
    wire: HttpWire, capabilities: dict[str, Any], ids: list[str]
) -> None:
    reply = await wire.send(listen(ids, capabilities=capabilities))
    check_message("subscriptions/listen", reply.message)
    assert (reply.status, reply.code) == (400, MISSING_CAPABILITY)
    assert reply.error["data"] == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


async def test_that_counts_for_each_request_on_its_own(client: Tasking, wire: HttpWire) -> None:
    task_id = await client.create("gated")
    reply = await wire.send(listen([task_id], capabilities=NOTHING))
    assert reply.code == MISSING_CAPABILITY
    async with wire.stream(message := listen([task_id])) as frames:
        assert await Stream(message["id"], frames).acknowledged() == {"taskIds": [task_id]}


@pytest.mark.parametrize("ids", WRONG_IDS)
async def test_ids_that_are_none_are_refused(wire: HttpWire, ids: Any) -> None:
    reply = await wire.send(listen(ids))
    check_message("subscriptions/listen", reply.message)
    assert (reply.status, reply.code) == (400, INVALID_PARAMS)
    assert "taskIds" in reply.error["message"]


@pytest.mark.parametrize("ids", WRONG_IDS)
async def test_a_client_without_the_extension_is_told_that_and_not_what_is_wrong_with_its_ids(
    wire: HttpWire, ids: Any
) -> None:
    reply = await wire.send(listen(ids, capabilities=NOTHING))
    check_message("subscriptions/listen", reply.message)
    assert (reply.status, reply.code) == (400, MISSING_CAPABILITY)


async def test_no_ids_at_all_is_a_stream_like_any_other(wire: HttpWire) -> None:
    for message in (listen(None, toolsListChanged=True), listen(toolsListChanged=True, capabilities=NOTHING)):
        async with wire.stream(message) as frames:
            assert await Stream(message["id"], frames).acknowledged() == {"toolsListChanged": True}


@pytest.mark.parametrize("wanted", [..., None, [], "all"])
async def test_a_request_that_is_malformed_as_such_is_refused_by_the_sdk(wire: HttpWire, wanted: Any) -> None:
    message = listen(["task_1"])
    message["params"] = {"_meta": message["params"]["_meta"]} | ({} if wanted is ... else {"notifications": wanted})
    reply = await wire.send(message)
    assert (reply.status, reply.code) == (400, INVALID_PARAMS)


async def test_a_server_that_offers_no_streams_offers_none_for_tasks() -> None:
    async with serving(build_lowlevel(Tasks("memory://", settings=QUICK))) as wire:
        task_id = await Tasking(wire, EVERYTHING).create("echo", value=1)
        reply = await wire.send(listen([task_id]))
    assert (reply.status, reply.code) == (404, METHOD_NOT_FOUND)


async def test_what_else_is_malformed_is_refused_as_without_task_ids(wire: HttpWire) -> None:
    plain = await wire.send(listen(resourceSubscriptions="not a list"))
    with_ids = await wire.send(listen([], resourceSubscriptions="not a list"))
    assert (with_ids.status, with_ids.error) == (plain.status, plain.error)
    assert plain.code == INVALID_PARAMS
