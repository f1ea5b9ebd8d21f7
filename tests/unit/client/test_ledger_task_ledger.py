"""The ledger, for one task."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_tasks.cli.terminal import problem_of
from mcp_tasks.client import Ledger
from mcp_tasks.client.ledger import TaskLedger
from mcp_tasks.errors import StoreError

ID = "task_AhLNxyz0123456789abcdef"


def test_a_task_that_cannot_be_kept_is_named_to_who_started_it(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.close()
    with pytest.raises(StoreError) as refused:
        TaskLedger(ledger, ID, server="http://localhost/mcp").add("render")
    assert refused.value.__notes__ == [f"The task goes on, and is not in the ledger: {ID}"]
    # Not in its text, which is logged.
    assert ID not in str(refused.value)
    assert ID in str(problem_of(refused.value).hint)


def test_without_a_ledger_nothing_is_kept_and_nothing_is_missed() -> None:
    nothing = TaskLedger(None, ID)
    nothing.add("render")
    nothing.lost()
    assert not nothing.exists
    assert nothing.recorded_answer("q", {}) is None
