"""`Codec`: what is kept of a task as bytes and back, encrypted if there is a cipher.

A backend keeps these parts of a task, each by itself: its state, its request, its outcome, and the values of its
journal; and the notes of a server. All of them pass here, so this is the one place for encryption. What a backend finds
tasks by stays plain: ids, owners, namespaces, sessions, parents, statuses, times, names of workers, kinds of journal
entries, names of notes; and idempotency keys, which the runtime hides (`runtime.hidden_keys`). The key of a journal
entry (the name of a step or a question) is plain where nothing is encrypted, and otherwise with its value: nothing is
found by it, and a tool may put anything into a name.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType, NoneType
from typing import Any, Final, TypeAlias, TypeVar, cast

from pydantic_core import PydanticSerializationError, from_json, to_json

from mcp_tasks.encryption import Cipher, Keyring
from mcp_tasks.errors import (
    SHOWN_OF_AN_ID,
    CannotDecrypt,
    StoreCorrupt,
    StoreUnavailable,
    TaskExists,
    TaskUnreadable,
    ValueNotStorable,
    VersionConflict,
    short_id,
)
from mcp_tasks.model.json import (
    LARGE,
    JsonObject,
    JsonValue,
    decode_in_pieces,
    decode_json,
    encode_in_pieces,
    encode_json,
    is_large,
)
from mcp_tasks.model.limits import expires_at
from mcp_tasks.model.record import (
    DEFAULT_QUEUE,
    ENTRY_KINDS,
    OTHER_WRITES,
    ChildProcess,
    EntryKind,
    InputBook,
    InputRequest,
    JournalEntry,
    Outcome,
    Progress,
    TaskRecord,
    TaskRequest,
    TaskStatus,
    WriteId,
)
from mcp_tasks.quiet import get_logger
from mcp_tasks.stores.base import LARGEST_NOTE

__all__ = ["Cipher", "Codec", "entry_part", "note_id", "part_id"]

# ---- columns
# What a backend keeps beside the encoded parts, to find tasks by: instants as numbers, and cursors.


MICROSECOND = timedelta(microseconds=1)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_micros(instant: datetime) -> int:
    """An aware instant as microseconds since 1970."""
    return (instant - _EPOCH) // MICROSECOND


def from_micros(micros: int) -> datetime:
    """The instant `to_micros` came from."""
    return _EPOCH + micros * MICROSECOND


def earliest(*instants: int | None) -> datetime | None:
    """The first of some instants, leaving out those that are None."""
    micros = min((instant for instant in instants if instant is not None), default=None)
    return None if micros is None else from_micros(micros)


def sort_key(record: TaskRecord) -> int:
    """Where a task stands among all: by its creation."""
    return to_micros(record.created_at)


def expiry(record: TaskRecord) -> int | None:
    """When the task may be removed, for a backend's index; None for never or not yet."""
    deadline = expires_at(record)
    return None if deadline is None else to_micros(deadline)


def ready(record: TaskRecord) -> int | None:
    """From when on the task is queued, for a backend's index; None if it is not."""
    return None if record.ready_at is None else to_micros(record.ready_at)


def queued_since(record: TaskRecord) -> int:
    """Since when a task is queued that was not before.

    A run that is given back changes nothing that a client can see, and so not `updated_at`: then it is the instant at
    which the run began. A task waits for a little less than that says, never for longer.
    """
    if not record.attempt:
        # Its status may have said since that no worker is there.
        return to_micros(record.created_at)
    return to_micros(max(record.updated_at, record.started_at or record.updated_at))


def is_at_work(record: TaskRecord) -> bool:
    """Whether the task counts as being at work: a worker has it, it has not ended, and its run does not wait.

    One that is resuming counts, too, for all but those that are resuming themselves (`is_resuming`).
    """
    return record.worker is not None and not record.is_final and record.pause != "waiting"


def is_resuming(record: TaskRecord) -> bool:
    """Whether the run of the task wants to go on, and waits for a place under its limits."""
    return is_at_work(record) and record.pause == "resuming"


def encode_cursor(place: int, task_id: str) -> str:
    """The place after a task in a listing: where it stands, and its id for those that stand at the same place."""
    return f"{place}.{task_id}"


