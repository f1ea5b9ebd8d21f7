"""Several workers of one server on one file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import anyio
import pytest
from mcp import Client, MCPError

from harness.processes import send
from harness.rpc import text_of
from mcp_tasks.client import resume_task
from tests.deploy.recipes import LIMIT, Site, connected, site, started, wire
from tests.push.listening import listening

pytestmark = pytest.mark.anyio

WORKERS = "uvicorn app:app --workers 4"
ENOUGH = 40
"""So many connections do not all come to one of two workers: by chance that is one in 2**39."""


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Site]:
    """The recipe with two workers. Starting them takes longer than all that is done with them, so tests share them."""
    with site(tmp_path_factory.mktemp("workers")) as place:
        (place.folder / "app.py").write_text((place.folder / "many.py").read_text())
        await place.start(WORKERS, workers="2")
        yield place


@pytest.fixture
async def two_workers(served: Site) -> Site:
    """The same, when both answer: an earlier test may have ended one."""
    seen: set[int] = set()
    async with connected(f"{served.url}/mcp") as client:
        with anyio.fail_after(LIMIT):
            while len(seen) < 2:
                seen.add(await _process(client))
    return served


async def _process(client: Client) -> int:
    """The process that answers a call."""
    content = (await client.call_tool("process", {})).structured_content
    assert content is not None
    return content["result"]


async def test_every_worker_answers_for_every_task_and_pushes_its_changes(two_workers: Site) -> None:
    jobs = [f"job-{number}" for number in range(10)]
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connected(f"{two_workers.url}/mcp"))
        handles = [await started(client, "again", job=job) for job in jobs]
        ids = [handle.id for handle in handles]
        raw = await stack.enter_async_context(wire(f"{two_workers.url}/mcp"))
        streams = [await stack.enter_async_context(listening(raw, ids)) for _ in range(6)]
        for stream in streams:
            assert await stream.acknowledged() == {"taskIds": ids}
        two_workers.let_go(*jobs)
        for stream in streams:
            ended: dict[str, str] = {}
            while len(ended) < len(ids):
                [*_, done] = await stream.until("completed")
                ended[done["taskId"]] = text_of(done["result"])
            assert set(ended) == set(ids)
    assert all(len(two_workers.runs(job)) == 1 for job in jobs)


async def test_tasks_of_a_worker_that_dies_are_recovered_by_the_others(two_workers: Site) -> None:
    async with connected(f"{two_workers.url}/mcp") as client:
        again, once = await started(client, "again", job="again"), await started(client, "once", job="once")
        await two_workers.until(lambda: two_workers.runs("again") and two_workers.runs("once"), "both have started")
        for pid in {*two_workers.runs("again"), *two_workers.runs("once")}:
            send(pid)
        await two_workers.until(lambda: len(two_workers.runs("again")) == 2, "it runs again")
        two_workers.let_go("again", "once")
        result = await resume_task(client, again.id).result()
        assert result.structured_content == {"result": two_workers.runs("again")[1]}
        with pytest.raises(MCPError, match="Interrupted"):
            await resume_task(client, once.id).result()
    assert len(two_workers.runs("once")) == 1


async def test_answers_to_what_was_asked_before_the_task_may_come_to_another_worker(two_workers: Site) -> None:
    async with connected(f"{two_workers.url}/mcp") as client:
        results = [await client.call_tool("greet", {}) for _ in range(ENOUGH)]
    assert all("Hello, Ann" in str(result.structured_content) for result in results)


async def test_clients_of_the_older_wire_are_served_by_any_worker(two_workers: Site) -> None:
    async with connected(f"{two_workers.url}/mcp", mode="legacy") as client:
        assert len({await _process(client) for _ in range(ENOUGH)}) == 2


async def test_workers_that_are_stopped_hand_over_and_are_not_kept_by_listeners(two_workers: Site) -> None:
    async with connected(f"{two_workers.url}/mcp") as client:
        task = await started(client, "again", job="a")
        await two_workers.until(lambda: two_workers.runs("a"), "it has started")
        async with wire(f"{two_workers.url}/mcp") as raw, listening(raw, [task.id]) as stream:
            await stream.acknowledged()
            await asyncio.to_thread(two_workers.stop)
            await two_workers.start(WORKERS, workers="2")
        two_workers.let_go("a")
        result = await task.result()
    first, second = two_workers.runs("a")
    assert first != second
    assert result.structured_content == {"result": second}
