"""Callers that leave before they are answered, and servers that are told to stop while they wait."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from tests.fallback.matrix.legs import Call, legs
from tests.fallback.matrix.serving import MODULE, HttpServers, Place, place
from tests.fallback.moods import Jobs, client_of, quick_tasks, server_of

from harness.http import HttpWire, http_client
from harness.older import HttpClient, OlderClient, Pending, http_session, pipe_session
from harness.rpc import NOTHING, Tasking, request, text_of
from harness.stdio import StdioWire, stdio_process
from mcp_tasks.protocol.owners import Caller

pytestmark = pytest.mark.anyio

CONFIG: dict[str, Any] = {
    "gated": {
        "dropped": {"when_caller_leaves": "cancel"},
        "dropped_early": {"when_caller_leaves": "cancel", "wait": 0.1, "legs": 1},
    }
}
"""`gated` goes on without its caller, the others do not. Calls wait as long as they usually do, 25 seconds, if nothing
else is said."""


@dataclass
class Scene:
    """A server, and one that asks who its callers are."""

    place: Place
    servers: HttpServers

    async def goes_on(self, job: str) -> None:
        """The tool was not told to stop, and ends when it may."""
        assert self.place.count("stopped", job) == 0
        self.place.open(job)
        await self.place.until("end", job)
        assert (self.place.count("start", job), self.place.count("stopped", job)) == (1, 0)

    async def is_cancelled(self, job: str) -> None:
        """The tool was told to stop."""
        await self.place.until("stopped", job)


@pytest.fixture(scope="module")
async def scene() -> AsyncGenerator[Scene]:
    with place() as here:
        yield Scene(here, here.serve("sse", "json", variants={"guarded": {"auth": True}}, **CONFIG))


@asynccontextmanager
async def older(url: str, token: str | None = None) -> AsyncGenerator[HttpClient]:
    """A client of the older wire."""
    async with http_client() as http, http_session(HttpWire(url, http, token=token)) as client:
        yield client


async def begun(place: Place, client: OlderClient, tool: str, job: str) -> Pending:
    """A call whose tool has begun."""
    pending = client.begin("tools/call", {"name": tool, "arguments": {"job": job}})
    await place.until("start", job)
    return pending


async def give_up(client: OlderClient, pending: Pending) -> None:
    """Do what a host does that has waited long enough."""
    await client.notify("notifications/cancelled", {"requestId": pending.request_id, "reason": "took too long"})
    await pending.leave()


# --- over HTTP ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", ["sse", "json"])
async def test_a_client_of_the_newest_wire_leaves_by_closing_its_stream(scene: Scene, door: str) -> None:
    async with legs(scene.servers.door(door)) as client:
        for tool in ("gated", "dropped"):
            job = f"closed-{door}-{tool}"
            calling = asyncio.create_task(Call(tool, {"job": job}).leg(client))
            await scene.place.until("start", job)
            calling.cancel()
            await asyncio.wait([calling])
    await scene.goes_on(f"closed-{door}-gated")
    await scene.is_cancelled(f"closed-{door}-dropped")


async def test_an_older_client_leaves_by_saying_so(scene: Scene) -> None:
    async with older(scene.servers.url) as client:
        for tool in ("gated", "dropped"):
            await give_up(client, await begun(scene.place, client, tool, f"cancelled-{tool}"))
    await scene.is_cancelled("cancelled-dropped")
    await scene.goes_on("cancelled-gated")


async def test_an_older_client_that_loses_its_connection_has_not_left(scene: Scene) -> None:
    # That wire has it so: it may come back for the stream, and says it if it does not want the answer.
    async with older(scene.servers.url) as client:
        for tool in ("gated", "dropped"):
            pending = await begun(scene.place, client, tool, f"lost-{tool}")
            await pending.leave()
        # It is still served.
        assert text_of((await client.call("quick", {"job": "after"})).result) == "after is done"
    await scene.goes_on("lost-gated")
    await scene.goes_on("lost-dropped")


async def test_who_asks_how_the_work_is_and_leaves_does_not_stop_it(scene: Scene) -> None:
    job = "looked-at"
    async with older(scene.servers.url) as client, legs(scene.servers.url) as newest:
        told = (await client.call("dropped_early", {"job": job})).result
        # It was told that the work goes on, so it does.
        look = {"name": "task_status", "arguments": {"task_id": told["structuredContent"]["taskId"], "job": job}}
        pending = client.begin("tools/call", look)
        await scene.place.until("request", job, 2)
        await anyio.sleep(0.1)  # sleep: it waits by then
        await give_up(client, pending)
        leaving = asyncio.create_task(newest.ask("tools/call", look))
        await scene.place.until("request", job, 3)
        await anyio.sleep(0.1)  # sleep: it waits by then
        leaving.cancel()
        await asyncio.wait([leaving])
        await anyio.sleep(0.2)  # sleep: the time in which the work would be stopped, and must not
    await scene.goes_on(job)


async def test_a_leg_that_is_left_can_be_taken_again(scene: Scene) -> None:
    async with legs(scene.servers.url) as client:
        call = Call("long", {"job": "left"})
        await call.begin(client)
        leaving = asyncio.create_task(call.leg(client))
        await scene.place.until("request", "left", 2)
        leaving.cancel()
        await asyncio.wait([leaving])
        scene.place.open("left")
        assert text_of(await call.end(client)) == "left is done"
    assert scene.place.count("start", "left") == 1


@pytest.mark.parametrize("json_response", [False, True])
async def test_what_the_work_of_a_caller_that_left_came_to_is_kept(json_response: bool) -> None:
    def is_ada(caller: Caller) -> str:
        return "ada"

    jobs, tasks = Jobs(), quick_tasks(principal=is_ada)
    server = server_of(tasks)

    @server.tool()
    @tasks.task()
    async def pays(job: str) -> str:
        """Do something that nobody wants done twice."""
        return await jobs.work(job)

    async with client_of(server, json_response=json_response) as client:
        leaving = asyncio.create_task(Call("pays", {"job": "bill"}).leg(client))
        await jobs.until("start bill")
        leaving.cancel()
        await asyncio.wait([leaving])
        # Otherwise it would take the result for given, and forget it.
        await anyio.sleep(0.5)  # sleep: nobody is told when the server sees that its caller has left
        jobs.gate.set()
        await jobs.until("end bill")
        await anyio.sleep(0.2)  # sleep: the time in which it would be forgotten, and must not
        [task] = (await client.call("task_status"))["structuredContent"]["tasks"]
        assert text_of(await client.call("task_status", task_id=task["taskId"])) == "bill is done"
    assert jobs.happened == {"start bill": 1, "end bill": 1}


# --- what a host lost -----------------------------------------------------------------------------------------------


async def mine(client: OlderClient) -> list[dict[str, Any]]:
    """What a caller is told of its own tasks, without an id."""
    return (await client.call("task_status")).result["structuredContent"]["tasks"]


async def test_an_owner_finds_what_its_host_lost_and_nobody_else_does(scene: Scene) -> None:
    url, job = scene.servers.door("guarded"), "lost-by-ada"
    async with older(url, "ada") as ada, older(url, "eve") as eve:
        assert await mine(ada) == []
        await give_up(ada, await begun(scene.place, ada, "gated", job))
        [task] = await mine(ada)
        assert (task["tool"], task["status"]) == ("gated", "working")
        assert await mine(eve) == []
        denied = (await eve.call("task_status", {"task_id": task["taskId"]})).result
        unknown = (await eve.call("task_status", {"task_id": "no-such-task"})).result
        assert denied["isError"]
        assert text_of(denied).replace(task["taskId"], "no-such-task") == text_of(unknown)
        assert (await eve.call("task_cancel", {"task_id": task["taskId"]})).result["isError"]
        scene.place.open(job)
        for _ in range(2):
            told = (await ada.call("task_status", {"task_id": task["taskId"]})).result
            assert text_of(told) == f"{job} is done"
    async with legs(url, token="ada") as newest:
        listed = await newest.call("task_status")
        assert [each["taskId"] for each in listed["structuredContent"]["tasks"]] == [task["taskId"]]
    assert scene.place.count("start", job) == 1


async def test_without_a_name_an_id_is_needed_over_http(scene: Scene) -> None:
    async with older(scene.servers.url) as client, legs(scene.servers.url) as newest:
        for told in ((await client.call("task_status")).result, await newest.call("task_status")):
            assert told["isError"]
            assert "A task_id is needed" in text_of(told)


# --- over stdio -----------------------------------------------------------------------------------------------------


async def until_ended(wire: StdioWire) -> None:
    """Close the pipes, as a host does that ends, and wait until the process has."""
    assert wire.process.stdin is not None
    wire.process.stdin.close()
    with anyio.fail_after(10):
        await wire.process.wait()


@asynccontextmanager
async def pipes(place: Place) -> AsyncGenerator[StdioWire]:
    """A server process; it may be ended before the block is."""
    try:
        async with stdio_process(place.config(store=place.store, **CONFIG), module=MODULE) as wire:
            yield wire
    except AssertionError as exc:
        if "ended by itself" not in str(exc):
            raise


async def test_over_stdio_work_survives_its_host_and_is_found_by_the_next_one() -> None:
    with place() as here:
        async with pipes(here) as wire, pipe_session(wire) as client:
            await give_up(client, await begun(here, client, "gated", "given-up"))
            await give_up(client, await begun(here, client, "dropped", "dropped"))
            await here.until("stopped", "dropped")
            pending = await begun(here, client, "stepped", "host-ends")
            await here.until("one", "host-ends")
            tasks = {task["tool"]: task["status"] for task in await mine(client)}
            assert tasks == {"gated": "working", "stepped": "working", "dropped": "cancelled"}
            here.open("given-up")
            await here.until("end", "given-up")
            await until_ended(wire)
            await pending.leave()
        here.open("host-ends")
        async with pipes(here) as wire:
            # The next one speaks the newest wire.
            client = Tasking(wire, NOTHING)
            listed = await client.call("task_status")
            found = {task["tool"]: task["taskId"] for task in listed["structuredContent"]["tasks"]}
            results = {tool: await client.call("task_status", task_id=found[tool]) for tool in found}
            assert text_of(results["gated"]) == "given-up is done"
            assert text_of(results["stepped"]) == "host-ends is done"
            assert 'The tool "dropped" was cancelled' in text_of(results["dropped"])
            call = request("tools/call", {"name": "dropped", "arguments": {"job": "newest"}}, capabilities=NOTHING)
            await wire.write(json.dumps(call))
            await here.until("start", "newest")
            await wire.notify("notifications/cancelled", {"requestId": call["id"]})
            await here.until("stopped", "newest")
        assert [here.count(event, "host-ends") for event in ("one", "two")] == [1, 1]


# --- servers that stop ----------------------------------------------------------------------------------------------


async def test_a_server_that_is_told_to_stop_answers_at_once_and_nothing_is_lost() -> None:
    with place() as here:
        server = here.serve(store=here.store)
        await _stopped_in_the_middle(here, server)


async def _stopped_in_the_middle(here: Place, server: HttpServers) -> None:
    newest = Call("slow_steps", {"job": "newest"})
    async with legs(server.url) as client, older(server.url) as old:
        pending = await begun(here, old, "slow_steps", "older")
        leg = asyncio.create_task(newest.leg(client))
        for job in ("older", "newest"):
            await here.until("one", job)
        stopping = asyncio.create_task(anyio.to_thread.run_sync(server.terminate))
        told, waiting = (await pending.reply()).result, (await leg).result
        assert (await stopping) < 10
    # Not to come back: it may find nobody, and have heard nothing else.
    assert waiting["resultType"] == "complete"
    for word in (told, waiting):
        assert "It has not finished, and this is not its result." in text_of(word)
    server.start()
    for job in ("older", "newest"):
        here.open(job)
    async with legs(server.url) as client, older(server.url) as old:
        task_id = waiting["structuredContent"]["taskId"]
        assert text_of(await Call("task_status", {"task_id": task_id}).end(client)) == "newest is done"
        task_id = told["structuredContent"]["taskId"]
        assert text_of((await old.call("task_status", {"task_id": task_id})).result) == "older is done"
    for job in ("older", "newest"):
        assert [here.count(event, job) for event in ("one", "two")] == [1, 1]
