"""Tasks on the wire as a client reads them. What a server writes: tests/spec."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.thoroughness import examples
from mcp_tasks import CreateTaskResult, Task, TaskStatus
from mcp_tasks.errors import InvalidResponse
from mcp_tasks.model import InputBook, InputRequest, Progress
from mcp_tasks.model.record import Outcome, TaskRecord
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
from mcp_tasks.testing import make_record
from mcp_tasks.testing.clock import NOON
from tests.client.peer import TASK_ID, asking, completed, task
from tests.contracts.strategies import json_objects, json_values, records

ERROR = {"code": -32603, "message": "no"}


# What a client reads: strict where a wait depends on it, lenient elsewhere.


def test_a_working_task_is_read_whole_and_written_as_json() -> None:
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
    assert snapshot.to_json() == {
        "taskId": TASK_ID,
        "status": "working",
        "statusMessage": "a third",
        "progress": {"progress": 3, "total": 10},
        "expiresAt": "2026-08-01T10:01:30+00:00",
        "pollIntervalMs": 1500,
        "createdAt": "2026-08-01T10:00:00+00:00",
        "lastUpdatedAt": "2026-08-01T10:00:00+00:00",
    }
    failed = parse_task(task("failed", error=ERROR, ttlMs=None)).to_json()
    assert (failed["error"], failed["expiresAt"], "result" in failed) == (ERROR, None, False)
    # A status brings what belongs to it, and nothing else is looked at.
    assert list(parse_task(asking("a", "b")).input_requests) == ["a", "b"]
    assert parse_task(completed()).result == completed()["result"]
    odd = parse_task(task("working", result=5, error="x", inputRequests=[], next="revision"))
    assert odd == parse_task(task()) == parse_task(task(createdAt="2026-08-01T12:00:00+02:00"))


NOTHING: tuple[Any, ...] = (..., None, 7, True, "", [], {})
BAD_TIMES = ("yesterday", "2026-08-01", "2026-08-01T10:00:00", "2026-13-01T10:00:00Z")
REFUSED: list[dict[str, Any]] = [
    *({field: value} for field in ("taskId", "status", "createdAt", "lastUpdatedAt") for value in NOTHING),
    *({"lastUpdatedAt": value} for value in BAD_TIMES),
    *({"status": value} for value in ("Working", "done", "submitted", "expired", "input-required")),
    *({"status": "completed", "result": value} for value in NOTHING[:-1]),
    *({"status": "failed", "error": value} for value in NOTHING[:-1]),
    *({"status": "input_required", "inputRequests": value} for value in (*NOTHING[:-1], {"q": 7}, {"q": None})),
]


@pytest.mark.parametrize("fields", REFUSED, ids=str)
def test_a_task_without_what_a_wait_needs_is_an_invalid_response(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidResponse, match="not a valid task"):
        parse_task(task(**fields))


NAN, INFINITE, BEYOND = float("nan"), float("inf"), 10_000 * 365 * 86_400_000


SILENT: list[tuple[str, str, list[Any]]] = [
    ("ttlMs", "expires_at", [..., None, "1", True, [], 1e300, NAN, BEYOND]),
    ("pollIntervalMs", "poll_interval", [..., None, "1", False, {}, NAN, INFINITE]),
    ("statusMessage", "message", [..., None, 5, ["x"]]),
    ("_meta", "progress", [..., None, 5, {}, {PROGRESS_META_KEY: 5}, {PROGRESS_META_KEY: {"progress": "3"}}]),
    ("_meta", "progress", [{PROGRESS_META_KEY: {"progress": odd}} for odd in (NAN, INFINITE, 10**400, True)]),
]


@pytest.mark.parametrize(("field", "attribute", "values"), SILENT)
def test_a_field_that_says_nothing_is_none(field: str, attribute: str, values: list[Any]) -> None:
    assert [getattr(parse_task(task(**{field: value})), attribute) for value in values] == [None] * len(values)


@pytest.mark.parametrize("status", ["working", "input_required", "completed", "failed", "cancelled"])
def test_a_task_just_created_needs_nothing_that_its_status_brings_later(status: str) -> None:
    told = parse_created(task(status, resultType="task")).status
    assert told is (TaskStatus.CANCELLED if status == "cancelled" else TaskStatus.WORKING)


_numbers = st.floats() | st.integers() | st.sampled_from([0, -1, 2**63, 10**400, NAN, INFINITE])
_texts = st.text(st.characters(exclude_categories=()), max_size=30)
_instants = st.datetimes(timezones=st.timezones()).map(datetime.isoformat)
_anything = st.one_of(json_values(), _numbers, _texts, _instants, st.dictionaries(_texts, json_values()))
_FIELDS = [*task(), "statusMessage", "_meta", "inputRequests", "result", "error"]


def _mix(base: dict[str, Any], changes: dict[str, Any], dropped: set[str]) -> dict[str, Any]:
    return {key: value for key, value in {**base, **changes}.items() if key not in dropped}


_mixtures = st.builds(
    _mix,
    st.sampled_from([task(), asking("a"), completed(), task("failed", error=ERROR), task("cancelled")]),
    st.dictionaries(st.sampled_from(_FIELDS), _anything, max_size=4),
    st.sets(st.sampled_from(_FIELDS), max_size=1),
)


@settings(max_examples=examples(100), deadline=None)
@given(data=_mixtures | st.dictionaries(st.sampled_from(_FIELDS) | _texts, _anything) | json_objects() | json_values())
@example(data=task(_meta={PROGRESS_META_KEY: {"progress": NAN, "total": True}}))
@example(data=task(createdAt="0001-01-01T00:00:00+23:59", lastUpdatedAt="9999-12-31T23:59:59-23:59"))
@example(data={"status": {}})
@pytest.mark.parametrize("parse", [parse_task, parse_created])
def test_whatever_a_server_sends_is_a_task_or_an_invalid_response(
    parse: Callable[[Any], TaskSnapshot], data: Any
) -> None:
    assume(isinstance(data, dict) or parse is parse_task)
    try:
        snapshot = parse(data)
    except InvalidResponse:
        return
    assert isinstance(snapshot.status, TaskStatus)
    assert snapshot.id == data["taskId"]
    # What a wait does with it: tell which of two is newer, and show it.
    assert snapshot.updated_at <= snapshot.updated_at
    assert repr(snapshot)


def test_a_question_that_asks_for_a_task_of_the_client_is_shown_without_that() -> None:
    question = InputRequest(method="elicitation/create", params={"message": "Sure?", "task": {"ttl": 1000}})
    record = make_record(status=TaskStatus.INPUT_REQUIRED, inputs=InputBook().ask({"a": question}))
    shown = render_task(record, NOON)
    assert shown["inputRequests"] == {"a": {"method": "elicitation/create", "params": {"message": "Sure?"}}}


@pytest.mark.parametrize(("kept", "shown"), [(b"{ }", {}), (b' { "content" : [ "{}" ] } ', {"content": ["{}"]})])
def test_a_result_is_spliced_and_says_what_was_kept(kept: bytes, shown: dict[str, Any]) -> None:
    ended = make_record(status=TaskStatus.COMPLETED, finished_at=NOON)
    field = render_outcome(ended, Outcome(body=kept, meta=b'{"a":1}'))
    assert field is not None
    assert json.loads(field[1]) == {"resultType": "complete", "_meta": {"a": 1}, **shown}


OUTCOMES = {
    TaskStatus.COMPLETED: Outcome(body=b'{"content":[]}', meta=b'{"trace":1}'),
    TaskStatus.FAILED: Outcome(body=b'{"code":-32603,"message":"out of paper"}'),
}


@settings(max_examples=examples(50), deadline=None)
@given(record=records())
def test_what_our_server_writes_our_client_reads(record: TaskRecord) -> None:
    ended = render_outcome(record, OUTCOMES.get(record.status))
    outcome = {} if ended is None else {ended[0]: json.loads(ended[1])}
    rendered = render_task(record, NOON) | outcome
    # Nothing is null but the ttl of what is kept for good.
    assert {name for name, value in rendered.items() if value is None} <= {"ttlMs"}
    snapshot = parse_task(rendered)
    assert (snapshot.id, snapshot.status) == (record.id, record.status)
    assert (snapshot.result is not None, snapshot.error is not None) == ("result" in outcome, "error" in outcome)
    assert abs(snapshot.updated_at - record.updated_at) < timedelta(milliseconds=1)
    assert (snapshot.expires_at is None) == (rendered["ttlMs"] is None) == (record.retention is None)
    assert rendered == {"resultType": "complete", **render_detailed(record, NOON), **outcome}
    created = render_created(record)
    assert (created["resultType"], parse_created(created).id) == ("task", record.id)
    assert not created.keys() & {"result", "error", "inputRequests"}


# The models that the package exports


@pytest.mark.parametrize("retention", [None, timedelta(hours=1)])
def test_the_answer_to_a_call_is_read_and_written_as_it_was(retention: timedelta | None) -> None:
    rendered = render_created(make_record(id="task_1", retention=retention))
    read = CreateTaskResult.model_validate(rendered)
    assert read.status is TaskStatus.WORKING
    assert read.model_dump(by_alias=True, mode="json", exclude_none=True) == rendered
    with pytest.raises(ValidationError):
        Task.model_validate({**rendered, "status": "on fire"})
