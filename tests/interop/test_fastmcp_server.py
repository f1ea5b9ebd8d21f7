"""Our client against a server of FastMCP's, which has tasks of its own and does not push."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequestParams, ElicitResult

from mcp_tasks.client import TasksClient, call_tool, resume_task
from mcp_tasks.errors import TaskWasCancelled, UnknownTask, WaitTimedOut
from mcp_tasks.model.record import TaskStatus
from tests.client.connecting import begin, text

pytestmark = pytest.mark.anyio

PARKED = 30.0


async def _answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"confirm": True} if "Delete" in params.message else {"name": "Ada"})


@asynccontextmanager
async def _connected(url: str, *, push: bool = True) -> AsyncGenerator[Client]:
    async with Client(url, extensions=[TasksClient(push=push)], elicitation_callback=_answer) as client:
        yield client


async def test_plain_call(fastmcp_url: str) -> None:
    async with _connected(fastmcp_url) as client:
        assert text(await client.call_tool("greet", {"name": "Ada"})) == "Hello, Ada!"


async def test_task_to_its_end(fastmcp_url: str) -> None:
    async with _connected(fastmcp_url) as client:
        result = await client.call_tool("slow_compute", {"seconds": 0.6, "label": "task"})
    assert text(result) == "task: done after 0.6 s"
    assert result.is_error is False


async def test_states_by_polling(fastmcp_url: str) -> None:
    async with _connected(fastmcp_url) as client:
        handle = await begin(client, "slow_compute", seconds=1.2, label="watch")
        states = [state async for state in handle.watch()]
    messages = [state.message for state in states if state.message is not None]
    assert messages
    assert all(message.startswith("watch: step ") for message in messages)
    assert messages == sorted(messages)
    assert states[-1].status is TaskStatus.COMPLETED


async def test_tool_error(fastmcp_url: str) -> None:
    async with _connected(fastmcp_url, push=False) as client:
        result = await client.call_tool("failing_job")
    assert result.is_error
    assert "the job failed, as it always does" in text(result)


async def test_failed_task(fastmcp_url: str) -> None:
    async with _connected(fastmcp_url, push=False) as client:
        handle = await begin(client, "protocol_error_job")
        with pytest.raises(MCPError, match="the job ended in a protocol error") as caught:
            await handle.result()
    assert caught.value.code == -32603


async def test_cancel(fastmcp_url: str) -> None:
    async with _connected(fastmcp_url, push=False) as client:
        handle = await begin(client, "park", seconds=PARKED)
        assert (await handle.status()).status is TaskStatus.WORKING
        await handle.cancel()
        with pytest.raises(TaskWasCancelled):
            await handle.result(10)


async def test_a_wait_that_times_out_cancels(fastmcp_url: str) -> None:
    async with _connected(fastmcp_url, push=False) as client:
        handle = await begin(client, "park", seconds=PARKED)
        with pytest.raises(WaitTimedOut):
            await handle.result(0.3, on_abandon="cancel")
        with pytest.raises(TaskWasCancelled):
            await handle.result(10)


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("confirm_delete", {"filename": "a.txt"}, "deleted a.txt"),
        ("multi_input", {}, "name: accept, confirmation: accept"),
    ],
)
async def test_questions_in_a_task(fastmcp_url: str, tool: str, arguments: dict[str, object], expected: str) -> None:
    async with _connected(fastmcp_url, push=False) as client:
        assert text(await call_tool(client, tool, arguments, timeout=20)) == expected


async def test_a_question_declined_by_hand(fastmcp_url: str) -> None:
    async with _connected(fastmcp_url, push=False) as client:
        handle = await begin(client, "confirm_delete", filename="b.txt")
        async for state in handle.watch():
            if state.status is TaskStatus.INPUT_REQUIRED:
                break
        else:
            pytest.fail("it never asked")
        await handle.answer({key: {"action": "decline"} for key in state.input_requests})
        assert text(await handle.result(10)) == "kept b.txt"


async def test_another_client_resumes(fastmcp_url: str) -> None:
    async with _connected(fastmcp_url) as client:
        task_id = (await begin(client, "slow_compute", seconds=0.6, label="resumed")).id
    async with _connected(fastmcp_url) as other:
        assert text(await resume_task(other, task_id).result(10)) == "resumed: done after 0.6 s"


async def test_unknown_task(fastmcp_url: str) -> None:
    async with _connected(fastmcp_url, push=False) as client:
        with pytest.raises(UnknownTask):
            await resume_task(client, "no-such-task").status()


async def test_leaving_right_after_a_short_task(fastmcp_url: str) -> None:
    """A server without push refuses `subscriptions/listen`; that is no concern of a client that has left by then."""

    async def visit() -> None:
        async with _connected(fastmcp_url) as client:
            await client.call_tool("failing_job")

    for _ in range(8):
        await asyncio.gather(*(visit() for _ in range(4)))
