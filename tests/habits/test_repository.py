"""Workflows are what GitHub takes, pin what they use and run what exists; the lock file and the guides are true.

What is not covered says why, and no test waits by the clock without a reason.
"""

import ast
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness.processes import ROOT, run
from tools.release import NotReady, check

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PUBLISHING = ("actions/attest-build-provenance", "pypa/gh-action-pypi-publish")
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
    done = run([sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)])
    assert done.returncode == 0, done.stdout + done.stderr


def _jobs(workflow: Path) -> dict[str, Any]:
    """The jobs that run here, and not those that are another workflow."""
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    return {name: job for name, job in jobs.items() if "uses" not in job}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_with_their_version_beside_it_and_images_by_digest(workflow: Path) -> None:
    used = re.findall(r"uses: (?!\./)(.*)", workflow.read_text())
    assert used
    assert [line for line in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []
    for name, job in _jobs(workflow).items():
        images = [job.get("container"), *job.get("services", {}).values()]
        for image in [image if isinstance(image, str) else image["image"] for image in images if image]:
            assert re.search(r"@sha256:[0-9a-f]{64}$", image), name


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_job_that_may_write_runs_nothing_but_git_and_gh_and_no_other_has_a_token(workflow: Path) -> None:
    assert yaml.safe_load(workflow.read_text())["permissions"] == {}
    assert "VERSION=" not in workflow.read_text(), "a tag is handed to make in the environment"
    for name, job in _jobs(workflow).items():
        assert {"permissions", "timeout-minutes"} <= job.keys(), name
        if "write" not in job["permissions"].values():
            assert not re.search(r"github\.token|secrets\.", str(job)), name
            continue
        for step in job["steps"]:
            # No action but those that check out, fetch what an earlier job made, or publish it.
            action = step.get("uses", "").partition("@")[0]
            assert action in ("", "actions/checkout", "actions/download-artifact", *PUBLISHING), name
            if action == "actions/checkout":
                assert step["with"]["persist-credentials"] is False
            assert {line.split()[0] for line in step.get("run", "").splitlines()} <= {"git", "gh"}, name


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


@pytest.mark.parametrize(("target", "python"), [("release", ".cache/release/bin/python"), ("docs", ".venv/bin/python")])
def test_a_tag_is_no_part_of_a_shells_text(tmp_path: Path, target: str, python: str) -> None:
    evil = "0.2.0';touch${IFS}owned;$(touch${IFS}owned)\"`touch${IFS}owned`"
    (tmp_path / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    given = tmp_path / python
    given.parent.mkdir(parents=True)
    given.write_text('#!/bin/sh\nprintf "%s\\n" "$@" >> given\n')
    given.chmod(0o755)
    # On the command line make would look for variables of its own in it, as for any other value that is typed there.
    command = ["make", "-o", ".venv/.installed", "-o", ".venv/.docs", target]
    done = run(command, cwd=tmp_path, env={**os.environ, "VERSION": evil})
    assert done.returncode == 0, done.stderr
    assert evil in (tmp_path / "given").read_text().splitlines()
    assert not (tmp_path / "owned").exists()


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ASKED = [
    Requirement(text)
    for group in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for text in group
    if not text.startswith("mcp-tasks[")
]


def _pins(name: str) -> dict[str, list[Requirement]]:
    pins: dict[str, list[Requirement]] = {}
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            pin = Requirement(line)
            pins.setdefault(canonicalize_name(pin.name), []).append(pin)
    return pins


@pytest.mark.parametrize("name", ["dev.txt", "lowest.txt"])
def test_every_dependency_of_every_extra_is_pinned_within_its_bounds(name: str) -> None:
    pins = _pins(name)
    missing = [str(asked) for asked in ASKED if canonicalize_name(asked.name) not in pins]
    assert missing == [], "run `make lock`"
    for asked in ASKED:
        for pin in pins[canonicalize_name(asked.name)]:
            [exactly] = pin.specifier
            assert exactly.operator == "=="
            assert asked.specifier.contains(exactly.version, prereleases=True), f"{pin} is not {asked}: run `make lock`"


GUIDES = ["ARCHITECTURE.md", "CONTRIBUTING.md", "RELEASING.md", "docs/sdk.md", ".github/pull_request_template.md"]


def _code(text: str) -> list[str]:
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [*blocks, *re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))]


