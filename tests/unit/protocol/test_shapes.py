"""Tasks on the wire as pure functions: what a server writes, what a client reads, headers, models and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import decode_header_value, encode_header_value
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, REQUEST_TIMEOUT
from pydantic import ValidationError

from harness.thoroughness import examples
from mcp_tasks import CreateTaskResult, Task, TaskStatus
from mcp_tasks.errors import (
    AnswerRefused,
    Interrupted,
    InvalidResponse,
    KeyTaken,
    LimitExceeded,
    OwnerRequired,
    QuestionTimedOut,
    RanTooLong,
    ReplayMismatch,
    StoreCorrupt,
    StoreUnavailable,
    TaskExists,
    TasksError,
    TaskUnreadable,
    UnknownTask,
    UsageError,
    VersionConflict,
)
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
from mcp_tasks.model.record import Outcome, TaskRecord
from mcp_tasks.protocol.errors import RpcError, describe, to_error_data
from mcp_tasks.protocol.methods import refusal_of
from mcp_tasks.protocol.shapes import (
    LIMIT_EXCEEDED,
    PROGRESS_META_KEY,
    TaskSnapshot,
    decode_header,
    milliseconds,
    parse_created,
    parse_task,
    render_created,
    render_detailed,
    render_outcome,
    render_task,
    timestamp,
)
from mcp_tasks.runtime.observers import Refusal
from mcp_tasks.testing import make_record
from mcp_tasks.testing.clock import NOON
from mcp_tasks.testing.strategies import json_objects, json_values, records
from tests.client.peer import TASK_ID, asking, completed, task

ERROR = {"code": -32603, "message": "no"}


# What a server writes. Which fields a task has in each status: tests/spec.


def started(*events: Event) -> TaskRecord:
    record = make_record(id="task-1")
    for event in (RunStarted(worker="worker-1"), *events):
        record = apply(record, event, NOON)
    return record


@pytest.mark.parametrize(
    ("progress", "message", "numbers"),
    [
        (Progress(progress=3), "3", {"progress": 3}),
        (Progress(progress=0.5, total=2), "0.5 of 2", {"progress": 0.5, "total": 2}),
        (Progress(progress=1, total=2, message="halfway"), "halfway", {"progress": 1, "total": 2}),
        (Progress(progress=1, message=""), "", {"progress": 1}),
    ],
)
def test_progress_is_the_status_message_until_the_task_ends(progress: Progress, message: str, numbers: Any) -> None:
    record = started(ProgressReported(attempt=1, progress=progress))
    shown = render_task(record, NOON)
    assert (shown["statusMessage"], shown["_meta"]) == (message, {PROGRESS_META_KEY: numbers})
    assert "statusMessage" not in render_task(apply(record, RunCompleted(attempt=1), NOON), NOON)


def test_a_question_that_asks_for_a_task_of_the_client_is_shown_without_that() -> None:
    params = {"message": "Sure?", "task": {"ttl": 1000}}
    question = InputRequest(method="elicitation/create", params=params, hosted_as="theirs")
    shown = render_task(started(InputRequested(attempt=1, requests={"a": question})), NOON)
    assert shown["inputRequests"] == {"a": {"method": "elicitation/create", "params": {"message": "Sure?"}}}


@pytest.mark.parametrize(
    ("kept", "shown"),
    [
        (Outcome(body=b"{}"), {}),
        (Outcome(body=b'{"content":[]}', meta=b'{"com.example/a":1}'), {"content": [], "_meta": {"com.example/a": 1}}),
        (Outcome(body=b' { "content" : [ "{}" ] } '), {"content": ["{}"]}),
        (Outcome(body=b"{ }"), {}),
    ],
)
def test_a_result_is_spliced_and_says_what_was_kept(kept: Outcome, shown: dict[str, Any]) -> None:
    field = render_outcome(started(RunCompleted(attempt=1)), kept)
    assert field is not None
    assert json.loads(field[1]) == {"resultType": "complete", **shown}
    for record in (started(), started(TaskCancelled(reason="enough"))):
        assert render_outcome(record, kept) is None


QUESTION = InputRequest(method="elicitation/create", params={"message": "\udcff", "\udcff": 1})


@pytest.mark.parametrize(
    "event",
    [
        ProgressReported(attempt=1, progress=Progress(progress=1, message="half \udcff")),
        RunFailed(attempt=1, message="half \udcff"),
        TaskCancelled(reason="half \udcff"),
        InputRequested(attempt=1, requests={"a": QUESTION}),
    ],
    ids=lambda event: type(event).__name__,
)
def test_text_of_an_older_release_that_is_not_valid_unicode_can_be_sent(event: Event) -> None:
    record = started(event)
    assert "\ufffd" in json.dumps(render_task(record, NOON), ensure_ascii=False).encode().decode()
    kept = Outcome(body=json.dumps({"code": 1, "message": "half \udcff", "data": {"\udcff": "\U0001f600"}}).encode())
    if record.status is TaskStatus.FAILED:
        field = render_outcome(record, kept)
        assert field is not None
        assert json.loads(field[1].decode())["data"] == {"\ufffd": "\U0001f600"}


def test_instants_are_in_utc_and_durations_whole_milliseconds_rounded_up() -> None:
    east = timezone(timedelta(hours=2))
    assert timestamp(datetime(2026, 1, 1, 14, 0, 0, 123_999, tzinfo=east)) == "2026-01-01T12:00:00.123Z"
    durations = {0: 0, 1: 1, 1000: 1, 1001: 2, 3_600_000_000: 3_600_000}
    assert {each: milliseconds(timedelta(microseconds=each)) for each in durations} == durations


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
    failed = parse_task(task(status="failed", error=ERROR, ttlMs=None)).to_json()
    assert (failed["error"], failed["expiresAt"], "result" in failed) == (ERROR, None, False)


def test_a_status_brings_what_belongs_to_it_and_nothing_else_is_looked_at() -> None:
    assert list(parse_task(asking("a", "b")).input_requests) == ["a", "b"]
    assert parse_task(completed()).result == completed()["result"]
    assert parse_task(task("failed", error=ERROR)).error == ERROR
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
    created = render_created(record, NOON)
    assert (created["resultType"], parse_created(created).id) == ("task", record.id)
    assert not created.keys() & {"result", "error", "inputRequests"}


# The models that the package exports


@pytest.mark.parametrize("retention", [None, timedelta(hours=1)])
def test_the_answer_to_a_call_is_read_and_written_as_it_was(retention: timedelta | None) -> None:
    rendered = render_created(make_record(id="task_1", retention=retention), NOON)
    read = CreateTaskResult.model_validate(rendered)
    assert read.status is TaskStatus.WORKING
    assert read.model_dump(by_alias=True, mode="json", exclude_none=True) == rendered
    with pytest.raises(ValidationError):
        Task.model_validate({**rendered, "status": "on fire"})


# Headers


@pytest.mark.parametrize(
    "value",
    ["task_abc", "", "with space", " leading", "müller", "日本", "line\nbreak", "=?base64?YQ==?=", "\x7f", "=?base64?"],
    ids=repr,
)
def test_a_header_that_the_sdk_encodes_is_decoded(value: str) -> None:
    assert decode_header(encode_header_value(value)) == value


@pytest.mark.parametrize(
    "sent", ["=?base64?!!!?=", "=?base64?YQ?=", "=?base64?YR==?=", "=?base64?/w==?=", "=?base64??="]
)
def test_a_header_that_is_encoded_badly_is_what_it_is_to_the_sdk(sent: str) -> None:
    assert decode_header(sent) == decode_header_value(sent)
    assert decode_header("=?base64?é?=") is None


# Errors


@pytest.mark.parametrize(
    ("refused", "code", "data", "says"),
    [
        (OwnerRequired("who?"), INVALID_REQUEST, {"reason": "owner_required"}, "who?"),
        (KeyTaken(), INVALID_PARAMS, {"reason": "key_taken"}, "key"),
        (UnknownTask("task_secret"), INVALID_PARAMS, None, "Task not found"),
        (AnswerRefused(-32042, "not today", {"until": "noon"}), -32042, {"until": "noon"}, "not today"),
        (QuestionTimedOut.after(timedelta(minutes=1)), REQUEST_TIMEOUT, None, "60 s"),
        (LimitExceeded("json_depth", "deep"), LIMIT_EXCEEDED, {"reason": "limit", "limit": "json_depth"}, "deep"),
        # In whole milliseconds, and never too early.
        (
            LimitExceeded("creates", "often", retry_after=timedelta(microseconds=1_200)),
            LIMIT_EXCEEDED,
            {"reason": "limit", "limit": "creates", "retryAfterMs": 2},
            "often",
        ),
        (Interrupted("render"), INTERNAL_ERROR, {"reason": "interrupted"}, "'render'"),
        (RanTooLong("x", timedelta(seconds=90)), INTERNAL_ERROR, {"reason": "max_runtime"}, " 90 s"),
        (RanTooLong("x", timedelta(milliseconds=20)), INTERNAL_ERROR, {"reason": "max_runtime"}, " 0.02 s"),
        (ReplayMismatch("question 2 differs"), INTERNAL_ERROR, {"reason": "replay"}, "question 2 differs"),
        (StoreUnavailable("/alice/secret.db"), INTERNAL_ERROR, {"reason": "unavailable"}, "try again later"),
        (
            StoreUnavailable("/alice/secret.db", may_have_happened=True),
            INTERNAL_ERROR,
            {"reason": "may_have_happened"},
            "may have been carried out",
        ),
        (StoreCorrupt("/alice/secret.db is damaged"), INTERNAL_ERROR, None, ""),
        (TaskExists("task_secret"), INTERNAL_ERROR, None, ""),
        (VersionConflict("task_secret", 7), INTERNAL_ERROR, None, ""),
        (TaskUnreadable("task_secret", "/alice/secret.db", owner="a"), INTERNAL_ERROR, None, "the server's log says"),
        (UsageError("give every step a name"), INTERNAL_ERROR, None, "give every step a name"),
        (TasksError("something of ours"), INTERNAL_ERROR, None, "something of ours"),
        (RuntimeError("password=secret"), INTERNAL_ERROR, None, "Internal server error"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_says_why_in_words_and_for_programs_and_not_where_tasks_are_kept(
    refused: Exception, code: int, data: Any, says: str
) -> None:
    error = to_error_data(refused)
    assert (error.code, error.data) == (code, data)
    assert says in error.message
    assert not {"secret", "alice"} & set(error.message.replace("/", " ").replace("=", " ").replace("_", " ").split())
    described = describe(refused)
    assert json.loads(json.dumps(described)) == described
    assert ("data" in described) is (data is not None)


@pytest.mark.parametrize(
    "exc",
    [
        MCPError(code=-1, message="no file \udcff", data={"na\udcffme": ["\ud800", {"deep": "\udfff"}]}),
        UsageError("no step \udcff"),
        ReplayMismatch("\udcff differs"),
    ],
    ids=lambda exc: type(exc).__name__,
)
def test_text_that_is_not_valid_unicode_does_not_get_into_an_error(exc: Exception) -> None:
    assert "\ufffd" in json.dumps(describe(exc), ensure_ascii=False).encode().decode()


@pytest.mark.parametrize(
    ("why", "told"),
    [
        (UnknownTask("t"), (Refusal.UNKNOWN, None)),
        (LimitExceeded("owner_requests", "too often"), (Refusal.LIMIT, "owner_requests")),
        (OwnerRequired("who?"), (Refusal.OWNER, None)),
        (KeyTaken(), (Refusal.KEY, "key_taken")),
        (AnswerRefused(-1, "no"), (Refusal.ANSWER, None)),
        (StoreUnavailable("away"), (Refusal.FAILED, None)),
        (ValueError("a defect"), (Refusal.FAILED, None)),
        (RpcError(INVALID_REQUEST, "who?"), (Refusal.OWNER, None)),
        (RpcError(INVALID_PARAMS, "what?"), (Refusal.MALFORMED, None)),
        (RpcError(INTERNAL_ERROR, "a defect"), (Refusal.FAILED, None)),
        (RpcError(-32010, "no", {"reason": "limit", "limit": "creates"}), (Refusal.LIMIT, "creates")),
        (RpcError(-32010, "no", {"reason": "key_too_short"}), (Refusal.KEY, "key_too_short")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_refusal_has_one_word_for_those_who_watch(why: Exception, told: tuple[Refusal, str | None]) -> None:
    assert refusal_of(why) == told
