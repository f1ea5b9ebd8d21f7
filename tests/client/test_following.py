"""Calls and tasks that are followed to their ends, by somebody who is told and can be asked."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

from harness.http import serving
from harness.rpc import PATIENCE
from harness.server import CUSTOM_ERROR, Desk
from mcp_tasks.client import Followed, Follower, Hooks, Ledger, Question, WaitTimedOut, connect, follow
from mcp_tasks.client.servers import connector
from mcp_tasks.errors import Fate, ServerUnreachable

pytestmark = pytest.mark.anyio


class Host(Hooks):
    """Somebody who answers with `answer` when `ready`; None leaves the question open."""

    def __init__(self, answer: Mapping[str, Any] | None = None, *, there: bool = True) -> None:
        self.can_answer: bool = there
        self.ready = asyncio.Event()
        self.ready.set()
        self.asked = asyncio.Event()
        self.states: list[tuple[str, str]] = []
        self.ended: list[Followed] = []
        self._answer = answer

    def on_change(self, followed: Followed) -> None:
        self.states.append(("task" if followed.task_id else "call", followed.status))

    def on_call_ended(self, followed: Followed) -> None:
        self.ended.append(followed)

    async def on_question(self, followed: Followed, question: Question) -> Mapping[str, Any] | None:
        self.asked.set()
        await self.ready.wait()
        return self._answer


NOWHERE = "http://127.0.0.1:9/mcp"
ANN = {"action": "accept", "content": {"name": "Ann"}}


@asynccontextmanager
async def calling(follower: Follower, url: str) -> AsyncGenerator[Client]:
    with anyio.fail_after(PATIENCE):
        async with connect(url, elicit=follower.elicit) as client:
            yield client


async def called(follower: Follower, url: str, tool: str, **arguments: Any) -> Followed:
    async with calling(follower, url) as client:
        return await follower.call(client, tool, arguments, server=url)


def text_of(followed: Followed) -> str:
    return str((followed.result or {})["content"][0]["text"])


async def test_a_call_is_followed_whatever_it_becomes(url: str) -> None:
    host = Host()
    task = await called(Follower(host), url, "echo", value="x")
    assert (task.status, text_of(task)) == ("completed", "x")
    assert task.task_id is not None
    assert host.states[0] == ("call", "working")
    assert host.states[-1] == ("task", "completed")
    plain = await called(Follower(host), url, "greet", name="Ann")
    assert (plain.task_id, plain.status, text_of(plain)) == (None, "completed", "Hello, Ann!")
    assert [call.name for call in host.ended] == ["echo", "greet"]


async def test_a_follower_of_several_calls_says_of_each_what_became_of_it(url: str) -> None:
    follower = Follower(Host(None))
    async with calling(follower, url) as client:
        left = await follower.call(client, "ask_before", server=url)
        assert (left.entry.tool, left.left_open, left.problem) == ("ask_before", True, None)
        greeted = await follower.call(client, "greet", {"name": "Ann"}, server=url)
    assert (greeted.entry.tool, greeted.left_open, text_of(greeted)) == ("greet", False, "Hello, Ann!")


async def test_a_call_that_fails_has_the_error_of_the_server(url: str) -> None:
    failed = await called(Follower(), url, "breaks")
    assert failed.status == "failed"
    assert (failed.error or {})["code"] == CUSTOM_ERROR
    refused = await called(Follower(), url, "no_such_tool")
    assert refused.task_id is None
    assert refused.status in ("failed", "completed")
    assert refused.error is not None or refused.is_error


async def test_a_call_may_be_left_as_soon_as_it_is_a_task(url: str, desk: Desk) -> None:
    follower = Follower()
    async with calling(follower, url) as client:
        left = await follower.call(client, "gated", server=url, detach=True)
    assert left.task_id is not None
    assert (left.status, left.fate) == ("working", None)
    desk.gate.set()


async def test_questions_of_a_task_and_of_a_call_are_answered_by_the_hooks(url: str) -> None:
    assert text_of(await called(Follower(Host(ANN)), url, "ask_name")) == "Hello, Ann!"
    assert text_of(await called(Follower(Host(ANN)), url, "ask_before")) == "Hello, Ann!"


async def test_a_call_that_is_over_is_told_as_it_ended(url: str) -> None:
    host = Host(ANN)
    answered = await called(Follower(host), url, "greet", name="Ann")
    refused = await called(Follower(host), url, "no_such_tool")
    assert [followed.status for followed in host.ended] == [answered.status, refused.status]
    assert host.ended == [answered, refused]


async def test_a_question_of_a_call_is_asked_with_how_the_call_stands(url: str) -> None:
    host, stood = Host(ANN), list[tuple[str, list[Question]]]()

    async def answer(followed: Followed, question: Question) -> Mapping[str, Any]:
        stood.append((followed.status, followed.questions))
        assert question in followed.questions
        return ANN

    host.on_question = answer
    assert text_of(await called(Follower(host), url, "ask_before")) == "Hello, Ann!"
    assert [status for status, _ in stood] == ["input_required"]


@pytest.mark.parametrize("hook", ["on_change", "on_call_ended", "on_question"])
@pytest.mark.parametrize("kind", [OSError, RuntimeError])
async def test_what_a_hook_raises_is_no_problem_of_the_task_and_comes_out_as_it_is(
    url: str, hook: str, kind: type[Exception]
) -> None:
    host = Host(ANN)

    def fail(*_: Any) -> None:
        raise kind("the disk is full")

    setattr(host, hook, fail)
    follower = Follower(host)
    async with calling(follower, url) as client:
        with pytest.raises(kind, match="the disk is full"):
            await follower.call(client, "ask_name", server=url)
    if hook == "on_call_ended":
        return
    left = await called(Follower(), url, "ask_name")
    with pytest.raises(kind, match="the disk is full"):
        await follow([left.entry], host)


def failing(*_: Any, **__: Any) -> Any:
    """A hook that is at the end of its means."""
    raise OSError("the disk is full")


async def test_what_a_hook_raises_at_a_question_of_a_call_ends_the_call(url: str) -> None:
    host = Host(ANN)
    host.on_question = failing
    follower = Follower(host)
    async with calling(follower, url) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(OSError, match="the disk is full"):
            await follower.call(client, "ask_before", server=url)
        assert text_of(await follower.call(client, "greet", {"name": "Ann"}, server=url)) == "Hello, Ann!"


async def test_what_a_hook_raises_at_the_progress_of_a_call_ends_the_call() -> None:
    plain: MCPServer[Any] = MCPServer("plain", log_level="CRITICAL")

    @plain.tool()
    async def endless(ctx: Context) -> None:
        for step in itertools.count():
            await ctx.report_progress(step)
            # From when on there is a hook that fails, and for as long as it takes to be told to stop.
            await asyncio.sleep(0.01)  # sleep: a tool that takes its time

    host = Host()
    follower = Follower(host)
    async with serving(plain) as wire, calling(follower, wire.url) as client:
        told = host.on_change
        host.on_change = lambda followed: failing() if followed.progress else told(followed)
        with anyio.fail_after(PATIENCE), pytest.raises(OSError, match="the disk is full"):
            await follower.call(client, "endless", server=wire.url)


async def test_what_became_of_an_earlier_wait_is_not_said_of_the_next(url: str, desk: Desk) -> None:
    follower = Follower(timeout=0.3)
    async with calling(follower, url) as client:
        late = await follower.call(client, "gated", server=url)
    assert isinstance(late.problem, WaitTimedOut)
    desk.gate.set()
    connect_to = connector()
    # Once it has ended, however long that takes.
    while isinstance((done := (await follower.follow([late.entry], connect_to))[0]).problem, WaitTimedOut):
        pass
    assert (done.status, done.problem, done.fate) == ("completed", None, None)


async def test_a_task_that_is_named_twice_is_followed_once(url: str, desk: Desk) -> None:
    follower = Follower()
    async with calling(follower, url) as client:
        left = await follower.call(client, "gated", server=url, detach=True)
    desk.gate.set()
    first, second = await follow([left.entry, left.entry])
    assert first is second
    assert first.status == "completed"


async def test_a_question_that_nobody_answers_ends_the_wait(url: str) -> None:
    alone = await called(Follower(Host(there=False)), url, "ask_name")
    assert (alone.status, alone.left_open, alone.fate) == ("input_required", False, "left")
    later = await called(Follower(Host(None)), url, "ask_name")
    assert (later.status, later.left_open) == ("input_required", True)
    assert [request["params"]["message"] for request in later.input_requests.values()] == ["What is your name?"]


@pytest.mark.parametrize(("on_abandon", "fate"), [("leave", "left"), ("cancel", "cancelled")])
async def test_the_time_is_up_for_a_task_that_has_not_ended(url: str, on_abandon: Any, fate: Fate) -> None:
    late = await called(Follower(on_abandon=on_abandon, timeout=0.3), url, "gated")
    assert isinstance(late.problem, WaitTimedOut)
    assert (late.problem.fate, late.problem.seconds, late.problem.task_id) == (fate, 0.3, late.task_id)
    assert late.fate == fate


async def test_no_time_passes_while_somebody_is_asked(url: str) -> None:
    host = Host(ANN)
    host.ready.clear()
    # More than a busy machine needs to have it asked, and less than the answer takes.
    follower = Follower(host, timeout=3)
    async with asyncio.TaskGroup() as group:
        calling = group.create_task(called(follower, url, "ask_name"))
        await host.asked.wait()
        await asyncio.sleep(3.2)  # sleep: longer than the limit, which is what is tested
        host.ready.set()
    assert text_of(calling.result()) == "Hello, Ann!"


async def test_tasks_of_a_ledger_are_followed_and_kept_results_are_not_asked_for_again(url: str, tmp_path: Any) -> None:
    ledger = Ledger(tmp_path / "ledger.db", keep_results=True)
    follower = Follower()
    with anyio.fail_after(PATIENCE):
        async with connect(url, ledger=ledger, elicit=follower.elicit) as client:
            for value in ("a", "b"):
                await follower.call(client, "echo", {"value": value}, server=url, detach=value == "a")
        entries = ledger.entries()
        ended = await follow(entries, ledger=ledger)
        assert sorted(text_of(each) for each in ended) == ["a", "b"]
        kept = [entry for entry in ledger.entries() if entry.result is not None]
        assert len(kept) == 2
        # Where nobody is any more.
        moved = [replace(entry, server=NOWHERE) for entry in kept]
        assert [each.problem for each in await follow(moved)] == [None, None]
        # Time that is up for another task is not up for these.
        async with connect(url, ledger=ledger, elicit=follower.elicit) as client:
            await follower.call(client, "gated", server=url, detach=True)
        late = await follow(ledger.entries(), ledger=ledger, timeout=0.3)
        assert [isinstance(each.problem, WaitTimedOut) for each in late] == [False, False, True]
        assert [each.status for each in late] == ["completed", "completed", "working"]
    [gone] = await follow([replace(kept[0], server=NOWHERE, status="working", result=None)])
    assert isinstance(gone.problem, ServerUnreachable)
    assert gone.status == "unknown"
    ledger.close()
