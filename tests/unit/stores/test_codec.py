"""What is kept of a task as bytes, and bytes that older releases wrote."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cipher import AesCipher
from mcp_tasks.errors import StoreUnavailable, TaskUnreadable, ValueNotStorable
from mcp_tasks.model import (
    ChildProcess,
    InputBook,
    InputRequest,
    JournalEntry,
    Outcome,
    Progress,
    TaskRecord,
    TaskRequest,
    TaskStatus,
)
from mcp_tasks.model.json import is_large
from mcp_tasks.stores.codec import (
    Codec,
    decode_cursor,
    encode_cursor,
    from_micros,
    made_before,
    saved_before,
    sort_key,
)
from mcp_tasks.stores.sqlite.schema import add_functions
from mcp_tasks.testing import make_record, make_request
from mcp_tasks.testing.strategies import entries, outcomes, records, requests

CREATED = datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC)
CODEC = Codec()

# What release 0.1 wrote. Never change these: files with such rows exist. A new format gets samples of its own.
REQUEST_1 = (
    '{"method":"tools/call","name":"render","arguments":{"scene":"snow ☃","frames":[1,null,2.5]},'
    '"meta":{"traceparent":"00-1-2-01"},"version":"2026-07-28","clientInfo":{"name":"client","version":"1"},'
    '"clientCapabilities":{"elicitation":{}}}'
).encode()
STATE_1 = (
    b'{"format":1,"owner":"alice","status":"input_required","created":1772323199999999,'
    b'"updated":1772323200000000,"version":7,"attempt":2,"message":"half way","progress":[0.5,3,"one of three"],'
    b'"inputs":{"open":{"q2":["elicitation/create",{"message":"Publish?"}]},"used":["q1","q2"]},'
    b'"holder":"worker-1","started":1772323200000002,"ttl":21600000000,"poll":1500000}'
)
REQUEST = TaskRequest(
    name="render",
    arguments={"scene": "snow ☃", "frames": [1, None, 2.5]},
    meta={"traceparent": "00-1-2-01"},
    protocol_version="2026-07-28",
    client_info={"name": "client", "version": "1"},
    client_capabilities={"elicitation": {}},
)
RECORD_1 = TaskRecord(
    id="sample",
    owner="alice",
    name="render",
    created_at=CREATED,
    updated_at=CREATED + timedelta(microseconds=1),
    status=TaskStatus.INPUT_REQUIRED,
    status_message="half way",
    progress=Progress(progress=0.5, total=3, message="one of three"),
    inputs=InputBook(
        outstanding={"q2": InputRequest(method="elicitation/create", params={"message": "Publish?"})},
        used=frozenset({"q1", "q2"}),
    ),
    retention=timedelta(hours=6),
    poll_interval=timedelta(seconds=1.5),
    attempt=2,
    worker="worker-1",
    started_at=CREATED + timedelta(microseconds=3),
    version=7,
)

ENDED_STATE_1 = (
    b'{"format":1,"owner":null,"status":"failed","created":-1,"updated":0,"version":3,"attempt":1,'
    b'"result":{},"error":{"code":-32603,"message":"broken"},"finished":5,"wake":6}'
)
ENDED_REQUEST_1 = (
    b'{"method":"tools/call","name":"x","arguments":{},"meta":{},"version":"","clientInfo":null,'
    b'"clientCapabilities":{},"inputResponses":{"q0":{"action":"accept"}},"requestState":"s"}'
)
ENDED_REQUEST = TaskRequest(name="x", arguments={}, input_responses={"q0": {"action": "accept"}}, request_state="s")
LIMITED_REQUEST_5 = (
    b'{"method":"tools/call","name":"x","arguments":{},"meta":{},"version":"","clientInfo":null,'
    b'"clientCapabilities":{},"maxWait":3600000000}'
)
LIMITED_REQUEST = TaskRequest(name="x", arguments={}, max_wait=timedelta(hours=1))
ENDED_1 = TaskRecord(
    id="ended",
    owner=None,
    name="x",
    created_at=from_micros(-1),
    updated_at=from_micros(0),
    status=TaskStatus.FAILED,
    finished_at=from_micros(5),
    wake_at=from_micros(6),
    attempt=1,
    version=3,
)

# Format 2 had deadlines of questions, and lost runs. Requests are as they were, but for one field.
STATE_2 = (
    b'{"format":2,"owner":"alice","status":"input_required","created":1772323199999999,'
    b'"updated":1772323200000000,"version":7,"attempt":2,"message":"half way","progress":[0.5,3,"one of three"],'
    b'"inputs":{"open":{"q2":["elicitation/create",{"message":"Publish?"},null],"q3":["roots/list",{},-1]},'
    b'"used":["q1","q2","q3"]},"holder":"worker-1","lost":3,"started":1772323200000002,"ttl":21600000000,"poll":1500000}'
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

# Format 3: method and name, no outcome, the words of now.
STATE_3 = (
    b'{"format":3,"owner":"alice","method":"tools/call","name":"render","status":"input_required",'
    b'"created":1772323199999999,"updated":1772323200000000,"version":7,"attempt":2,"message":"half way",'
    b'"progress":[0.5,3,"one of three"],'
    b'"inputs":{"open":{"q2":["elicitation/create",{"message":"Publish?"},null],"q3":["roots/list",{},-1]},'
    b'"used":["q1","q2","q3"]},"worker":"worker-1","lost":3,"trial":"alone","announced":false,'
    b'"started":1772323200000002,"retention":21600000000,"poll":1500000}'
)
RECORD_3 = replace(RECORD_2, trial="alone", announced=False)
ENDED_STATE_3 = (
    b'{"format":3,"owner":null,"method":"tools/call","name":"x","status":"failed","created":-1,"updated":0,'
    b'"version":3,"attempt":1,"finished":5,"wake":6}'
)

# Format 4: a task may have a session, and a parent; questions may be the client's.
STATE_4 = (
    STATE_3.replace(b'"format":3', b'"format":4')
    .replace(b'"announced":false,', b'"announced":false,"session":"s1","parent":"p1",')
    .replace(b'["roots/list",{},-1]', b'["roots/list",{},-1,"theirs"]')
)
RECORD_4 = replace(RECORD_3, session="s1", parent="p1", inputs=RECORD_3.inputs.host("q3", "theirs"))

# Format 5: a task may have a queue, a priority, and the version of its tool.
STATE_5 = STATE_4.replace(b'"format":4', b'"format":5').replace(
    b'"parent":"p1",', b'"parent":"p1","queue":"gpu","priority":-1,"toolVersion":"2",'
)
RECORD_5 = replace(RECORD_4, queue="gpu", priority=-1, tool_version="2")


def as_format_6(state: bytes) -> bytes:
    """The same as this release writes it, which those of format 5 may read: nothing in it is changed."""
    return re.sub(rb'("attempt":\d+)', rb'\1,"readable":5', re.sub(rb'"format":\d', b'"format":6', state))


# What this release writes: a task may have the fingerprint of its call, a trace, and the task that it is a rerun of.
STATE_6 = as_format_6(STATE_5).replace(
    b'"toolVersion":"2",', b'"toolVersion":"2","fingerprint":"f1","trace":"00-ab-cd-01","rerunOf":"r1",'
)
RECORD_6 = replace(RECORD_5, fingerprint="f1", trace="00-ab-cd-01", rerun_of="r1")
PROCESSES_STATE_6 = STATE_6.replace(
    b'"rerunOf":"r1",', b'"rerunOf":"r1","processes":"1/42/7/b:pid/farm 2/43/8/b/farm",'
)
PROCESSES_6 = replace(
    RECORD_6,
    processes=(
        ChildProcess(attempt=1, group=42, started="7", boot="b:pid", host="farm"),
        ChildProcess(attempt=2, group=43, started="8", boot="b", host="farm"),
    ),
)
ENDED_STATE_6 = as_format_6(ENDED_STATE_3)
ERROR_STATE_6 = ENDED_STATE_6.replace(b'"failed"', b'"completed"').replace(b'"finished"', b'"isError":true,"finished"')
ERROR_6 = replace(ENDED_1, status=TaskStatus.COMPLETED, is_error=True)


def upgraded(state: bytes, request: bytes) -> bytes:
    """The state as a migration leaves it."""
    with closing(sqlite3.connect(":memory:")) as connection:
        add_functions(connection)
        return connection.execute("SELECT upgraded_state(?, ?)", (state, request)).fetchall()[0][0]


SAMPLES = {
    "running 1": (REQUEST_1, STATE_1, RECORD_1),
    "ended 1": (ENDED_REQUEST_1, ENDED_STATE_1, ENDED_1),
    "running 2": (REQUEST_1, STATE_2, RECORD_2),
    "running 3": (REQUEST_1, STATE_3, RECORD_3),
    "ended 3": (ENDED_REQUEST_1, ENDED_STATE_3, ENDED_1),
    "running 4": (REQUEST_1, STATE_4, RECORD_4),
    "running 5": (REQUEST_1, STATE_5, RECORD_5),
    "running 6": (REQUEST_1, STATE_6, RECORD_6),
    "with processes 6": (REQUEST_1, PROCESSES_STATE_6, PROCESSES_6),
    "ended 6": (ENDED_REQUEST_1, ENDED_STATE_6, ENDED_1),
    "error 6": (ENDED_REQUEST_1, ERROR_STATE_6, ERROR_6),
}
REQUESTS = {REQUEST_1: REQUEST, ENDED_REQUEST_1: ENDED_REQUEST, LIMITED_REQUEST_5: LIMITED_REQUEST}


@pytest.mark.parametrize(("request_data", "state", "record"), SAMPLES.values(), ids=SAMPLES)
def test_what_any_release_wrote_still_loads(request_data: bytes, state: bytes, record: TaskRecord) -> None:
    assert CODEC.decode_state(record.id, upgraded(state, request_data), namespace="") == record
    assert CODEC.decode_request("sample", request_data) == REQUESTS[request_data]
    # The namespace is what the backend says.
    assert CODEC.decode_state("id", STATE_6, namespace="another").namespace == "another"


def test_what_is_written_now_is_what_the_samples_say() -> None:
    # If this fails, either the change was a mistake, or it is a new format and needs a number and samples.
    for name in ("running 6", "with processes 6", "ended 6", "error 6"):
        _, state, record = SAMPLES[name]
        assert CODEC.encode_state(record) == state
    for data, request in REQUESTS.items():
        assert CODEC.encode_request("sample", request) == data
        assert CODEC.decode_request("sample", data) == request


CODECS = {"plain": CODEC, "encrypted": Codec(AesCipher())}
each_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)


@each_codec
@given(record=records(), request_=requests(), entry=entries(), outcome=outcomes())
def test_whatever_is_kept_comes_back(
    codec: Codec, record: TaskRecord, request_: TaskRequest, entry: JournalEntry, outcome: Outcome
) -> None:
    state = codec.encode_state(record)
    assert codec.decode_state(record.id, state, namespace=record.namespace) == record
    assert codec.decode_request("task", codec.encode_request("task", request_)) == request_
    key, value = codec.encode_entry("task", entry, is_large(entry.value))
    assert codec.decode_entry("task", entry.kind, key, value, number=7) == replace(entry, number=7)
    kept = codec.encode_outcome("task", outcome)
    assert codec.decode_outcome("task", kept.body, kept.meta) == outcome


@pytest.mark.parametrize(
    "odd",
    [CREATED, b"bytes", {"a set"}, Decimal(1), UUID(int=1), Path("/"), object()],
    ids=lambda odd: type(odd).__name__,
)
def test_what_is_no_json_cannot_be_stored(odd: Any) -> None:
    for encode in (
        lambda: CODEC.encode_request("task", make_request(arguments={"x": odd})),
        lambda: CODEC.encode_entry("task", JournalEntry(kind="step", key="key", value=odd), False),
        lambda: CODEC.encode_state(make_record(status_message=odd)),
        lambda: CODEC.encode_state(make_record(session=odd)),
        lambda: CODEC.encode_state(make_record(progress=Progress(progress=odd))),
    ):
        with pytest.raises(ValueNotStorable):
            encode()


ODD_JSON: Sequence[bytes] = [
    *rb""""\ud800" | "\ud83d\ude00" | "\u0000" | "\x" | "open | NaN | -NaN | nan | [Infinity,-Infinity] | -Inf | 1e999
    | -0 | 0.1e-400 | 5e-324 | -0.0 | 01 | 1. | +1 | 1e5 | 9007199254740993 | 2.2250738585072011e-308 | tru | [1,]
    | {'a':1} | {"a":1,"a":2} | {"a":1} x | {"a":1,} | //1""".split(b" | "),
    *(b'"\xed\xa0\x80"', b'"\xff"', b'"\x01"', b"", b"\xef\xbb\xbf1", b"\x00", "[1]".encode("utf-16")),
    *(b"1" * 40, b"-" + b"9" * 5_000, b"[" * 300 + b"]" * 300, b"[" * 100_000),
]


