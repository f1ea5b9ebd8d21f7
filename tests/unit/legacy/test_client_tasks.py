"""The requestor of a task that the client hosts, against clients that answer what a test wants."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import REQUEST_TIMEOUT

from mcp_tasks.errors import InvalidResponse
from mcp_tasks.legacy.client_tasks import FASTEST_POLL, MAX_PAGES, MAX_SILENCES, Driver, pause
from mcp_tasks.legacy.shapes import read_task
from mcp_tasks.model.record import TaskStatus

pytestmark = pytest.mark.anyio


def task(status: str = "working", **fields: Any) -> dict[str, Any]:
    """A task as a client shows it."""
    instant = "2026-08-01T10:00:00Z"
    return {
        "taskId": "theirs",
        "status": status,
        "createdAt": instant,
        "lastUpdatedAt": instant,
        "ttl": 60_000,
        "pollInterval": 50,
        **fields,
    }


class Client:
    """Answers in turn, and keeps what it was asked."""

    def __init__(self, *answers: dict[str, Any] | MCPError) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._answers = list(answers)

    async def __call__(self, method: str, params: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        """The next answer."""
        assert timeout is not None, "a client that does not answer would hang the tool"
        self.asked.append((method, dict(params)))
        answer = self._answers.pop(0)
        if isinstance(answer, MCPError):
            raise answer
        return answer


UNKNOWN = MCPError(-32602, "Task not found")
SILENCE = MCPError(REQUEST_TIMEOUT, "timed out")


@pytest.mark.requirement(
    "hosted-requestor/polls-to-the-end", "hosted-requestor/no-related-task", "hosted-requestor/no-reliance"
)
async def test_a_task_is_polled_to_its_end_and_then_its_result_is_fetched() -> None:
    client = Client(task(), task("input_required"), task("completed"), {"action": "accept"})
    assert await Driver(client).result("theirs") == {"action": "accept"}
    assert [method for method, _ in client.asked] == ["tasks/get"] * 3 + ["tasks/result"]
    assert all(params == {"taskId": "theirs"} for _, params in client.asked)


async def test_a_look_that_is_not_answered_is_tried_again_and_not_for_ever() -> None:
    client = Client(task(), SILENCE, task("completed"), {"action": "accept"})
    assert await Driver(client).result("theirs") == {"action": "accept"}
    silent = Client(task(), *[SILENCE] * MAX_SILENCES)
    with pytest.raises(MCPError, match="timed out"):
        await Driver(silent).result("theirs")


@pytest.mark.requirement("hosted-requestor/poll-interval")
def test_the_interval_that_the_client_suggests_is_kept_however_long_it_is() -> None:
    for interval in (2_500, 300_000, 10**12):
        assert pause(read_task(task(pollInterval=interval))) == timedelta(milliseconds=interval)
    for interval in (-5, 1):
        assert pause(read_task(task(pollInterval=interval))) == FASTEST_POLL
    for interval in (0, 10**300, "soon", None):
        assert pause(read_task(task(pollInterval=interval))) >= FASTEST_POLL


async def test_a_task_is_first_looked_at_when_the_interval_of_its_creation_is_over() -> None:
    looks: list[tuple[str, float]] = []

    async def send(method: str, params: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        looks.append((method, anyio.current_time()))
        if method == "elicitation/create":
            return {"task": task(pollInterval=400)}
        return task("completed") if method == "tasks/get" else {"action": "accept"}

    driver = Driver(send)
    created = await driver.create("elicitation/create", {}, None)
    assert await driver.result(created.id) == {"action": "accept"}
    assert [method for method, _ in looks] == ["elicitation/create", "tasks/get", "tasks/result"]
    assert looks[1][1] - looks[0][1] >= 0.4


@pytest.mark.requirement("hosted-requestor/cursors")
async def test_a_listing_is_followed_by_its_cursors_as_they_are() -> None:
    client = Client({"tasks": [task()], "nextCursor": "é/="}, {"tasks": [task("completed")], "nextCursor": None})
    assert [each.status async for each in Driver(client).list()] == [TaskStatus.WORKING, TaskStatus.COMPLETED]
    assert [params for _, params in client.asked] == [{}, {"cursor": "é/="}]


async def test_a_listing_without_end_is_left() -> None:
    client = Client(*[{"tasks": [task()], "nextCursor": "again"} for _ in range(MAX_PAGES + 1)])
    assert len([each async for each in Driver(client).list()]) == MAX_PAGES


@pytest.mark.parametrize(
    "answer",
    [
        {"action": "accept"},
        *({"task": shown} for shown in (None, 7, {}, task("done"), task(taskId=7), task(createdAt="yesterday"))),
    ],
)
async def test_what_is_not_a_task_is_an_invalid_response(answer: dict[str, Any]) -> None:
    with pytest.raises(InvalidResponse):
        await Driver(Client(answer)).create("elicitation/create", {}, None)
    with pytest.raises(InvalidResponse, match="another task"):
        await Driver(Client(task(taskId="another"))).get("theirs")
