"""Whether a store is encrypted: a note in it says so, encrypted itself, and is looked at whenever it is opened.

A store that was encrypted is never opened without its key, and one that was not is never opened with one: nothing that
should be secret is written as it is because a variable was not set, and no server starts whose tasks it cannot read.
Where there is no note yet, one task or note of the store tells; a store that has none becomes an encrypted one.

`mcp-tasks encrypt` encrypts what is there, and leaves a note first: until it has come to its end, nobody gets in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from mcp_tasks.errors import CannotDecrypt, EncryptionMismatch, StoreCorrupt
from mcp_tasks.stores.codec import Codec

T = TypeVar("T")

NAMESPACE: Final = ""
NAME: Final = "mcp-tasks/encryption"
"""Where the note is: of no server, for it holds for all that share the store."""

ON: Final = b"on"
BEGUN: Final = b"begun"

ATTEMPTS: Final = 5
"""How often a value is tried to be encrypted that somebody else changes at the same time."""

Sample: TypeAlias = tuple[str, bytes]
"""What some bytes of a store are bound to, and the bytes."""

_TURN_ON: Final = "stop all its servers and run `mcp-tasks encrypt --store URL` with the same keys"


@dataclass(frozen=True, slots=True)
class Resealed:
    """What came of encrypting a store.

    Attributes:
        changed: How many values were encrypted anew, of which
        plain: so many had not been encrypted.
        kept: How many needed nothing.
        unreadable: How many were left as they are, because no key fits, or because others kept changing them.
    """

    changed: int = 0
    plain: int = 0
    kept: int = 0
    unreadable: int = 0


class Tally:
    """Encrypts values one by one, and counts."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._changed = self._plain = self._kept = self._unreadable = 0

    @property
    def found_plain(self) -> bool:
        """Whether anything had not been encrypted."""
        return self._plain > 0

    def result(self) -> Resealed:
        """The counts."""
        return Resealed(changed=self._changed, plain=self._plain, kept=self._kept, unreadable=self._unreadable)

    def value(self, bound_to: str, data: object) -> bytes | None:
        """What to write in the place of a value, or None."""
        raw = _bytes(data)
        return self._counted(raw, lambda: self._codec.reseal(bound_to, raw))

    def entry(self, task_id: str, kind: str, key: str, data: object) -> tuple[str, bytes] | None:
        """What to write in the place of the key and the value of a journal entry, or None."""
        raw = _bytes(data)
        return self._counted(raw, lambda: self._codec.reseal_entry(task_id, kind, key, raw))

    def missed(self) -> None:
        """What was counted last has not been written: somebody else was first."""
        self._changed -= 1

    def gave_up(self) -> None:
        """A value is left as it is: somebody else changes it all the time."""
        self._unreadable += 1

    def _counted(self, data: bytes, reseal: Callable[[], T | None]) -> T | None:
        try:
            new = reseal()
        except CannotDecrypt:
            self._unreadable += 1
            return None
        if new is None:
            self._kept += 1
        else:
            self._changed += 1
            self._plain += not is_encrypted(data)
        return new


def note_to_write(codec: Codec, note: bytes | None, sample: Callable[[], Sample | None], place: str) -> bytes | None:
    """The note that a store is to get now that it is opened with this codec; None if it needs none.

    Args:
        note: The one that it has, as it is kept.
        sample: Asked for where there is none.

    Raises:
        EncryptionMismatch: The store is not to be opened like this.
    """
    if note is not None:
        _check(codec, note, place)
        return None
    found = sample()
    if found is None:
        return codec.encode_note(NAMESPACE, NAME, ON) if codec.encrypts else None
    bound_to, data = found
    if not codec.encrypts:
        if is_encrypted(data):
            raise _no_key(place)
        return None
    if not is_encrypted(data):
        raise EncryptionMismatch(
            f"{place} has tasks that are not encrypted, and there is a key. To have all of it encrypted, {_TURN_ON}; "
            "to use it as it is, take the key away (cipher=, MCP_TASKS_KEYS)."
        )
    try:
        codec.reseal(bound_to, data)
    except CannotDecrypt as exc:
        raise _wrong_key(place, str(exc)) from exc
    return codec.encode_note(NAMESPACE, NAME, ON)


def begin(codec: Codec, note: bytes | None, place: str) -> bytes | None:
    """The note that a store gets before all of it is encrypted; None if it is, and only the key changes.

    Raises:
        EncryptionMismatch: It is encrypted with a key that is not there.
    """
    is_on = note is not None and _said(codec, note, place) == ON
    return None if is_on else codec.encode_note(NAMESPACE, NAME, BEGUN)


def is_encrypted(data: bytes) -> bool:
    """Whether bytes of a store are."""
    return data.startswith(b"\0")


def _check(codec: Codec, note: bytes, place: str) -> None:
    if not codec.encrypts:
        raise _no_key(place)
    if _said(codec, note, place) == BEGUN:
        raise EncryptionMismatch(
            f"{place} is being encrypted, and that has not come to its end. Wait for it; if nobody is at it, run "
            "`mcp-tasks encrypt --store URL` again, which goes on where it was left."
        )


def _said(codec: Codec, note: bytes, place: str) -> bytes:
    try:
        return codec.decode_note(NAMESPACE, NAME, note)
    except StoreCorrupt as exc:
        # Which key is missing, and not which note of ours is under it.
        why: BaseException | None = exc
        while why is not None and not isinstance(why, CannotDecrypt):
            why = why.__cause__ or why.__context__
        raise _wrong_key(place, str(why or exc)) from exc


def _no_key(place: str) -> EncryptionMismatch:
    return EncryptionMismatch(
        f"{place} is encrypted, and there is no key. Set MCP_TASKS_KEYS or MCP_TASKS_KEYS_FILE, or give "
        "Tasks(cipher=Keyring(...))."
    )


def _wrong_key(place: str, why: str) -> EncryptionMismatch:
    return EncryptionMismatch(
        f"{place} is encrypted with a key that is not there ({why}). Give it that key as well; the first of several is "
        "the one that encrypts. A key can be dropped once `mcp-tasks encrypt --store URL` has been run with both. "
        "`mcp-tasks key --ids FILE` tells which keys a file has."
    )


def _bytes(data: object) -> bytes:
    return data if isinstance(data, bytes) else str(data).encode("utf-8", "surrogatepass")
