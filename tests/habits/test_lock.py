"""The lock file has everything that pyproject.toml asks for, in versions that it allows."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
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


def test_the_newest_are_taken_where_there_are_no_constraints() -> None:
    assert _pins("none.txt") == {}
