"""The numbers that `make numbers` prints, over a small project and small reports."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import numbers


def _module(path: Path, lines: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x = 1\n" * lines)


def test_added_commands_do_not_count(tmp_path: Path) -> None:
    _module(tmp_path / "cli" / "app.py", 10)
    _module(tmp_path / "cli" / "commands" / "store" / "ls.py", 5)
    _module(tmp_path / "cli" / "commands" / "key.py", 3)
    _module(tmp_path / "doctor" / "wire.py", 7)
    assert numbers.command_line(tmp_path) == (25, 17)


def test_a_module_of_the_limit_is_not_too_long(tmp_path: Path) -> None:
    _module(tmp_path / "a.py", 400)
    _module(tmp_path / "room" / "b.py", 401)
    assert numbers.long_modules(tmp_path) == ["room/b.py (401)"]


def test_tests_and_their_time_are_read_from_the_report(tmp_path: Path) -> None:
    report = tmp_path / "unit.xml"
    assert numbers.tests_of(report) is None
    report.write_text('<testsuites><testsuite tests="30" time="12.5"/></testsuites>')
    assert numbers.tests_of(report) == (30, 12.5)


def test_coverage_is_told_by_room(tmp_path: Path) -> None:
    report = tmp_path / "coverage.json"
    summary = {"num_statements": 6, "num_branches": 2, "missing_lines": 1, "missing_branches": 1}
    report.write_text(json.dumps({"files": {"src/mcp_tasks/model/a.py": {"summary": summary}}}))
    assert numbers.coverage_of(report)["model"] == "75.0 %, 2 lines and branches not covered"


@pytest.mark.parametrize(("code", "told"), [(0, "0 s, green"), (3, "0 s, red")])
def test_a_target_is_timed_and_its_end_is_handed_on(tmp_path: Path, code: int, told: str) -> None:
    cache = tmp_path / ".cache"
    assert numbers.time_of("check", cache) == "not made yet"
    assert numbers.timed("check", [sys.executable, "-S", "-c", f"raise SystemExit({code})"], cache) == code
    kept = json.loads((cache / "time-check.json").read_text())
    (cache / "time-check.json").write_text(json.dumps({**kept, "seconds": 0.2}))
    assert numbers.time_of("check", cache) == told


def test_every_number_of_this_project_can_be_told() -> None:
    told = dict(numbers.report(numbers.ROOT))
    assert "lines" in told["cli + doctor"]
    assert {"make check", "make test", "coverage of runtime"} <= set(told)
    assert all(told.values())
