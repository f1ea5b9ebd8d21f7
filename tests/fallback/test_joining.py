"""`join_running=True`: a call that is equal to one whose tool still runs is given the task of that one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from tests.fallback.matrix.legs import Call, legs
from tests.fallback.matrix.serving import HttpServers, Place, place

from harness.http import HttpWire, http_client
from harness.older import http_session
from harness.rpc import NOTHING, TASKS, Tasking, text_of

pytestmark = pytest.mark.anyio


@dataclass
class Scene:
    """A server, and one that asks who its callers are."""

    place: Place
    servers: HttpServers

    @property
    def guarded(self) -> str:
        """The address of the second."""
        return self.servers.door("guarded")

    def starts(self, job: str) -> int:
        """How often the tool was started for the job."""
        return self.place.count("start", job)


@pytest.fixture(scope="module")
async def scene() -> AsyncGenerator[Scene]:
    with place() as here:
        yield Scene(here, here.serve("sse", variants={"guarded": {"auth": True}}))


@pytest.fixture
async def client(scene: Scene) -> AsyncGenerator[Tasking]:
    """A client of the newest wire without tasks."""
    async with legs(scene.servers.url) as tasking:
        yield tasking


async def handed(client: Tasking, tool: str, **arguments: Any) -> str:
    """The id of the task that a client without tasks is told of."""
    result = await Call(tool, arguments).end(client)
    return result["structuredContent"]["taskId"]


async def older_handed(url: str, tool: str, **arguments: Any) -> str:
    """The same for a client of the older wire."""
    async with http_client() as http, http_session(HttpWire(url, http)) as older:
        return (await older.call(tool, arguments)).result["structuredContent"]["taskId"]


async def test_equal_calls_of_every_kind_of_client_have_one_task_and_one_start(scene: Scene, client: Tasking) -> None:
    job = "one-for-all"
    tasks = client.declaring(TASKS)
    first, second = await asyncio.gather(
        handed(client, "joined", job=job, number=1), handed(client, "joined", number=1, job=job)
    )
    ids = {
        first,
        second,
        await older_handed(scene.servers.url, "joined", job=job, number=1),
        await tasks.create("joined", job=job, number=1),
    }
    assert ids == {first}
    scene.place.open(job)
    assert text_of((await tasks.until(first, "completed"))["result"]) == f"{job} is done"
    assert scene.starts(job) == 1


async def test_a_task_of_a_client_with_tasks_is_joined_by_one_without(scene: Scene, client: Tasking) -> None:
    job = "begun-as-a-task"
    task_id = await client.declaring(TASKS).create("joined", job=job)
    call = Call("joined", {"job": job})
    await call.begin(client)
    scene.place.open(job)
    assert text_of(await call.end(client)) == f"{job} is done"
    assert scene.starts(job) == 1
    assert (await client.declaring(TASKS).get(task_id))["status"] == "completed"


async def test_other_arguments_are_another_call(scene: Scene, client: Tasking) -> None:
    job = "told-apart"
    one, two = await asyncio.gather(
        handed(client, "joined", job=job, number=1), handed(client, "joined", job=job, number=2)
    )
    assert one != two
    assert scene.starts(job) == 2


async def test_another_owner_has_a_task_of_its_own(scene: Scene) -> None:
    job = "whose"
    async with legs(scene.guarded, token="ada") as ada, legs(scene.guarded, token="eve") as eve:
        of_ada, again, of_eve = await asyncio.gather(
            handed(ada, "joined", job=job), handed(ada, "joined", job=job), handed(eve, "joined", job=job)
        )
    assert of_ada == again != of_eve
    assert scene.starts(job) == 2


async def test_after_the_end_a_call_starts_anew(scene: Scene, client: Tasking) -> None:
    job = "anew"
    task_id = await handed(client, "joined", job=job)
    scene.place.open(job)
    await client.declaring(TASKS).until(task_id, "completed")
    assert text_of(await Call("joined", {"job": job}).end(client)) == f"{job} is done"
    assert scene.starts(job) == 2
    # What the first came to is still there for whoever was told of it.
    told = await client.declaring(NOTHING).call("task_status", task_id=task_id)
    assert text_of(told) == f"{job} is done"


async def test_a_cancelled_one_is_not_joined(scene: Scene, client: Tasking) -> None:
    job = "cancelled"
    task_id = await handed(client, "joined", job=job)
    await client.call("task_cancel", task_id=task_id)
    assert await handed(client, "joined", job=job) != task_id
    assert scene.starts(job) == 2


async def test_without_it_every_call_starts_its_own(scene: Scene, client: Tasking) -> None:
    job = "each-its-own"
    one, two = await asyncio.gather(handed(client, "long", job=job), handed(client, "long", job=job))
    assert one != two
    assert scene.starts(job) == 2


async def test_work_that_two_wait_for_is_dropped_when_both_have_left(scene: Scene, client: Tasking) -> None:
    job = "waited-for-twice"
    first, second = (asyncio.create_task(Call("joined_and_dropped", {"job": job}).leg(client)) for _ in range(2))
    await scene.place.until("request", job, 2)
    await scene.place.until("start", job)
    await anyio.sleep(0.3)  # sleep: nobody is told when a request has joined
    first.cancel()
    await asyncio.wait([first])
    await anyio.sleep(0.5)  # sleep: the time in which it would be stopped, and must not
    assert scene.place.count("stopped", job) == 0
    second.cancel()
    await asyncio.wait([second])
    await scene.place.until("stopped", job)
    assert scene.starts(job) == 1
