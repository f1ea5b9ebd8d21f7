"""Engines that carry ids through Redis and Postgres: the shipped suite, and servers that fail."""

from __future__ import annotations

import importlib
import logging
import os
import signal
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from mcp import Client

from harness.databases import Postgres, Valkey, postgres, valkey
from harness.processes import ENVIRONMENT, PIPE, python, start_async
from harness.proxy import Proxy, proxy_to
from harness.waiting import eventually
from mcp_tasks.client import TasksClient
from mcp_tasks.engines import ANYWHERE, Engine, RemoteEngine, Route, Serves
from mcp_tasks.engines.docket import DocketCarrier
from mcp_tasks.engines.procrastinate import ProcrastinateCarrier
from mcp_tasks.engines.remote import SETTLED
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.testing._engine_work import LONG, WAIT, Work, at_work, serving
from mcp_tasks.testing.engine_suite import EngineSuite
from tests.backends import carriers
from tests.backends.carriers import QUICK, SOON

pytestmark = pytest.mark.anyio


class _OnADatabase(EngineSuite):
    make: Callable[[str], Engine]

    def make_engine(self) -> Engine:
        return type(self).make(self.url)

    def elsewhere(self) -> Sequence[str]:
        return [f"tests.backends.carriers:{type(self).make.__name__}", self.url]

    url: str


class TestDocketEngine(_OnADatabase):
    make = carriers.docket
    grace = 0.2
    outlasts = 1.6 * SOON.total_seconds()
    rescues = 3 * SOON.total_seconds()

    @pytest.fixture(autouse=True)
    def a_database_of_its_own(self, shared_valkey: Valkey) -> None:
        self.url = shared_valkey.new_database()


class TestProcrastinateEngine(_OnADatabase):
    make = carriers.procrastinate
    outlasts = 2 * QUICK.dead.total_seconds()
    rescues = 3 * QUICK.dead.total_seconds()

    @pytest.fixture(autouse=True)
    def a_database_without_jobs(self, jobs_url: str) -> None:
        self.url = jobs_url


class TestCeleryEngine(_OnADatabase):
    """The engine of docs/engines.md."""

    make = carriers.celery
    grace = 0.3

    @pytest.fixture(autouse=True)
    def a_broker_of_its_own(self, shared_valkey: Valkey) -> None:
        self.url = shared_valkey.new_database()


# Servers that fail


@dataclass(frozen=True)
class Carried:
    """A kind of engine, with a server that may be restarted."""

    server: Valkey | Postgres
    make: Callable[..., RemoteEngine]


@pytest.fixture(scope="module", params=["docket", "procrastinate", "celery"])
def carried(request: pytest.FixtureRequest) -> Iterator[Carried]:
    with postgres(durable=False) if request.param == "procrastinate" else valkey() as server:
        yield Carried(server, getattr(carriers, request.param))


ours = pytest.mark.parametrize("carried", ["docket", "procrastinate"], indirect=True)


@asynccontextmanager
async def by_proxy(carried: Carried) -> AsyncGenerator[tuple[Proxy, str]]:
    """A new database, by way of a proxy."""
    url = carried.server.new_database()
    async with proxy_to(url) as proxy:
        yield proxy, proxy.before(url)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["in order", "killed"])
