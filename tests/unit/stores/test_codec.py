"""What is kept of a task as bytes."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from cryptography.exceptions import InvalidTag
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
from mcp_tasks.model.json import encode_json, is_large
from mcp_tasks.model.record import WriteId
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.codec import Codec, decode_cursor, encode_cursor, expiry, from_micros, ready, sort_key, to_micros
from mcp_tasks.testing import make_record, make_request
from tests.contracts.strategies import entries, json_values, outcomes, records, requests

CREATED = datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC)
CODEC = Codec()

# What this release writes. Never change these: stores with such rows exist. A new format gets samples of its own.
REQUEST_1 = (
    '{"method":"tools/call","name":"render","arguments":{"scene":"snow ☃","frames":[1,null,2.5]},'
    '"meta":{"traceparent":"00-1-2-01"},"version":"2026-07-28","clientInfo":{"name":"client","version":"1"},'
    '"clientCapabilities":{"elicitation":{}}}'
).encode()
REQUEST = TaskRequest(
    name="render",
    arguments={"scene": "snow ☃", "frames": [1, None, 2.5]},
    meta={"traceparent": "00-1-2-01"},
    protocol_version="2026-07-28",
    client_info={"name": "client", "version": "1"},
    client_capabilities={"elicitation": {}},
)
LATER_REQUEST_1 = (
    b'{"method":"tools/call","name":"x","arguments":{},"meta":{},"version":"","clientCapabilities":{},'
    b'"inputResponses":{"q0":{"action":"accept"}},"requestState":"s","maxWait":3600000000}'
)
LATER_REQUEST = TaskRequest(
    name="x", arguments={}, input_responses={"q0": {"action": "accept"}}, request_state="s", max_wait=timedelta(hours=1)
)
STATE_1 = (
    b'{"format":1,"owner":"alice","method":"tools/call","name":"render","status":"input_required",'
    b'"created":1772323199999999,"updated":1772323200000000,"version":7,"attempt":2,"message":"half way",'
    b'"progress":[0.5,3,"one of three"],'
    b'"inputs":{"open":{"q2":["elicitation/create",{"message":"Publish?"},null],"q3":["roots/list",{},-1,"theirs"]},'
    b'"used":["q1","q2","q3"]},"worker":"worker-1","lost":3,"trial":"alone","pause":"waiting","announced":false,'
    b'"session":"s1","parent":"p1","queue":"gpu","priority":-1,"toolVersion":"2","fingerprint":"f1",'
    b'"trace":"00-ab-cd-01","rerunOf":"r1","processes":"1/42/7/b:pid/farm 2/43/8/b/farm","writes":"w1:3 w2",'
    b'"started":1772323200000002,"retention":21600000000,"poll":1500000}'
)
RECORD = TaskRecord(
    id="sample",
    owner="alice",
    name="render",
    created_at=CREATED,
    updated_at=CREATED + timedelta(microseconds=1),
    status=TaskStatus.INPUT_REQUIRED,
    status_message="half way",
    progress=Progress(progress=0.5, total=3, message="one of three"),
    inputs=InputBook(
        outstanding={
            "q2": InputRequest(method="elicitation/create", params={"message": "Publish?"}),
            "q3": InputRequest(method="roots/list", params={}, deadline=from_micros(-1), hosted_as="theirs"),
        },
        used=frozenset({"q1", "q2", "q3"}),
    ),
    retention=timedelta(hours=6),
    poll_interval=timedelta(seconds=1.5),
    attempt=2,
    worker="worker-1",
    started_at=CREATED + timedelta(microseconds=3),
    lost=3,
    trial="alone",
    pause="waiting",
    announced=False,
    session="s1",
    parent="p1",
    queue="gpu",
    priority=-1,
    tool_version="2",
    fingerprint="f1",
    trace="00-ab-cd-01",
    rerun_of="r1",
    processes=(
        ChildProcess(attempt=1, group=42, started="7", boot="b:pid", host="farm"),
        ChildProcess(attempt=2, group=43, started="8", boot="b", host="farm"),
    ),
    writes=(WriteId("w1", 3), WriteId("w2")),
    version=7,
)
ENDED_STATE_1 = (
    b'{"format":1,"method":"tools/call","name":"x","status":"completed","created":-1,"updated":0,'
    b'"version":3,"attempt":1,"isError":true,"finished":5,"wake":6}'
)
ENDED = TaskRecord(
    id="ended",
    owner=None,
    name="x",
    created_at=from_micros(-1),
    updated_at=from_micros(0),
    status=TaskStatus.COMPLETED,
    is_error=True,
    finished_at=from_micros(5),
    wake_at=from_micros(6),
    attempt=1,
    version=3,
)
STATES = {STATE_1: RECORD, ENDED_STATE_1: ENDED}
REQUESTS = {REQUEST_1: REQUEST, LATER_REQUEST_1: LATER_REQUEST}


def test_what_is_written_is_what_the_samples_say_and_they_are_read() -> None:
    # If this fails, either the change was a mistake, or it is a new format and needs a number and samples.
    for state, record in STATES.items():
        assert json.loads(CODEC.encode_state(record)) == json.loads(state)
        assert CODEC.decode_state(record.id, state, namespace="") == record
    for data, request in REQUESTS.items():
        assert json.loads(CODEC.encode_request("sample", request)) == json.loads(data)
        assert CODEC.decode_request("sample", data) == request
    # The namespace is what the backend says.
    assert CODEC.decode_state("id", STATE_1, namespace="another").namespace == "another"


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


@each_codec
@pytest.mark.parametrize("value", ["x" * 200_000, [{"n": n} for n in range(20_000)]], ids=["a string", "many values"])
def test_what_is_large_comes_back(codec: Codec, value: Any) -> None:
    request = make_request(arguments={"large": value})
    assert codec.decode_request("task", codec.encode_request("task", request)) == request


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


@given(value=json_values())
def test_values_are_read_as_the_standard_library_reads_them(value: Any) -> None:
    data = encode_json(value)
    assert repr(Codec().decode_entry("task", "step", "key", data, number=1).value) == repr(json.loads(data))


# As the next release may write it, for a fleet in which this one is still there.
STATE_2 = STATE_1.replace(b'"format":1', b'"format":2,"readable":1,"colour":{"of":["the",7]}')


def test_a_newer_format_that_says_so_is_read_and_written_back_with_all_that_is_in_it() -> None:
    record = CODEC.decode_state("sample", STATE_2, namespace="")
    assert replace(record, unknown={}) == RECORD
    changed = json.loads(CODEC.encode_state(replace(record, version=8)))
    assert changed == json.loads(STATE_2) | {"version": 8}


@pytest.mark.parametrize("format_", [b'"format":3', b'"format":3,"readable":2'])
def test_a_newer_format_for_newer_releases_only_is_refused_with_its_number(format_: bytes) -> None:
    newer = STATE_1.replace(b'"format":1', format_)
    with pytest.raises(TaskUnreadable, match=r"task sample cannot be read: it has format 3.*newer") as refused:
        CODEC.decode_state("sample", newer, namespace="", owner="alice")
    assert (refused.value.task_id, refused.value.owner) == ("sample", "alice")


def test_what_is_unknown_in_a_format_of_now_is_kept_too() -> None:
    # So that a number which was not raised by mistake costs no data.
    state = STATE_1.replace(b'"format":1', b'"format":1,"colour":7')
    record = CODEC.decode_state("sample", state, namespace="")
    assert record.unknown == {"colour": 7}
    assert json.loads(CODEC.encode_state(record)) == json.loads(state)


def test_a_request_with_something_new_in_it_is_read() -> None:
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
    *(
        b"",
        b"not JSON",
        b"[]",
        b"null",
        b"{}",
        b'{"format":"3"}',
        b"\xff",
        "text",
        7,
        None,
        b'{"format":1}',
        b"[" * 100_000,
    ),
    *(json.dumps(json.loads(STATE_1) | fields).encode() for fields in WRONG_FIELDS),
    *(json.dumps(json.loads(STATE_1) | {instant: 10**30}).encode() for instant in ("created", "retention")),
]


def test_a_damaged_part_is_one_unreadable_task() -> None:
    parts: Sequence[tuple[str, Sequence[object], Callable[[object], object]]] = [
        ("its row", DAMAGED, lambda data: CODEC.decode_state("sample", data, namespace="", owner="alice")),
        (
            "its request",
            [b"", b"{}", b"[]", b"null", None, REQUEST_1[:-1], b"[" * 100_000],
            lambda data: CODEC.decode_request("sample", data, owner="alice"),
        ),
        (
            "its journal entry 'key'",
            [b"{"],
            lambda data: CODEC.decode_entry("sample", "step", "key", data, number=1, owner="alice"),
        ),
        ("its outcome", [None], lambda data: CODEC.decode_outcome("sample", data, None, owner="alice")),
    ]
    for part, damaged, decode in parts:
        for data in damaged:
            with pytest.raises(TaskUnreadable, match=f"task sample cannot be read: {part} is damaged") as refused:
                decode(data)
            assert refused.value.owner == "alice", data


def test_an_entry_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(TaskUnreadable, match=r"task sample .* unknown kind 'dream'") as refused:
        CODEC.decode_entry("sample", "dream", "key", b"null", number=1, owner="alice")
    assert refused.value.owner == "alice"


def encrypted_parts(codec: Codec) -> dict[str, tuple[bytes, Callable[[Codec, str, bytes], object]]]:
    """Each part of the task `mine` as it is kept, and how it is read for a task."""
    outcome = codec.encode_outcome("mine", Outcome(body=b'"secret"', meta=b'"secret"'))
    assert outcome.meta is not None
    return {
        "its row": (
            codec.encode_state(make_record(id="mine", status_message="secret", name="secret")),
            lambda codec, task_id, data: codec.decode_state(task_id, data, namespace=""),
        ),
        "its request": (
            codec.encode_request("mine", make_request(arguments={"a": "secret"})),
            lambda codec, task_id, data: codec.decode_request(task_id, data),
        ),
        "its outcome": (outcome.body, lambda codec, task_id, data: codec.decode_outcome(task_id, data, None)),
        "its journal entry number 1": (
            codec.encode_entry("mine", JournalEntry(kind="answer", key="", value="secret"), False)[1],
            lambda codec, task_id, data: codec.decode_entry(task_id, "answer", "", data, number=1),
        ),
    }


PARTS = ["its row", "its request", "its outcome", "its journal entry number 1"]


@pytest.mark.parametrize("part", PARTS)
def test_an_encrypted_part_is_readable_with_its_key_and_for_its_task_alone(part: str) -> None:
    codec = Codec(AesCipher())
    data, read = encrypted_parts(codec)[part]
    plain, _ = encrypted_parts(CODEC)[part]
    assert b"secret" not in data
    read(codec, "mine", data)
    with pytest.raises(TaskUnreadable, match=rf"task another cannot be read: {part} cannot be decrypted") as refused:
        read(codec, "another", data)
    assert isinstance(refused.value.__cause__, InvalidTag)
    # Nor is it another part of the same task.
    for other, (_, read_other) in encrypted_parts(codec).items():
        if other != part:
            with pytest.raises(TaskUnreadable, match="cannot be decrypted"):
                read_other(codec, "mine", data)
    # Another key, or a changed byte.
    for another, changed in ((Codec(AesCipher()), data), (codec, data[:-1] + bytes([data[-1] ^ 1])), (codec, data[:1])):
        with pytest.raises(TaskUnreadable, match="cannot be decrypted"):
            read(another, "mine", changed)
    with pytest.raises(TaskUnreadable, match=f"{part} is encrypted; give the store the cipher"):
        read(CODEC, "mine", data)
    with pytest.raises(TaskUnreadable, match=f"{part} is not encrypted, and this store has a cipher"):
        read(codec, "mine", plain)


def test_the_same_text_is_never_encrypted_to_the_same_bytes() -> None:
    codec = Codec(AesCipher())
    entry = JournalEntry(kind="step", key="", value="same")
    assert codec.encode_entry("task", entry, False) != codec.encode_entry("task", entry, False)


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
    record = make_record(created_at=CREATED, retention=timedelta(seconds=1))
    ended = replace(record, status=TaskStatus.COMPLETED, finished_at=CREATED)
    assert expiry(record) is None
    assert expiry(ended) == to_micros(CREATED) + 1_000_000
    assert expiry(replace(ended, retention=None)) is None
    assert ready(ended) is None
    assert ready(replace(record, worker="worker")) is None
    assert ready(replace(record, wake_at=CREATED)) == to_micros(CREATED)
    assert ready(record) == to_micros(datetime.min.replace(tzinfo=UTC))


async def test_a_conflict_that_cannot_be_looked_at_may_be_with_an_earlier_attempt() -> None:
    class Away(MemoryStore):
        async def get(self, task_id: str) -> TaskRecord | None:
            raise StoreUnavailable("away")

    store, record = Away(), make_record()
    await store.create(record, REQUEST)
    for write in (store.create(record, REQUEST), store.save(record, expected=7)):
        with pytest.raises(StoreUnavailable) as refused:
            await write
        assert refused.value.may_have_happened
