"""`Codec`: what is kept of a task as bytes and back, encrypted if there is a cipher; and what a task is found by.

A backend keeps these parts of a task, each by itself: its state, its request, its outcome, and the values of its
journal; and the notes of a server. All of them pass here, so this is the one place for encryption. The values that a
backend finds tasks by stay plain: ids, owners, namespaces, sessions, parents, statuses, times, names of workers, kinds
of journal entries, names of notes; and idempotency keys, which the runtime hides (`runtime.hidden_keys`). The key of a
journal entry is plain where nothing is encrypted, and otherwise encrypted with its value.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from types import MappingProxyType, NoneType
from typing import Any, Final, TypeAlias, TypeVar, cast

from pydantic_core import PydanticSerializationError, from_json, to_json

from mcp_tasks.encryption import Cipher, Keyring
from mcp_tasks.errors import CannotDecrypt, StoreCorrupt, TaskUnreadable, ValueNotStorable
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
    ALWAYS,
    DEFAULT_QUEUE,
    ENTRY_KINDS,
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

__all__ = ["Cipher", "Codec", "entry_part", "note_id", "part_id"]

# ---- columns
# Beside the encoded parts, a backend keeps what it finds tasks by: instants as numbers.

MICROSECOND = timedelta(microseconds=1)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_micros(instant: datetime) -> int:
    """An aware instant as microseconds since 1970."""
    return (instant - _EPOCH) // MICROSECOND


def from_micros(micros: int) -> datetime:
    """The instant `to_micros` came from."""
    return _EPOCH + micros * MICROSECOND


def sort_key(record: TaskRecord) -> int:
    """Where a task stands among all: by its creation."""
    return to_micros(record.created_at)


def expiry(record: TaskRecord) -> int | None:
    """When the task may be removed; None for never or not yet."""
    deadline = expires_at(record)
    return None if deadline is None else to_micros(deadline)


def ready(record: TaskRecord) -> int | None:
    """From when on the task is queued; None if it is not."""
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


FINAL: Final = frozenset(status.value for status in TaskStatus if status.is_final)
"""The statuses of tasks that have ended."""


def columns_of(record: TaskRecord, state: bytes, text: Callable[[str], Any]) -> dict[str, Any]:
    """The columns of a record that SQL stores write each time.

    Args:
        text: Makes a string one that the store can keep.
    """
    ready_at = ready(record)
    is_queued = ready_at is not None and record.ready_at == ALWAYS
    return {
        "id": text(record.id),
        "version": record.version,
        "session": None if record.session is None else text(record.session),
        "queue": text(record.queue),
        # The higher priority is the smaller number, and comes first.
        "rank": -record.priority,
        "status": record.status.value,
        "worker": None if record.worker is None else text(record.worker),
        "ready": ready_at,
        "queued": is_queued,
        "since": queued_since(record) if is_queued else None,
        "expires": expiry(record),
        "at_work": is_at_work(record),
        "resuming": is_resuming(record),
        "final": record.is_final,
        "state": state,
    }


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
# Records and requests as JSON objects. Unset fields are left out. One line for each field: a new field is a new line,
# and a raised FORMAT where older releases must not go on without it.


FORMAT = 1
"""The format of records that this release writes."""

READABLE = 1
"""The first format whose releases may read, and write back, what is written now."""

NOT_OURS = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""The exceptions that damaged fields may cause."""

_NOTHING: JsonObject = MappingProxyType({})
_ALWAYS: Final = object()
"""Equals no value: the field is written always."""


@dataclass(frozen=True, slots=True)
class _Field:
    """How one attribute of a record or a request is kept.

    Attributes:
        unset: The value that is not written.
        write: Makes JSON of the value, if it is none.
        read: Makes the value of the JSON.
    """

    key: str
    attribute: str
    types: type | tuple[type, ...]
    unset: object = None
    write: Callable[[Any], Any] | None = None
    read: Callable[[Any], Any] | None = None