def decode_cursor(cursor: str) -> tuple[int, str]:
    """Place and id of the last task listed.

    Raises:
        ValueError: It is not a cursor of ours.
    """
    place, dot, task_id = cursor.partition(".")
    digits = place.removeprefix("-")
    # 18 digits hold every instant there is, and fit the integers of every backend.
    if not dot or not digits.isdecimal() or len(digits) > 18:
        raise ValueError("not a cursor of this store")
    return int(place), task_id


# ---- fields
# Records and requests as JSON objects, with a format number.


FORMAT = 6

READABLE = 5
"""The first format whose releases may read, and write back, what is written now."""

NOT_OURS = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading fields may raise that this file did not write."""

_NOTHING: JsonObject = MappingProxyType({})
_NO_INPUTS = InputBook()

_Types: TypeAlias = Mapping[str, type | tuple[type, ...]]

_STATE_TYPES: _Types = {
    "format": int,
    "readable": int,
    "status": str,
    "trial": str,
    "pause": str,
    "queue": str,
    "priority": int,
    "toolVersion": (str, NoneType),
    "fingerprint": str,
    "trace": str,
    "rerunOf": str,
    "processes": str,
    "writes": str,
    "owner": (str, NoneType),
    "method": str,
    "name": str,
    "created": int,
    "updated": int,
    "finished": int,
    "started": int,
    "wake": int,
    "retention": int,
    "poll": int,
    "version": int,
    "attempt": int,
    "lost": int,
    "message": str,
    "worker": str,
    "announced": bool,
    "isError": bool,
    "session": str,
    "parent": str,
    "progress": list,
    "inputs": dict,
}
_REQUEST_TYPES: _Types = {
    "method": str,
    "name": str,
    "version": str,
    "arguments": dict,
    "meta": dict,
    "clientInfo": (dict, NoneType),
    "clientCapabilities": dict,
    "inputResponses": dict,
    "requestState": str,
    "maxWait": int,
}


def request_fields(request: TaskRequest) -> dict[str, Any]:
    """What was asked for. What is unset is left out."""
    fields: dict[str, Any] = {
        "method": request.method,
        "name": request.name,
        "arguments": _plain(request.arguments),
        "meta": _plain(request.meta),
        "version": request.protocol_version,
        "clientInfo": None if request.client_info is None else _plain(request.client_info),
        "clientCapabilities": _plain(request.client_capabilities),
    }
    if request.input_responses is not None:
        fields["inputResponses"] = _plain(request.input_responses)
    if request.request_state is not None:
        fields["requestState"] = request.request_state
    if request.max_wait is not None:
        fields["maxWait"] = request.max_wait // MICROSECOND
    return fields


def request_from(fields: JsonObject) -> TaskRequest:
    """The request with these fields; raises one of `NOT_OURS` if they are damaged."""
    _checked(fields, _REQUEST_TYPES)
    return TaskRequest(
        method=fields["method"],
        name=fields["name"],
        arguments=fields["arguments"],
        meta=fields["meta"],
        protocol_version=fields["version"],
        client_info=fields["clientInfo"],
        client_capabilities=fields["clientCapabilities"],
        input_responses=fields.get("inputResponses"),
        request_state=fields.get("requestState"),
        max_wait=_duration(fields.get("maxWait")),
    )


def state_fields(record: TaskRecord) -> dict[str, Any]:
    """All of a record but its id and namespace. What is unset is left out."""
    state: dict[str, Any] = {
        "format": FORMAT,
        "owner": record.owner,
        "method": record.method,
        "name": record.name,
        "status": record.status.value,
        "created": to_micros(record.created_at),
        "updated": to_micros(record.updated_at),
        "version": record.version,
        "attempt": record.attempt,
    }
    if READABLE < FORMAT:
        state["readable"] = READABLE
    if record.status_message is not None:
        state["message"] = record.status_message
    if record.progress is not None:
        state["progress"] = [record.progress.progress, record.progress.total, record.progress.message]
    if record.is_error:
        state["isError"] = True
    if record.inputs.used:
        state["inputs"] = _inputs(record.inputs)
    if record.worker is not None:
        state["worker"] = record.worker
    if record.lost:
        state["lost"] = record.lost
    if record.trial is not None:
        state["trial"] = record.trial
    if record.pause is not None:
        state["pause"] = record.pause
    if not record.announced:
        state["announced"] = False
    if record.session is not None:
        state["session"] = record.session
    if record.parent is not None:
        state["parent"] = record.parent
    if record.queue != DEFAULT_QUEUE:
        state["queue"] = record.queue
    if record.priority:
        state["priority"] = record.priority
    if record.tool_version is not None:
        state["toolVersion"] = record.tool_version
    if record.fingerprint is not None:
        state["fingerprint"] = record.fingerprint
    if record.trace is not None:
        state["trace"] = record.trace
    if record.rerun_of is not None:
        state["rerunOf"] = record.rerun_of
    if record.processes:
        state["processes"] = " ".join(map(_process, record.processes))
    if record.writes:
        state["writes"] = " ".join(map(_write, record.writes))
    _put_times(state, record)
    # Last: a newer format stays the one that it is.
    return {**state, **record.unknown} if record.unknown else state


def is_readable(fields: JsonObject) -> bool:
    """Whether this release may read a state with these fields, and write it back."""
    return fields["format"] <= FORMAT or fields.get("readable", fields["format"]) <= FORMAT


def record_from(task_id: str, namespace: str, fields: JsonObject) -> TaskRecord:
    """The record with these fields; raises one of `NOT_OURS` if they are damaged."""
    unknown = _checked(fields, _STATE_TYPES)
    get = fields.get
    progress, inputs = get("progress"), get("inputs")
    return TaskRecord(
        id=task_id,
        namespace=namespace,
        owner=fields["owner"],
        method=fields["method"],
        name=fields["name"],
        status=TaskStatus(fields["status"]),
        status_message=get("message"),
        progress=None if progress is None else _progress_from(*progress),
        inputs=_NO_INPUTS if inputs is None else _inputs_from(inputs),
        is_error=get("isError", False),
        created_at=from_micros(fields["created"]),
        updated_at=from_micros(fields["updated"]),
        finished_at=_instant(get("finished")),
        started_at=_instant(get("started")),
        wake_at=_instant(get("wake")),
        retention=_duration(get("retention")),
        poll_interval=_duration(get("poll")),
        attempt=fields["attempt"],
        worker=get("worker"),
        lost=get("lost", 0),
        trial=get("trial"),
        pause=get("pause"),
        announced=get("announced", True),
        session=get("session"),
        parent=get("parent"),
        queue=get("queue", DEFAULT_QUEUE),
        priority=get("priority", 0),
        tool_version=get("toolVersion"),
        fingerprint=get("fingerprint"),
        trace=get("trace"),
        rerun_of=get("rerunOf"),
        processes=tuple(map(_process_from, get("processes", "").split())),
        writes=tuple(map(_write_from, get("writes", "").split())),
        unknown=unknown if fields["format"] <= FORMAT else _of_newer(fields, unknown),
        version=fields["version"],
    )


def _of_newer(fields: JsonObject, unknown: JsonObject) -> JsonObject:
    """What this release does not know of a newer format: also which it is."""
    return {**unknown, "format": fields["format"], "readable": fields["readable"]}


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    return value if isinstance(value, dict) else dict(value)


def _inputs(inputs: InputBook) -> dict[str, Any]:
    return {
        "open": {key: _ask(ask) for key, ask in inputs.outstanding.items()},
        "used": sorted(inputs.used),
    }


def _ask(ask: InputRequest) -> list[Any]:
    fields = [ask.method, _plain(ask.params), None if ask.deadline is None else to_micros(ask.deadline)]
    return fields if ask.hosted_as is None else [*fields, ask.hosted_as]


def _write(write: WriteId) -> str:
    return f"{write.writer}:{write.number}" if write.number else write.writer


def _write_from(text: str) -> WriteId:
    writer, _, number = text.partition(":")
    return WriteId(writer, int(number or 0))


def _process(process: ChildProcess) -> str:
    # None of these has a slash or a space in it: see `describe` in runtime/child_process.py.
    return "/".join((str(process.attempt), str(process.group), process.started, process.boot, process.host))


def _process_from(text: str) -> ChildProcess:
    attempt, group, started, boot, host = text.split("/")
    return ChildProcess(attempt=int(attempt), group=int(group), started=started, boot=boot, host=host)


def _put_times(state: dict[str, Any], record: TaskRecord) -> None:
    for key, instant in (
        ("finished", record.finished_at),
        ("started", record.started_at),
        ("wake", record.wake_at),
    ):
        if instant is not None:
            state[key] = to_micros(instant)
    for key, duration in (("retention", record.retention), ("poll", record.poll_interval)):
        if duration is not None:
            state[key] = duration // MICROSECOND


def _checked(fields: JsonObject, types: _Types) -> JsonObject:
    """The fields that are not known, unless one that is is of another type than is ever written."""
    unknown: dict[str, JsonValue] | None = None
    for key, value in fields.items():
        expected = types.get(key)
        if type(value) is expected:
            continue
        if expected is None:
            unknown = {**(unknown or {}), key: value}
        elif not isinstance(value, expected):
            raise TypeError(f"{key!r} is of the type {type(value).__name__}")
    return _NOTHING if unknown is None else unknown


def _progress_from(progress: float, total: float | None, message: str | None) -> Progress:
    if not isinstance(progress, int | float) or not isinstance(total, int | float | None):
        raise TypeError("'progress' is not a number")
    if not isinstance(message, str | None):
        raise TypeError("the message of 'progress' is not text")
    return Progress(progress=progress, total=total, message=message)


def _inputs_from(fields: JsonObject) -> InputBook:
    asked = cast("dict[str, list[Any]]", fields["open"])
    return InputBook(
        outstanding={key: _ask_from(*ask) for key, ask in asked.items()},
        used=frozenset(fields["used"]),
    )


def _ask_from(
    method: str, params: JsonObject, deadline: int | None = None, hosted_as: str | None = None
) -> InputRequest:
    # The first release had no deadlines.
    if not isinstance(method, str) or not isinstance(params, dict):
        raise TypeError("an open question is not a method with its params")
    if not isinstance(hosted_as, str | None):
        raise TypeError("the client's task that holds a question is not named by a string")
    return InputRequest(method=method, params=params, deadline=_instant(deadline), hosted_as=hosted_as)


def _instant(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def _duration(micros: int | None) -> timedelta | None:
    return None if micros is None else micros * MICROSECOND


T = TypeVar("T")

_ENCRYPTED: Final = b"\0"
"""What encrypted bytes begin with. No JSON does, so that each kind is told from the other, and said to be which."""


_PLAIN: Final = frozenset({str, int, bool, NoneType})

STATE: Final = "state"
REQUEST: Final = "request"
BODY: Final = "outcome"
META: Final = "meta"
"""The parts of a task, as what is encrypted is bound to them (`part_id`); each kind of journal entry is one too."""

_NOTE: Final = b"="
"""What notes begin with: they may be any bytes, and would be taken for encrypted ones by their own first byte."""

_WITH_KEY: Final = b"\x01"
"""What a journal entry begins with that has its key before its value. No JSON does."""

_KEY_SIZE: Final = 4
"""Bytes that say how long the key is."""


class Codec:
    """Encodes and decodes what is kept of a task. Methods that handle something large may be called in a thread.

    A store that is given a cipher reads nothing that was written without one, and the other way round: begin with a new
    store, or have all of it encrypted (`mcp-tasks encrypt`).
    """

    def __init__(self, cipher: Cipher | None = None) -> None:
        self._cipher = cipher

    @property
    def encrypts(self) -> bool:
        """Whether there is a cipher."""
        return self._cipher is not None

    def encode_state(self, record: TaskRecord) -> bytes:
        """The record, but for its id and namespace.

        Raises:
            ValueNotStorable: Something in it is not JSON. So it is for the other methods that encode.
        """
        return self._seal(part_id(record.id, STATE), _encoded(state_fields(record)))

    def decode_state(self, task_id: str, data: object, *, namespace: str, owner: str | None = None) -> TaskRecord:
        """The record behind its bytes.

        Args:
            data: What the backend has; anything but bytes is damage.
            owner: Whose task it is by what the backend keeps beside the bytes; for the error, if there is one.

        Raises:
            TaskUnreadable: The bytes are damaged, or a newer release wrote them. So it is for the other methods that
                decode.
        """

        def decode(plain: bytes) -> TaskRecord:
            fields = _decoded(plain)
            if not is_readable(fields):
                raise TaskUnreadable(task_id, _newer(f"format {fields['format']}"), owner=owner)
            return record_from(task_id, namespace, fields)

        return self._decoded(task_id, STATE, data, decode, "its row", owner)

    def encode_request(self, task_id: str, request: TaskRequest) -> bytes:
        """The request of a task."""
        fields = request_fields(request)
        return self.encode_request_fields(task_id, fields, is_large(fields))

    def encode_request_fields(self, task_id: str, fields: JsonValue, large: bool) -> bytes:
        """The request, given as `request_fields`; in pieces, and to be called in a thread, if they are large
        (`is_large`)."""
        return self._seal(part_id(task_id, REQUEST), encode_in_pieces(fields) if large else encode_json(fields))

    def decode_request(self, task_id: str, data: object, *, owner: str | None = None) -> TaskRequest:
        """The request behind its bytes; in a thread if they are large."""
        return self._decoded(task_id, REQUEST, data, lambda plain: request_from(_parse(plain)), "its request", owner)

    def encode_outcome(self, task_id: str, outcome: Outcome) -> Outcome:
        """The outcome as it is to be kept; in a thread if it is large, because a cipher takes its time."""
        if self._cipher is None:
            return outcome
        meta = None if outcome.meta is None else self._seal(part_id(task_id, META), outcome.meta)
        return Outcome(body=self._seal(part_id(task_id, BODY), outcome.body), meta=meta)

    def decode_outcome(self, task_id: str, body: object, meta: object, *, owner: str | None = None) -> Outcome:
        """The outcome that was kept; in a thread if it is large."""
        return Outcome(
            body=self._decoded(task_id, BODY, body, _unchanged, "its outcome", owner),
            meta=None if meta is None else self._decoded(task_id, META, meta, _unchanged, "its outcome", owner),
        )

    def encode_entry(self, task_id: str, entry: JournalEntry, large: bool) -> tuple[str, bytes]:
        """The key and the value of a journal entry as they are to be kept; in pieces, and to be called in a thread, if
        the value is large (`is_large`)."""
        encoded = encode_in_pieces(entry.value) if large else encode_json(entry.value)
        return self._entry(task_id, entry.kind, entry.key, encoded)

    def decode_entry(
        self, task_id: str, kind: str, key: str, value: object, *, number: int, owner: str | None = None
    ) -> JournalEntry:
        """The journal entry behind its stored parts; in a thread if the value is large."""
        if kind not in ENTRY_KINDS:
            raise TaskUnreadable(task_id, _newer(f"a journal entry of the unknown kind {kind!r}"), owner=owner)

        def decode(plain: bytes) -> tuple[str, Any]:
            its_key, encoded = _split(key, plain)
            return its_key, _parse(encoded)

        name = repr(key) if key else f"number {number}"
        its_key, parsed = self._decoded(task_id, entry_part(kind), value, decode, f"its journal entry {name}", owner)
        return JournalEntry(kind=cast(EntryKind, kind), key=its_key, value=parsed, number=number)

    def encode_note(self, namespace: str, name: str, value: bytes) -> bytes:
        """A note of a server, as it is to be kept.

        Raises:
            ValueNotStorable: It has more bytes than a note may have.
        """
        if len(value) > LARGEST_NOTE:
            raise ValueNotStorable(
                f"the note {name!r} cannot be stored because it has {len(value):,} bytes, and a note has at most "
                f"{LARGEST_NOTE:,}"
            )
        return self._seal(note_id(namespace, name), _NOTE + value)

    def decode_note(self, namespace: str, name: str, data: object) -> bytes:
        """The note that was kept.

        Raises:
            StoreCorrupt: It cannot be read.
        """
        try:
            plain = self._open(note_id(namespace, name), data, "it", "note")
            if not plain.startswith(_NOTE):
                raise _Unreadable("it is not what was written; restore a backup, or delete the note")
        except _Unreadable as exc:
            raise StoreCorrupt(f"the note {name!r} of the server {namespace!r} cannot be read: {exc}") from exc
        return plain[len(_NOTE) :]

    def reseal(self, bound_to: str, data: bytes) -> bytes | None:
        """Bytes of a task (`part_id`) or a note (`note_id`), encrypted with the key that is used now; None if they are.

        Raises:
            CannotDecrypt: They cannot be decrypted.
        """
        return None if self._is_current(data) else self._seal(bound_to, self._plain(bound_to, data))

    def reseal_entry(self, task_id: str, kind: str, key: str, data: bytes) -> tuple[str, bytes] | None:
        """The same for the key and the value of a journal entry."""
        if not key and self._is_current(data):
            return None
        return self._entry(task_id, kind, *_split(key, self._plain(part_id(task_id, entry_part(kind)), data)))

    def _is_current(self, data: bytes) -> bool:
        """Whether the bytes need the key that is used now. Of a cipher of somebody else's making it is not known."""
        cipher = self._cipher
        return (
            data.startswith(_ENCRYPTED) and isinstance(cipher, Keyring) and cipher.is_current(data[len(_ENCRYPTED) :])
        )

    def _plain(self, bound_to: str, data: bytes) -> bytes:
        if not data.startswith(_ENCRYPTED):
            return data
        try:
            return self._open(bound_to, data, "it", "task")
        except _Unreadable as exc:
            raise CannotDecrypt(str(exc)) from exc.__cause__

    def _entry(self, task_id: str, kind: str, key: str, encoded: bytes) -> tuple[str, bytes]:
        if self._cipher is None:
            return key, encoded
        name = key.encode("utf-8", "surrogatepass")
        plain = b"".join((_WITH_KEY, len(name).to_bytes(_KEY_SIZE, "big"), name, encoded))
        return "", self._seal(part_id(task_id, entry_part(kind)), plain)

    def _seal(self, bound_to: str, plain: bytes) -> bytes:
        return plain if self._cipher is None else _ENCRYPTED + self._cipher.encrypt(bound_to, plain)

    def _decoded(
        self, task_id: str, part: str, data: object, decode: Callable[[bytes], T], what: str, owner: str | None
    ) -> T:
        try:
            return decode(self._open(part_id(task_id, part), data, what, "task"))
        except _Unreadable as exc:
            raise TaskUnreadable(task_id, str(exc), owner=owner) from exc.__cause__
        except NOT_OURS as exc:
            raise TaskUnreadable(task_id, _damaged(what, "task", exc), owner=owner) from exc

    def _open(self, bound_to: str, data: object, part: str, whole: str) -> bytes:
        """The plain bytes of a part of something whole: a task, or a note."""
        if not isinstance(data, bytes):
            wrong = TypeError(f"it is of the type {type(data).__name__}")
            raise _Unreadable(_damaged(part, whole, wrong)) from wrong
        encrypted = data.startswith(_ENCRYPTED)
        if self._cipher is None:
            if encrypted:
                raise _Unreadable(f"{part} is encrypted; give the store the cipher, or set MCP_TASKS_KEYS")
            return data
        if not encrypted:
            raise _Unreadable(
                f"{part} is not encrypted, and this store has a cipher; have it encrypted (`mcp-tasks encrypt`), open "
                f"it without one, or delete the {whole}"
            )
        try:
            return self._cipher.decrypt(bound_to, data[len(_ENCRYPTED) :])
        except CannotDecrypt as exc:
            raise _Unreadable(f"{part} cannot be decrypted: {exc}") from exc
        except Exception as exc:
            raise _Unreadable(
                f"{part} cannot be decrypted ({type(exc).__name__}): it has another key, or was changed or moved"
            ) from exc


