"""A real Redis or Postgres commits a write of a task at work, its answer is lost, and an outage follows."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial

import anyio
import anyio.to_thread
import pytest

from harness.databases import Postgres, Valkey
from harness.proxy import Proxy, proxy_to
from harness.waiting import eventually
from mcp_tasks.model import TaskRecord
from mcp_tasks.runtime import Ending, Run, TaskOptions, TaskRuntime
from mcp_tasks.stores import Store
from tests.backends.test_outages import WAIT, Place, when_it_works
from tests.unit.running import ONCE, PARKS, RERUN, answer, create, ok, question, running, until_asking, until_final

pytestmark = pytest.mark.slow

PATIENCE = timedelta(seconds=1)
OUTAGE = 3 * PATIENCE.total_seconds()


class Unreliable:
    """A store, and the network between it and its server."""

    def __init__(self, place: Place, proxy: Proxy) -> None:
        self._save = "^save$" if place.is_redis else r"UPDATE mcp_tasks_tasks t\b"
        self._proxy = proxy
        self.store: Store = place.store(proxy.before(place.url), patience=PATIENCE)

    async def lose_next_save(self, armed: anyio.Event) -> None:
        """Lose the answer to the next save, and begin an outage with it that is longer than the store waits."""
        self._proxy.lose(of=self._save, then_cut=True)
        armed.set()
        with anyio.fail_after(WAIT):
            await self._proxy.until_lost()
        await anyio.sleep(OUTAGE)  # sleep: the length of the outage
        self._proxy.restore()
        await when_it_works(lambda: self.store.get("task"))


@pytest.fixture(params=["valkey", "postgres"])
async def unreliable(request: pytest.FixtureRequest) -> AsyncIterator[Unreliable]:
    server: Postgres | Valkey = request.getfixturevalue(f"shared_{request.param}")
    place = await anyio.to_thread.run_sync(Place, server)
    async with proxy_to(server.url) as proxy:
        yield Unreliable(place, proxy)


async def journal(runtime: TaskRuntime, task: TaskRecord) -> Counter[tuple[str, str]]:
    return Counter((entry.kind, entry.key) for entry in await runtime.store.journal(task.id))


async def test_a_question_is_asked_once(unreliable: Unreliable) -> None:
    begin = anyio.Event()

    async def body(run: Run) -> Ending:
        await begin.wait()
        return ok(await run.ask(question("Sure?")))

    async with running(body, store=unreliable.store, policy=ONCE) as runtime:
        task = await create(runtime)
        await runtime.engine.submit(task.id)
        await eventually(runtime.runs)
        await unreliable.lose_next_save(begin)
        asked = await until_asking(runtime, task)
        assert set(asked.inputs.used) == {"elicitation-1"}
        await answer(runtime, task, elicitation_1="yes")
        assert (await until_final(runtime, task, WAIT)).result == {"value": "yes"}
        assert set((await journal(runtime, task)).values()) == {1}


async def test_a_step_that_timed_out_is_given_up_once(unreliable: Unreliable) -> None:
    begin = anyio.Event()
    attempts: list[int] = []

    async def body(run: Run) -> Ending:
        attempts.append(run.attempt)
        await begin.wait()
        with anyio.move_on_after(0.2) as scope:
            await run.step("slow", partial(asyncio.sleep, WAIT))
        await run.ask(question("Sure?"))
        return ok(scope.cancelled_caught)

    async with running(body, store=unreliable.store, policy=PARKS) as runtime:
        task = await create(runtime)
        await runtime.engine.submit(task.id)
        await eventually(runtime.runs)
        await unreliable.lose_next_save(begin)
        await eventually(lambda: not runtime.runs())
        await answer(runtime, task, elicitation_1="yes")
        assert (await until_final(runtime, task, WAIT)).result == {"value": True}
        assert attempts == [1, 2]
        assert set((await journal(runtime, task)).values()) == {1}


@pytest.mark.parametrize("policy", [ONCE, RERUN], ids=["once", "rerun"])
async def test_a_claimed_task_runs_as_soon_as_the_store_answers(unreliable: Unreliable, policy: TaskOptions) -> None:
    async def body(run: Run) -> Ending:
        return ok(run.attempt)

    async with running(body, store=unreliable.store, policy=policy) as runtime:
        task = await create(runtime)
        armed = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(unreliable.lose_next_save, armed)
            await armed.wait()
            await runtime.engine.submit(task.id)
        assert (await until_final(runtime, task)).result == {"value": 1}
