"""`Codec`: what is kept of a task as bytes and back, encrypted if there is a cipher.

A backend keeps these parts of a task, each by itself: its state, its request, its outcome, and the values of its
journal; and the notes of a server. All of them pass here, so this is the one place for encryption. What a backend finds
tasks by stays plain: ids, owners, namespaces, sessions, parents, statuses, times, names of workers, kinds of journal
entries, names of notes; and idempotency keys, which the runtime hides (`runtime.hidden_keys`). The key of a journal
entry (the name of a step or a question) is plain where nothing is encrypted, and otherwise with its value: nothing is
found by it, and a tool may put anything into a name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import NoneType
from typing import Any, Final, TypeVar, cast

from pydantic_core import PydanticSerializationError, from_json, to_json

from mcp_tasks.core.journal import ENTRY_KINDS, EntryKind, JournalEntry
from mcp_tasks.core.json import JsonValue
from mcp_tasks.core.json_bytes import LARGE, decode_in_pieces, decode_json, encode_in_pieces, encode_json, is_large
from mcp_tasks.core.record import Outcome, TaskRecord, TaskRequest
from mcp_tasks.encryption import Cipher, Keyring
from mcp_tasks.errors import CannotDecrypt, StoreCorrupt, TaskUnreadable, ValueNotStorable
from mcp_tasks.stores.base import LARGEST_NOTE
from mcp_tasks.stores.fields import NOT_OURS, is_readable, record_from, request_fields, request_from, state_fields

__all__ = ["Cipher", "Codec", "entry_part", "note_id", "part_id"]

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