class _Unreadable(Exception):
    """Why some bytes cannot be read; the caller knows whose they are."""


def part_id(task_id: str, part: str) -> str:
    """What a part of a task is bound to: its arguments are no result, and a result of another task is not one of it."""
    # The part first: it has no colon, so no id makes two of these alike.
    return f"{part}:{task_id}"


def entry_part(kind: str) -> str:
    """The part that journal entries of a kind are."""
    return f"journal/{kind}"


def note_id(namespace: str, name: str) -> str:
    """What a note is bound to. No part of a task is called `note`, and JSON keeps the two names apart."""
    return f"note:{json.dumps([namespace, name])}"


def _split(key: str, plain: bytes) -> tuple[str, bytes]:
    """The key and the encoded value of a journal entry, whose key may be beside it."""
    if not plain.startswith(_WITH_KEY):
        return key, plain
    start = len(_WITH_KEY) + _KEY_SIZE
    end = start + int.from_bytes(plain[len(_WITH_KEY) : start], "big")
    return plain[start:end].decode("utf-8", "surrogatepass"), plain[end:]


def _parse(plain: bytes) -> Any:
    return decode_in_pieces(plain) if len(plain) > LARGE else _decoded(plain)


def _encoded(fields: dict[str, Any]) -> bytes:
    """JSON of the fields, in a third of the time that the standard library takes where they are plain.

    Only there: of an object that is no JSON, a date or a set, `to_json` makes some instead of refusing it.
    """
    if _PLAIN.issuperset(map(type, fields.values())):
        try:
            return to_json(fields)
        except PydanticSerializationError:
            # A lone surrogate.
            pass
    return encode_json(fields)


