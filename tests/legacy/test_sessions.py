"""Sessions of the 2025-11-25 wire: what they cost, and that nothing of them is left when they end."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakSet

import anyio
import pytest

from harness.http import HttpWire, initialize, serving
from harness.rpc import EVERYTHING, PATIENCE, hello, legacy_request
from harness.server import QUICK, Desk
from mcp_tasks import Tasks
from mcp_tasks.legacy.questions import OpenQuestions
from mcp_tasks.legacy.sessions import Session
from mcp_tasks.stores.memory import MemoryStore
from tests.legacy.asking_server import build_asking
from tests.legacy.http_session import HttpSession, open_session

pytestmark = pytest.mark.anyio

STATUS = "notifications/tasks/status"


@asynccontextmanager
async def served(desk: Desk | None = None, store: Any = "memory://", **options: Any) -> AsyncGenerator[HttpWire]:
    async with serving(build_asking(Tasks(store, settings=QUICK, **options), desk)) as wire:
        yield wire


_of_other_tests: WeakSet[Session | OpenQuestions] = WeakSet()


@pytest.fixture(autouse=True)
def _count_from_here() -> None:
    """What tests before this one made and is not collected yet, whoever still holds it, is none of ours."""
    gc.collect()
    _of_other_tests.update(each for each in gc.get_objects() if isinstance(each, Session | OpenQuestions))


def sessions() -> list[Session]:
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, Session) and each not in _of_other_tests]


async def until_sessions(number: int) -> None:
    with anyio.fail_after(PATIENCE):
        while len(sessions()) != number:  # noqa: ASYNC110 - nobody tells when an object is collected
            await anyio.sleep(0.05)


async def test_no_log_has_the_whole_id_of_a_session(caplog: pytest.LogCaptureFixture) -> None:
    """The SDK logs it in full, and whoever has it uses the session."""
    caplog.set_level("INFO", logger="mcp")
    async with served() as wire:
        session, _ = await initialize(wire, EVERYTHING)
        session_id = dict(session.headers)["mcp-session-id"]
        gone = [*session.headers]
        assert (await wire.client.delete(wire.url, headers=gone)).status_code == 200
        assert (await wire.raw_post(json.dumps(legacy_request("ping")), gone)).status_code == 404
    said = [record.getMessage() for record in caplog.records if record.name.startswith("mcp.server")]
    for words in ("Created new transport", "Terminating session"):
        assert [line for line in said if words in line and session_id[:8] in line], words
    assert not [line for line in said if session_id in line]


async def test_a_session_that_ends_leaves_nothing_behind() -> None:
    async with served() as wire:
        await until_sessions(0)
        client = await open_session(wire)
        async with client.listen() as own:
            await client.create("ask_name")
            await own.request("elicitation/create")
            assert len(sessions()) == 1
            asking = [task for task in asyncio.all_tasks() if task.get_name() == "mcp-tasks-question"]
            assert len(asking) == 1
            await client.delete()
        await until_sessions(0)
        [questions] = [
            each for each in gc.get_objects() if isinstance(each, OpenQuestions) and each not in _of_other_tests
        ]
        assert questions.is_empty
        assert [task for task in asyncio.all_tasks() if task.get_name() == "mcp-tasks-question"] == []


async def test_a_client_that_never_completes_its_handshake_can_use_tasks_and_leaves_nothing_behind() -> None:
    async with served() as wire:
        await until_sessions(0)
        reply = await wire.post(json.dumps(legacy_request("initialize", hello(EVERYTHING))), [])
        client = HttpSession(wire, reply.headers["mcp-session-id"])
        task_id = await client.create("echo", {"value": 7})
        assert await client.result(task_id) == "7"
        asking = await client.create("ask_name")
        async with client.open("tasks/result", taskId=asking) as result:
            await result.request("elicitation/create")
        assert len(sessions()) == 1
        await client.delete()
        await until_sessions(0)
        [questions] = [
            each for each in gc.get_objects() if isinstance(each, OpenQuestions) and each not in _of_other_tests
        ]
        with anyio.fail_after(PATIENCE):
            while not questions.is_empty:  # noqa: ASYNC110 - nobody tells
                await anyio.sleep(0.05)


async def test_a_client_that_says_twice_that_its_handshake_is_complete_is_told_once() -> None:
    desk = Desk()
    async with served(desk) as wire:
        client = await open_session(wire)
        await client.notify("notifications/initialized")
        async with client.listen() as own:
            desk.gate.set()
            tasks: list[str] = []
            for number in (1, 2):
                tasks.append(await client.create("gated"))
                await own.request(STATUS, number=number)
            # What was to be told twice of the first would have been before the second.
            assert [told["params"]["taskId"] for told in own.sent(STATUS)] == tasks


async def test_many_tasks_of_a_session_cost_no_asyncio_task_each() -> None:
    desk = Desk()
    async with served(desk, concurrency=1) as wire:
        client = await open_session(wire)
        async with client.listen() as own:
            first = await client.create("gated")
            before = len(asyncio.all_tasks())
            task_ids = [await client.create("gated") for _ in range(300)]
            with anyio.fail_after(PATIENCE):
                # The answer to each has a head start, for which something has to wait.
                while any(task.get_name() == "mcp-tasks-head-start" for task in asyncio.all_tasks()):  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            assert len(asyncio.all_tasks()) < before + 20
            desk.gate.set()
            ended = {first, *task_ids}
            with anyio.fail_after(PATIENCE):
                while ended - {each["params"]["taskId"] for each in own.sent(STATUS)}:  # noqa: ASYNC110
                    await anyio.sleep(0.05)
        [session] = sessions()
        assert session.followed == {}


async def test_a_session_forgets_adopted_tasks_that_are_gone() -> None:
    desk = Desk()
    async with served(desk) as wire:
        maker, finder = await open_session(wire), await open_session(wire)
        answer = await maker.ask("tools/call", name="gated", arguments={}, task={"ttl": 100})
        task_id = answer["result"]["task"]["taskId"]
        assert await finder.status(task_id) == "working"
        assert [(1, task_id)] in [session.adopted() for session in sessions()]
        desk.gate.set()
        with anyio.fail_after(PATIENCE):
            while any(session.adopted() for session in sessions()):  # noqa: ASYNC110 - time passes
                await anyio.sleep(0.05)


async def test_the_id_of_the_http_session_is_not_kept_with_the_task() -> None:
    store = MemoryStore()
    async with served(store=store) as wire:
        client = await open_session(wire, EVERYTHING)
        task_id = await client.create("echo", {"value": 7})
        record = await store.get(task_id)
        assert record is not None
        assert record.session is not None
        assert record.session != client.session_id
        assert client.session_id not in repr(record)