async def test_a_server_that_is_restarted_is_found_again_and_has_what_was_sent(
    carried: Carried, how: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    url = carried.server.new_database()
    async with serving(carried.make(url)) as sender:
        await sender.submit("before", route=Route(tool="a tool"))
        async with at_work(carried.make(url)) as work:
            work.end("a", "b")
            await sender.submit("a")
            await work.until("end a")
            await anyio.to_thread.run_sync(carried.server.restart, how)
            await sender.submit("b")
            await work.until("end b")
        async with at_work(carried.make(url), Serves(tools=["a tool"])) as work:
            work.end("before")
            await work.until("end before")
    # One line of each process, not of each reader each time it tries.
    assert len([record for record in caplog.records if "does not carry tasks now" in record.message]) <= 3
    assert {record.name.partition(".")[0] for record in caplog.records} <= {"mcp_tasks", "kombu"}


@ours
async def test_a_worker_without_room_leaves_to_others_what_it_cannot_run(carried: Carried) -> None:
    ids, url = [f"task-{number}" for number in range(40)], carried.server.new_database()
    full = carried.make(url, 1)
    async with at_work(full) as stuck:
        await full.submit("long")
        await stuck.until("start long")
        async with at_work(carried.make(url)) as work:
            work.end(*ids)
            for task_id in ids:
                await full.submit(task_id)
            await work.until(*(f"end {task_id}" for task_id in ids))
        assert stuck.log == ["start long"]


@pytest.mark.parametrize(
    ("carried", "how"),
    [("docket", "refused"), ("docket", "silent"), ("procrastinate", "refused")],
    indirect=["carried"],
)
async def test_a_worker_whose_server_is_away_says_so_once_and_takes_again_when_it_is_back(
    carried: Carried, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with by_proxy(carried) as (proxy, url):
        engine = carried.make(url)
        async with at_work(engine, Serves(tools=["one", "two"])) as work:
            work.end("a", "b", "c")
            await engine.submit("a")
            await engine.submit("running", route=Route(tool="two"))
            await work.until("end a", "start running")
            assert engine.is_taking
            if how == "refused":
                proxy.cut()
            else:
                proxy.is_silent = True
            await eventually(lambda: not engine.is_taking, WAIT)
            # It tries again meanwhile, and what is tried for longer than this would count as working.
            with anyio.move_on_after(1.5 * SETTLED):
                while True:
                    assert not engine.is_taking
                    await anyio.sleep(0.02)  # sleep: the time in which it must not
            # What was taken before is none of its business.
            assert work.running == {"running"}
            proxy.restore()
            proxy.is_silent = False
            await eventually(lambda: engine.is_taking, WAIT)
            await engine.submit("b", route=Route(tool="one"))
            await engine.submit("c")
            await work.until("end b", "end c")
            work.end("running")
    assert {record.name.rpartition(".")[0] for record in caplog.records} <= {"mcp_tasks.engines"}
    assert 1 <= len([record for record in caplog.records if record.levelno >= logging.WARNING]) <= 2


@ours
async def test_a_worker_stops_and_an_id_is_given_up_in_time_though_its_server_is_away(carried: Carried) -> None:
    async with by_proxy(carried) as (proxy, url):
        engine, work = carried.make(url), Work()
        await engine.start(work.execute)
        work.end("a")
        await engine.submit("a")
        await work.until("end a")
        proxy.is_silent = True
        with anyio.fail_after(40):
            await engine.submit("b")
            await engine.drain(LONG)
            await engine.stop(LONG)


# What an engine says


@pytest.mark.parametrize(
    "carrier",
    [DocketCarrier("redis://me:secret@127.0.0.1:1/0"), ProcrastinateCarrier("postgresql://me:secret@127.0.0.1:1/x")],
    ids=lambda carrier: type(carrier).__name__,
)
async def test_a_server_that_is_not_there_is_told_of_at_the_start_without_the_password(
    carrier: DocketCarrier | ProcrastinateCarrier,
) -> None:
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1") as refused:
        await carrier.open("")
    assert "secret" not in f"{refused.value}{carrier!r}"
    with pytest.raises((StoreUnavailable, ConnectionError), match=r"not (open|started)"):
        await carrier.send("a", route=ANYWHERE, lane="new", delay=None)
    await carrier.close()


async def test_a_worker_fed_by_celery_runs_what_a_server_was_asked_for(
    shared_valkey: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = shared_valkey.new_database()
    farm = {"FARM_STORE": f"sqlite:///{tmp_path / 'tasks.db'}", "FARM_BROKER": broker}
    for name, value in farm.items():
        monkeypatch.setenv(name, value)
    served = importlib.import_module("tests.backends.celery_farm").server
    command = python("mcp_tasks", "worker", "tests.backends.celery_farm:server")
    worker = await start_async(command, env={**ENVIRONMENT, **farm}, stderr=PIPE)
    try:
        async with Client(served, extensions=[TasksClient()]) as client:
            ran = [(await client.call_tool("where", {})).structured_content for _ in range(3)]
        assert ran == [{"result": worker.pid}] * 3
        assert worker.pid != os.getpid()
        worker.send_signal(signal.SIGTERM)
        _, said = await worker.communicate()
        assert worker.returncode == 0, said
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()