def _decoded(plain: bytes) -> Any:
    """The value behind the bytes, in a third of the time that the standard library takes.

    Where both read something, they read the same. What only the standard library reads (lone surrogates, and what is
    nested deeply) is left to it, and so is saying what is wrong.
    """
    try:
        return from_json(plain)
    except ValueError:
        return decode_json(plain)


def _unchanged(plain: bytes) -> bytes:
    return plain


def _newer(what: str) -> str:
    return f"it has {what}, which this release does not know; use the release that wrote it, or a newer one"


def _damaged(part: str, whole: str, exc: Exception) -> str:
    # Not `repr`: that of a decoding error shows the whole text, and arguments and results are private.
    return f"{part} is damaged ({type(exc).__name__}: {exc}); restore a backup, or delete the {whole}"


# ---- encoding
# Encoding and decoding without holding the event loop: small values at once, large ones in a thread.


Line: TypeAlias = tuple[str, str, bytes]
"""A journal entry: its kind, its key (empty where it is encrypted with the value) and its encoded value."""


async def encoded_request(codec: Codec, task_id: str, request: TaskRequest) -> bytes:
    """The request as it is to be kept; raises `ValueNotStorable`, as the others here do."""
    fields = request_fields(request)
    large = is_large(fields)
    return await in_thread_if(large, codec.encode_request_fields, task_id, fields, large)


