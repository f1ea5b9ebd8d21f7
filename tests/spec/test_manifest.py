"""The requirements and the tests, read against each other; the marks are read from the source of all tests."""

import ast
import tomllib
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def _requirements() -> dict[str, list[str]]:
    """Each id with its level, its sentence and its note, if there is one."""
    sources = tomllib.loads((TESTS / "spec" / "requirements.toml").read_text(encoding="utf-8"))
    entries = [
        entry
        for parties in sources.values()
        for sections in parties.values()
        for section in sections.values()
        for entry in section.items()
    ]
    assert len(entries) == len(dict(entries)), "an id stands in two sections"
    return dict(entries)


def _marked() -> dict[str, set[str]]:
    """Each id that a mark names, with the files that have the mark."""
    found: dict[str, set[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if "mark.requirement(" in source else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.requirement":
                for argument in node.args:
                    found.setdefault(ast.literal_eval(argument), set()).add(str(path.relative_to(TESTS)))
    return found


REQUIREMENTS = _requirements()
MARKED = _marked()


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_a_requirement_has_a_test_or_says_why_it_has_none(name: str) -> None:
    level, says, *note = REQUIREMENTS[name]
    assert level in {"MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY", "FORM"}
    assert says
    assert all(text.startswith(("gap: ", "deviation: ")) for text in note)
    is_gap = any(text.startswith("gap: ") for text in note)
    assert (name in MARKED) != is_gap


def test_a_mark_names_a_requirement_that_there_is() -> None:
    assert {name: files for name, files in MARKED.items() if name not in REQUIREMENTS} == {}
