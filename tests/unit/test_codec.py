"""Records and journal entries as text, and texts that older releases wrote."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_tasks.core import InputBook, InputRequest, JournalEntry, Progress, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.errors import TaskUnreadable, ValueNotStorable
from mcp_tasks.stores.codec import (
    decode_cursor,
    decode_entry,
    decode_record,
    encode_cursor,
    encode_json,
    encode_request,
    encode_state,
    expiry,
    from_micros,
    ready,
    sort_key,
    to_micros,
)
from mcp_tasks.testing import make_record
from mcp_tasks.testing.strategies import entries, json_values, records

CREATED = datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC)

# What release 0.1 wrote. Never change these: files with such rows exist. A new format gets samples of its own.
REQUEST_1 = (
    '{"method":"tools/call","name":"render","arguments":{"scene":"snow ☃","frames":[1,null,2.5]},'
    '"meta":{"traceparent":"00-1-2-01"},"version":"2026-07-28","clientInfo":{"name":"client","version":"1"},'
    '"clientCapabilities":{"elicitation":{}}}'
)
STATE_1 = (
    '{"format":1,"owner":"alice","status":"input_required","created":1772323199999999,'
    '"updated":1772323200000000,"version":7,"attempt":2,"message":"half way","progress":[0.5,3,"one of three"],'
    '"inputs":{"open":{"q2":["elicitation/create",{"message":"Publish?"}]},"used":["q1","q2"]},'
    '"worker":"worker-1","started":1772323200000002,"ttl":21600000000,"poll":1500000}'
)
RECORD_1 = TaskRecord(
    id="sample",
    owner="alice",
    request=TaskRequest(
        name="render",
        arguments={"scene": "snow ☃", "frames": [1, None, 2.5]},
        meta={"traceparent": "00-1-2-01"},
        protocol_version="2026-07-28",
        client_info={"name": "client", "version": "1"},
        client_capabilities={"elicitation": {}},
    ),
    created_at=CREATED,
    updated_at=CREATED + timedelta(microseconds=1),
    status=TaskStatus.INPUT_REQUIRED,
    status_message="half way",
    progress=Progress(progress=0.5, total=3, message="one of three"),
    inputs=InputBook(
        outstanding={"q2": InputRequest(method="elicitation/create", params={"message": "Publish?"})},
        used=frozenset({"q1", "q2"}),
    ),
    ttl=timedelta(hours=6),
    poll_interval=timedelta(seconds=1.5),
    attempt=2,
    worker="worker-1",
    started_at=CREATED + timedelta(microseconds=3),
    version=7,
)

ENDED_STATE_1 = (
    '{"format":1,"owner":null,"status":"failed","created":-1,"updated":0,"version":3,"attempt":1,'
    '"result":{},"error":{"code":-32603,"message":"broken"},"finished":5,"wake":6}'
)
ENDED_REQUEST_1 = (
    '{"method":"tools/call","name":"x","arguments":{},"meta":{},"version":"","clientInfo":null,'
    '"clientCapabilities":{},"inputResponses":{"q0":{"action":"accept"}},"requestState":"s"}'
)
ENDED_1 = TaskRecord(
    id="ended",
    owner=None,
    request=TaskRequest(name="x", arguments={}, input_responses={"q0": {"action": "accept"}}, request_state="s"),
    created_at=from_micros(-1),
    updated_at=from_micros(0),
    status=TaskStatus.FAILED,
    result={},
    error={"code": -32603, "message": "broken"},
    finished_at=from_micros(5),
    wake_at=from_micros(6),
    attempt=1,
    version=3,
)


# What this release writes. Requests are as they were; states have deadlines of questions, and lost runs.
STATE_2 = (
    '{"format":2,"owner":"alice","status":"input_required","created":1772323199999999,'
    '"updated":1772323200000000,"version":7,"attempt":2,"message":"half way","progress":[0.5,3,"one of three"],'
    '"inputs":{"open":{"q2":["elicitation/create",{"message":"Publish?"},null],"q3":["roots/list",{},-1]},'
    '"used":["q1","q2","q3"]},"worker":"worker-1","lost":3,"started":1772323200000002,"ttl":21600000000,"poll":1500000}'
)
RECORD_2 = replace(
    RECORD_1,
    inputs=InputBook(
        outstanding={
            **RECORD_1.inputs.outstanding,
            "q3": InputRequest(method="roots/list", params={}, deadline=from_micros(-1)),
        },
        used=frozenset({"q1", "q2", "q3"}),
    ),
    lost=3,
)
ENDED_STATE_2 = ENDED_STATE_1.replace('"format":1', '"format":2')


@pytest.mark.parametrize(
    ("request_text", "state_text", "record"),
    [
        (REQUEST_1, STATE_1, RECORD_1),
        (ENDED_REQUEST_1, ENDED_STATE_1, ENDED_1),
        (REQUEST_1, STATE_2, RECORD_2),
        (ENDED_REQUEST_1, ENDED_STATE_2, ENDED_1),
    ],
    ids=["running 1", "ended 1", "running 2", "ended 2"],
)
def test_what_any_release_wrote_still_loads(request_text: str, state_text: str, record: TaskRecord) -> None:
    assert decode_record(record.id, request_text, state_text) == record


def test_what_is_written_now_is_what_the_samples_say() -> None:
    # If this fails, either the change was a mistake, or it is a new format and needs a number and samples.
    assert encode_request(RECORD_2.request) == REQUEST_1
    assert encode_state(RECORD_2) == STATE_2
    assert encode_request(ENDED_1.request) == ENDED_REQUEST_1
    assert encode_state(ENDED_1) == ENDED_STATE_2


def test_the_namespace_is_what_the_backend_says() -> None:
    record = make_record(namespace="demo")
    assert "demo" not in encode_state(record)
    request, state = encode_request(record.request), encode_state(record)
    assert decode_record(record.id, request, state, namespace="another").namespace == "another"


@given(record=records())
@settings(deadline=None)
def test_every_record_comes_back(record: TaskRecord) -> None:
    request, state = encode_request(record.request), encode_state(record)
    assert decode_record(record.id, request, state, namespace=record.namespace) == record
    # Any backend keeps text that UTF-8 can hold and that has no NUL in it.
    for text in (request, state):
        assert "\0" not in text.encode().decode()


@given(entry=entries())
def test_every_journal_entry_comes_back(entry: JournalEntry) -> None:
    assert decode_entry("task", entry.kind, entry.key, encode_json(entry.value)) == entry


@given(value=json_values())
def test_json_is_text_that_can_be_kept(value: Any) -> None:
    encode_json(value).encode()


def test_text_is_kept_readable_unless_it_cannot_be() -> None:
    assert encode_json({"a": ["☃", None]}) == '{"a":["☃",null]}'
    assert encode_json(["☃", "\ud800"]) == '["\\u2603","\\ud800"]'


@pytest.mark.parametrize("value", [object(), {"a": {1, 2}}, b"bytes"], ids=["object", "set", "bytes"])
def test_what_is_no_json_cannot_be_stored(value: Any) -> None:
    with pytest.raises(ValueNotStorable, match="cannot be written as JSON") as refused:
        encode_json(value)
    assert isinstance(refused.value.__cause__, TypeError)


def test_what_goes_round_in_a_circle_cannot_be_stored() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueNotStorable):
        encode_json(value)


def test_a_newer_format_is_refused_with_its_number() -> None:
    newer = STATE_2.replace('"format":2', '"format":3')
    with pytest.raises(TaskUnreadable, match=r"task sample cannot be read: it has format 3.*newer") as refused:
        decode_record("sample", REQUEST_1, newer, owner="alice")
    assert (refused.value.task_id, refused.value.owner) == ("sample", "alice")


@pytest.mark.parametrize(
    ("request_text", "state_text"),
    [
        ("", STATE_1),
        (REQUEST_1, "not JSON"),
        (REQUEST_1, "[]"),
        (REQUEST_1, "null"),
        (REQUEST_1, "{}"),
        (REQUEST_1, '{"format":"1"}'),
        ("{}", STATE_1),
        ("[]", STATE_1),
        (REQUEST_1, STATE_1.replace('"input_required"', '"invented"')),
        (REQUEST_1, STATE_1.replace("[0.5,3,", "[0.5]}")),
        (REQUEST_1, STATE_1.replace('[0.5,3,"one of three"]', "[0.5]")),
        (REQUEST_1, STATE_1.replace('{"q2":["elicitation/create",{"message":"Publish?"}]}', "[]")),
        (REQUEST_1, STATE_1.replace("1772323199999999", "9" * 30)),
        (REQUEST_1, STATE_1.replace("21600000000", "9" * 30)),
        (REQUEST_1, "[" * 100_000),
    ],
)
def test_damaged_text_is_corrupt(request_text: str, state_text: str) -> None:
    with pytest.raises(TaskUnreadable, match="task sample cannot be read: its row is damaged") as refused:
        decode_record("sample", request_text, state_text, owner="alice")
    assert refused.value.owner == "alice"
    assert refused.value.__cause__ is not None


def test_an_entry_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(TaskUnreadable, match=r"task sample .* unknown kind 'dream'") as refused:
        decode_entry("sample", "dream", "key", "null", owner="alice")
    assert refused.value.owner == "alice"


def test_a_damaged_entry_is_named() -> None:
    with pytest.raises(
        TaskUnreadable, match="task sample cannot be read: its journal entry 'key' is damaged"
    ) as refused:
        decode_entry("sample", "step", "key", "{", owner="alice")
    assert refused.value.owner == "alice"


@given(st.datetimes(timezones=st.just(UTC)))
def test_instants_are_exact_to_the_microsecond(instant: datetime) -> None:
    assert from_micros(to_micros(instant)) == instant


@given(st.text(), st.datetimes(timezones=st.just(UTC)))
def test_a_cursor_says_where_a_listing_goes_on(task_id: str, created: datetime) -> None:
    place = sort_key(make_record(id=task_id, created_at=created))
    assert decode_cursor(encode_cursor(place, task_id)) == (place, task_id)


@pytest.mark.parametrize(
    "cursor", ["", ".", "12", "x.y", "--1.x", " 1.x", "1_0.x", "²2.x", "9" * 19 + ".x", "-" + "9" * 19 + ".x"]
)
def test_what_is_not_a_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        decode_cursor(cursor)


def test_columns_say_when_a_task_expires_and_when_it_can_run() -> None:
    record = make_record(created_at=CREATED, ttl=timedelta(seconds=1))
    ended = replace(record, status=TaskStatus.COMPLETED, finished_at=CREATED)
    assert expiry(record) is None
    assert expiry(ended) == to_micros(CREATED) + 1_000_000
    assert expiry(replace(ended, ttl=None)) is None
    assert ready(ended) is None
    assert ready(replace(record, worker="worker")) is None
    assert ready(replace(record, wake_at=CREATED)) == to_micros(CREATED)
    assert ready(record) == to_micros(datetime.min.replace(tzinfo=UTC))
