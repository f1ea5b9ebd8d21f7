"""Servers and clients of 2025-11-25 that are killed in the middle: the other side gets what it waits for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp_types import ElicitResult

from harness.rpc import PATIENCE
from harness.waiting import eventually
from mcp_tasks.client import Ledger, TasksClient, reconnecting_http, resume_task
from tests.client.connecting import LONG, Person, begin, text
from tests.client.processes import client_process, lines_of, logged, server_process

pytestmark = pytest.mark.anyio

QUESTION = "Delete a.txt?"


class Deleter(Person):
    """Somebody who says yes to whatever is to be deleted."""

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        await super().__call__(context, params)
        return ElicitResult(action="accept", content={"confirm": True})


def connect(url: str, person: Any = None, **options: Any) -> Client:
    tasks = TasksClient(patience=LONG, **options)
    return Client(reconnecting_http(url), mode="legacy", elicitation_callback=person, extensions=[tasks])


async def test_a_server_that_is_killed_and_started_again_does_not_end_a_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    async with server_process(tmp_path) as server, connect(server.url, ledger=ledger) as client:
        handle = await begin(client, "park", seconds=0.5)
        plain = asyncio.create_task(client.call_tool("park", {"seconds": 0.6}))
        waiting = asyncio.create_task(handle.result(PATIENCE))
        # A call that has not become a task by then is lost with the server, as any call is.
        await eventually(lambda: len(ledger.entries()) == 2)
        server.kill()
        await eventually(lambda: "cannot be looked at" in caplog.text)
        await server.started()
        with anyio.fail_after(PATIENCE):
            assert [text(await waiting), text(await plain)] == ["ok", "ok"]


async def test_a_new_session_is_begun_with_a_server_that_has_forgotten_the_old_one(tmp_path: Path) -> None:
    async with server_process(tmp_path) as server, connect(server.url) as client:
        before = [tool.name for tool in (await client.list_tools()).tools]
        server.kill()
        await server.started()
        assert [tool.name for tool in (await client.session.list_tools()).tools] == before
        with anyio.fail_after(PATIENCE):
            assert text(await client.call_tool("noop")) == "ok"


async def test_somebody_who_is_still_thinking_when_the_server_comes_back_is_not_asked_again(tmp_path: Path) -> None:
    ready = asyncio.Event()
    person = Deleter(ready=ready)
    async with server_process(tmp_path) as server, connect(server.url, person) as client:
        calling = asyncio.create_task(client.call_tool("confirm_delete", {"filename": "a.txt"}))
        await person.until_asked()
        server.kill()
        await server.started()
        ready.set()
        with anyio.fail_after(PATIENCE):
            assert text(await calling) == "deleted a.txt"
    assert person.asked == [QUESTION]


async def test_a_question_that_was_open_when_the_server_died_is_answered_from_a_new_client(tmp_path: Path) -> None:
    async with server_process(tmp_path) as server:
        person = Deleter(ready=asyncio.Event())
        async with connect(server.url, person) as client:
            handle = await begin(client, "confirm_delete", filename="a.txt")
            waiting = asyncio.create_task(handle.result())
            await person.until_asked()
            server.kill()
            waiting.cancel()
        await server.started()
        async with connect(server.url, Deleter()) as client:
            assert text(await resume_task(client, handle.id).result(PATIENCE)) == "deleted a.txt"


async def test_a_client_that_is_killed_at_a_question_comes_back_for_it(tmp_path: Path) -> None:
    ledger, log = tmp_path / "ledger.db", tmp_path / "people.log"
    legacy = ("--mode", "legacy")
    arguments = ("confirm_delete", json.dumps({"filename": "a.txt"}))
    async with server_process(tmp_path) as server:
        async with client_process(server.url, ledger, log, "start", *legacy, "--think", QUESTION, *arguments) as client:
            await client.line()
            await logged(log, f"asked: {QUESTION}")
        async with client_process(server.url, ledger, log, "resume", *legacy) as client:
            assert await client.results() == {"confirm_delete": "deleted a.txt"}
    assert lines_of(log) == [f"asked: {QUESTION}", f"asked: {QUESTION}", f"answered: {QUESTION}"]