async def encoded_entries(codec: Codec, task_id: str, entries: Sequence[JournalEntry]) -> list[Line]:
    """The entries as they are to be kept."""
    lines: list[Line] = []
    for entry in entries:
        large = is_large(entry.value)
        lines.append((entry.kind, *await in_thread_if(large, codec.encode_entry, task_id, entry, large)))
    return lines


async def encoded_outcome(codec: Codec, task_id: str, outcome: Outcome | None) -> Outcome | None:
    """The outcome as it is to be kept, if there is one."""
    if outcome is None:
        return None
    return await in_thread_if(size_of(outcome) > LARGE, codec.encode_outcome, task_id, outcome)


async def in_thread_if(large: bool, act: Callable[..., T], *values: Any) -> T:
    """What comes of the act, done here or in a thread. Not one of anyio's: tools that block may have all of those."""
    return await asyncio.to_thread(act, *values) if large else act(*values)


def size_of(outcome: Outcome) -> int:
    """The bytes of an outcome."""
    return len(outcome.body) + len(outcome.meta or b"")


# ---- unreadable
# Tasks that cannot be read are logged once, with what to do about them.


MAX_REPORTED = 1_000
"""Unreadable tasks remembered as logged; beyond that some are logged again."""

logger: Final = get_logger(__name__)


