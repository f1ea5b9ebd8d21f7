"""The engine of docs/engines.md: ids carried by Celery, on a real Valkey."""

from __future__ import annotations

import importlib
import os
import signal
from pathlib import Path

import anyio.to_thread
import pytest
from mcp import Client

from examples.celery_engine import CeleryCarrier
from harness.processes import ENVIRONMENT, PIPE, python, start_async
from harness.waiting import eventually
from mcp_tasks.client import TasksClient
from mcp_tasks.testing._engine_work import at_work
from tests.backends.carriers import celery
from tests.backends.places import RedisPlace

pytestmark = pytest.mark.anyio


@pytest.fixture
def broker(redis_place: RedisPlace) -> str:
    return redis_place.url


async def test_what_is_no_id_is_thrown_away_and_keeps_nothing_back(broker: str, redis_place: RedisPlace) -> None:
    engine = celery(broker)
    async with at_work(engine) as work:
        work.end("a")
        for arguments in ((), ("one", "too many")):
            await anyio.to_thread.run_sync(foreign, broker, arguments)
        await engine.submit("a")
        await work.until("end a")
        # What was taken and not answered would be kept here.
        await eventually(lambda: not redis_place.client.exists("unacked"))


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
