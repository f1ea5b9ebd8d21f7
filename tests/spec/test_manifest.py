"""The manifest and the tests, read against each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spec.requirements import REQUIREMENTS, Requirement

HERE = Path(__file__).parent


def _tests() -> dict[str, set[str]]:
    """Every test of this folder but these, and those of the client's that are marked, with their entries."""
    here = {name: marks for name, marks in _tests_in(HERE, "") if not name.startswith("test_manifest::")}
    return here | {name: marks for name, marks in _tests_in(HERE.parent / "client", "client/") if marks}


def _tests_in(folder: Path, prefix: str) -> Iterator[tuple[str, set[str]]]:
    return (
        (f"{prefix}{path.stem}::{function.name}", set(_marks(function)))
        for path in sorted(folder.glob("test_*.py"))
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name.startswith("test_")
    )


def _marks(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.requirement":
            yield from (ast.literal_eval(argument) for argument in decorator.args)


TESTS = _tests()


def test_every_entry_has_an_id_of_its_own() -> None:
    ids = [entry.id for entry in REQUIREMENTS]
    assert sorted(ids) == sorted(set(ids))


@pytest.mark.parametrize("entry", REQUIREMENTS, ids=lambda entry: entry.id)
def test_every_entry_names_its_tests_or_says_why_it_has_none(entry: Requirement) -> None:
    assert bool(entry.tests) != bool(entry.gap)


@pytest.mark.parametrize("entry", [entry for entry in REQUIREMENTS if entry.tests], ids=lambda entry: entry.id)
def test_the_tests_of_an_entry_are_those_that_are_marked_with_it(entry: Requirement) -> None:
    assert set(entry.tests) == {name for name, marks in TESTS.items() if entry.id in marks}


def test_every_test_is_marked_and_every_mark_has_an_entry() -> None:
    known = {entry.id for entry in REQUIREMENTS}
    assert {name for name, marks in TESTS.items() if not marks} == set()
    assert {name: sorted(marks - known) for name, marks in TESTS.items() if marks - known} == {}