class UnreadableLog:
    """Logs what a listing had to leave out.

    Args:
        place: Where the tasks are kept, without anything secret.
        deletion: What deletes a task by its id, in the words of the backend.
    """

    def __init__(self, place: str, deletion: Callable[[str], str]) -> None:
        self._place = place
        self._deletion = deletion
        self._reported: dict[str, None] = {}

    def readable(self, decode: Callable[..., TaskRecord], rows: Iterable[Sequence[Any]]) -> list[TaskRecord]:
        """The records of some rows. What cannot be read is left out and logged once."""
        records: list[TaskRecord] = []
        for row in rows:
            try:
                records.append(decode(*row))
            except TaskUnreadable as exc:
                self.report(exc)
        return records

    def report(self, unreadable: TaskUnreadable) -> None:
        """Log the task, unless that was done."""
        if unreadable.task_id in self._reported:
            return
        if len(self._reported) == MAX_REPORTED:
            del self._reported[next(iter(self._reported))]
        self._reported[unreadable.task_id] = None
        logger.error(
            "%s. Listings leave it out, and all other tasks in %s are unaffected. To delete it: %s",
            unreadable,
            self._place,
            self._deletion(unreadable.task_id),
        )


def sql_deletion(table: str, spelled: Callable[[str], str] = str) -> Callable[[str], str]:
    """What deletes a task by its id in SQL, with no more of the id than a log may have."""

    def deletion(task_id: str) -> str:
        start = spelled(task_id[:SHOWN_OF_AN_ID]).replace("'", "''")
        which = f"= '{start}'" if len(task_id) <= SHOWN_OF_AN_ID else f"LIKE '{start}%'"
        return f"DELETE FROM {table} WHERE id {which}"  # noqa: S608 - for people to read

    return deletion


