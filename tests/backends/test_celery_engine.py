"""The engine of docs/engines.md: ids carried by Celery, on a real Valkey."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import anyio.to_thread
import pytest
from mcp import Client
from redis import Redis

from examples.celery_engine import CeleryCarrier
from harness.databases import Valkey, valkey
from harness.processes import ENVIRONMENT, PIPE, python, start_async
from mcp_tasks.client import TasksClient
from mcp_tasks.engines import Engine, RemoteEngine
from mcp_tasks.testing._engine_work import at_work
from mcp_tasks.testing.engine_suite import EngineSuite

pytestmark = pytest.mark.anyio

_databases = count()


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as server:
        yield server


@pytest.fixture
def broker(server: Valkey) -> str:
    """An empty database: names of queues are not enough, what is not acknowledged is in one place for all."""
    url = server.url.removesuffix("0") + str(next(_databases) % 16)
    with Redis.from_url(url) as redis:
        redis.flushdb()
    return url


def make_engine(broker: str) -> Engine:
    carrier = CeleryCarrier(broker)
    # How long the end of taking may take; a second otherwise.
    carrier.app.conf.broker_transport_options |= {"polling_interval": 0.1}
    return RemoteEngine(carrier, 4)


class TestCeleryEngine(EngineSuite):
    grace = 0.3

    @pytest.fixture(autouse=True)
    def queues_of_its_own(self, broker: str) -> None:
        self.broker = broker

    def make_engine(self) -> Engine:
        return make_engine(self.broker)

    def elsewhere(self) -> Sequence[str]:
        return ["tests.backends.test_celery_engine:make_engine", self.broker]


async def test_a_broker_that_is_restarted_is_found_again(server: Valkey, broker: str) -> None:
    engine = make_engine(broker)
    async with at_work(engine) as work:
        work.end("a", "b")
        await engine.submit("a")
        await work.until("end a")
        await anyio.to_thread.run_sync(server.restart, signal.SIGKILL)
        await engine.submit("b")
        await work.until("end b")


async def test_what_is_no_id_is_thrown_away_and_keeps_nothing_back(broker: str) -> None:
    engine = make_engine(broker)
    async with at_work(engine) as work:
        work.end("a")
        for arguments in ((), ("one", "too many")):
            await anyio.to_thread.run_sync(foreign, broker, arguments)
        await engine.submit("a")
        await work.until("end a")
        with Redis.from_url(broker) as redis, anyio.fail_after(5):
            # What was taken and not answered would be kept here.
            while redis.exists("unacked"):  # noqa: ASYNC110 - how it ends, not when
                await anyio.sleep(0.01)


def foreign(broker: str, arguments: tuple[str, ...]) -> None:
    """Somebody else's message in a queue of ours."""
    carrier = CeleryCarrier(broker)
    carrier.app.send_task("something else", arguments, queue="mcp-tasks//default")
    carrier.app.close()


async def test_a_worker_fed_by_celery_runs_what_a_server_was_asked_for(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