@pytest.mark.parametrize("data", ODD_JSON, ids=lambda data: repr(data[:20]))
def test_bytes_are_read_as_the_standard_library_reads_them(data: bytes) -> None:
    try:
        expected = repr(json.loads(data))
    except (ValueError, RecursionError):
        with pytest.raises(TaskUnreadable):
            Codec().decode_entry("task", "step", "key", data, number=1)
    else:
        assert repr(Codec().decode_entry("task", "step", "key", data, number=1).value) == expected


# As the next release may write it, for a fleet in which this one is still there.
STATE_7 = STATE_5.replace(b'"format":5', b'"format":7,"readable":6,"colour":{"of":["the",7]}')


def test_a_newer_format_that_says_so_is_read_and_written_back_with_all_that_is_in_it() -> None:
    record = CODEC.decode_state("sample", STATE_7, namespace="")
    assert replace(record, unknown={}) == RECORD_5
    changed = json.loads(CODEC.encode_state(replace(record, version=8)))
    assert changed == json.loads(STATE_7) | {"version": 8}


@pytest.mark.parametrize("format_", [b'"format":8', b'"format":8,"readable":7'])
def test_a_newer_format_for_newer_releases_only_is_refused_with_its_number(format_: bytes) -> None:
    newer = STATE_5.replace(b'"format":5', format_)
    with pytest.raises(TaskUnreadable, match=r"task sample cannot be read: it has format 8.*newer") as refused:
        CODEC.decode_state("sample", newer, namespace="", owner="alice")
    assert (refused.value.task_id, refused.value.owner) == ("sample", "alice")


