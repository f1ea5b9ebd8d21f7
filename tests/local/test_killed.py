"""A parent whose process is killed finds the child that it started, in the next process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 60.0
"""Seconds for a process to start and do its part on a busy machine."""


def family(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """The server, in a process of its own."""
    command = [sys.executable, "-m", "tests.local.family", str(folder), *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def log(folder: Path) -> list[str]:
    path = folder / "log"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.requirement("local/child-once")
def test_a_parent_that_is_killed_finds_the_same_child(tmp_path: Path) -> None:
    with family(tmp_path) as first:
        assert first.stdout is not None
        parent = first.stdout.readline().strip()
        deadline = time.monotonic() + LIMIT
        while "child of alice" not in log(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.02)
        first.send_signal(signal.SIGKILL)
    assert log(tmp_path) == ["parent", "child of alice"]
    (tmp_path / "gate").touch()
    with family(tmp_path, parent) as second:
        printed, _ = second.communicate(timeout=LIMIT)
    found = json.loads(printed)
    (child,) = found["children"]
    assert found["result"] == {"child": child, "said": {"result": "accept name='Ann'"}}
    assert sorted(log(tmp_path)) == ["child of alice"] * 2 + ["parent"] * 2
