"""Hosted tasks on the wire: what 2025-11-25 asks of a client that receives them, from any server."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp_types import ElicitResult, ErrorData

from harness.rpc import PATIENCE
from harness.waiting import eventually
from mcp_tasks.client import Hosting, TasksClient, with_tasks
from mcp_tasks.errors import InvalidOption, UsageError
from mcp_tasks.legacy.hosting import MAX_OPEN, MAX_UNREAD
from tests.hosted.raw_server import ELICIT, RELATED, SAMPLE, Host, RawServer, Refused, connected


@pytest.mark.requirement("hosted/declares")
async def test_the_handshake_declares_what_there_are_callbacks_for(host: Host) -> None:
    for samples in (True, False):
        requests: dict[str, Any] = {"elicitation": {"create": {}}}
        if samples:
            requests["sampling"] = {"createMessage": {}}
        async with connected(host, samples=samples) as server:
            [hello] = server.asked("initialize")
        assert hello["capabilities"]["tasks"] == {"list": {}, "cancel": {}, "requests": requests}


@pytest.mark.requirement("hosted/undeclared-is-plain")
async def test_a_request_of_a_kind_that_is_not_declared_is_answered_as_if_it_had_no_task(host: Host) -> None:
    host.ready.set()
    async with connected(host, server=RawServer("2025-06-18")) as server:
        result = await server.ask("elicitation/create", {**ELICIT, "task": {"ttl": 1000}})
        assert result == {"action": "accept", "content": {"ok": True}}
        with pytest.raises(Refused) as refused:
            await server.ask("tasks/list")
        assert refused.value.code == -32601


@pytest.mark.requirement(
    "hosted/create-result", "hosted/begins-working", "hosted/ids", "hosted/entropy", "hosted/timestamps"
)
async def test_a_task_is_answered_at_once_and_begins_as_working(host: Host) -> None:
    async with connected(host) as server:
        tasks = [await server.create(method) for method in ("elicitation/create", "sampling/createMessage")]
        assert [task["status"] for task in tasks] == ["working", "working"]
        assert len({task["taskId"] for task in tasks}) == 2
        assert all(len(task["taskId"]) >= 32 for task in tasks)
        for task in tasks:
            assert task["ttl"] == 60_000
            assert datetime.fromisoformat(task["createdAt"]) <= datetime.fromisoformat(task["lastUpdatedAt"])


@pytest.mark.requirement(
    "hosted/result",
    "hosted/result-related-task",
    "hosted/plain-stays-plain",
    "hosted/status-notification",
    "hosted/cancel-finished",
)
async def test_the_result_is_what_the_request_would_have_been_answered_with(host: Host) -> None:
    host.ready.set()
    async with connected(host) as server:
        for method in ("elicitation/create", "sampling/createMessage"):
            before = (await server.ask("tasks/list"))["tasks"]
            plain = await server.ask(method, ELICIT if method.startswith("e") else SAMPLE)
            assert (await server.ask("tasks/list"))["tasks"] == before, "without a task in the request there is none"
            task = await server.create(method)
            result = await server.ask("tasks/result", {"taskId": task["taskId"]})
            assert result.pop("_meta") == {RELATED: {"taskId": task["taskId"]}}
            assert result == plain
            assert await server.status(task["taskId"]) == "completed"
            told = await server.notification(lambda message: message["method"] == "notifications/tasks/status")
            assert told["params"]["status"] == "completed"
            assert {"createdAt", "lastUpdatedAt", "ttl"} <= told["params"].keys()
            with pytest.raises(Refused) as refused:
                await server.ask("tasks/cancel", {"taskId": task["taskId"]})
            assert refused.value.code == -32602


@pytest.mark.requirement("hosted/error-related-task", "hosted/failed-message")
@pytest.mark.parametrize("data", [["first", 2], "text", False, {"_meta": "odd", "why": "no"}], ids=repr)
async def test_an_error_of_the_callback_names_its_task_whatever_its_data_is(host: Host, data: Any) -> None:
    host.answer = ErrorData(code=-1, message="User rejected", data=data)
    host.ready.set()
    async with connected(host) as server:
        task = await server.create()
        with pytest.raises(Refused) as refused:
            await server.ask("tasks/result", {"taskId": task["taskId"]})
        assert refused.value.data == {"mcp-tasks/data": data, "_meta": {RELATED: {"taskId": task["taskId"]}}}
        # An answer that is none is an error, too.
        host.answer = ElicitResult.model_construct(action="maybe")  # pyright: ignore[reportArgumentType]
        assert (await server.until((await server.create())["taskId"], "failed"))["statusMessage"]


@pytest.mark.requirement("hosted/cancel", "hosted/cancel-stops", "hosted/transitions")
async def test_a_task_is_cancelled_before_the_answer_and_its_callback_with_it(host: Host) -> None:
    async with connected(host) as server:
        task = await server.create()
        await eventually(lambda: host.asked == ["Approve?"])
        waiting = await server.send("tasks/result", {"taskId": task["taskId"]})
        cancelled = await server.ask("tasks/cancel", {"taskId": task["taskId"]})
        assert cancelled["status"] == "cancelled"
        error = (await waiting)["error"]
        assert error["code"] == -32800
        assert error["data"] == {"_meta": {RELATED: {"taskId": task["taskId"]}}}
        await eventually(lambda: host.cancelled == 1)
        host.ready.set()
        assert await server.status(task["taskId"]) == "cancelled"


@pytest.mark.requirement("hosted/list", "hosted/pages")
async def test_a_listing_comes_in_pages_that_hold_every_task_once(host: Host) -> None:
    host.ready.set()
    async with connected(host) as server:
        assert (await server.ask("tasks/list"))["tasks"] == []
    async with connected(host, hosting=Hosting(max_tasks=200, max_running=200)) as server:
        made = [(await server.create())["taskId"] for _ in range(120)]
        listed: list[str] = []
        params: dict[str, str] = {}
        while True:
            page = await server.ask("tasks/list", params)
            listed += [task["taskId"] for task in page["tasks"]]
            if "nextCursor" not in page:
                break
            params = {"cursor": page["nextCursor"]}
        assert listed == made


@pytest.mark.requirement("hosted/progress", "hosted/progress-stops")
async def test_progress_goes_out_under_the_token_of_the_request_until_the_task_has_ended(host: Host) -> None:
    host.report = 0.5
    async with connected(host) as server:
        task = await server.create(_meta={"progressToken": "token"})
        told = await server.notification(lambda message: message["method"] == "notifications/progress")
        assert told["params"]["progressToken"] == "token"
        assert told["params"]["_meta"] == {RELATED: {"taskId": task["taskId"]}}
        await server.ask("tasks/cancel", {"taskId": task["taskId"]})
        # Its callback reports once more while it is cancelled.
        await eventually(lambda: host.cancelled == 1)
        assert await server.ask("ping") == {}
        assert [params["progress"] for params in server.asked("notifications/progress")] == [0.5]


@pytest.mark.requirement("hosted/ttl", "hosted/max-ttl", "hosted/expired")
async def test_a_ttl_has_a_maximum_and_counts_from_the_end_of_the_task(host: Host) -> None:
    async with connected(host, hosting=Hosting(max_ttl=timedelta(minutes=5))) as server:
        assert (await server.create(ttl=60_000))["ttl"] == 60_000
        assert (await server.create(ttl=10**30))["ttl"] == 300_000
        assert (await server.create(ttl=...))["ttl"] == 300_000
    async with connected(host) as server:
        task = await server.create(ttl=100)
        await anyio.sleep(0.3)  # sleep: longer than its ttl
        shown = await server.ask("tasks/get", {"taskId": task["taskId"]})
        age = datetime.fromisoformat(shown["createdAt"]) + timedelta(milliseconds=shown["ttl"])
        assert shown["status"] == "working"
        assert age > datetime.now(age.tzinfo)
        host.ready.set()
        assert (await server.ask("tasks/result", {"taskId": task["taskId"]}))["action"] == "accept"
        await server.until_none_is_left()
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            with pytest.raises(Refused) as refused:
                await server.ask(method, {"taskId": task["taskId"]})
            assert refused.value.code == -32602


@pytest.mark.requirement("hosted/ttl")
async def test_whoever_waits_for_a_task_that_is_not_kept_gets_its_answer(host: Host) -> None:
    async with connected(host) as server:
        task = await server.create(ttl=0)
        waits = [await server.send("tasks/result", {"taskId": task["taskId"]}) for _ in range(2)]
        # Answered in order: by now both are waiting.
        await server.ask("ping")
        host.ready.set()
        with anyio.fail_after(PATIENCE):
            for wait in waits:
                assert (await wait)["result"]["action"] == "accept"


@pytest.mark.requirement("hosted/owner")
async def test_the_task_of_another_server_does_not_exist(host: Host, tmp_path: Path) -> None:
    tasks = TasksClient(hosting=Hosting(ledger=tmp_path / "hosted.db"))
    async with (
        connected(host, tasks=tasks, address="raw:one") as one,
        connected(host, tasks=tasks, address="raw:two") as two,
    ):
        task = await one.create()
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            with pytest.raises(Refused) as refused:
                await two.ask(method, {"taskId": task["taskId"]})
            assert refused.value.code == -32602
        assert (await two.ask("tasks/list"))["tasks"] == []
        assert await one.status(task["taskId"]) == "working"


@pytest.mark.requirement("hosted/owner")
async def test_a_second_connection_to_the_same_server_sees_its_tasks_and_takes_them_over(host: Host) -> None:
    tasks = TasksClient(hosting=Hosting())
    async with connected(host, tasks=tasks) as one:
        async with connected(host, tasks=tasks) as two:
            task = await two.create()
            await eventually(lambda: host.asked == ["Approve?"])
            assert await one.status(task["taskId"]) == "working"
        await eventually(lambda: len(host.asked) == 2)
        host.ready.set()
        assert (await one.ask("tasks/result", {"taskId": task["taskId"]}))["action"] == "accept"


# Servers that mean no good: each gets an error that says why, and the client goes on


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
async def test_a_malformed_request_is_refused_and_makes_no_task(
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
            await server.until((await server.create())["taskId"], "completed")
        assert await code_of(server, "elicitation/create", {**ELICIT, "task": {}}) == -32603
    async with connected(host, hosting=Hosting(max_tasks=1)) as server:
        await server.create(ttl=100)
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
