"""Workflows and forms are what GitHub takes, pin what they use, and run what exists."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.processes import ROOT, run

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = [GITHUB / "ISSUE_TEMPLATE" / name for name in ("bug.yml", "feature.yml")]
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("vendor.github-issue-forms", FORMS),
        ("vendor.github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
        ("vendor.dependabot", [GITHUB / "dependabot.yml"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_github_takes_them(schema: str, files: list[Path]) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    done = run(command)
    assert done.returncode == 0, done.stdout + done.stderr


def _jobs(workflow: Path) -> dict[str, Any]:
    """The jobs that run here, and not those that are another workflow."""
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    return {name: job for name, job in jobs.items() if "uses" not in job}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_with_their_version_beside_it(workflow: Path) -> None:
    used = re.findall(r"uses: (?!\./)(.*)", workflow.read_text())
    assert used
    assert [line for line in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_job_may_do_only_what_it_says_and_ends(workflow: Path) -> None:
    assert yaml.safe_load(workflow.read_text())["permissions"] == {}
    for name, job in _jobs(workflow).items():
        assert {"permissions", "timeout-minutes"} <= job.keys(), name


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_what_is_run_exists(workflow: Path) -> None:
    commands = [step["run"] for job in _jobs(workflow).values() for step in job["steps"] if "run" in step]
    commands += re.findall(r"requirements/\w+\.txt", workflow.read_text())
    for command in commands:
        made = re.match(r"make (\w+)", command)
        assert made is None or made[1] in TARGETS, command
        for path in re.findall(r"\b(?:requirements|tests)/[\w/.]+", command):
            assert (ROOT / path).exists(), command
        for made_with in re.findall(r"\bmake .*", command):
            assert "${{" not in made_with, f"what somebody else may choose is no part of a shell's text: {command}"
        for module in re.findall(r"-m (tools\.\w+)", command):
            assert (ROOT / f"{module.replace('.', '/')}.py").exists(), command


def test_every_python_that_is_supported_is_tested() -> None:
    matrix = _jobs(GITHUB / "workflows" / "ci.yml")["test"]["strategy"]["matrix"]
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert named
    assert set(named) <= set(matrix["python"])


def test_every_night_a_line_of_the_rules_that_no_test_comes_to_is_a_failure() -> None:
    steps = [step for job in _jobs(GITHUB / "workflows" / "nightly.yml").values() for step in job["steps"]]
    assert [step for step in steps if step.get("run") == "make coverage"]
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["report"]["fail_under"] == 100
    [recipe] = re.findall(r"^coverage:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    # The last word is the one that fails: without a limit of its own it takes that of pyproject.toml.
    assert recipe.splitlines()[-1].endswith("-m coverage report")


def test_a_workflow_that_another_one_calls_is_there_and_gets_what_it_asks_for() -> None:
    release = yaml.safe_load((GITHUB / "workflows" / "release.yml").read_text())["jobs"]
    calls = [job for job in release.values() if "uses" in job]
    assert [job["uses"] for job in calls] == ["./.github/workflows/docs.yml"], "the docs of a release are published"
    # YAML 1.1 reads the key `on` as true.
    [docs] = [yaml.safe_load((ROOT / job["uses"]).read_text()) for job in calls]
    assert calls[0]["with"].keys() == docs[True]["workflow_call"]["inputs"].keys()
    assert calls[0]["permissions"] == docs["jobs"]["site"]["permissions"]
    assert "publish" in calls[0]["needs"]


def test_the_site_is_published_where_the_package_says_it_is() -> None:
    [address] = re.findall(r'^Documentation = "(.*)"$', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    assert f"URL={address}\n" in (GITHUB / "workflows" / "docs.yml").read_text()


def test_who_opens_an_issue_is_shown_where_vulnerabilities_go() -> None:
    config = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / "config.yml").read_text())
    assert [link for link in config["contact_links"] if link["url"].endswith("/security/advisories/new")]
