"""What a session of 2025-11-25 keeps, and how a task is followed that its client hosts."""

import asyncio
import gc
import weakref
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, REQUEST_TIMEOUT

from mcp_tasks.errors import UnknownTask
from mcp_tasks.legacy.client_tasks import FASTEST_POLL, MAX_PAGES, MAX_SILENCES, Driver, pause
from mcp_tasks.legacy.sessions import HEAD_START, MAX_BEFORE_HANDSHAKE, Session
from mcp_tasks.legacy.shapes import read_task
from mcp_tasks.legacy.streams import Subscribers
from mcp_tasks.model.record import TaskStatus
from mcp_tasks.server.tool_runner import OpenCalls
from mcp_tasks.testing import make_record
from tests.spec.scripted import TASK_ID, task


async def test_a_task_that_is_made_while_its_session_ends_is_not_kept_with_it() -> None:
    subscribers, calls = Subscribers(), OpenCalls()
    session, record = Session(subscribers, calls), make_record()
    session.expect(record.id)
    session.close()
    session.follow(record)
    session.expect("another")
    assert not subscribers.has_task(record.id)
    assert not calls.reaches(record.id)
    assert not calls.reaches("another")


async def test_of_a_client_that_never_completes_its_handshake_only_the_last_tasks_are_kept() -> None:
    subscribers, calls = Subscribers(), OpenCalls()
    session, records = Session(subscribers, calls), [make_record() for _ in range(MAX_BEFORE_HANDSHAKE + 3)]
    for record in records:
        session.expect(record.id)
        session.follow(record)
    for kept in (subscribers.has_task, calls.reaches):
        assert [kept(record.id) for record in records] == [False] * 3 + [True] * MAX_BEFORE_HANDSHAKE
    await anyio.sleep(2 * HEAD_START)  # sleep: for what follows each of them
    session.close()
    assert not any(calls.reaches(record.id) for record in records)


async def test_a_session_that_ends_is_not_held_by_the_next_look_at_an_old_task() -> None:
    session, record = Session(Subscribers(), OpenCalls()), make_record()
    session.follow(record)
    held = weakref.ref(session)
    session.followed[record.id].later = asyncio.get_running_loop().call_later(3600, session.send_notices, record.id)
    session.close()
    del session
    await anyio.sleep(2 * HEAD_START)  # sleep: the head start of the answer has hold of it, too
    gc.collect()
    assert held() is None


ACCEPTED = {"action": "accept"}
SILENCE = MCPError(REQUEST_TIMEOUT, "timed out")


class Client:
    """Answers in turn, and keeps what it was asked, and when."""

    def __init__(self, *answers: dict[str, Any] | MCPError) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.times: list[float] = []
        self._answers = list(answers)

    async def __call__(self, method: str, params: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        assert timeout is not None, "a client that does not answer would hang the tool"
        self.asked.append((method, dict(params)))
        self.times.append(anyio.current_time())
        answer = self._answers.pop(0)
        if isinstance(answer, MCPError):
            raise answer
        return answer


@pytest.mark.requirement(
    "hosted-requestor/polls-to-the-end", "hosted-requestor/no-related-task", "hosted-requestor/no-reliance"
)
async def test_a_task_is_polled_to_its_end_after_the_interval_of_its_creation_and_then_its_result_is_fetched() -> None:
    looks = [task(), SILENCE, task("input_required"), task("completed")]
    client = Client({"task": task(pollInterval=400)}, *looks, ACCEPTED)
    driver = Driver(client)
    created = await driver.create("elicitation/create", {}, None)
    assert await driver.result(created.id) == ACCEPTED
    assert [method for method, _ in client.asked] == ["elicitation/create", *["tasks/get"] * 4, "tasks/result"]
    assert all(params == {"taskId": TASK_ID} for _, params in client.asked[1:])
    assert client.times[1] - client.times[0] >= 0.4


async def test_looks_that_are_not_answered_are_not_tried_again_for_ever() -> None:
    with pytest.raises(MCPError, match="timed out"):
        await Driver(Client(task(), *[SILENCE] * MAX_SILENCES)).result(TASK_ID)


@pytest.mark.requirement("hosted-requestor/poll-interval")
def test_the_interval_that_the_client_suggests_is_kept_however_long_it_is() -> None:
    for interval in (2_500, 300_000, 10**12):
        assert pause(read_task(task(pollInterval=interval))) == timedelta(milliseconds=interval)
    for interval in (-5, 1):
        assert pause(read_task(task(pollInterval=interval))) == FASTEST_POLL
    for interval in (0, 10**300, "soon", None):
        assert pause(read_task(task(pollInterval=interval))) >= FASTEST_POLL


@pytest.mark.requirement("hosted-requestor/cursors")
async def test_a_listing_is_followed_by_its_cursors_as_they_are_and_one_without_end_is_left() -> None:
    client = Client({"tasks": [task()], "nextCursor": "é/="}, {"tasks": [task("completed")], "nextCursor": None})
    assert [each.status async for each in Driver(client).list()] == [TaskStatus.WORKING, TaskStatus.COMPLETED]
    assert [params for _, params in client.asked] == [{}, {"cursor": "é/="}]
    endless = Client(*[{"tasks": [task()], "nextCursor": "again"} for _ in range(MAX_PAGES + 1)])
    assert len([each async for each in Driver(endless).list()]) == MAX_PAGES


async def test_a_cancelled_task_that_the_client_does_not_have_is_unknown_and_one_that_has_ended_is_refused() -> None:
    refused = MCPError(INVALID_PARAMS, "no")
    with pytest.raises(UnknownTask):
        await Driver(Client(refused, refused)).cancel(TASK_ID)
    with pytest.raises(MCPError, match="no"):
        await Driver(Client(refused, task("completed"))).cancel(TASK_ID)
