"""Docket as an engine, on a real Valkey."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import pickle
import re
import signal
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from harness.databases import Valkey, valkey
from harness.proxy import proxy_to
from harness.waiting import eventually
from mcp_tasks.engines import ANYWHERE, Engine, RemoteEngine, Route, Serves
from mcp_tasks.engines.docket import AT_ONCE, DocketCarrier
from mcp_tasks.engines.remote import SETTLED
from mcp_tasks.errors import StoreUnavailable, UsageError
from mcp_tasks.testing._engine_work import LONG, WAIT, Work, at_work, settle
from mcp_tasks.testing.engine_suite import EngineSuite

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as server:
        yield server


@pytest.fixture
def prefix() -> str:
    return f"test-{uuid4().hex}"


@pytest.fixture
async def redis(server: Valkey) -> AsyncIterator[Redis]:
    async with Redis.from_url(server.url, decode_responses=True) as redis:
        yield redis


SOON = 1.0
"""Seconds after which an id is carried again that was read by a process which died."""


def make_engine(url: str, prefix: str, concurrency: int = 4) -> RemoteEngine:
    soon = timedelta(seconds=SOON)
    return RemoteEngine(DocketCarrier(url, prefix=prefix, redelivery=soon, idle_check=soon / 4), concurrency)


class TestDocketEngine(EngineSuite):
    grace = 0.2
    outlasts = 1.6 * SOON
    rescues = 3 * SOON

    @pytest.fixture(autouse=True)
    def streams_of_its_own(self, server: Valkey, prefix: str) -> None:
        self.url, self.prefix = server.url, prefix

    def make_engine(self) -> Engine:
        return make_engine(self.url, self.prefix)

    def elsewhere(self) -> Sequence[str]:
        return ["tests.backends.test_docket_engine:make_engine", self.url, self.prefix]


async def test_a_server_that_is_restarted_is_found_again_and_has_what_was_sent(
    server: Valkey, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    sender = make_engine(server.url, prefix)
    await sender.start(None)
    await sender.submit("before", route=Route(tool="a tool"))
    async with at_work(make_engine(server.url, prefix)) as work:
        work.end("a", "b")
        await sender.submit("a")
        await work.until("end a")
        await anyio.to_thread.run_sync(server.restart, signal.SIGKILL)
        await sender.submit("b")
        await work.until("end b")
    worker, work = make_engine(server.url, prefix), Work()
    work.end("before")
    await worker.start(work.execute, Serves(tools=["a tool"]))
    await work.until("end before")
    await worker.stop(LONG)
    await sender.stop(LONG)
    # One line of each process, not of each reader each time it tries.
    assert 1 <= len([record for record in caplog.records if "does not carry tasks now" in record.message]) <= 3
    assert {record.name.partition(".")[0] for record in caplog.records} <= {"mcp_tasks"}


async def test_an_id_goes_to_the_workers_that_serve_its_queue_and_have_its_tool(server: Valkey, prefix: str) -> None:
    odd = "tool: a/b *[☃]"
    here, there = Work(), Work()
    one, other = make_engine(server.url, prefix), make_engine(server.url, prefix)
    await one.start(here.execute, Serves(namespace="ns", queues=["default", "gpu"], tools=["plain", odd]))
    await other.start(there.execute, Serves(namespace="ns", tools=["plain"]))
    here.end("1", "2", "3", "4", "5")
    there.end("1", "2", "3", "4", "5")
    await other.submit("1", route=Route(tool=odd))
    await other.submit("2", route=Route(queue="gpu"))
    await other.submit("3", route=Route(queue="gpu", tool="plain"))
    await here.until("end 1", "end 2", "end 3")
    assert there.log == []
    # Taken apart even where the parts joined would be the same: 4 would be in line before 5.
    await other.submit("4", route=Route(queue="default/plain"))
    await other.submit("5", route=Route(tool="plain"))
    await eventually(lambda: "end 5" in here.log + there.log, WAIT)
    for engine in (one, other):
        await engine.stop(LONG)
    assert "start 4" not in here.log + there.log


async def test_a_worker_without_room_leaves_to_others_what_it_cannot_run(server: Valkey, prefix: str) -> None:
    ids = [f"task-{number}" for number in range(40)]
    full = make_engine(server.url, prefix, concurrency=1)
    async with at_work(full) as stuck:
        await full.submit("long")
        await stuck.until("start long")
        async with at_work(make_engine(server.url, prefix)) as work:
            work.end(*ids)
            for task_id in ids:
                await full.submit(task_id)
            await work.until(*(f"end {task_id}" for task_id in ids))
        assert stuck.log == ["start long"]


async def test_nothing_piles_up_on_the_server(server: Valkey, prefix: str, redis: Redis) -> None:
    async def a_life(number: int) -> set[str]:
        ids = [f"{number}-{each}" for each in range(50)]
        async with at_work(make_engine(server.url, prefix)) as work, at_work(make_engine(server.url, prefix)) as other:
            engine = make_engine(server.url, prefix)
            await engine.start(None)
            work.end(*ids)
            other.end(*ids)
            for each, task_id in enumerate(ids):
                await engine.submit(task_id, delay=timedelta(milliseconds=1) if each % 5 == 0 else None)
            with anyio.fail_after(5):
                while len(work.started) + len(other.started) < len(ids):  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            await engine.stop(LONG)
        keys = [str(key) for key in await redis.keys(f"{{{prefix}}}*")]
        return {key for key in keys if await redis.ttl(key) == -1}

    first = await a_life(1)
    for number in (2, 3):
        last = await a_life(number)
    streams = {key for key in last if key.endswith(":stream")}
    # What is left of three lives for longer is what was left of one: an empty stream.
    assert last == first == streams
    assert len(streams) == 1
    for stream in streams:
        assert await redis.xlen(stream) == 0
        (group,) = await redis.xinfo_groups(stream)
        assert (group["consumers"], group["pending"]) == (1, 0)


async def test_what_is_sent_by_a_request_leaves_nothing_of_it_behind(server: Valkey, prefix: str) -> None:
    class Request:
        pass

    current: ContextVar[Request] = ContextVar("current")
    engine = make_engine(server.url, prefix)
    await engine.start(None)

    async def request() -> weakref.ref[Request]:
        current.set(Request())
        await engine.submit("a")
        return weakref.ref(current.get())

    left = await asyncio.create_task(request())
    await settle()
    gc.collect()
    # What a docket does in the background would have kept it, and a run would seem to be at work for ever.
    assert left() is None
    await engine.stop(LONG)


async def test_a_password_is_not_shown() -> None:
    assert repr(DocketCarrier("valkeys://user:secret@host:1/2")) == "DocketCarrier(rediss://host:1/2)"


async def test_a_url_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="Redis cannot be reached by"):
        DocketCarrier("redis://host/0?max_connections=many")


async def test_what_is_sent_before_the_start_or_after_the_stop_says_so(server: Valkey, prefix: str) -> None:
    carrier = DocketCarrier(server.url, prefix=prefix)
    with pytest.raises(ConnectionError, match="is not open"):
        await carrier.send("a", route=ANYWHERE, lane="new", delay=None)
    await carrier.open("")
    await carrier.send("a", route=ANYWHERE, lane="new", delay=None)
    await carrier.close()
    await carrier.close()
    with pytest.raises(ConnectionError, match="is not open"):
        await carrier.send("a", route=ANYWHERE, lane="new", delay=None)


async def test_a_server_that_does_not_answer_is_not_waited_for_long(server: Valkey, prefix: str, redis: Redis) -> None:
    carrier = DocketCarrier(server.url, prefix=prefix, timeout=timedelta(seconds=2))
    await carrier.open("")
    await carrier.send("a", route=ANYWHERE, lane="new", delay=None)
    await redis.client_pause(10_000, all=False)
    with pytest.raises(RedisConnectionError, match="does not answer"):
        await carrier.send("b", route=ANYWHERE, lane="new", delay=None)
    await redis.client_unpause()
    await carrier.close()


WATCH = timedelta(seconds=0.5)


async def until_taking(engine: RemoteEngine, *, is_taking: bool) -> None:
    # It is tried again after five seconds at most, and counts one second later.
    with anyio.fail_after(20):
        while engine.is_taking is not is_taking:  # noqa: ASYNC110
            await anyio.sleep(0.01)


async def stays_away(engine: RemoteEngine) -> None:
    """For longer than a carrier that has failed must go on for before it counts as working again."""
    assert AT_ONCE < SETTLED
    for _ in range(15):
        assert not engine.is_taking
        await anyio.sleep(0.1)  # sleep: the time in which it must not


async def test_a_worker_whose_server_is_gone_says_so_and_takes_again_when_it_is_back(prefix: str) -> None:
    with valkey() as server:
        engine = RemoteEngine(DocketCarrier(server.url, prefix=prefix, watch=WATCH))
        async with at_work(engine) as work:
            work.end("a", "b")
            await engine.submit("a")
            await work.until("end a")
            await anyio.sleep(2 * WATCH.total_seconds())  # sleep: looks at the server, which is there
            assert engine.is_taking
            await anyio.to_thread.run_sync(server.stop, signal.SIGKILL)
            await until_taking(engine, is_taking=False)
            await stays_away(engine)
            await anyio.to_thread.run_sync(server.start)
            await until_taking(engine, is_taking=True)
            await engine.submit("b")
            await work.until("end b")


async def test_a_worker_whose_server_is_silent_says_so_and_takes_again_when_it_is_not(
    server: Valkey, prefix: str
) -> None:
    async with proxy_to(server.url) as proxy:
        engine = RemoteEngine(DocketCarrier(proxy.url, prefix=prefix, watch=WATCH))
        async with at_work(engine, Serves(tools=["one", "two"])) as work:
            work.end("a", "b", "c")
            await engine.submit("a")
            await engine.submit("running", route=Route(tool="two"))
            await work.until("end a", "start running")
            proxy.is_silent = True
            await until_taking(engine, is_taking=False)
            await stays_away(engine)
            # What was taken before is none of its business.
            assert work.running == {"running"}
            proxy.is_silent = False
            await until_taking(engine, is_taking=True)
            await engine.submit("b", route=Route(tool="one"))
            await engine.submit("c", delay=timedelta(milliseconds=10))
            await work.until("end b", "end c")
            work.end("running")


async def test_a_worker_stops_though_its_server_is_silent(server: Valkey, prefix: str) -> None:
    async with proxy_to(server.url) as proxy:
        engine = RemoteEngine(DocketCarrier(proxy.url, prefix=prefix, watch=WATCH))
        work = Work()
        await engine.start(work.execute)
        work.end("a")
        await engine.submit("a")
        await work.until("end a")
        proxy.is_silent = True
        await until_taking(engine, is_taking=False)
        with anyio.fail_after(WAIT):
            await engine.stop(LONG)


async def test_a_server_that_is_not_there_is_told_of_at_the_start(server: Valkey, prefix: str) -> None:
    carrier = DocketCarrier("redis://user:secret@127.0.0.1:1/0", prefix=prefix)
    with pytest.raises(StoreUnavailable, match=r"on redis://127\.0\.0\.1:1/0 cannot be used: .*connect") as caught:
        await carrier.open("")
    assert "secret" not in str(caught.value)
    with pytest.raises(ConnectionError, match="is not open"):
        await carrier.send("a", route=ANYWHERE, lane="new", delay=None)


async def test_a_password_that_is_wrong_is_told_of_at_the_start(server: Valkey, prefix: str) -> None:
    carrier = DocketCarrier(server.url.replace("//", "//nobody:secret@"), prefix=prefix)
    with pytest.raises(StoreUnavailable, match="password") as caught:
        await carrier.open("")
    assert "secret" not in str(caught.value)


async def test_a_carrier_that_could_not_be_opened_can_be_later(server: Valkey, prefix: str) -> None:
    async with proxy_to(server.url) as proxy:
        carrier = DocketCarrier(proxy.url, prefix=prefix, timeout=timedelta(seconds=0.5))
        proxy.is_silent = True
        with pytest.raises(StoreUnavailable, match="does not answer in time"):
            await carrier.open("")
        proxy.is_silent = False
        await carrier.open("")
        await carrier.send("a", route=ANYWHERE, lane="new", delay=None)
        await carrier.close()


async def test_in_a_cluster_ids_are_carried_from_any_of_its_servers() -> None:
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
    with valkey(*options) as first, valkey(*options) as second:
        clients: list[Any] = [Redis.from_url(server.url) for server in (first, second)]
        await clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", str(second.port))
        await clients[0].execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        with anyio.fail_after(10):
            for client in clients:
                while b"cluster_state:ok" not in await client.execute_command("CLUSTER", "INFO"):
                    continue
                await client.aclose()
        # The second has nothing, and says where to go.
        async with at_work(make_engine(second.url, "tasks")) as work, at_work(make_engine(first.url, "tasks")) as other:
            engine = make_engine(second.url, "tasks")
            await engine.start(None)
            for task_id in ("a", "b"):
                work.end(task_id)
                other.end(task_id)
            await engine.submit("a")
            await engine.submit("b", delay=timedelta(milliseconds=10))
            with anyio.fail_after(10):
                while {*work.started, *other.started} != {"a", "b"}:  # noqa: ASYNC110 - how it ends, not when
                    await anyio.sleep(0.01)
            await engine.stop(LONG)


async def test_a_user_needs_no_more_than_the_page_says(server: Valkey, prefix: str, redis: Any) -> None:
    page = (Path(__file__).parents[2] / "docs" / "running.md").read_text()
    (command,) = re.findall(r"^(ACL SETUSER tasks .*)$", page, flags=re.MULTILINE)
    await redis.execute_command(*command.replace("mcp-tasks", prefix).split())
    url = server.url.replace("//", "//tasks:PASSWORD@")
    async with at_work(make_engine(url, prefix)) as work:
        engine = make_engine(url, prefix)
        await engine.start(None)
        work.end("a", "b")
        await engine.submit("a")
        await engine.submit("b", delay=timedelta(milliseconds=10))
        await work.until("end a", "end b")
        await engine.stop(LONG)


class Planted:
    """What runs code where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