class _Fields:
    """All fields of a record, or of a request."""

    def __init__(self, *fields: _Field) -> None:
        self._keys = [field.key for field in fields]
        self._parts = attrgetter(*(field.attribute for field in fields))
        self._unset = [(field.key, field.unset) for field in fields if field.unset not in (None, _ALWAYS)]
        self._write = [(field.key, field.write) for field in fields if field.write is not None]
        self._read = {field.key: (field.types, field.attribute, field.read) for field in fields}
        self._required = frozenset(field.key for field in fields if field.unset is _ALWAYS)

    def write(self, value: object) -> dict[str, Any]:
        """The JSON of a record, or of a request."""
        # In passes: most fields are None, or are written as they are.
        fields = {key: part for key, part in zip(self._keys, self._parts(value), strict=True) if part is not None}
        for key, unset in self._unset:
            if fields[key] == unset:
                del fields[key]
        for key, write in self._write:
            if key in fields:
                fields[key] = write(fields[key])
        return fields

    def read(self, fields: JsonObject) -> tuple[dict[str, Any], dict[str, JsonValue]]:
        """The attributes, and the fields that are not known; raises one of `NOT_OURS` if they are damaged."""
        if not fields.keys() >= self._required:
            raise LookupError(f"{', '.join(sorted(self._required - fields.keys()))} is missing")
        attributes: dict[str, Any] = {}
        unknown: dict[str, JsonValue] = {}
        known = self._read
        for key, value in fields.items():
            if key not in known:
                unknown[key] = value
                continue
            types, attribute, read = known[key]
            if type(value) is not types and not isinstance(value, types):
                raise TypeError(f"{key!r} is of the type {type(value).__name__}")
            attributes[attribute] = value if read is None else read(value)
        return attributes, unknown


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    return value if isinstance(value, dict) else dict(value)


def _duration(micros: int) -> timedelta:
    return micros * MICROSECOND


def _micros(duration: timedelta) -> int:
    return duration // MICROSECOND


def _progress(progress: Progress) -> list[Any]:
    return [progress.progress, progress.total, progress.message]


def _progress_from(fields: list[Any]) -> Progress:
    progress, total, message = fields
    if not isinstance(progress, int | float) or not isinstance(total, int | float | None):
        raise TypeError("'progress' is not a number")
    if not isinstance(message, str | None):
        raise TypeError("the message of 'progress' is not text")
    return Progress(progress=progress, total=total, message=message)


def _inputs(inputs: InputBook) -> dict[str, Any]:
    asked: dict[str, list[Any]] = {}
    for key, ask in inputs.outstanding.items():
        asked[key] = [ask.method, _plain(ask.params), None if ask.deadline is None else to_micros(ask.deadline)]
        if ask.hosted_as is not None:
            asked[key].append(ask.hosted_as)
    return {"open": asked, "used": sorted(inputs.used)}


def _inputs_from(fields: dict[str, Any]) -> InputBook:
    asked = cast("dict[str, list[Any]]", fields["open"])
    return InputBook(outstanding={key: _ask_from(*ask) for key, ask in asked.items()}, used=frozenset(fields["used"]))


def _ask_from(method: str, params: JsonObject, deadline: int | None, hosted_as: str | None = None) -> InputRequest:
    if not isinstance(method, str) or not isinstance(params, dict):
        raise TypeError("an open question is not a method with its params")
    if not isinstance(hosted_as, str | None):
        raise TypeError("the client's task that holds a question is not named by a string")
    until = None if deadline is None else from_micros(deadline)
    return InputRequest(method=method, params=params, deadline=until, hosted_as=hosted_as)


def _writes(writes: Iterable[WriteId]) -> str:
    return " ".join(f"{write.writer}:{write.number}" if write.number else write.writer for write in writes)


def _writes_from(text: str) -> tuple[WriteId, ...]:
    parts = [each.partition(":") for each in text.split()]
    return tuple([WriteId(writer, int(number or 0)) for writer, _, number in parts])


def _processes(processes: Iterable[ChildProcess]) -> str:
    # No part has a slash or a space in it: see `describe` in runtime/child_process.py.
    return " ".join(f"{each.attempt}/{each.group}/{each.started}/{each.boot}/{each.host}" for each in processes)


def _processes_from(text: str) -> tuple[ChildProcess, ...]:
    parts = (each.split("/") for each in text.split())
    return tuple(
        ChildProcess(attempt=int(attempt), group=int(group), started=started, boot=boot, host=host)
        for attempt, group, started, boot, host in parts
    )


