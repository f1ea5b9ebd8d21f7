"""What the guides name exists: commands, paths, versions; and the changelog is in order."""

from __future__ import annotations

import ast
import re
import tomllib
from itertools import product
from pathlib import Path

import pytest

from tools.release import NotReady, check, section

ROOT = Path(__file__).parents[2]
GUIDES = ["ARCHITECTURE.md", "CONTRIBUTING.md", "RELEASING.md", "docs/sdk.md", ".github/pull_request_template.md"]
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
DECISIONS = ROOT / "docs" / "decisions"
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


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


def test_a_path_with_braces_is_several() -> None:
    assert _paths("src/a/{b,c}") == ["src/a/b", "src/a/c"]


@pytest.mark.parametrize("target", ["check", "test", "docs", "lock", "coverage", "numbers"])
def test_who_contributes_is_told_when_to_run_what(target: str) -> None:
    assert f"make {target}" in (ROOT / "CONTRIBUTING.md").read_text()


def test_every_decision_is_in_the_index_and_in_the_architecture() -> None:
    records = sorted(DECISIONS.glob("[0-9]*.md"))
    assert [int(record.name[:4]) for record in records] == list(range(1, len(records) + 1))
    index, architecture = (DECISIONS / "README.md").read_text(), (ROOT / "ARCHITECTURE.md").read_text()
    for number, record in enumerate(records, 1):
        assert record.read_text().startswith(f"# {number}. ")
        assert f"]({record.name})" in index
        assert f"](docs/decisions/{record.name})" in architecture


@pytest.mark.parametrize("record", sorted(DECISIONS.glob("[0-9]*.md")), ids=lambda path: path.stem[:4])
def test_a_decision_has_the_form_and_names_files_that_exist(record: Path) -> None:
    text = record.read_text()
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == ["Status", "Context", "Decision", "Consequences"]
    assert re.search(r"^## Status\n\n(Proposed|Accepted|Replaced by)\b", text, flags=re.MULTILINE)
    assert [part for part in re.split(r"^## .*$", text, flags=re.MULTILINE) if not part.strip()] == []
    # Paths are of the package, or of the repository; a file that is named alone is somewhere in the package.
    package = ROOT / "src" / "mcp_tasks"
    for path in re.findall(r"`([\w/]+(?:\.py|/))`", text):
        assert (package / path).exists() or (ROOT / path).exists() or [*package.rglob(path)], path


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


def test_the_changelog_is_by_release_newest_first() -> None:
    first, *released = re.findall(r"^## (.*)$", CHANGELOG, flags=re.MULTILINE)
    assert first == "Unreleased"
    form = r"\d+\.\d+\.\d+ - (\d{4}-\d\d-\d\d|unreleased)"
    assert [heading for heading in released if not re.fullmatch(form, heading)] == []
    versions = [tuple(map(int, heading.split(" ")[0].split("."))) for heading in released]
    assert versions == sorted(versions, reverse=True)


LOG = "# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2026-12-01\n\n- one thing\n\n## 0.1.0 - 2026-11-01\n\n- all\n"
NAMED = '[project]\nversion = "0.2.0"\n'


def test_the_notes_of_a_release_are_its_section_alone() -> None:
    assert section(LOG, "0.2.0") == "- one thing\n"


@pytest.mark.parametrize(
    ("version", "changed", "why"),
    [
        ("next", "", "is no version"),
        ("0.3.0", "", "set it to 0.3.0"),
        ("0.2.0", " M README.md", "commit or undo"),
    ],
)
def test_what_is_not_ready_is_not_released(version: str, changed: str, why: str) -> None:
    with pytest.raises(NotReady, match=why):
        check(version, pyproject=NAMED, changelog=LOG, changed=changed)


def test_a_release_without_a_dated_section_is_refused() -> None:
    check("0.2.0", pyproject=NAMED, changelog=LOG, changed="")
    with pytest.raises(NotReady, match="YYYY-MM-DD"):
        check("0.2.0", pyproject=NAMED, changelog=LOG.replace("2026-12-01", "unreleased"), changed="")
