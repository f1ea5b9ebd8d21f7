"""A parent that is killed the moment its child is in the store, before it writes down that it started one."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from harness.forking import PIPE, fork

LIMIT = 60.0
"""Seconds for a process to start and do its part on a busy machine."""


@pytest.mark.requirement("local/child-once")
def test_a_child_that_has_expired_is_not_started_again_by_the_next_run_of_its_parent(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tasks.db'}"

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
    assert (tmp_path / "log").read_text().splitlines() == ["parent", f"started {child}", f"ran {child}", "parent"]
    assert "is gone: its ttl was over" in found["error"]
