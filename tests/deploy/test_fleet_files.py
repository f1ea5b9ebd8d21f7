"""What can be said of the files in `deploy/` without a fleet."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.ports import free_port
from harness.processes import ENVIRONMENT, python, run
from mcp_tasks import Settings
from mcp_tasks.cli.commands.worker import DRAIN
from tests.deploy.fleet import DEPLOY, compose, nginx_binary, nginx_command, nginx_folder

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


def test_there_are_two_servers_three_workers_and_one_database_by_profile(services: dict[str, dict[str, Any]]) -> None:
    assert services["server"]["deploy"]["replicas"] == 2
    assert services["worker"]["deploy"]["replicas"] == 3
    assert {name: service.get("profiles") for name, service in services.items()} == {
        "server": None,
        "worker": None,
        "nginx": None,
        "postgres": ["postgres"],
        "valkey": ["redis"],
    }


def test_images_are_pinned(services: dict[str, dict[str, Any]]) -> None:
    images = [service["image"] for service in services.values() if service["image"] != "farm"]
    images += re.findall(r"^FROM (\S+)$", (DEPLOY / "compose" / "Dockerfile").read_text(), flags=re.MULTILINE)
    assert len(images) == 4
    assert all(re.fullmatch(r"[\w/]+:\d+[\w.-]*@sha256:[0-9a-f]{64}", image) for image in images), images
    assert services["server"]["build"]["dockerfile"] == "deploy/compose/Dockerfile"
    assert services["worker"]["image"] == services["server"]["image"]


def test_packages_of_the_image_are_those_of_the_lock_file() -> None:
    installs = re.findall(r"^RUN pip install .*$", (DEPLOY / "compose" / "Dockerfile").read_text(), flags=re.MULTILINE)
    assert len(installs) == 1
    assert all(" -c /src/dev.txt " in line for line in installs)


def test_every_service_says_when_it_is_well_and_is_started_again(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert service["restart"] == "unless-stopped"
        if name != "nginx":
            assert service["healthcheck"]["test"][0] == "CMD", "a list, which needs no shell in the image"
    port = _option(services["worker"]["command"], "--health").rpartition(":")[2]
    assert f"http://127.0.0.1:{port}/ready" in services["worker"]["healthcheck"]["test"][-1]


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


def test_the_urls_of_the_example_name_services_and_how_these_are_reached(services: dict[str, dict[str, Any]]) -> None:
    example = (DEPLOY / "compose" / "env.example").read_text()
    profiles = re.findall(r"COMPOSE_PROFILES=(\w+)\n(?:# )?MCP_TASKS_URL=\S+@(\w+):", example)
    assert {name: services[name]["profiles"] for _, name in profiles} == {name: [profile] for profile, name in profiles}
    assert len(profiles) == 2


def test_what_must_survive_is_on_a_volume_and_written_out(services: dict[str, dict[str, Any]]) -> None:
    named = compose()["volumes"].keys()
    for name, where in {"postgres": "/var/lib/postgresql", "valkey": "/data"}.items():
        [volume] = services[name]["volumes"]
        assert volume == f"{name}:{where}"
        assert name in named
    valkey = services["valkey"]["command"]
    assert _option(valkey, "--appendonly") == "yes"
    assert _option(valkey, "--maxmemory-policy") == "noeviction"


def test_what_is_mounted_and_copied_is_there(services: dict[str, dict[str, Any]]) -> None:
    for volume in services["nginx"]["volumes"]:
        assert (DEPLOY / "compose" / volume.partition(":")[0]).is_file()
    for line in re.findall(r"^COPY (.*)$", (DEPLOY / "compose" / "Dockerfile").read_text(), flags=re.MULTILINE):
        assert all((DEPLOY.parent / source).exists() for source in line.split()[:-1]), line


def test_the_server_of_the_walk_through_can_be_worked_for(tmp_path: Path) -> None:
    page = (DEPLOY.parent / "docs" / "scale.md").read_text()
    [text] = re.findall(r"^```py\n(# farm\.py\n.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    assert "$ mcp-tasks worker farm:server --check\n" in page
    (tmp_path / "farm.py").write_text(text)
    environment = {**ENVIRONMENT, "MCP_TASKS_URL": "sqlite:///tasks.db", "RUNS_TOOLS": "no"}
    done = run(python("mcp_tasks", "worker", "farm:server", "--check"), cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert re.search(r"render +gpu .*at most 8", done.stdout)
    assert (tmp_path / "tasks.db").exists()


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


def test_nginx_passes_streams_on_and_keeps_only_older_clients_to_a_replica() -> None:
    text = (DEPLOY / "nginx" / "mcp.conf").read_text()
    for said in ("proxy_buffering off;", "hash $mcp_sticky consistent;", '"2026-07-28" "";', "default $remote_addr;"):
        assert said in text


def _entries(unit: Path) -> dict[str, list[str]]:
    entries: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", unit.read_text(), flags=re.MULTILINE):
        entries.setdefault(key, []).append(value)
    return entries


def test_there_is_a_unit_for_servers_and_one_for_workers() -> None:
    assert [unit.name for unit in UNITS] == ["farm-server@.service", "farm-worker@.service"]


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
