"""What a listener is told, when its store fails in between as well, and when its stream ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import anyio
import pytest

from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import TaskRecord
from mcp_tasks.model.record import Outcome
from mcp_tasks.protocol.dialect import ModernDialect
from mcp_tasks.protocol.listen import Listening, StreamEnds, honoured
from mcp_tasks.runtime import Ending, Run
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.base import Hint
from tests.unit.running import CLIENT, LIMIT, create, launch, ok, running, settle, until_final

pytestmark = pytest.mark.anyio


async def body(run: Run) -> Ending:
    return ok()


class Unsteady(MemoryStore):
    """A store that is away for a while, or forgets how a task ended."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.forgets = False

    async def get(self, task_id: str) -> TaskRecord | None:
        if self.is_away:
            raise StoreUnavailable("the disk is full")
        return await super().get(task_id)

    async def outcome(self, task_id: str) -> Outcome | None:
        return None if self.forgets else await super().outcome(task_id)


async def test_a_state_that_cannot_be_read_is_told_with_the_next_change() -> None:
    store = Unsteady()
    async with running(body, store=store) as runtime:
        task = await create(runtime)
        following = Listening(runtime, ModernDialect(), [task.id]).follow()
        store.is_away = True
        assert await following.next() is None
        store.is_away = False
        # Nothing changed since: the client polls as well.
        assert await following.next() is None
        await runtime.cancel(task, "enough", actor=CLIENT)
        told = await following.next()
        assert told is not None
        assert told.fields["status"] == "cancelled"
        following.stop()


async def test_a_task_that_expires_while_it_is_read_is_not_told_of() -> None:
    store = Unsteady()
    async with running(body, store=store) as runtime:
        task = await launch(runtime)
        await until_final(runtime, task)
        store.forgets = True
        following = Listening(runtime, ModernDialect(), [task.id]).follow()
        assert await following.next() is None
        following.stop()


async def test_a_listener_that_waits_is_told_of_the_next_change() -> None:
    async with running(body) as runtime:
        task = await create(runtime)
        async with aclosing(Listening(runtime, ModernDialect(), [task.id]).states()) as states:
            with anyio.fail_after(LIMIT):
                assert (await anext(states)).fields["status"] == "working"
                waiting = asyncio.ensure_future(anext(states))
                await settle()
                assert not waiting.done()
                await runtime.cancel(task, "enough", actor=CLIENT)
                assert (await waiting).fields["status"] == "cancelled"
        assert runtime.hints.listened() == []


async def test_a_hint_of_what_was_told_already_is_not_looked_up_again() -> None:
    store = Unsteady()
    async with running(body, store=store) as runtime:
        task = await create(runtime)
        following = Listening(runtime, ModernDialect(), [task.id]).follow()
        assert await following.next() is not None
        store.is_away = True
        runtime.hints.put(Hint(task.id, task.version))
        assert await following.next() is None
        store.is_away = False
        # A hint may run ahead of what is there: the state is the one that was told.
        runtime.hints.put(Hint(task.id, task.version + 1))
        assert await following.next() is None
        following.stop()


async def test_a_task_that_is_gone_is_not_told_of() -> None:
    async with running(body) as runtime:
        task = await create(runtime)
        following = Listening(runtime, ModernDialect(), [task.id]).follow()
        await runtime.store.delete(task.id, expected=task.version)
        assert await following.next() is None
        following.stop()


async def test_a_stream_is_ended_in_its_second_unless_it_stopped_before() -> None:
    async with running(body) as runtime:
        ended, ends = asyncio.Event(), StreamEnds(now=lambda: 100.0)

        def never() -> None:
            raise AssertionError("it stopped before")

        stopped = Listening(runtime, ModernDialect(), [], ends=ends, ends_in=100).follow(end=never)
        stopped.stop()
        following = Listening(runtime, ModernDialect(), [], ends=ends, ends_in=100).follow(end=ended.set)
        with anyio.fail_after(LIMIT):
            await ended.wait()
        following.stop()


async def test_of_many_tasks_those_that_were_made_otherwise_are_left_out_and_others_have_their_turn() -> None:
    async with running(body) as runtime:
        task = await create(runtime)
        meanwhile: list[str] = []

        async def listen(methods: set[str]) -> Sequence[str]:
            asyncio.get_running_loop().call_soon(meanwhile.append, "another's turn")
            named = [f"task_{number}" for number in range(100)]
            return await honoured(runtime, [*named, task.id], None, methods=methods)

        assert await listen({"tools/call"}) == [task.id]
        assert meanwhile == ["another's turn"]
        assert await listen({"prompts/get"}) == []