def test_what_is_unknown_in_a_format_of_now_is_kept_too() -> None:
    # So that a number which was not raised by mistake costs no data.
    state = STATE_6.replace(b'"format":6', b'"format":6,"colour":7')
    record = CODEC.decode_state("sample", state, namespace="")
    assert record.unknown == {"colour": 7}
    assert json.loads(CODEC.encode_state(record)) == json.loads(state)
    assert CODEC.decode_request("sample", REQUEST_1.replace(b'{"method"', b'{"colour":7,"method"')) == REQUEST


WRONG_FIELDS: Sequence[Mapping[str, Any]] = json.loads("""[
    {"status": "invented"}, {"status": null}, {"format": "2"}, {"readable": "5"}, {"readable": null},
    {"owner": 5}, {"version": "1"}, {"attempt": null}, {"attempt": [1]}, {"created": "yesterday"},
    {"updated": 1.5}, {"finished": {}}, {"retention": "long"}, {"name": null}, {"method": 7},
    {"announced": "yes"}, {"lost": "often"}, {"message": ["text"]}, {"worker": 7}, {"progress": [1]},
    {"progress": ["half", null, null]}, {"progress": [1, 2, 3]}, {"inputs": []},
    {"inputs": {"open": {"q": "text"}, "used": []}}, {"inputs": {"open": {"q": ["roots/list", []]}, "used": []}},
    {"inputs": {"open": {"q": []}, "used": []}}, {"inputs": {"open": {"q": ["roots/list", {}, "soon"]}, "used": []}}
]""")
DAMAGED: Sequence[object] = [
    *(b"", b"not JSON", b"[]", b"null", b"{}", b'{"format":"3"}', b"\xff", "text", 7, None, STATE_2, b"[" * 100_000),
    *(json.dumps(json.loads(STATE_6) | fields).encode() for fields in WRONG_FIELDS),
    *(json.dumps(json.loads(STATE_6) | {instant: 10**30}).encode() for instant in ("created", "retention")),
]


