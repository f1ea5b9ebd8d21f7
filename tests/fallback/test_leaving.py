"""Callers that leave before they are answered, that want the same, and servers that stop while they wait."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from harness.http import serving
from harness.older import OlderClient, Pending, pipe_session
from harness.rpc import NOTHING, TASKS, Tasking, request, text_of
from harness.stdio import StdioWire, stdio_process
from tests.fallback.scenes import MODULE, Call, Place, handle, legs, older, place
from tests.fallback.server import FileJobs, Jobs, Served, build


@dataclass
class Scene:
    """A server that asks who its callers are, and one that does not. Calls wait as long as they usually do."""

    served: Served
    url: str
    json_url: str
    guarded: str

    @property
    def jobs(self) -> Jobs:
        return self.served.jobs

    async def goes_on(self, job: str) -> None:
        """The tool was not told to stop, and ends when it may."""
        assert self.jobs.count("stopped", job) == 0
        self.jobs.open(job)
        await self.jobs.until("end", job)
        assert self.jobs.counts(job, "start", "stopped") == (1, 0)


@pytest.fixture(scope="module")
async def scene() -> AsyncGenerator[Scene]:
    served = build()
    guarded = build(jobs=served.jobs, auth=True)
    async with (
        serving(served.server) as wire,
        serving(served.server, json_response=True) as plain,
        serving(guarded.server) as locked,
    ):
        yield Scene(served, wire.url, plain.url, locked.url)


async def begun(jobs: Jobs, client: OlderClient, tool: str, job: str) -> Pending:
    pending = client.begin("tools/call", {"name": tool, "arguments": {"job": job}})
    await jobs.until("start", job)
    return pending


async def give_up(client: OlderClient, pending: Pending) -> None:
    """Do what a host does that has waited long enough."""
    await client.notify("notifications/cancelled", {"requestId": pending.request_id, "reason": "took too long"})
    await pending.leave()


async def cut(calling: asyncio.Task[Any]) -> None:
    calling.cancel()
    await asyncio.wait([calling])


# --- leaving --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["closes its stream", "closes its connection", "says so", "loses its connection"])
async def test_what_becomes_of_the_work_is_what_its_author_said(scene: Scene, how: str) -> None:
    has_left = how != "loses its connection"
    # The first goes on to report, to nobody.
    for tool in ("talks", "dropped"):
        job = f"{how} {tool}"
        if how.startswith("closes"):
            # A client of the newest wire, answered with a stream or with plain JSON.
            async with legs(scene.url if how == "closes its stream" else scene.json_url) as client:
                calling = asyncio.create_task(Call(tool, {"job": job}).leg(client, progress_token="token"))
                await scene.jobs.until("start", job)
                await cut(calling)
        else:
            # An older one that loses its connection has not left: it may come back for the stream.
            async with older(scene.url) as client:
                pending = await begun(scene.jobs, client, tool, job)
                await (give_up(client, pending) if has_left else pending.leave())
                assert text_of((await client.call("quick", {"job": f"after {job}"})).result) == f"after {job} is done"
    if has_left:
        await scene.jobs.until("stopped", f"{how} dropped")
    else:
        await anyio.sleep(2.3)  # sleep: the time in which it would be stopped, and must not
        await scene.goes_on(f"{how} dropped")
    await scene.goes_on(f"{how} talks")


@pytest.mark.parametrize(("tool", "event"), [("asks_by_returning", "end"), ("dropped_that_asks", "stopped")])
async def test_a_caller_that_leaves_as_the_work_begins_that_it_was_asked_for_is_one_that_leaves(
    scene: Scene, tool: str, event: str
) -> None:
    async with legs(scene.url) as client:
        call = Call(tool, {"job": tool})
        [key] = await call.asked(client)
        leaving = asyncio.create_task(call.leg(client, {key: {"action": "accept", "content": {"name": "Ada"}}}))
        await scene.jobs.until("start", tool)
        await cut(leaving)
    if event == "end":
        await anyio.sleep(0.3)  # sleep: the time in which it would be stopped, and must not
        scene.jobs.open(tool)
    await scene.jobs.until(event, tool)
    assert scene.jobs.counts(tool, "start", event) == (1, 1)


async def test_a_leg_that_is_left_can_be_taken_again(scene: Scene) -> None:
    async with legs(scene.url) as client:
        call = Call("long", {"job": "left"})
        await call.begin(client)
        leaving = asyncio.create_task(call.leg(client))
        await scene.jobs.until("request", "left", 2)
        await cut(leaving)
        scene.jobs.open("left")
        assert text_of(await call.end(client)) == "left is done"
    assert scene.jobs.count("start", "left") == 1


@pytest.mark.parametrize("door", ["url", "json_url"])
async def test_what_the_work_of_a_caller_that_left_came_to_is_kept(scene: Scene, door: str) -> None:
    job = f"kept {door}"
    async with legs(getattr(scene, door)) as client:
        leaving = asyncio.create_task(Call("gated", {"job": job}).leg(client))
        await scene.jobs.until("start", job)
        await cut(leaving)
        # Otherwise it would take the result for given, and forget it.
        await anyio.sleep(0.3)  # sleep: nobody is told when the server sees that its caller has left
        scene.jobs.open(job)
        await scene.jobs.until("end", job)
        await anyio.sleep(0.2)  # sleep: the time in which it would be forgotten, and must not
        told: list[str] = []
        for task in await scene.served.all_tasks():
            if task.name == "gated" and task.is_final:
                told.append(text_of(await client.call("task_status", task_id=task.id)))
    assert f"{job} is done" in told
    assert scene.jobs.counts(job, "start", "end") == (1, 1)


# --- joining --------------------------------------------------------------------------------------------------------


async def handed(client: Tasking, tool: str = "joined", **arguments: Any) -> str:
    return handle(await Call(tool, arguments).end(client))


async def test_equal_calls_of_every_kind_of_client_have_one_task_and_one_start(scene: Scene) -> None:
    async with legs(scene.url) as client, older(scene.url) as old:
        ids = set(await asyncio.gather(handed(client, job="one", number=1), handed(client, number=1, job="one")))
        ids.add(handle((await old.call("joined", {"job": "one", "number": 1})).result))
        tasks = client.declaring(TASKS)
        ids.add(await tasks.create("joined", job="one", number=1))
        [task_id] = ids
        # Other arguments are another call.
        assert await handed(client, job="one", number=2) != task_id
        scene.jobs.open("one")
        assert text_of((await tasks.until(task_id, "completed"))["result"]) == "one is done"
        assert scene.jobs.count("start", "one") == 2
        # After the end a call starts anew, and what the first came to is still there for whoever was told of it.
        assert text_of(await Call("joined", {"job": "one", "number": 1}).end(client)) == "one is done"
        assert scene.jobs.count("start", "one") == 3
        assert text_of(await client.declaring(NOTHING).call("task_status", task_id=task_id)) == "one is done"


async def test_a_cancelled_task_that_of_another_owner_and_one_of_another_tool_are_not_joined(scene: Scene) -> None:
    async with legs(scene.url) as client:
        task_id = await handed(client, job="cancelled")
        await client.call("task_cancel", task_id=task_id)
        assert await handed(client, job="cancelled") != task_id
        one, two = await asyncio.gather(handed(client, "long", job="own"), handed(client, "long", job="own"))
        assert one != two
    async with legs(scene.guarded, token="ada") as ada, legs(scene.guarded, token="eve") as eve:
        of_ada, again, of_eve = [await handed(each, job="whose") for each in (ada, ada, eve)]
        assert of_ada == again != of_eve
    assert [scene.jobs.count("start", job) for job in ("cancelled", "own", "whose")] == [2, 2, 2]


# --- servers that end -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def pipes(here: Place) -> AsyncGenerator[StdioWire]:
    """A server process; it may be ended before the block is."""
    try:
        async with stdio_process(here.config(), module=MODULE) as wire:
            yield wire
    except AssertionError as exc:
        if "ended by itself" not in str(exc):
            raise


async def test_over_stdio_work_survives_its_host_and_is_found_by_the_next_one() -> None:
    with place() as here:
        jobs: FileJobs = here.jobs
        async with pipes(here) as wire, pipe_session(wire) as client:
            await give_up(client, await begun(jobs, client, "gated", "given-up"))
            await give_up(client, await begun(jobs, client, "dropped", "dropped"))
            await jobs.until("stopped", "dropped")
            pending = await begun(jobs, client, "stepped", "host-ends")
            await jobs.until("one", "host-ends")
            listed = (await client.call("task_status")).result["structuredContent"]["tasks"]
            assert {task["tool"]: task["status"] for task in listed} == {
                "gated": "working",
                "stepped": "working",
                "dropped": "cancelled",
            }
            jobs.open("given-up")
            await jobs.until("end", "given-up")
            # Close the pipes, as a host does that ends.
            assert wire.process.stdin is not None
            wire.process.stdin.close()
            with anyio.fail_after(10):
                await wire.process.wait()
            await pending.leave()
        jobs.open("host-ends")
        async with pipes(here) as wire:
            # The next one speaks the newest wire.
            client = Tasking(wire, NOTHING)
            results = {task["tool"]: await client.call("task_status", task_id=task["taskId"]) for task in listed}
            assert text_of(results["gated"]) == "given-up is done"
            assert text_of(results["stepped"]) == "host-ends is done"
            assert 'The tool "dropped" was cancelled' in text_of(results["dropped"])
            call = request("tools/call", {"name": "dropped", "arguments": {"job": "newest"}}, capabilities=NOTHING)
            await wire.write(json.dumps(call))
            await jobs.until("start", "newest")
            await wire.notify("notifications/cancelled", {"requestId": call["id"]})
            await jobs.until("stopped", "newest")
        assert jobs.counts("host-ends", "one", "two") == (1, 1)


async def test_a_server_that_is_told_to_stop_answers_at_once_and_nothing_is_lost() -> None:
    with place() as here:
        server, jobs = here.serve(), here.jobs
        async with legs(server.url) as client, older(server.url) as old:
            pending = await begun(jobs, old, "slow_steps", "older")
            leg = asyncio.create_task(Call("slow_steps", {"job": "newest"}).leg(client))
            # One that ends with its caller is not cancelled with the server.
            dropped = await begun(jobs, old, "dropped", "dropped")
            for job in ("older", "newest"):
                await jobs.until("one", job)
            stopping = asyncio.create_task(anyio.to_thread.run_sync(server.stop))
            # Not to come back: it may find nobody, and have heard nothing else.
            ids = {"older": handle((await pending.reply()).result), "newest": handle((await leg).result)}
            ids["dropped"] = handle((await dropped.reply()).result)
            assert (await stopping) < 10
        server.start()
        for job in ("older", "newest"):
            jobs.open(job)
        async with legs(server.url) as client, older(server.url) as old:
            assert text_of(await Call("task_status", {"task_id": ids["newest"]}).end(client)) == "newest is done"
            assert text_of((await old.call("task_status", {"task_id": ids["older"]})).result) == "older is done"
            told = text_of((await old.call("task_status", {"task_id": ids["dropped"]})).result)
            assert "was stopped before it had finished" in told
        assert [jobs.counts(job, "one", "two") for job in ("older", "newest")] == [(1, 1)] * 2
