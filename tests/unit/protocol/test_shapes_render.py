"""Records as SEP-2663 words them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from mcp_tasks.model import (
    Event,
    InputRequest,
    InputRequested,
    Progress,
    ProgressReported,
    RunCompleted,
    RunFailed,
    RunStarted,
    TaskCancelled,
    apply,
)
from mcp_tasks.model.json import encode_json
from mcp_tasks.model.record import Outcome, TaskRecord
from mcp_tasks.protocol.shapes import (
    ACK,
    PROGRESS_META_KEY,
    milliseconds,
    render_created,
    render_detailed,
    render_outcome,
    render_result,
    render_task,
    timestamp,
)
from mcp_tasks.testing import make_record
from mcp_tasks.testing.clock import NOON

QUESTION = InputRequest(method="elicitation/create", params={"message": "Sure?"})


def running(*events: Event, **fields: Any) -> TaskRecord:
    record = make_record(id="task-1", **fields)
    for event in (RunStarted(worker="worker-1"), *events):
        record = apply(record, event, NOON)
    return record


def reporting(progress: Progress) -> TaskRecord:
    return running(ProgressReported(attempt=1, progress=progress))


def test_a_new_task_is_answered_flat_and_with_nothing_of_an_outcome() -> None:
    assert render_created(make_record(id="task-1"), NOON) == {
        "resultType": "task",
        "taskId": "task-1",
        "status": "working",
        "createdAt": "2026-01-01T12:00:00.000Z",
        "lastUpdatedAt": "2026-01-01T12:00:00.000Z",
        "ttlMs": 3_600_000,
        "pollIntervalMs": 200,
    }


def test_a_task_that_ended_before_it_was_answered_still_shows_no_outcome_in_the_answer_to_its_call() -> None:
    shown = render_created(running(RunCompleted(attempt=1)), NOON)
    assert shown["status"] == "completed"
    assert "result" not in shown


def test_a_task_kept_for_good_says_so_with_a_null() -> None:
    shown = render_task(make_record(retention=None), NOON)
    assert "ttlMs" in shown
    assert shown["ttlMs"] is None


def test_nothing_else_is_ever_null() -> None:
    for record in (make_record(), running(), running(TaskCancelled(reason="enough"))):
        assert None not in render_task(record, NOON).values()


def test_all_open_questions_are_shown_and_only_while_they_are_open() -> None:
    record = running(InputRequested(attempt=1, requests={"a": QUESTION, "b": QUESTION}))
    asked = {"method": "elicitation/create", "params": {"message": "Sure?"}}
    assert render_task(record, NOON)["inputRequests"] == {"a": asked, "b": asked}
    assert "inputRequests" not in render_task(apply(record, TaskCancelled(reason="enough"), NOON), NOON)


def test_what_asks_a_client_for_a_task_of_its_own_is_not_of_this_era() -> None:
    params = {"message": "Sure?", "task": {"ttl": 1000}}
    question = InputRequest(method="elicitation/create", params=params, hosted_as="theirs")
    shown = render_task(running(InputRequested(attempt=1, requests={"a": question})), NOON)
    assert shown["inputRequests"] == {"a": {"method": "elicitation/create", "params": {"message": "Sure?"}}}


def outcome(body: Any, meta: Any = None) -> Outcome:
    return Outcome(body=encode_json(body), meta=None if meta is None else encode_json(meta))


def shown_outcome(record: TaskRecord, kept: Outcome | None) -> dict[str, Any]:
    field = render_outcome(record, kept)
    return {} if field is None else {field[0]: json.loads(field[1])}


def test_a_completed_task_shows_its_result_with_the_mark_of_the_era() -> None:
    record = running(RunCompleted(attempt=1))
    shown = render_task(record, NOON)
    assert (shown["resultType"], shown["status"]) == ("complete", "completed")
    assert shown_outcome(record, outcome({"content": [], "isError": True})) == {
        "result": {"resultType": "complete", "content": [], "isError": True}
    }


@pytest.mark.parametrize(
    ("kept", "shown"),
    [
        (outcome({}), {}),
        (outcome({"content": []}, {"com.example/a": 1}), {"content": [], "_meta": {"com.example/a": 1}}),
        (outcome({}, {"a": {}}), {"_meta": {"a": {}}}),
        (Outcome(body=b' { "content" : [ "{}" ] } '), {"content": ["{}"]}),
        (Outcome(body=b"{ }"), {}),
    ],
)
def test_a_result_is_spliced_and_says_what_was_kept(kept: Outcome, shown: dict[str, Any]) -> None:
    assert json.loads(render_result(kept)) == {"resultType": "complete", **shown}


def test_a_task_that_runs_or_was_cancelled_has_no_outcome_to_show() -> None:
    for record in (running(), running(TaskCancelled(reason="enough"))):
        # What a tool asked on the call is kept with a cancelled task, and is no business of whoever looks at it.
        assert shown_outcome(record, outcome({"inputRequests": {}})) == {}
        assert shown_outcome(record, None) == {}


def test_a_failed_task_shows_its_error_and_says_it_in_words() -> None:
    error = {"code": -32603, "message": "out of paper"}
    record = running(RunFailed(attempt=1, message="out of paper"))
    shown = render_task(record, NOON)
    assert (shown["status"], shown["statusMessage"]) == ("failed", "out of paper")
    assert shown_outcome(record, outcome(error)) == {"error": error}


def test_a_cancelled_task_says_why() -> None:
    shown = render_task(running(TaskCancelled(reason="changed my mind")), NOON)
    assert (shown["status"], shown["statusMessage"]) == ("cancelled", "changed my mind")
    assert not shown.keys() & {"result", "error", "inputRequests"}


@pytest.mark.parametrize(
    ("progress", "message"),
    [
        (Progress(progress=3), "3"),
        (Progress(progress=0.5, total=2), "0.5 of 2"),
        (Progress(progress=1, total=2, message="halfway"), "halfway"),
        (Progress(progress=1, message=""), ""),
    ],
)
def test_progress_is_the_status_message_of_a_running_task(progress: Progress, message: str) -> None:
    assert render_task(reporting(progress), NOON)["statusMessage"] == message


def test_the_numbers_of_the_progress_are_in_the_meta() -> None:
    assert render_task(reporting(Progress(progress=1, total=4)), NOON)["_meta"] == {
        PROGRESS_META_KEY: {"progress": 1, "total": 4}
    }
    assert render_task(reporting(Progress(progress=1)), NOON)["_meta"] == {PROGRESS_META_KEY: {"progress": 1}}
    assert "_meta" not in render_task(running(), NOON)


def test_progress_is_no_message_once_the_task_has_ended() -> None:
    record = apply(reporting(Progress(progress=1, message="halfway")), RunCompleted(attempt=1), NOON)
    assert "statusMessage" not in render_task(record, NOON)


def test_the_detailed_task_is_the_same_without_the_result_type() -> None:
    record = running(RunCompleted(attempt=1))
    assert {"resultType": "complete", **render_detailed(record, NOON)} == render_task(record, NOON)


@pytest.mark.parametrize(
    "event",
    [
        ProgressReported(attempt=1, progress=Progress(progress=1, message="half \udcff")),
        RunFailed(attempt=1, message="half \udcff"),
        TaskCancelled(reason="half \udcff"),
        InputRequested(
            attempt=1,
            requests={"a": InputRequest(method="elicitation/create", params={"message": "\udcff", "\udcff": 1})},
        ),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_an_older_release_wrote_that_is_not_valid_unicode_can_be_sent_all_the_same(event: Event) -> None:
    assert "\ufffd" in json.dumps(render_task(running(event), NOON), ensure_ascii=False).encode().decode()


def test_an_error_of_an_older_release_that_is_not_valid_unicode_can_be_sent_all_the_same() -> None:
    kept = Outcome(body=json.dumps({"code": 1, "message": "half \udcff", "data": {"\udcff": "\U0001f600"}}).encode())
    field = render_outcome(running(RunFailed(attempt=1)), kept)
    assert field is not None
    assert json.loads(field[1].decode()) == {"code": 1, "message": "half \ufffd", "data": {"\ufffd": "\U0001f600"}}


def test_instants_are_in_utc_with_milliseconds() -> None:
    east = timezone(timedelta(hours=2))
    assert timestamp(datetime(2026, 1, 1, 14, 0, 0, 123_999, tzinfo=east)) == "2026-01-01T12:00:00.123Z"
    assert timestamp(datetime(2026, 1, 1, tzinfo=UTC)) == "2026-01-01T00:00:00.000Z"


@pytest.mark.parametrize(("duration", "shown"), [(0, 0), (1, 1), (1000, 1), (1001, 2), (3_600_000_000, 3_600_000)])
def test_durations_are_whole_milliseconds_rounded_up(duration: int, shown: int) -> None:
    assert milliseconds(timedelta(microseconds=duration)) == shown


def test_the_acknowledgement_has_no_task_in_it() -> None:
    assert dict(ACK) == {"resultType": "complete"}
