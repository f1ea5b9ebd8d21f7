"""The unit tests lie as the package does: whoever changes a module finds its tests by its path.

`src/mcp_tasks/runtime/lease.py` is tested by `tests/unit/runtime/test_lease.py`, and, where there is much to say, by
files beside it whose names go on from there (`test_lease_lost.py`). What a file needs of more than one module of the
package lies with the module that it is about.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

import mcp_tasks

UNIT = Path(__file__).parent
PACKAGE = Path(mcp_tasks.__file__).parent
ABOUT_THE_TESTS = frozenset({"test_mirror"})
"""Files that test no module, but how the tests are kept."""


def misplaced(tests: Iterable[Path], package: Path) -> list[str]:
    """The test files, given from the folder of all of them, that have no module of their name where they lie."""
    return [
        f"{test}: no module of {(package.name / test.parent).as_posix()} has a name that this one begins with"
        for test in tests
        if test.stem not in ABOUT_THE_TESTS and not _has_module(test, package / test.parent)
    ]


def _has_module(test: Path, room: Path) -> bool:
    words = test.stem.split("_")[1:]
    beginnings = ("_".join(words[:count]) for count in range(len(words), 0, -1))
    return any((room / f"{name}.py").is_file() or (room / name / "__init__.py").is_file() for name in beginnings)


def test_every_unit_test_lies_where_its_module_does() -> None:
    tests = [path.relative_to(UNIT) for path in sorted(UNIT.rglob("test_*.py"))]
    assert len(tests) > 80
    assert misplaced(tests, PACKAGE) == []


@pytest.mark.parametrize(
    "test", ["runtime/test_nothing.py", "kitchen/test_lease.py", "core/test_lease.py", "test_x.py"]
)
def test_a_test_of_no_module_is_noticed(test: str) -> None:
    assert len(misplaced([Path(test)], PACKAGE)) == 1


@pytest.mark.parametrize(
    "test", ["runtime/test_lease.py", "runtime/test_lease_lost.py", "stores/test_sqlite_columns.py", "test_errors.py"]
)
def test_a_test_beside_its_module_is_not(test: str) -> None:
    assert misplaced([Path(test)], PACKAGE) == []