def _paths(code: str) -> list[str]:
    """The paths in some code; `a/{b,c}` is two."""
    found: list[str] = []
    for word in re.findall(r"(?:src|tests|docs|harness|bench|tools|requirements|\.github)(?:/[\w.{},/-]+)?", code):
        parts = [part.split(",") for part in re.split(r"[{}]", word)]
        found += ["".join(chosen) for chosen in product(*parts)]
    return found


@pytest.mark.parametrize("guide", GUIDES)
def test_commands_and_paths_of_a_guide_exist(guide: str) -> None:
    code = _code((ROOT / guide).read_text())
    made = {target for span in code for target in re.findall(r"^(?:\$ )?make ([a-z]+)", span, flags=re.MULTILINE)}
    assert made - TARGETS == set()
    spans = [span for span in code if re.match(r"(src|tests|docs|harness|bench|tools|requirements|\.github)\b", span)]
    spans += [span for span in code if "pytest" in span or "CONSTRAINTS=" in span]
    assert [path for span in spans for path in _paths(span) if not (ROOT / path).exists()] == []


def test_the_map_for_who_contributes_has_every_room() -> None:
    told = {path for span in _code((ROOT / "CONTRIBUTING.md").read_text()) for path in _paths(span)}
    rooms = [path.parent for folder in ("src/mcp_tasks", "tests") for path in (ROOT / folder).glob("*/*.py")]
    assert {path.relative_to(ROOT).as_posix() for path in rooms} - told == set()


def test_the_table_of_sdks_agrees_with_what_is_asked_for() -> None:
    page = (ROOT / "docs" / "sdk.md").read_text()
    [row] = [line for line in page.splitlines() if line.startswith(f"| {PROJECT['version']}")]
    [asked] = [text for text in PROJECT["dependencies"] if text.startswith("mcp>")]
    assert f"`{asked.removeprefix('mcp')}`" in row
    [pinned] = re.findall(r"^mcp==(\S+)", (ROOT / "requirements" / "dev.txt").read_text(), flags=re.MULTILINE)
    assert pinned in row.split("|")[3]


def test_the_modules_of_the_sdk_that_are_imported_are_in_its_table_and_public() -> None:
    imported: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported |= {name for name in names if name.split(".")[0] in {"mcp", "mcp_types"}}
    told = set(re.findall(r"`(mcp[\w.]*)`", (ROOT / "docs" / "sdk.md").read_text().partition("| module of")[2]))
    assert told == imported
    assert [name for name in imported if "._" in name] == []


LOG = "# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2026-12-01\n\n- one thing\n\n## 0.1.0 - 2026-11-01\n\n- all\n"
NAMED = '[project]\nversion = "0.2.0"\n'


def test_what_is_not_ready_is_not_released() -> None:
    check("0.2.0", pyproject=NAMED, changelog=LOG, changed="")
    for version, changelog, changed, why in (
        ("next", LOG, "", "is no version"),
        ("0.3.0", LOG, "", "set it to 0.3.0"),
        ("0.2.0", LOG, " M README.md", "commit or undo"),
        ("0.2.0", LOG.replace("2026-12-01", "unreleased"), "", "YYYY-MM-DD"),
    ):
        with pytest.raises(NotReady, match=why):
            check(version, pyproject=NAMED, changelog=changelog, changed=changed)


# How tests and source are written

_EXCLUDED = re.compile(r"# pragma: no (?:cover|branch)(?P<why>.*)")
_LEAST_WORDS = 4
SLEEPS = frozenset({"anyio.sleep", "asyncio.sleep", "time.sleep"})


def test_what_is_not_to_be_covered_says_why() -> None:
    bare = [
        f"{path}:{number}"
        for path in (ROOT / "src").rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (found := _EXCLUDED.search(line))
        and not (found["why"].startswith(" - ") and len(found["why"].split()) > _LEAST_WORDS)
    ]
    assert bare == []


def _sleeps(node: ast.AST) -> Iterator[int]:
    """The lines that sleep for a fixed time, not in a loop that looks."""
    if isinstance(node, ast.While):
        return
    if isinstance(node, ast.Call) and ast.unparse(node.func) in SLEEPS and ast.unparse(node.args[0]) != "0":
        yield node.lineno
    for inner in ast.iter_child_nodes(node):
        yield from _sleeps(inner)


def test_no_test_waits_by_the_clock() -> None:
    """Servers and stores for tests have modules of their own: what those sleep is their work."""
    found: list[str] = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        waits = _sleeps(ast.parse("\n".join(lines)))
        found += [f"{path}:{number}" for number in waits if "# sleep: " not in lines[number - 1]]
    assert found == [], "await what is waited for, or say why it cannot be in a comment on the line: # sleep: ..."
