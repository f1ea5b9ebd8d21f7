"""A parent whose process is killed finds the child that it started, in the next process."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from harness.databases import postgres, valkey
from harness.forking import PIPE, Forked, fork

LIMIT = 60.0
"""Seconds for a process to start and do its part on a busy machine."""


def family(folder: Path, *arguments: str) -> Forked:
    """The server, in a process of its own."""
    return fork("tests.local.family", str(folder), *arguments, stdout=PIPE, text=True)


def log(folder: Path) -> list[str]:
    path = folder / "log"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.requirement("local/child-once")
def test_a_parent_that_is_killed_finds_the_same_child(tmp_path: Path) -> None:
    first = family(tmp_path)
    assert first.stdout is not None
    with first.stdout:
        parent = first.stdout.readline().strip()
        deadline = time.monotonic() + LIMIT
        while "child of alice" not in log(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.02)
        first.kill()
        first.wait(LIMIT)
    assert log(tmp_path) == ["parent", "child of alice"]
    (tmp_path / "gate").touch()
    second = family(tmp_path, parent)
    assert second.stdout is not None
    with second.stdout:
        found = json.loads(second.stdout.read())
    second.wait(LIMIT)
    (child,) = found["children"]
    assert found["result"] == {"child": child, "said": {"result": "accept name='Ann'"}}
    assert sorted(log(tmp_path)) == ["child of alice"] * 2 + ["parent"] * 2


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'tasks.db'}"
        return
    with valkey() if request.param == "redis" else postgres(durable=False) as server:
        yield server.new_database()


@pytest.mark.requirement("local/child-once")
def test_a_child_that_has_expired_is_not_started_again_by_the_next_run_of_its_parent(tmp_path: Path, url: str) -> None:
    def run(queues: str, *wanted: str) -> tuple[str, int]:
        process = fork("tests.local.lineage", url, str(tmp_path), queues, *wanted, stdout=PIPE, text=True)
        assert process.stdout is not None
        with process.stdout:
            said = process.stdout.read().strip()
        return said, process.wait(LIMIT)

    parent, ended = run("parents", "die")
    assert ended == -signal.SIGKILL
    # The child runs elsewhere, ends, and its result expires.
    assert run("children") == ("", 0)
    found = json.loads(run("parents,children", parent)[0])
    child = found["child"]
    assert log(tmp_path) == ["parent", f"started {child}", f"ran {child}", "parent"]
    assert "is gone: its ttl was over" in found["error"]
