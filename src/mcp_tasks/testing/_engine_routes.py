"""Engine suite: which worker an id is carried to, when, and which one first."""

from __future__ import annotations

from datetime import timedelta

import anyio
import pytest

from mcp_tasks.engines.base import Engine, Route, Serves
from mcp_tasks.testing._engine_tests import EngineTests
from mcp_tasks.testing._engine_work import at_work, serving

DELAY = timedelta(milliseconds=300)


class RouteTests(EngineTests):
    """Queues, tools, namespaces, priorities and delays."""

    async def test_a_worker_takes_the_tasks_of_its_queues_alone(self, engine: Engine, peer: Engine) -> None:
        async with (
            at_work(engine, Serves(queues=("gpu", "large"))) as special,
            at_work(peer) as usual,
        ):
            for work in special, usual:
                work.end("a", "b", "c")
            await engine.submit("a")
            await peer.submit("b", route=Route(queue="gpu"))
            await peer.submit("c", route=Route(queue="large"))
            await special.until("end b", "end c")
            await usual.until("end a")
            assert (sorted(special.started), usual.started) == (["b", "c"], ["a"])

    async def test_a_worker_takes_the_tasks_of_the_tools_it_has_alone(self, engine: Engine, peer: Engine) -> None:
        async with (
            at_work(engine, Serves(tools=("render", "draw"))) as renders,
            at_work(peer, Serves(tools=("draw", "count"))) as counts,
        ):
            for work in renders, counts:
                work.end("a", "b", "c", "d")
            for task_id, tool in ("a", "render"), ("b", "count"), ("c", "draw"), ("d", None):
                await engine.submit(task_id, route=Route(tool=tool))
            await renders.until("end a")
            await counts.until("end b")
            with anyio.fail_after(5):
                while {*renders.started, *counts.started} != {"a", "b", "c", "d"}:  # noqa: ASYNC110 - how, not when
                    await anyio.sleep(0.001)
            assert "b" not in renders.started
            assert "a" not in counts.started

    async def test_a_task_whose_tool_nobody_has_waits_for_a_worker_that_has_it(
        self, engine: Engine, peer: Engine
    ) -> None:
        async with at_work(engine, Serves(tools=("count",))) as counts:
            await engine.submit("a", route=Route(tool="render"))
            await anyio.sleep(self.grace)
            async with at_work(peer, Serves(tools=("render",))) as renders:
                renders.end("a")
                await renders.until("end a")
            assert counts.log == []

    async def test_a_tool_of_a_queue_is_another_in_another_queue(self, engine: Engine, peer: Engine) -> None:
        async with (
            at_work(engine, Serves(queues=("gpu",), tools=("render",))) as special,
            at_work(peer, Serves(tools=("render",))) as usual,
        ):
            for work in special, usual:
                work.end("a", "b")
            await peer.submit("a", route=Route(queue="gpu", tool="render"))
            await engine.submit("b", route=Route(tool="render"))
            await special.until("end a")
            await usual.until("end b")
            assert (special.started, usual.started) == (["a"], ["b"])

    async def test_servers_that_share_what_carries_their_tasks_have_each_their_own(
        self, engine: Engine, peer: Engine
    ) -> None:
        # Names that are put together the wrong way look the same.
        async with (
            at_work(engine, Serves(namespace="one", queues=("two:three",))) as mine,
            at_work(peer, Serves(namespace="one:two", queues=("three",))) as yours,
        ):
            for work in mine, yours:
                work.end("a", "b")
            await engine.submit("a", route=Route(queue="two:three"))
            await peer.submit("b", route=Route(queue="three"))
            await mine.until("end a")
            await yours.until("end b")
            assert (mine.started, yours.started) == (["a"], ["b"])

    async def test_names_are_any_strings(self, engine: Engine, peer: Engine) -> None:
        queue, tool, namespace = "a queue: ☃ {x}*" * 20, "tool/../'; --\n" * 20, "ñ" * 200
        async with (
            serving(peer, namespace),
            at_work(engine, Serves(namespace=namespace, queues=(queue,), tools=(tool,))) as work,
        ):
            work.end("a")
            await peer.submit("a", route=Route(queue=queue, tool=tool, priority=10**12))
            await work.until("end a")

    async def test_a_higher_priority_goes_first(self, engine: Engine, peer: Engine) -> None:
        if not engine.abilities.priority:
            pytest.skip("this engine knows no priorities")
        async with serving(peer):
            for number in range(10):
                await peer.submit(f"low-{number}", route=Route(priority=-1))
            for number in range(10):
                await peer.submit(f"usual-{number}")
            await peer.submit("high", route=Route(priority=5))
        async with at_work(engine) as work:
            # Not more than can run at a time: those that run are the ones that were fetched first.
            await work.until("start high")
            await anyio.sleep(self.grace)
            assert not [task_id for task_id in work.started if task_id.startswith("low")]
            work.end(*(f"{kind}-{number}" for kind in ("low", "usual") for number in range(10)), "high")
            await work.until(*(f"end low-{number}" for number in range(10)))
            assert work.started[0] == "high"

    async def test_what_is_delayed_is_run_when_its_time_has_come(self, engine: Engine, peer: Engine) -> None:
        if not engine.abilities.delay:
            pytest.skip("this engine keeps nothing back")
        async with serving(peer), at_work(engine) as work:
            work.end("now", "later")
            began = anyio.current_time()
            await peer.submit("later", lane="again", delay=DELAY)
            await peer.submit("now", delay=timedelta(0))
            await work.until("end now", "end later")
            # Half of it: the clocks of two machines may take part.
            assert anyio.current_time() - began > DELAY.total_seconds() / 2
            assert work.started == ["now", "later"]