def test_a_damaged_part_is_one_unreadable_task() -> None:
    parts: Sequence[tuple[str, Sequence[object], Callable[..., object]]] = [
        ("its row", DAMAGED, partial(CODEC.decode_state, namespace="")),
        ("its request", [b"", b"{}", b"[]", b"null", None, REQUEST_1[:-1], b"[" * 100_000], CODEC.decode_request),
    ]
    for part, damaged, decode in parts:
        for data in damaged:
            with pytest.raises(TaskUnreadable, match=f"task sample cannot be read: {part} is damaged") as refused:
                decode("sample", data, owner="alice")
            assert refused.value.owner == "alice", data


def test_what_is_encrypted_is_read_with_its_key_alone_and_what_is_plain_without_one() -> None:
    request, ours = make_request(arguments={"a": "secret"}), Codec(AesCipher())
    plain, encrypted = (codec.encode_request("mine", request) for codec in (CODEC, ours))
    assert b"secret" not in encrypted
    for codec, data, says in (
        (CODEC, encrypted, "is encrypted; give the store the cipher"),
        (Codec(AesCipher()), encrypted, "cannot be decrypted"),
        (ours, plain, "is not encrypted, and this store has a cipher"),
    ):
        with pytest.raises(TaskUnreadable, match=f"its request {says}"):
            codec.decode_request("mine", data)


@given(st.text(), st.datetimes(timezones=st.just(UTC)))
def test_a_cursor_says_where_a_listing_goes_on(task_id: str, created: datetime) -> None:
    place = sort_key(make_record(id=task_id, created_at=created))
    assert decode_cursor(encode_cursor(place, task_id)) == (place, task_id)


@pytest.mark.anyio
async def test_a_conflict_that_cannot_be_looked_at_may_be_with_an_earlier_attempt() -> None:
    async def away(task_id: str) -> TaskRecord | None:
        raise StoreUnavailable("away")

    for look in (made_before(away, make_record()), saved_before(away, make_record(), 1)):
        with pytest.raises(StoreUnavailable) as refused:
            await look
        assert refused.value.may_have_happened


@pytest.mark.parametrize(
    "cursor", ["", ".", "12", "x.y", "--1.x", " 1.x", "1_0.x", "²2.x", "9" * 19 + ".x", "-" + "9" * 19 + ".x"]
)
def test_what_is_not_a_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        decode_cursor(cursor)
