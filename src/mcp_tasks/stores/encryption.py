"""Whether a store is encrypted, and encrypting all of it: `mcp-tasks encrypt`.

A note in the store says that it is encrypted, encrypted itself, and is looked at whenever the store is opened. A store
that was encrypted is never opened without its key, and one that was not is never opened with one: no secret is written
in plain because a variable was not set, and no server starts that cannot read its tasks. Where there is no note yet,
one task or note of the store tells; an empty store that is opened with a key becomes an encrypted one.

`encrypt_store` goes through all values, and encrypts each with the first key, also if it was encrypted with another, or
not at all. It can be stopped at any time, and goes on when it is run again. First it leaves a note: until encryption
has been turned on for all of a store, no server can open it, and servers that have it open cannot write in plain any
more. While only the key changes, servers that have both keys may be running.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from mcp_tasks.encryption import Cipher
from mcp_tasks.errors import CannotDecrypt, EncryptionMismatch, StoreCorrupt, StoreUnavailable
from mcp_tasks.stores.codec import Codec

NAMESPACE: Final = ""
NAME: Final = "mcp-tasks/encryption"
"""Where the note is: of no server, for it holds for all that share the store."""

ON: Final = b"on"
BEGUN: Final = b"begun"

ATTEMPTS: Final = 5
"""How often encrypting a value is tried that other processes change at the same time."""

WATCH: Final = 6.0
"""Seconds for which heartbeats are watched: longer than the usual lease lets any process be silent."""

Sample: TypeAlias = tuple[str, bytes]
"""A value of a store: the name that it is bound to, and its bytes."""

_TURN_ON: Final = "stop all its servers and run `mcp-tasks encrypt --store URL` with the same keys"


def note_to_write(codec: Codec, note: bytes | None, sample: Callable[[], Sample | None], place: str) -> bytes | None:
    """The note that a store is to get now that it is opened with this codec; None if it needs none.

    Args:
        note: The one that it has, as it is kept.
        sample: Asked for where there is none.

    Raises:
        EncryptionMismatch: The store is not to be opened like this.
    """
    if note is not None:
        if not codec.encrypts:
            raise _no_key(place)
        if _said(codec, note, place) == BEGUN:
            raise EncryptionMismatch(
                f"{place} is being encrypted, and that has not come to its end. Wait for it; if nobody is at it, run "
                "`mcp-tasks encrypt --store URL` again, which goes on where it was left."
            )
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


def is_encrypted(data: bytes) -> bool:
    """Whether bytes of a store are encrypted."""
    return data.startswith(b"\0")


def as_bytes(value: object) -> bytes:
    """What a backend has of a value; anything but bytes is damage."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


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


# ---- encrypting all of a store


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a store.

    Attributes:
        where: How the backend finds it again.
        bound_to: The name that it is bound to where it is encrypted (`part_id`, `note_id`).
        key: The key of a journal entry, which is encrypted with its value; None for all other values.
    """

    where: Any
    bound_to: str
    data: bytes
    key: str | None = None


class Vault(ABC):
    """The raw operations of a backend for encrypting all of a store, which is not open otherwise in this process.

    Attributes:
        place: Where the store is, for messages.
    """

    place: str

    @abstractmethod
    async def note(self) -> bytes | None:
        """The note on encryption, as it is kept."""

    @abstractmethod
    async def write_note(self, note: bytes) -> None:
        """Replace it."""

    async def heartbeats(self) -> Mapping[str, int]:
        """How often each worker of any server has beaten."""
        return {}

    async def refuse_plain(self) -> None:
        """Let no process write in plain any more, where the note alone does not do that."""
        return

    @abstractmethod
    def values(self) -> AsyncIterator[Value]:
        """All values but the note on encryption. One is in memory at a time, whatever its size."""

    @abstractmethod
    async def replace(self, value: Value, key: str | None, new: bytes) -> bool:
        """Write a value anew if it is still what was read; whether it was."""

    async def again(self, value: Value) -> Value | None:
        """The value as it is by now; None if it is gone."""
        return None

    async def clean(self, *, was_plain: bool) -> None:
        """Remove what is left of values where they were, as far as the backend can."""
        return


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


async def encrypt_store(url: str, cipher: Cipher, *, watch: float = WATCH) -> Resealed:
    """Encrypt all that the store behind a URL keeps.

    Raises:
        UsageError: The URL names no store, or one in memory.
        StoreUnavailable: It is in use.
        EncryptionMismatch: It is encrypted with a key that is not there.
    """
    # Here, because the backends need what is above.
    from mcp_tasks.stores.url import store_from_url

    codec = Codec(cipher)
    async with store_from_url(url, cipher).vault() as vault:
        note = await vault.note()
        turns_on = note is None or _said(codec, note, vault.place) != ON
        if turns_on:
            await _check_quiet(vault, watch)
        await vault.refuse_plain()
        if turns_on:
            await vault.write_note(codec.encode_note(NAMESPACE, NAME, BEGUN))
        done = Counter[str]()
        async for value in vault.values():
            done[await _encrypt(vault, codec, value)] += 1
            # A backend that never waits could not be stopped otherwise.
            await asyncio.sleep(0)
        # Also if nothing plain was found this time: an earlier attempt may have been stopped just before this.
        await vault.clean(was_plain=turns_on or done["plain"] > 0)
        await vault.write_note(codec.encode_note(NAMESPACE, NAME, ON))
    return Resealed(
        changed=done["changed"] + done["plain"], plain=done["plain"], kept=done["kept"], unreadable=done["unreadable"]
    )


async def _encrypt(
    vault: Vault, codec: Codec, value: Value | None
) -> Literal["changed", "plain", "kept", "unreadable", "gone"]:
    """Encrypt one value; again if another process has changed it meanwhile."""
    for _ in range(ATTEMPTS):
        if value is None:
            return "gone"
        try:
            new = codec.reseal(value.bound_to, value.data, value.key)
        except CannotDecrypt:
            return "unreadable"
        if new is None:
            return "kept"
        if await vault.replace(value, *new):
            return "changed" if is_encrypted(value.data) else "plain"
        value = await vault.again(value)
    return "unreadable"


async def _check_quiet(vault: Vault, watch: float) -> None:
    """Refuse to go on if any process runs tools in the store: what it writes from then on would be refused. One that
    only serves does not beat, and is not noticed until then."""
    if not (before := await vault.heartbeats()):
        return
    await asyncio.sleep(watch)
    if await vault.heartbeats() != before:
        raise StoreUnavailable(f"{vault.place} is in use. Stop the servers and workers that have it, and try again.")
