"""Questions of tasks on the 2025-11-25 wire: on one stream at a time, until they are answered."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from mcp_tasks import Tasks
from tests.helpers.http import HttpWire, serving
from tests.helpers.server import QUICK, build
from tests.legacy.http_session import RELATED, open_session

pytestmark = pytest.mark.anyio

ELICIT, CANCELLED = "elicitation/create", "notifications/cancelled"


@asynccontextmanager
async def served(*, json_response: bool = False) -> AsyncGenerator[HttpWire]:
    async with serving(build(Tasks("memory://", settings=QUICK)), json_response=json_response) as wire:
        yield wire


async def test_a_question_goes_out_on_an_open_result_and_its_answer_ends_the_task() -> None:
    async with served() as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            task_id = await client.create("gated_name") if False else await client.create("ask_name")
            asked = await own.request(ELICIT)
            assert asked["params"]["_meta"][RELATED] == {"taskId": task_id}
            await client.accept(asked, name="Ada")
            assert await client.result(task_id) == "Hello, Ada!"


async def test_without_a_stream_of_its_own_the_question_waits_for_a_result_to_be_asked_for() -> None:
    async with served() as wire:
        client = await open_session(wire)
        task_id = await client.create("ask_name")
        await client.until_status(task_id, "input_required")
        async with client.open("tasks/result", taskId=task_id) as result:
            asked = await result.request(ELICIT)
            assert asked["params"]["message"] == "What is your name?"
            assert asked["params"]["_meta"][RELATED] == {"taskId": task_id}
            await client.accept(asked, name="Ada")
            answer = await result.answer()
        assert answer["result"]["content"][0]["text"] == "Hello, Ada!"
        assert len(result.sent(ELICIT)) == 1
        assert result.sent(CANCELLED) == []