def if_readable(decode: Callable[..., TaskRecord], *row: Any) -> TaskRecord | None:
    """The record of a row, or None: for one that is gone, and needs no deleting any more."""
    try:
        return decode(*row)
    except TaskUnreadable:
        return None


# ---- repeats
# Write ids, and recognising a write that is repeated because the answer to an earlier attempt was lost.


Get: TypeAlias = Callable[[str], Awaitable[TaskRecord | None]]


def new_write_id(*, run: bool = False) -> WriteId:
    """An id for one change, or for the claim with which a run begins."""
    return WriteId(secrets.token_urlsafe(6), int(run))


async def made_before(get: Get, record: TaskRecord) -> TaskRecord:
    """The task that is there under the id of a new one, if an earlier attempt made it.

    Raises:
        TaskExists: Another call made it, or it is gone again.
        StoreUnavailable: So much was written since that it cannot be known.
    """
    found = await _look(get, record.id)
    if found is not None and _wrote(found, record):
        return found
    if found is not None and found.created_at == record.created_at and _may_have_pushed_out(found, record):
        raise StoreUnavailable(f"task {short_id(record.id)} may have been created before", may_have_happened=True)
    raise TaskExists(record.id)


async def saved_before(get: Get, record: TaskRecord, expected: int) -> TaskRecord:
    """The task as it is now, if the save of `record` that met a conflict was made by an earlier attempt.

    Writes of a run are recognised for as long as it is the last run. Any other write is recognised until
    `OTHER_WRITES` others came after it. After that its caller meets a conflict and decides anew, which is why each
    such change makes no difference when it is made twice: an answer to a question that is closed, an end of a task that
    has ended, the release of a run that is not the current one.

    Raises:
        VersionConflict: It was not. The error has the record that is there.
        TaskUnreadable: What is there cannot be read.
    """
    current = await _look(get, record.id)
    if current is None or not _wrote(current, record):
        raise VersionConflict(record.id, expected, current)
    return current


async def _look(get: Get, task_id: str) -> TaskRecord | None:
    try:
        return await get(task_id)
    except StoreUnavailable as exc:
        # Only a read, but the conflict before it may be with an earlier attempt of the write.
        exc.may_have_happened = True
        raise


def _wrote(found: TaskRecord, record: TaskRecord) -> bool:
    """Whether the write that makes `record` is among those that made `found`."""
    return bool(record.writes) and found.has(record.writes[0])


def _may_have_pushed_out(found: TaskRecord, record: TaskRecord) -> bool:
    """Whether `found` may have had the id of the write that makes `record`, and keeps it no longer."""
    if record.writes and record.writes[0].number:
        return found.attempt > record.attempt
    return sum(not each.number for each in found.writes) >= OTHER_WRITES