_STATE_FIELDS: Final = _Fields(
    _Field("owner", "owner", str),
    _Field("method", "method", str, _ALWAYS),
    _Field("name", "name", str, _ALWAYS),
    _Field("status", "status", str, _ALWAYS, attrgetter("value"), TaskStatus),
    _Field("created", "created_at", int, _ALWAYS, to_micros, from_micros),
    _Field("updated", "updated_at", int, _ALWAYS, to_micros, from_micros),
    _Field("version", "version", int, _ALWAYS),
    _Field("attempt", "attempt", int, _ALWAYS),
    _Field("message", "status_message", str),
    _Field("progress", "progress", list, None, _progress, _progress_from),
    _Field("isError", "is_error", bool, False),
    _Field("inputs", "inputs", dict, InputBook(), _inputs, _inputs_from),
    _Field("worker", "worker", str),
    _Field("lost", "lost", int, 0),
    _Field("trial", "trial", str),
    _Field("pause", "pause", str),
    _Field("announced", "announced", bool, True),
    _Field("session", "session", str),
    _Field("parent", "parent", str),
    _Field("queue", "queue", str, DEFAULT_QUEUE),
    _Field("priority", "priority", int, 0),
    _Field("toolVersion", "tool_version", str),
    _Field("fingerprint", "fingerprint", str),
    _Field("trace", "trace", str),
    _Field("rerunOf", "rerun_of", str),
    _Field("processes", "processes", str, (), _processes, _processes_from),
    _Field("writes", "writes", str, (), _writes, _writes_from),
    _Field("finished", "finished_at", int, None, to_micros, from_micros),
    _Field("started", "started_at", int, None, to_micros, from_micros),
    _Field("wake", "wake_at", int, None, to_micros, from_micros),
    _Field("retention", "retention", int, None, _micros, _duration),
    _Field("poll", "poll_interval", int, None, _micros, _duration),
)
_REQUEST_FIELDS: Final = _Fields(
    _Field("method", "method", str, _ALWAYS),
    _Field("name", "name", str, _ALWAYS),
    _Field("arguments", "arguments", dict, _ALWAYS, _plain),
    _Field("meta", "meta", dict, _ALWAYS, _plain),
    _Field("version", "protocol_version", str, _ALWAYS),
    _Field("clientInfo", "client_info", dict, None, _plain),
    _Field("clientCapabilities", "client_capabilities", dict, _ALWAYS, _plain),
    _Field("inputResponses", "input_responses", dict, None, _plain),
    _Field("requestState", "request_state", str),
    _Field("maxWait", "max_wait", int, None, _micros, _duration),
)


def _state_fields(record: TaskRecord) -> dict[str, Any]:
    """All of a record but its id and namespace."""
    state = _STATE_FIELDS.write(record)
    state["format"] = FORMAT
    if READABLE < FORMAT:
        state["readable"] = READABLE
    # Last: a newer format stays the one that it is.
    return {**state, **record.unknown} if record.unknown else state


def _record_from(task_id: str, namespace: str, fields: JsonObject, *, owner: str | None) -> TaskRecord:
    """The record with these fields; raises one of `NOT_OURS` if they are damaged."""
    written, readable = fields["format"], fields.get("readable", fields["format"])
    for number in (written, readable):
        if type(number) is not int:
            raise TypeError(f"'format' is of the type {type(number).__name__}")
    if written > FORMAT and readable > FORMAT:
        raise TaskUnreadable(task_id, _newer(f"format {written}"), owner=owner)
    attributes, unknown = _STATE_FIELDS.read(fields)
    if written <= FORMAT:
        del unknown["format"]
        unknown.pop("readable", None)
    attributes.setdefault("owner", None)
    return TaskRecord(id=task_id, namespace=namespace, **attributes, unknown=unknown or _NOTHING)


T = TypeVar("T")

_ENCRYPTED: Final = b"\0"
"""The first byte of all that is encrypted. No JSON begins with it."""

_PLAIN: Final = frozenset({str, int, bool, NoneType})

STATE: Final = "state"
REQUEST: Final = "request"
BODY: Final = "outcome"
META: Final = "meta"
"""The parts of a task, as encrypted bytes are bound to them (`part_id`); each kind of journal entry is one too."""

LARGEST_NOTE: Final = 64 * 1024
"""Bytes. A note is a small thing that a server remembers beside its tasks, and is read whole."""

