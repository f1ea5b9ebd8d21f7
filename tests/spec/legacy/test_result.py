"""`tasks/result`: it blocks, and then gives exactly what the call would have given."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from harness.http import serving
from harness.lowlevel import build_lowlevel
from harness.older import FINAL, RELATED, HttpClient, OlderClient, http_session
from harness.rpc import INTERNAL_ERROR, PATIENCE, Reply, text_of
from harness.schema import check_legacy_result
from harness.server import QUICK, Desk
from mcp_tasks import Tasks
from mcp_tasks.stores.memory import MemoryStore
from tests.spec.legacy.furnished import ENDINGS, ERRORS, FAILURES

pytestmark = pytest.mark.anyio


def _without_related(message: dict[str, Any], task_id: str) -> dict[str, Any]:
    """A result or an error without what ties it to its task, which must be there."""
    if "error" in message:
        return _error_without_related(message["error"], task_id)
    meta = dict(message["result"]["_meta"])
    assert meta.pop(RELATED) == {"taskId": task_id}
    rest = {key: value for key, value in message["result"].items() if key != "_meta"}
    return rest | ({"_meta": meta} if meta else {})


def _error_without_related(error: dict[str, Any], task_id: str) -> dict[str, Any]:
    if "mcp-tasks/data" in error["data"]:
        # There is no place for `_meta` in lists and text.
        assert error["data"]["_meta"] == {RELATED: {"taskId": task_id}}
        return error | {"data": error["data"]["mcp-tasks/data"]}
    meta = dict(error["data"]["_meta"])
    assert meta.pop(RELATED) == {"taskId": task_id}
    rest = {key: value for key, value in error.items() if key != "data"}
    data = {key: value for key, value in error["data"].items() if key != "_meta"} | ({"_meta": meta} if meta else {})
    return rest | ({"data": data} if data else {})


@pytest.mark.requirement(
    "older/result-is-exact",
    "older/result-of-final",
    "older/result-has-related-task",
    "older/same-error",
    "older/result-is-a-response",
)
@pytest.mark.parametrize("ending", ENDINGS)
async def test_the_result_is_what_the_plain_call_gives_and_names_its_task(client: HttpClient, ending: str) -> None:
    await _compare(client, ending)


@pytest.mark.requirement("older/result-is-exact", "older/result-has-related-task")
async def test_the_result_is_what_the_plain_call_gives_on_every_transport(everywhere: OlderClient) -> None:
    for ending in ENDINGS:
        await _compare(everywhere, ending)


@pytest.mark.requirement("older/related-task-on-errors", "older/same-error")
async def test_an_error_whose_data_is_no_object_names_the_task_beside_the_data(client: HttpClient) -> None:
    plain = (await client.call("breaks_with_list")).error
    task_id = await client.start("breaks_with_list")
    data = {"mcp-tasks/data": ["first", 2], "_meta": {RELATED: {"taskId": task_id}}}
    assert (await client.result(task_id)).error == {**plain, "data": data}
    assert plain["data"] == ["first", 2]


async def _compare(client: OlderClient, ending: str) -> None:
    """Call a tool plainly and as a task, and see that the two end in the same way."""
    tool, arguments = ENDINGS[ending]
    plain = (await client.call(tool, arguments)).message
    task_id = await client.start(tool, **arguments)
    reply = await client.result(task_id)
    expected = plain["result"] if "result" in plain else plain["error"]
    assert _without_related(reply.message, task_id) == expected
    if "result" in plain:
        check_legacy_result("CallToolResult", reply.result)
    assert ("error" in reply.message) == (ending in ERRORS)
    # Asked again, it is the same again.
    assert (await client.result(task_id)).message | {"id": 0} == reply.message | {"id": 0}


@pytest.mark.requirement("older/uncaught-crash", "older/internal-error")
async def test_a_crash_that_the_server_does_not_catch_is_an_internal_error_that_gives_nothing_away() -> None:
    server = build_lowlevel(Tasks("memory://", settings=QUICK))
    async with serving(server) as way, http_session(way) as client:
        task_id = await client.start("crashes")
        reply = await client.result(task_id)
        assert reply.code == INTERNAL_ERROR
        assert reply.error["data"]["_meta"][RELATED] == {"taskId": task_id}
        assert "secret" not in str(reply.message)
        assert "secret" not in str(await client.until(task_id, "failed"))


@pytest.mark.requirement("older/result-blocks")
async def test_the_result_waits_for_the_end_of_the_work(everywhere: OlderClient) -> None:
    task_id = await everywhere.start("gated")
    waiting = everywhere.begin_result(task_id)
    # Others are served meanwhile, this very task included: a wait holds up nobody.
    for _ in range(3):
        assert (await everywhere.get(task_id))["status"] == "working"
    assert not waiting.answered
    await everywhere.call("release")
    assert text_of((await waiting.reply()).result) == "through"


@pytest.mark.requirement("older/result-blocks")
async def test_the_result_waits_while_the_task_asks(listener: HttpClient) -> None:
    task_id = await listener.start("ask_name")
    await listener.until(task_id, "input_required")
    waiting = listener.begin_result(task_id)
    assert (await listener.get(task_id))["status"] == "input_required"
    assert not waiting.answered
    await listener.cancel(task_id)
    assert "error" in (await waiting.reply()).message


@pytest.mark.requirement("older/result-blocks", "older/result-of-final")
async def test_everybody_who_waits_for_a_result_gets_it(client: HttpClient, desk: Desk) -> None:
    task_id = await client.start("gated")
    waiting = [client.begin_result(task_id) for _ in range(5)]
    await client.get(task_id)
    desk.gate.set()
    assert {text_of((await one.reply()).result) for one in waiting} == {"through"}


@pytest.mark.requirement("older/result-of-final", "older/result-has-related-task")
async def test_a_cancelled_task_has_an_error_as_its_result(everywhere: OlderClient) -> None:
    task_id = await everywhere.start("gated")
    waiting = everywhere.begin_result(task_id)
    await everywhere.cancel(task_id)
    early, late = await waiting.reply(), await everywhere.result(task_id)
    assert early.error == late.error
    assert "cancelled" in late.error["message"].lower()
    assert late.error["data"]["_meta"][RELATED] == {"taskId": task_id}


@pytest.mark.requirement("older/may-disconnect")
async def test_a_client_may_leave_the_stream_of_a_result_and_ask_again(client: HttpClient, desk: Desk) -> None:
    task_id = await client.start("gated")
    with anyio.fail_after(PATIENCE):
        await desk.started.wait()
    for _ in range(3):
        waiting = client.begin_result(task_id)
        assert (await client.get(task_id))["status"] == "working"
        await waiting.leave()
    assert (await client.get(task_id))["status"] == "working"
    desk.gate.set()
    assert text_of((await client.result(task_id)).result) == "through"


@pytest.mark.requirement("older/may-disconnect")
async def test_a_wait_for_a_result_that_is_cancelled_leaves_the_task_alone(client: HttpClient, desk: Desk) -> None:
    task_id = await client.start("gated")
    waiting = client.begin_result(task_id)
    await client.get(task_id)
    await client.notify("notifications/cancelled", {"requestId": waiting.request_id, "reason": "no more time"})
    assert (await client.get(task_id))["status"] == "working"
    desk.gate.set()
    assert text_of((await client.result(task_id)).result) == "through"


@pytest.mark.requirement("older/cancelled-notification")
async def test_the_cancelled_notification_does_not_cancel_a_task(client: HttpClient, desk: Desk) -> None:
    call = client.begin("tools/call", {"name": "gated", "arguments": {}, "task": {}})
    task_id = (await call.reply()).result["task"]["taskId"]
    await client.notify("notifications/cancelled", {"requestId": call.request_id})
    desk.gate.set()
    assert (await client.until(task_id, "completed"))["status"] == "completed"


@pytest.mark.requirement("older/failed", "older/failed-says-why")
@pytest.mark.parametrize("ending", [*FAILURES, *ERRORS])
async def test_work_that_goes_wrong_is_a_failed_task_that_says_why(client: HttpClient, ending: str) -> None:
    tool, arguments = ENDINGS[ending]
    task_id = await client.start(tool, **arguments)
    reply: Reply = await client.result(task_id)
    task = await client.until(task_id, *FINAL)
    assert task["status"] == "failed"
    assert task["statusMessage"]
    if ending in FAILURES:
        assert reply.result["isError"] is True
        assert task["statusMessage"] in text_of(reply.result)
    else:
        assert reply.error["message"] in task["statusMessage"]


@pytest.mark.requirement("older/completed")
@pytest.mark.parametrize("ending", [ending for ending in ENDINGS if ending not in (*FAILURES, *ERRORS)])
async def test_work_that_goes_well_is_a_completed_task(client: HttpClient, ending: str) -> None:
    tool, arguments = ENDINGS[ending]
    task_id = await client.start(tool, **arguments)
    assert (await client.until(task_id, *FINAL))["status"] == "completed"


@pytest.mark.requirement("older/result-is-exact")
async def test_a_result_is_the_same_from_another_session_and_after_it_was_read(
    client: HttpClient, store: MemoryStore
) -> None:
    task_id = await client.start("with_meta")
    first = (await client.result(task_id)).result
    async with http_session(client.wire) as other:
        assert (await other.result(task_id)).result == first
    assert (await client.result(task_id)).result == first
