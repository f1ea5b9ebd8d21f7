"""Runs the official conformance suite against our servers and says whether the result is good.

    python -m tests.conformance.harness            # all parts
    python -m tests.conformance.harness tasks      # the ten tasks-* scenarios against the fixture server
    python -m tests.conformance.harness tasks --server "python my_server.py --port {port}"
    python -m tests.conformance.harness tasks --scenario tasks-lifecycle
    python -m tests.conformance.harness baseline   # the rest of the suite: with tasks nothing gets worse
    python -m tests.conformance.harness clients    # scenarios for clients: with tasks nothing gets worse

Exit code 0 means: no failure outside `expected_failures.json`, no entry in it that does not fail any more,
and nothing that passes on the plain SDK's server or client fails on the same one with tasks.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from harness.serving import serving_command

from .suite import HERE, Check, install, run_client_scenario, run_scenario, run_suite
from .verdict import load_expected, problems, regressions, table

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
"""By era, those that a client passes through with calls of tools; tasks have nothing to do with the others, which are
about authorization, skills and headers that the author of a client sets."""
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
        runs = list(pool.map(partial(run_scenario, url), scenarios))
    checks = [check for run in runs for check in run]
    return Outcome(report=table(checks, expected), problems=problems(checks, expected))


def _with_era(era: str, checks: Sequence[Check]) -> list[Check]:
    # The same scenario runs in both eras and checks different things; the prefix keeps the two apart.
    return [replace(check, scenario=f"{era} {check.scenario}") for check in checks]


def _run_everything(server: Sequence[str]) -> list[Check]:
    """All of the server suite that is not about tasks, in both eras."""
    with serving_command(server) as url:
        modern, older = (run_suite(url, "--requirements", revision) for revision in (NEWER, OLDER))
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
    command = shlex.join(client)

    def run(one: tuple[str, str]) -> list[Check]:
        return _with_era(one[0], run_client_scenario(command, one[1], "--spec-version", one[0]))

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
