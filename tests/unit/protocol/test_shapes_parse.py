"""What a client makes of a task on the wire: strict where a wait depends on it, lenient elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.thoroughness import examples
from mcp_tasks.errors import InvalidResponse
from mcp_tasks.model import Outcome, Progress, TaskRecord, TaskStatus
from mcp_tasks.protocol.shapes import (
    PROGRESS_META_KEY,
    TaskSnapshot,
    parse_created,
    parse_task,
    render_created,
    render_detailed,
    render_outcome,
    render_task,
)
from mcp_tasks.testing.clock import NOON
from mcp_tasks.testing.strategies import json_objects, json_values, records
from tests.client.peer import TASK_ID, asking, completed, task

ERROR = {"code": -32603, "message": "no"}


def test_a_working_task_is_read_whole() -> None:
    numbers = {PROGRESS_META_KEY: {"progress": 3, "total": 10}}
    snapshot = parse_task(task(statusMessage="a third", ttlMs=90_000, pollIntervalMs=1_500, _meta=numbers))
    assert snapshot == TaskSnapshot(
        id=TASK_ID,
        status=TaskStatus.WORKING,
        message="a third",
        created_at=datetime(2026, 8, 1, 10, tzinfo=UTC),
        updated_at=datetime(2026, 8, 1, 10, tzinfo=UTC),
        expires_at=datetime(2026, 8, 1, 10, 1, 30, tzinfo=UTC),
        poll_interval=timedelta(seconds=1.5),
        progress=Progress(progress=3, total=10, message="a third"),
    )
    assert not snapshot.is_final


def test_a_task_as_json_has_what_it_has_and_when_it_expires() -> None:
    numbers = {PROGRESS_META_KEY: {"progress": 3, "total": 10}}
    working = parse_task(task(statusMessage="a third", ttlMs=90_000, pollIntervalMs=1_500, _meta=numbers))
    times = {"createdAt": "2026-08-01T10:00:00+00:00", "lastUpdatedAt": "2026-08-01T10:00:00+00:00"}
    assert working.to_json() == {
        "taskId": TASK_ID,
        "status": "working",
        "statusMessage": "a third",
        "progress": {"progress": 3, "total": 10},
        "expiresAt": "2026-08-01T10:01:30+00:00",
        "pollIntervalMs": 1500,
        **times,
    }
    failed = parse_task(task(status="failed", error=ERROR, ttlMs=None)).to_json()
    assert (failed["error"], failed["expiresAt"]) == (ERROR, None)
    assert "result" not in failed


def test_each_status_brings_what_belongs_to_it() -> None:
    assert list(parse_task(asking("a", "b")).input_requests) == ["a", "b"]
    assert parse_task(completed()).result == completed()["result"]
    assert parse_task(task("failed", error=ERROR)).error == ERROR
    assert parse_task(task("cancelled")).is_final


def test_what_does_not_belong_to_a_status_is_not_looked_at() -> None:
    snapshot = parse_task(task("working", result=5, error="x", inputRequests=[]))
    assert (snapshot.result, snapshot.error, dict(snapshot.input_requests)) == (None, None, {})


@pytest.mark.parametrize("field", ["taskId", "status", "createdAt", "lastUpdatedAt"])
@pytest.mark.parametrize("value", [..., None, 7, True, "", [], {}])
def test_a_task_without_its_bones_is_not_valid(field: str, value: Any) -> None:
    with pytest.raises(InvalidResponse, match="not a valid task"):
        parse_task(task(**{field: value}))


def test_what_is_missing_is_named() -> None:
    with pytest.raises(InvalidResponse, match="'createdAt' is missing"):
        parse_task(task(createdAt=...))


@pytest.mark.parametrize("value", ["yesterday", "2026-08-01", "2026-08-01T10:00:00", "2026-13-01T10:00:00Z"])
def test_a_time_that_is_no_instant_is_refused(value: str) -> None:
    with pytest.raises(InvalidResponse):
        parse_task(task(lastUpdatedAt=value))


@pytest.mark.parametrize("status", ["Working", "done", "submitted", "expired", "input-required"])
def test_a_status_that_the_extension_does_not_know_is_refused(status: str) -> None:
    with pytest.raises(InvalidResponse):
        parse_task(task(status))


@pytest.mark.parametrize(
    ("status", "field"), [("completed", "result"), ("failed", "error"), ("input_required", "inputRequests")]
)
@pytest.mark.parametrize("value", [..., None, [], "x", 1])
def test_a_status_without_what_it_must_bring_is_refused(status: str, field: str, value: Any) -> None:
    with pytest.raises(InvalidResponse):
        parse_task(task(status, **{field: value}))


@pytest.mark.parametrize("ttl", [..., None, "1", True, [], 1e300, float("nan")])
def test_a_task_whose_ttl_says_nothing_does_not_expire(ttl: Any) -> None:
    assert parse_task(task(ttlMs=ttl)).expires_at is None


def test_a_task_that_is_kept_beyond_the_last_year_of_the_calendar_does_not_expire() -> None:
    ten_thousand_years = 10_000 * 365 * 86_400_000
    assert parse_task(task(ttlMs=ten_thousand_years)).expires_at is None


@pytest.mark.parametrize("ttl", [0, 1, 3_600_000])
def test_a_task_expires_its_ttl_after_it_was_created(ttl: int) -> None:
    snapshot = parse_task(task(ttlMs=ttl, lastUpdatedAt="2026-08-01T11:30:00.000Z"))
    assert snapshot.expires_at == snapshot.created_at + timedelta(milliseconds=ttl)


@pytest.mark.parametrize("interval", [..., None, "1", False, {}, float("nan"), float("inf")])
def test_an_interval_that_says_nothing_is_none(interval: Any) -> None:
    assert parse_task(task(pollIntervalMs=interval)).poll_interval is None


@pytest.mark.parametrize("meta", [..., None, 5, {}, {PROGRESS_META_KEY: 5}, {PROGRESS_META_KEY: {"progress": "3"}}])
def test_progress_that_says_nothing_is_none(meta: Any) -> None:
    assert parse_task(task(_meta=meta)).progress is None


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 10**400, True])
def test_a_number_that_nobody_can_reckon_with_is_no_progress(number: Any) -> None:
    assert parse_task(task(_meta={PROGRESS_META_KEY: {"progress": number, "total": 10}})).progress is None
    counted = parse_task(task(_meta={PROGRESS_META_KEY: {"progress": 3, "total": number}}))
    assert counted.progress == Progress(progress=3)


@pytest.mark.parametrize("question", [7, None, "x", []])
def test_a_question_that_is_no_object_is_refused(question: Any) -> None:
    with pytest.raises(InvalidResponse, match="q is not an object"):
        parse_task(task("input_required", inputRequests={"q": question}))


@pytest.mark.parametrize("message", [..., None, 5, ["x"]])
def test_a_status_message_that_is_no_text_is_none(message: Any) -> None:
    assert parse_task(task(statusMessage=message)).message is None


def test_unknown_fields_do_not_matter() -> None:
    assert parse_task(task(next="revision", extra={"of": "the spec"})) == parse_task(task())


def test_an_offset_is_as_good_as_z() -> None:
    assert parse_task(task(createdAt="2026-08-01T12:00:00+02:00")) == parse_task(task())


@pytest.mark.parametrize("status", ["working", "input_required", "completed", "failed"])
def test_a_task_just_created_needs_nothing_that_its_status_brings_later(status: str) -> None:
    assert parse_created(task(status, resultType="task")).status is TaskStatus.WORKING


def test_a_task_that_was_cancelled_when_it_was_created_stays_so() -> None:
    assert parse_created(task("cancelled", resultType="task")).status is TaskStatus.CANCELLED


_numbers = st.floats() | st.integers() | st.sampled_from([0, -1, 2**63, 10**400, float("nan"), float("inf")])
_texts = st.text(st.characters(exclude_categories=()), max_size=30)
_instants = st.datetimes(timezones=st.timezones()).map(datetime.isoformat)
_anything = st.one_of(
    json_values(),
    _numbers,
    _texts,
    _instants,
    st.sampled_from(TaskStatus).map(str),
    st.dictionaries(_texts, json_values()),
)
_FIELDS = [*task(), "statusMessage", "_meta", "inputRequests", "result", "error"]


def _mix(base: dict[str, Any], changes: dict[str, Any], dropped: set[str]) -> dict[str, Any]:
    return {key: value for key, value in {**base, **changes}.items() if key not in dropped}


_mixtures = st.builds(
    _mix,
    st.sampled_from([task(), asking("a"), completed(), task("failed", error=ERROR), task("cancelled")]),
    st.dictionaries(st.sampled_from(_FIELDS), _anything, max_size=4),
    st.sets(st.sampled_from(_FIELDS), max_size=1),
)


@settings(max_examples=examples(150), deadline=None)
@given(data=_mixtures | st.dictionaries(st.sampled_from(_FIELDS) | _texts, _anything) | json_objects())
@example(data=task(_meta={PROGRESS_META_KEY: {"progress": float("nan"), "total": True}}))
@example(data=task(createdAt="0001-01-01T00:00:00+23:59", lastUpdatedAt="9999-12-31T23:59:59-23:59"))
@example(data={"status": ["working"]})
@example(data={"status": {}})
@pytest.mark.parametrize("parse", [parse_task, parse_created])
def test_whatever_a_server_sends_is_a_task_or_an_invalid_response(
    parse: Callable[[dict[str, Any]], TaskSnapshot], data: dict[str, Any]
) -> None:
    try:
        snapshot = parse(data)
    except InvalidResponse:
        return
    assert isinstance(snapshot.status, TaskStatus)
    assert snapshot.id == data["taskId"]
    # What a wait does with it: tell which of two is newer, and show it.
    assert snapshot.updated_at <= snapshot.updated_at
    assert repr(snapshot)


@settings(max_examples=examples(50), deadline=None)
@given(data=json_values())
def test_what_is_no_object_at_all_is_an_invalid_response(data: Any) -> None:
    if not isinstance(data, dict):
        with pytest.raises(InvalidResponse):
            parse_task(data)


OUTCOMES = {
    TaskStatus.COMPLETED: Outcome(body=b'{"content":[]}', meta=b'{"trace":1}'),
    TaskStatus.FAILED: Outcome(body=b'{"code":-32603,"message":"out of paper"}'),
}


@settings(max_examples=examples(50), deadline=None)
@given(record=records())
def test_what_our_server_renders_our_client_reads(record: TaskRecord) -> None:
    ended = render_outcome(record, OUTCOMES.get(record.status))
    outcome = {} if ended is None else {ended[0]: json.loads(ended[1])}
    rendered = render_task(record, NOON) | outcome
    snapshot = parse_task(rendered)
    assert (snapshot.id, snapshot.status) == (record.id, record.status)
    assert (snapshot.result is not None, snapshot.error is not None) == ("result" in outcome, "error" in outcome)
    assert abs(snapshot.updated_at - record.updated_at) < timedelta(milliseconds=1)
    assert (snapshot.expires_at is None) == (rendered["ttlMs"] is None)
    assert snapshot == parse_task(render_detailed(record, NOON) | outcome)
    assert parse_created(render_created(record, NOON)).id == record.id
