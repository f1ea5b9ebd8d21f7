"""The MCP Inspector's command lines against our server."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from mcp import Client

from mcp_tasks.client import TaskHandle, TasksClient, start_task

from .conftest import Installs
from .inspector import Inspector, inspecting

PROTOCOL_ERROR = "the job ended in a protocol error, as it always does"
UNDECLARED = "the client did not declare the elicitation capability"


@pytest.fixture(scope="module")
def inspector(installs: Installs) -> Generator[Inspector]:
    """The Inspector."""
    with inspecting(installs["npm"]) as inspector:
        yield inspector


@pytest.fixture(scope="module")
def url(inspector: Inspector, streaming_url: str) -> str:
    """A server of ours to which `mcpdo` is connected."""
    assert inspector.connect(streaming_url).value["protocolEra"] == "modern"
    return streaming_url


def test_cli_finishes_a_task(inspector: Inspector, streaming_url: str) -> None:
    reply = inspector.cli(streaming_url, "slow_compute", {"seconds": 0.6, "label": "cli"})
    assert (reply.code, reply.text) == (0, "cli: done after 0.6 s")


def test_cli_cannot_answer_and_is_not_asked(inspector: Inspector, streaming_url: str) -> None:
    reply = inspector.cli(streaming_url, "confirm_delete", {"filename": "x"})
    assert reply.code == 1
    assert UNDECLARED in reply.error["message"]


def test_plain_call(inspector: Inspector, url: str) -> None:
    assert inspector.call(url, "greet", {"name": "Ada"}).text == "Hello, Ada!"


def test_task_to_its_end(inspector: Inspector, url: str) -> None:
    reply = inspector.call(url, "slow_compute", {"seconds": 0.6, "label": "task"})
    assert (reply.code, reply.text) == (0, "task: done after 0.6 s")


def test_task_with_json_bodies(inspector: Inspector, json_url: str) -> None:
    assert inspector.connect(json_url).value["protocolEra"] == "modern"
    reply = inspector.call(json_url, "slow_compute", {"seconds": 0.6, "label": "json"})
    assert (reply.code, reply.text) == (0, "json: done after 0.6 s")


def test_tool_error(inspector: Inspector, url: str) -> None:
    reply = inspector.call(url, "failing_job")
    assert reply.value["isError"]
    assert reply.error["code"] == "tool_is_error"


def test_failed_task(inspector: Inspector, url: str) -> None:
    reply = inspector.call(url, "protocol_error_job")
    assert reply.code == 1
    assert reply.error["message"] == PROTOCOL_ERROR


def test_question_in_a_task(inspector: Inspector, url: str) -> None:
    asked = inspector.call(url, "confirm_delete", {"filename": "a.txt"})
    assert asked.value["elicitationPending"]["origin"] == "task-input-required"
    assert inspector.respond(asked, "confirm:=true").text == "deleted a.txt"


def test_question_declined(inspector: Inspector, url: str) -> None:
    asked = inspector.call(url, "confirm_delete", {"filename": "b.txt"})
    assert inspector.respond(asked, "--decline").text == "kept b.txt"


def test_two_questions_one_after_the_other(inspector: Inspector, url: str) -> None:
    first = inspector.call(url, "multi_input")
    second = inspector.respond(first, "name:=Ada")
    assert inspector.respond(second, "confirm:=true").text == "name: accept, confirmation: accept"


def test_question_before_the_task(inspector: Inspector, url: str) -> None:
    asked = inspector.call(url, "test_tool_with_task")
    assert asked.value["elicitationPending"]["origin"] == "input-required"
    assert inspector.respond(asked, "name:=Ada").text == "Hello, Ada!"


async def _parked(url: str) -> str:
    """A task of our own client's: `mcpdo` does one thing at a time on a connection, and so cannot cancel its own."""
    async with Client(url, extensions=[TasksClient()]) as client:
        handle = await start_task(client, "park", {"seconds": 30})
        assert isinstance(handle, TaskHandle)
        return handle.id


@pytest.mark.anyio
async def test_look_at_a_task_and_cancel_it(inspector: Inspector, url: str) -> None:
    task_id = await _parked(url)
    command = ("--connection", url)
    assert inspector.mcpdo(*command, "tasks/get", task_id).value["task"]["status"] == "working"
    assert inspector.mcpdo(*command, "tasks/cancel", task_id).code == 0
    assert inspector.mcpdo(*command, "tasks/get", task_id).value["task"]["status"] == "cancelled"


def test_unknown_task(inspector: Inspector, url: str) -> None:
    reply = inspector.mcpdo("--connection", url, "tasks/get", "no-such-task")
    assert reply.code == 1
    assert "Task not found" in reply.error["message"]