_NOTE: Final = b"="
"""The first byte of notes: they may be any bytes, and would be taken for encrypted ones by their own first byte."""

_WITH_KEY: Final = b"\x01"
"""The first byte of a journal entry that has its key before its value. No JSON begins with it."""

_KEY_SIZE: Final = 4
"""Bytes that say how long the key is."""


class Codec:
    """Encodes and decodes what is kept of a task. Methods that handle something large may be called in a thread.

    A store that is given a cipher reads nothing that was written without one, and the other way round: begin with a new
    store, or have all of it encrypted (`mcp-tasks encrypt`). Methods that encode raise `ValueNotStorable` for what is
    no JSON. Methods that decode raise `TaskUnreadable` for what is damaged, or was written by a newer release; they are
    told the owner, as the backend has it, for that error. Data may be anything: what is not bytes is damage.
    """

    def __init__(self, cipher: Cipher | None = None) -> None:
        self._cipher = cipher

    @property
    def encrypts(self) -> bool:
        """Whether there is a cipher."""
        return self._cipher is not None

    def encode_state(self, record: TaskRecord) -> bytes:
        """The record, but for its id and namespace."""
        return self._seal(record.id, STATE, _encoded(_state_fields(record)))

    def decode_state(self, task_id: str, data: object, *, namespace: str, owner: str | None = None) -> TaskRecord:
        """The record behind its bytes."""
        return self._decoded(
            task_id,
            STATE,
            data,
            lambda plain: _record_from(task_id, namespace, _parse(plain), owner=owner),
            "its row",
            owner,
        )

    def encode_request(self, task_id: str, request: TaskRequest) -> bytes:
        """The request of a task."""
        return self._encode_request(task_id, fields := _REQUEST_FIELDS.write(request), is_large(fields))

    async def encode_request_aside(self, task_id: str, request: TaskRequest) -> bytes:
        """The same without holding the event loop: in a thread if the request is large."""
        large = is_large(fields := _REQUEST_FIELDS.write(request))
        return await in_thread_if(large, self._encode_request, task_id, fields, large)

    def _encode_request(self, task_id: str, fields: JsonValue, large: bool) -> bytes:
        return self._seal(task_id, REQUEST, encode_in_pieces(fields) if large else encode_json(fields))

    def decode_request(self, task_id: str, data: object, *, owner: str | None = None) -> TaskRequest:
        """The request behind its bytes; in a thread if they are large."""

        def decode(plain: bytes) -> TaskRequest:
            # The task can run without the fields that a newer release has added.
            attributes, _ = _REQUEST_FIELDS.read(_parse(plain))
            return TaskRequest(**attributes)

        return self._decoded(task_id, REQUEST, data, decode, "its request", owner)

    def encode_outcome(self, task_id: str, outcome: Outcome) -> Outcome:
        """The outcome as it is to be kept; in a thread if it is large, because a cipher takes its time."""
        if self._cipher is None:
            return outcome
        meta = None if outcome.meta is None else self._seal(task_id, META, outcome.meta)
        return Outcome(body=self._seal(task_id, BODY, outcome.body), meta=meta)

    def decode_outcome(self, task_id: str, body: object, meta: object, *, owner: str | None = None) -> Outcome:
        """The outcome that was kept; in a thread if it is large."""
        return Outcome(
            body=self._decoded(task_id, BODY, body, bytes, "its outcome", owner),
            meta=None if meta is None else self._decoded(task_id, META, meta, bytes, "its outcome", owner),
        )

    def encode_entry(self, task_id: str, entry: JournalEntry, large: bool) -> tuple[str, bytes]:
        """The key and the value of a journal entry as they are to be kept; in pieces, and to be called in a thread, if
        the value is large (`is_large`)."""
        encoded = encode_in_pieces(entry.value) if large else encode_json(entry.value)
        return self._entry(part_id(task_id, entry_part(entry.kind)), entry.key, encoded)

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
        return self._bound(note_id(namespace, name), _NOTE + value)

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

    def reseal(self, bound_to: str, data: bytes, key: str | None = None) -> tuple[str | None, bytes] | None:
        """Bytes of a task (`part_id`) or a note (`note_id`), encrypted with the first key; None if they are already.

        Args:
            key: The key of a journal entry as it is kept; it is encrypted with the value.

        Raises:
            CannotDecrypt: They cannot be decrypted.
        """
        is_encrypted, cipher = data.startswith(_ENCRYPTED), self._cipher
        # Which key a cipher uses is known only of our own.
        if not key and is_encrypted and isinstance(cipher, Keyring) and cipher.is_current(data[len(_ENCRYPTED) :]):
            return None
        try:
            plain = self._open(bound_to, data, "it", "task") if is_encrypted else data
        except _Unreadable as exc:
            raise CannotDecrypt(str(exc)) from exc.__cause__
        return (None, self._bound(bound_to, plain)) if key is None else self._entry(bound_to, *_split(key, plain))

    def _entry(self, bound_to: str, key: str, encoded: bytes) -> tuple[str, bytes]:
        if self._cipher is None:
            return key, encoded
        name = key.encode("utf-8", "surrogatepass")
        plain = b"".join((_WITH_KEY, len(name).to_bytes(_KEY_SIZE, "big"), name, encoded))
        return "", self._bound(bound_to, plain)

    def _seal(self, task_id: str, part: str, plain: bytes) -> bytes:
        return plain if self._cipher is None else self._bound(part_id(task_id, part), plain)

    def _bound(self, bound_to: str, plain: bytes) -> bytes:
        return plain if self._cipher is None else _ENCRYPTED + self._cipher.encrypt(bound_to, plain)

    def _decoded(
        self, task_id: str, part: str, data: object, decode: Callable[[bytes], T], what: str, owner: str | None
    ) -> T:
        try:
            if self._cipher is None and type(data) is bytes and not data.startswith(_ENCRYPTED):
                return decode(data)
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
    """Why some bytes cannot be read; the caller knows of which task they are."""


