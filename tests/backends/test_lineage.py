"""A parent that is killed the moment its child is in the store, before it records that it started one."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.backends import Backend, BackendName
from harness.forking import forked
from harness.processes import PIPE

LIMIT = 90.0
"""Seconds for a process to start and do its part on a busy machine."""


@pytest.mark.slow
@pytest.mark.requirement("local/child-once")
@pytest.mark.parametrize("name", ["sqlite", "postgres", "redis"])
def test_a_child_that_has_expired_is_not_started_again_by_the_next_run_of_its_parent(
    name: BackendName, shared_backend: Callable[[BackendName], Backend], tmp_path: Path
) -> None:
    url = shared_backend(name).fresh()

    def run(queues: str, *wanted: str) -> tuple[str, int]:
        module = "tests.backends.lineage_child"
        with forked(module, url, tmp_path, queues, *wanted, stdout=PIPE, text=True) as process:
            assert process.stdout is not None
            return process.stdout.read().strip(), process.wait(LIMIT)

    parent, ended = run("parents", "die")
    assert ended == -signal.SIGKILL
    # The child runs in another process, ends, and its result expires.
    assert run("children") == ("", 0)
    found = json.loads(run("parents,children", parent)[0])
    child = found["child"]
    assert (tmp_path / "log").read_text().splitlines() == ["parent", f"started {child}", f"ran {child}", "parent"]
    assert "is gone: its ttl was over" in found["error"]
