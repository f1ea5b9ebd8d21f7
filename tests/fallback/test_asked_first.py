"""Calls that are asked something before their work begins: the request with the answers begins it, once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Any

import anyio
import pytest
from mcp.server.mcpserver import Context, Resolve
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

from harness.rpc import Tasking, accept, text_of
from harness.server import Name, resolve_name
from mcp_tasks import Tasks
from mcp_tasks.fallback.options import Fallback
from tests.fallback.matrix.legs import Call
from tests.fallback.moods import Jobs, client_of, quick_tasks, server_of

pytestmark = pytest.mark.anyio

SHORT = Fallback(wait=timedelta(seconds=0.2))


@dataclass
class Scene:
    """A server whose tools are asked for first, and a client of it."""

    jobs: Jobs
    client: Tasking

    async def asked(self, tool: str, job: str, **more: Any) -> tuple[Call, str]:
        """A call that was asked something, and the key of the question."""
        call = Call(tool, {"job": job, **more})
        [key] = (await call.begin(self.client))["inputRequests"]
        return call, key


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    jobs = Jobs()
    tasks = quick_tasks(fallback=SHORT)
    async with client_of(_server(tasks, jobs)) as client:
        yield Scene(jobs, client)


def _server(tasks: Tasks, jobs: Jobs) -> Any:
    server = server_of(tasks)

    @server.tool()
    @tasks.task()
    async def asks_before(job: str, who: Annotated[Name, Resolve(resolve_name)]) -> str:
        """Have the SDK ask before the body."""
        return f"{who.name}: {await jobs.work(job)}"

    @server.tool()
    @tasks.task(join_running=True)
    async def joined(job: str, who: Annotated[Name, Resolve(resolve_name)]) -> str:
        """The same, and be started once for all who want the same."""
        return f"{who.name}: {await jobs.work(job)}"

    async def asking(job: str, ctx: Context, size: int) -> str | InputRequiredResult:
        if not ctx.input_responses:
            question = ElicitRequestFormParams(message="Who is it?", requested_schema=Name.model_json_schema())
            state = f"{job} " + "x" * size
            return InputRequiredResult(input_requests={"who": ElicitRequest(params=question)}, request_state=state)
        done = await jobs.work(job)
        return f"{done}, with {len(ctx.request_state or '')} characters"

    @server.tool()
    @tasks.task()
    async def asks_by_returning(job: str, ctx: Context, size: int = 0) -> str | InputRequiredResult:
        """Ask by returning a question and being called again."""
        return await asking(job, ctx, size)

    # A call waits as long as it usually does, so that the caller leaves before it is answered.
    for name, ways in {"patient": Fallback(), "dropped": Fallback(when_caller_leaves="cancel")}.items():
        server.add_tool(tasks.task(name=name, fallback=ways)(_by_returning(asking)), name=name)
    return server


def _by_returning(asking: Any) -> Any:
    async def asks(job: str, ctx: Context) -> str | InputRequiredResult:
        return await asking(job, ctx, 0)

    return asks


@pytest.mark.parametrize("tool", ["asks_before", "asks_by_returning"])
async def test_answers_that_come_three_times_start_the_work_once(scene: Scene, tool: str) -> None:
    call, key = await scene.asked(tool, "thrice")
    answers = {key: accept(name="Ada")}
    twins = [replace(call) for _ in range(3)]
    # Two at once, and one when the work has been going on for a while.
    for reply in await asyncio.gather(*(twin.leg(scene.client, answers) for twin in twins[:2])):
        assert reply.result["resultType"] == "input_required"
    await twins[2].leg(scene.client, answers)
    scene.jobs.gate.set()
    ends = [text_of(await twin.end(scene.client)) for twin in twins]
    assert all("thrice is done" in end for end in ends)
    # And once more when it has ended.
    assert "thrice is done" in text_of(await call.end(scene.client, answers))
    assert scene.jobs.happened["start thrice"] == 1


async def test_calls_that_were_answered_otherwise_are_not_joined(scene: Scene) -> None:
    calls = [await scene.asked("joined", "same") for _ in range(2)]
    for (call, key), name in zip(calls, ("Ada", "Bob"), strict=True):
        await call.leg(scene.client, {key: accept(name=name)})
    scene.jobs.gate.set()
    ends = [text_of(await call.end(scene.client)) for call, _ in calls]
    assert ends == ["Ada: same is done", "Bob: same is done"]


async def test_a_state_of_the_tools_own_may_be_as_large_as_in_a_plain_call(scene: Scene) -> None:
    call, key = await scene.asked("asks_by_returning", "large", size=300_000)
    scene.jobs.gate.set()
    result = await call.end(scene.client, {key: accept(name="Ada")})
    assert text_of(result) == "large is done, with 300006 characters"


@pytest.mark.parametrize(("tool", "end"), [("patient", "end"), ("dropped", "stopped")])
async def test_a_caller_that_leaves_as_the_work_begins_is_one_that_leaves(scene: Scene, tool: str, end: str) -> None:
    call, key = await scene.asked(tool, "left")
    leaving = asyncio.create_task(call.leg(scene.client, {key: accept(name="Ada")}))
    await scene.jobs.until("start left")
    leaving.cancel()
    await asyncio.wait([leaving])
    # Only then may the work end.
    await anyio.sleep(0.5)  # sleep: nobody is told when the server sees that its caller has left
    scene.jobs.gate.set()
    await scene.jobs.until(f"{end} left")
    assert scene.jobs.happened == {"start left": 1, f"{end} left": 1}