@pytest.mark.parametrize("part", ["args", "kwargs", "strike"])
async def test_what_others_write_to_the_server_runs_no_code_here(
    server: Valkey, prefix: str, redis: Redis, tmp_path: Path, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    planted, nothing = pickle.dumps(Planted(tmp_path / "ran")), pickle.dumps(())
    sender = make_engine(server.url, prefix)
    await sender.start(None)
    await sender.submit("first")
    [stream] = [str(key) for key in await redis.keys(f"{{{prefix}}}*") if str(key).endswith(":stream")]
    message: dict[Any, Any] = {
        "key": "no key of ours",
        "when": datetime.now(UTC).isoformat(),
        "function": "run",
        "args": planted if part == "args" else nothing,
        "kwargs": planted if part == "kwargs" else pickle.dumps({}),
        "attempt": "1",
        "generation": "0",
    }
    strike: dict[Any, Any] = {"direction": "strike", "function": "another", "operator": "==", "value": planted}
    if part == "strike":
        await redis.xadd(stream.removesuffix(":stream") + ":strikes", strike)
    else:
        await redis.xadd(stream, message)
    try:
        async with at_work(make_engine(server.url, prefix)) as work:
            work.end("first", "second")
            await work.until("end first")
            await sender.submit("second")
            await work.until("end second")
            if part != "strike":
                await eventually(lambda: "is passed over" in caplog.text, WAIT)
                # It is not read again and again.
                await eventually_empty(redis, stream)
        assert sorted(work.started) == ["first", "second"]
    finally:
        assert not (tmp_path / "ran").exists()
        await sender.stop(LONG)


async def eventually_empty(redis: Redis, stream: str) -> None:
    with anyio.fail_after(WAIT):
        while await redis.xlen(stream):  # noqa: ASYNC110 - another process empties it
            await anyio.sleep(0.01)


async def test_any_id_is_carried(server: Valkey, prefix: str) -> None:
    ids = ["task/with/slashes", "per%cent", "☃", "lone \ud800", " ", "x" * 300]
    async with at_work(make_engine(server.url, prefix)) as work:
        work.end(*ids)
        sender = make_engine(server.url, prefix)
        await sender.start(None)
        for task_id in ids:
            await sender.submit(task_id)
        await work.until(*(f"end {task_id}" for task_id in ids))
        await sender.stop(LONG)
