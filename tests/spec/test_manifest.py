"""The manifest and the tests, read against each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spec.requirements import REQUIREMENTS, Requirement

HERE = Path(__file__).parent

WHOLLY = {"": HERE, "spec/legacy/": HERE / "legacy"}
"""Folders of which every test checks some entry, by the prefix of their tests in the manifest."""

PARTLY = {f"{name}/": HERE.parent / name for name in ("client", "legacy", "local", "hosted", "trust", "peers")} | {
    f"unit/{room}/": HERE.parent / "unit" / room for room in ("client", "legacy")
}
"""Folders of which those tests count that are marked."""


def _tests() -> dict[str, set[str]]:
    """Every test that counts, with the entries it is marked with."""
    wholly = {name: marks for prefix, folder in WHOLLY.items() for name, marks in _tests_in(folder, prefix)}
    partly = {name: marks for prefix, folder in PARTLY.items() for name, marks in _tests_in(folder, prefix) if marks}
    return {name: marks for name, marks in wholly.items() if not name.startswith("test_manifest::")} | partly


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


@pytest.mark.parametrize("entry", [entry for entry in REQUIREMENTS if entry.deviation], ids=lambda entry: entry.id)
def test_a_deviation_is_shown_by_tests(entry: Requirement) -> None:
    assert entry.tests


@pytest.mark.parametrize("entry", [entry for entry in REQUIREMENTS if entry.tests], ids=lambda entry: entry.id)
def test_the_tests_of_an_entry_are_those_that_are_marked_with_it(entry: Requirement) -> None:
    assert set(entry.tests) == {name for name, marks in TESTS.items() if entry.id in marks}


def test_every_test_is_marked_and_every_mark_has_an_entry() -> None:
    known = {entry.id for entry in REQUIREMENTS}
    assert {name for name, marks in TESTS.items() if not marks} == set()
    assert {name: sorted(marks - known) for name, marks in TESTS.items() if marks - known} == {}