def part_id(task_id: str, part: str) -> str:
    """The name that a part of a task is bound to: it is no other part, and no part of another task."""
    # The part first: it has no colon, so no id makes two of these alike.
    return f"{part}:{task_id}"


def entry_part(kind: str) -> str:
    """The part that journal entries of a kind are."""
    return f"journal/{kind}"


def note_id(namespace: str, name: str) -> str:
    """The name that a note is bound to. No part of a task is called `note`, and JSON keeps the two names apart."""
    return f"note:{json.dumps([namespace, name])}"


def _split(key: str, plain: bytes) -> tuple[str, bytes]:
    """The key and the encoded value of a journal entry, whose key may be beside it."""
    if not plain.startswith(_WITH_KEY):
        return key, plain
    start = len(_WITH_KEY) + _KEY_SIZE
    end = start + int.from_bytes(plain[len(_WITH_KEY) : start], "big")
    return plain[start:end].decode("utf-8", "surrogatepass"), plain[end:]


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


def _parse(plain: bytes) -> Any:
    """The value behind the bytes, in a third of the time that the standard library takes.

    Where both read something, they read the same. The standard library reads what only it can read (lone
    surrogates, and deep nesting), and reports errors.
    """
    if len(plain) > LARGE:
        return decode_in_pieces(plain)
    try:
        return from_json(plain)
    except ValueError:
        return decode_json(plain)


def _newer(what: str) -> str:
    return f"it has {what}, which this release does not know; use the release that wrote it, or a newer one"


def _damaged(part: str, whole: str, exc: Exception) -> str:
    # Not `repr`: that of a decoding error shows the whole text, and arguments and results are private.
    return f"{part} is damaged ({type(exc).__name__}: {exc}); restore a backup, or delete the {whole}"


# ---- large values

Line: TypeAlias = tuple[str, str, bytes]
"""A journal entry: its kind, its key (empty where it is encrypted with the value) and its encoded value."""


async def in_thread_if(large: bool, act: Callable[..., T], *values: Any) -> T:
    """The result of an act, done here or in a thread. Not one of anyio's: tools that block may have all of those."""
    return await asyncio.to_thread(act, *values) if large else act(*values)


def size_of(outcome: Outcome) -> int:
    """The bytes of an outcome."""
    return len(outcome.body) + len(outcome.meta or b"")


def new_write_id(*, run: bool = False) -> WriteId:
    """An id for one change, or for the claim with which a run begins."""
    return WriteId(secrets.token_urlsafe(6), int(run))
