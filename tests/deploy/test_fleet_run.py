"""A fleet on a Postgres behind nginx: a server and a worker by the compose file, and one more of each by its unit."""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2
import pytest

from harness.databases import Postgres
from harness.http import HttpWire, http_client, initialize
from harness.ports import free_port
from harness.processes import run
from harness.rpc import PATIENCE, Tasking
from tests.deploy.fleet import (
    DEPLOY,
    KEY,
    Processes,
    compose,
    fleet_processes,
    here,
    nginx_binary,
    nginx_command,
    nginx_folder,
)
from tests.deploy.recipes import LIMIT, answers, connected, started
from tests.push.listening import listening

pytestmark = pytest.mark.anyio


@dataclass(frozen=True, slots=True)
class Fleet:
    """What runs, and where it is reached."""

    processes: Processes
    servers: list[int]
    health: list[int]
    workers: list[subprocess.Popen[bytes]]
    door: int
    """The port of nginx, which is there if a test needs it."""


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    return compose()["services"]


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, services: dict[str, dict[str, Any]], shared_postgres: Postgres
) -> Generator[Fleet]:
    """A server and a worker as the compose file starts them, and one more of each as its unit does."""
    folder = tmp_path_factory.mktemp("fleet")
    with fleet_processes(folder) as running:
        door, servers, health = free_port(), [free_port(), free_port()], [free_port(), free_port()]
        common = {
            "MCP_TASKS_URL": shared_postgres.new_database(),
            "REQUEST_STATE_KEY": KEY,
            "ALLOWED_HOSTS": f"127.0.0.1:{door}",
        }
        assert common.keys() == services["worker"]["environment"].keys()
        assert services["server"]["environment"]["RUNS_TOOLS"] == "no"
        for command, port in zip((services["server"]["command"], _of_unit("server")), servers, strict=True):
            changes = {"0.0.0.0": "127.0.0.1", "8000": str(port), "800%i": str(port)}
            running.start(here(command, changes), {**common, "RUNS_TOOLS": "no"})
        workers = [
            running.start(here(command, {"0.0.0.0:8081": f"127.0.0.1:{port}", "808%i": str(port)}), common)
            for command, port in zip((services["worker"]["command"], _of_unit("worker")), health, strict=True)
        ]
        yield Fleet(running, servers, health, workers, door)


def _of_unit(role: str) -> list[str]:
    """The command of a unit."""
    text = (DEPLOY / "systemd" / f"farm-{role}@.service").read_text()
    found = re.search(r"^ExecStart=/opt/farm/venv/bin/(.*)$", text, flags=re.MULTILINE)
    assert found is not None
    return shlex.split(found[1])


async def _healthy(fleet: Fleet, check: list[str], old: str, port: int) -> None:
    """Wait until the health check of the file says yes."""
    command = here(check[1:], {old: str(port)})
    with anyio.move_on_after(LIMIT):
        while True:
            done = await anyio.to_thread.run_sync(run, command)
            if done.returncode == 0:
                return
            await anyio.sleep(1)  # each is a process
    raise AssertionError(fleet.processes.log.read_text())


async def test_servers_and_workers_become_healthy_by_the_checks_of_the_file(
    fleet: Fleet, services: dict[str, dict[str, Any]]
) -> None:
    for port in fleet.servers:
        await _healthy(fleet, services["server"]["healthcheck"]["test"], "8000", port)
    for port in fleet.health:
        await _healthy(fleet, services["worker"]["healthcheck"]["test"], "8081", port)
    nobody = here(services["worker"]["healthcheck"]["test"][1:], {"8081": str(free_port())})
    assert (await anyio.to_thread.run_sync(run, nobody)).returncode != 0


@pytest.fixture(scope="module")
async def door(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[str]:
    """The address of nginx before the servers, when these answer."""
    binary = nginx_binary()
    replicas = "".join(f"server 127.0.0.1:{port};\n" for port in fleet.servers)
    folder = nginx_folder(tmp_path_factory.mktemp("nginx") / "conf", fleet.door, replicas)
    nginx = fleet.processes.start(nginx_command(binary, folder), {})

    def is_alive() -> None:
        assert nginx.poll() is None, fleet.processes.log.read_text()

    for port in (*fleet.servers, fleet.door):
        await answers(f"http://127.0.0.1:{port}/live", is_alive)
    yield f"http://127.0.0.1:{fleet.door}/mcp"
    is_alive()


async def test_any_replica_answers_for_any_task_of_the_newest_wire(door: str) -> None:
    replicas: set[str] = set()
    async with http_client() as http:
        client = Tasking(HttpWire(door, http))
        task = await client.create("preview", scene="forest")
        assert "forest in small" in str(await client.until(task, "completed"))
        for _ in range(6):
            reply = await client.ask("tasks/get", {"taskId": task})
            assert reply.result["status"] == "completed"
            replicas.add(reply.headers["x-replica"])
    assert len(replicas) == 2


async def test_changes_come_through_as_they_happen(door: str) -> None:
    async with connected(door) as client, http_client() as http:
        task = await started(client, "render", frames=1)
        async with listening(HttpWire(door, http), [task.id]) as stream:
            assert await stream.acknowledged() == {"taskIds": [task.id]}
            await stream.until("completed")


@asynccontextmanager
async def _from(address: str) -> AsyncGenerator[httpx2.AsyncClient]:
    """A client at an address of its own."""
    transport = httpx2.AsyncHTTPTransport(local_address=address, verify=False)
    async with httpx2.AsyncClient(transport=transport, timeout=PATIENCE, trust_env=False) as http:
        yield http


@pytest.mark.skipif(sys.platform != "linux", reason="needs many addresses of this machine, which Linux has")
async def test_sessions_of_the_older_wire_stay_with_their_replica(door: str) -> None:
    replicas: set[str] = set()
    for number in range(20):
        async with _from(f"127.0.1.{number + 1}") as http:
            session, _ = await initialize(HttpWire(door, http), {})
            seen = [await session.ask("tools/list") for _ in range(3)]
        assert all("preview" in [tool["name"] for tool in reply.result["tools"]] for reply in seen)
        assert len({reply.headers["x-replica"] for reply in seen}) == 1
        replicas.add(seen[0].headers["x-replica"])
    assert len(replicas) == 2


async def test_what_is_for_those_behind_nginx_is_not_before_it(door: str) -> None:
    async with http_client() as http:
        assert (await http.get(door.replace("/mcp", "/live"))).status_code == 404


async def test_workers_that_are_told_to_stop_end_in_order(fleet: Fleet) -> None:
    for worker in fleet.workers:
        worker.send_signal(signal.SIGTERM)
    for worker in fleet.workers:
        assert await asyncio.to_thread(worker.wait, LIMIT) == 0, fleet.processes.log.read_text()
