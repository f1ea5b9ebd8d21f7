"""How a call or a task stood, as one value."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mcp_tasks.client import Followed, LedgerEntry, Progress, TaskSnapshot, TaskStatus
from mcp_tasks.errors import InvalidResponse, UnknownTask

NOW = datetime(2026, 7, 28, tzinfo=UTC)
ENTRY = LedgerEntry(task_id="task_1", server="http://x/mcp", tool="render", started_at=NOW, status="working")


def seen(status: TaskStatus, **fields: Any) -> TaskSnapshot:
    return TaskSnapshot(id="task_1", status=status, created_at=NOW, updated_at=NOW, **fields)


def test_what_was_seen_counts_and_otherwise_what_the_ledger_has() -> None:
    result: dict[str, Any] = {"content": []}
    kept = replace(ENTRY, status="completed", result=result, message="done")
    assert (Followed(entry=kept).status, Followed(entry=kept).result) == ("completed", result)
    failed = Followed(entry=ENTRY, snapshot=seen(TaskStatus.FAILED, error={"code": 1}, message="no"))
    assert (failed.status, failed.error, failed.message, failed.result) == ("failed", {"code": 1}, "no", None)


def test_a_task_of_which_nothing_could_be_found_out_is_unknown() -> None:
    assert Followed(entry=ENTRY, problem=UnknownTask("task_1")).status == "unknown"
    assert Followed(entry=ENTRY).status == "working"


def test_its_json_has_what_has_a_value() -> None:
    asked: dict[str, Any] = {"q": {"method": "elicitation/create", "params": {}}}
    followed = Followed(entry=ENTRY, snapshot=seen(TaskStatus.INPUT_REQUIRED, input_requests=asked))
    assert followed.to_json() == {
        "server": "http://x/mcp",
        "tool": "render",
        "taskId": "task_1",
        "status": "input_required",
        "inputRequests": asked,
    }
    call = Followed(entry=replace(ENTRY, task_id=""), problem=OSError("gone"))
    assert call.to_json() == {"server": "http://x/mcp", "tool": "render", "status": "unknown", "problem": "gone"}


def test_what_it_asks_is_asked_by_its_tool_or_by_a_task_that_is_not_ours() -> None:
    asked: dict[str, Any] = {"q": {"method": "elicitation/create", "params": {"message": "Sure?"}}}
    followed = Followed(entry=ENTRY, snapshot=seen(TaskStatus.INPUT_REQUIRED, input_requests=asked))
    [question] = followed.questions
    assert (question.key, question.message, question.tool) == ("q", "Sure?", "render")
    assert question.server == "http://x/mcp"
    unknown = replace(followed, entry=LedgerEntry.begun("task_1", server="http://x/mcp"))
    assert (unknown.questions[0].tool, unknown.entry.status) == ("task_1", "working")
    assert Followed(entry=ENTRY).questions == []


@pytest.mark.parametrize(
    ("snapshot", "refuses"),
    [
        (seen(TaskStatus.FAILED, error={"code": -32602, "message": "no"}), True),
        (seen(TaskStatus.FAILED, error={"code": -32603, "message": "validation error"}), False),
        (seen(TaskStatus.COMPLETED, result={"isError": True, "content": [{"text": "1 Validation Error for x"}]}), True),
        (seen(TaskStatus.COMPLETED, result={"isError": True, "content": [7, {"text": "it broke"}]}), False),
        (seen(TaskStatus.COMPLETED, result={"content": [{"text": "a validation error is a result"}]}), False),
        (None, False),
    ],
)
def test_arguments_are_refused_by_an_error_or_in_words(snapshot: TaskSnapshot | None, refuses: bool) -> None:
    assert Followed(entry=ENTRY, snapshot=snapshot).refuses_arguments is refuses


@pytest.mark.parametrize(
    ("progress", "percent"),
    [
        (Progress(progress=1, total=3), 33),
        (Progress(progress=5, total=3), 100),
        (Progress(progress=-1, total=3), 0),
        (Progress(progress=5), None),
        (Progress(progress=5, total=0), None),
        (None, None),
    ],
)
def test_how_far_a_task_is_in_percent(progress: Progress | None, percent: int | None) -> None:
    assert Followed(entry=ENTRY, snapshot=seen(TaskStatus.WORKING, progress=progress)).percent == percent
    assert Followed(entry=ENTRY, snapshot=seen(TaskStatus.COMPLETED, progress=progress)).percent is None


def test_how_long_a_task_took_is_a_difference_of_one_clock() -> None:
    took = timedelta(seconds=90)
    # The server's clock is an hour behind.
    then = NOW - timedelta(hours=1)
    ended = replace(seen(TaskStatus.COMPLETED), created_at=then, updated_at=then + took)
    assert Followed(entry=ENTRY, snapshot=ended).elapsed == took
    assert Followed(entry=replace(ENTRY, status="completed", finished_at=NOW + took)).elapsed == took
    assert Followed(entry=replace(ENTRY, status="completed")).elapsed is None
    assert Followed(entry=replace(ENTRY, status="unknown")).elapsed is None
    running = Followed(entry=replace(ENTRY, started_at=datetime.now(UTC) - took)).elapsed
    assert running is not None
    assert running >= took


@pytest.mark.parametrize(
    ("progress", "total", "percent"), [(29, 100, 29), (1e308, 1, 100), (-1e308, 1, 0), (7, 5, 100), (1, 0, None)]
)
def test_percent_stay_within_bounds_whatever_a_server_says(progress: float, total: float, percent: int | None) -> None:
    done = Progress(progress=progress, total=total)
    assert Followed(entry=ENTRY, snapshot=seen(TaskStatus.WORKING, progress=done)).percent == percent


WRONG: dict[str, Any] = {"content": [], "isError": True}
ASKED: dict[str, Any] = {"q": {"method": "elicitation/create", "params": {}}}
SAMPLING: dict[str, Any] = {"q": {"method": "sampling/createMessage", "params": {}}}


@pytest.mark.parametrize(
    ("followed", "outcome"),
    [
        (Followed(entry=ENTRY), "working"),
        (Followed(entry=ENTRY, problem=OSError("gone")), "unknown"),
        (Followed(entry=ENTRY, snapshot=seen(TaskStatus.COMPLETED, result={"content": []})), "completed"),
        (Followed(entry=ENTRY, snapshot=seen(TaskStatus.COMPLETED, result=WRONG)), "tool_error"),
        (Followed(entry=ENTRY, snapshot=seen(TaskStatus.FAILED, result=WRONG)), "tool_error"),
        (Followed(entry=ENTRY, snapshot=seen(TaskStatus.FAILED, error={"code": 1})), "failed"),
        (Followed(entry=ENTRY, snapshot=seen(TaskStatus.INPUT_REQUIRED, input_requests=ASKED)), "input_required"),
        (
            Followed(entry=ENTRY, snapshot=seen(TaskStatus.INPUT_REQUIRED, input_requests=ASKED), left_open=True),
            "left_open",
        ),
        (
            Followed(entry=ENTRY, snapshot=seen(TaskStatus.INPUT_REQUIRED, input_requests=SAMPLING), left_open=True),
            "input_required",
        ),
    ],
)
def test_what_came_of_it_is_one_word(followed: Followed, outcome: str) -> None:
    assert followed.outcome == outcome


def test_files_of_its_result_are_saved_and_its_json_says_where(tmp_path: Path) -> None:
    result = {"content": [{"type": "image", "mimeType": "image/png", "data": "aGk="}, {"type": "audio", "data": "?"}]}
    followed = Followed(entry=ENTRY, snapshot=seen(TaskStatus.COMPLETED, result=result)).save(tmp_path)
    assert followed.saved == {0: tmp_path / "render-1.png"}
    assert followed.saved[0].read_bytes() == b"hi"
    assert isinstance(followed.not_saved, InvalidResponse)
    shown = followed.to_json()
    assert shown["saved"] == [str(tmp_path / "render-1.png")]
    assert "is not base64" in shown["problem"]
    assert Followed(entry=ENTRY).save(tmp_path) == Followed(entry=ENTRY)


def test_what_changes_is_json_of_its_own() -> None:
    progress = Progress(progress=1, total=4)
    followed = Followed(entry=ENTRY, snapshot=seen(TaskStatus.WORKING, progress=progress, message="one"))
    assert followed.state_to_json() == {
        "taskId": "task_1",
        "tool": "render",
        "status": "working",
        "statusMessage": "one",
        "progress": 1,
        "total": 4,
    }
    away = Followed(entry=replace(ENTRY, tool=""), away_since=NOW)
    assert away.state_to_json() == {
        "taskId": "task_1",
        "tool": "task_1",
        "status": "working",
        "outOfReachSince": NOW.isoformat(),
    }


def test_what_people_are_told_of_it_is_in_words() -> None:
    badly = Followed(entry=ENTRY, snapshot=seen(TaskStatus.COMPLETED, result=WRONG, message="no"))
    assert (badly.name, badly.state, badly.says) == ("render", "completed with an error", "no")
    failed = Followed(entry=ENTRY, snapshot=seen(TaskStatus.FAILED, result=WRONG))
    assert (failed.state, failed.says) == ("failed", "")
    foreign = Followed(entry=replace(ENTRY, tool="", task_id="task_0123456789"), snapshot=seen(TaskStatus.WORKING))
    assert (foreign.name, foreign.state) == ("task_01234567", "working")


def test_that_its_server_is_out_of_reach_is_said_in_place_of_what_it_last_said() -> None:
    away = Followed(
        entry=ENTRY,
        snapshot=seen(TaskStatus.WORKING, message="half done"),
        away_since=datetime.now(UTC) - timedelta(hours=1, seconds=5.5),
    )
    assert away.says == "server out of reach for 1:00:05, trying again"


@pytest.mark.parametrize(
    ("snapshot", "failure"),
    [
        (seen(TaskStatus.FAILED, error={"code": -1, "message": "out of paper"}), "out of paper (code -1)"),
        (seen(TaskStatus.FAILED, error={"code": -1}, message="it broke"), "it broke (code -1)"),
        (seen(TaskStatus.FAILED, message="it broke"), "it broke"),
        (seen(TaskStatus.FAILED), "the server does not say why"),
        (seen(TaskStatus.FAILED, result=WRONG), ""),
        (seen(TaskStatus.COMPLETED, result=WRONG), ""),
        (None, ""),
    ],
)
def test_why_a_call_failed_is_said_in_words(snapshot: TaskSnapshot | None, failure: str) -> None:
    assert Followed(entry=ENTRY, snapshot=snapshot).failure == failure
