"""Whether a store is encrypted, and encrypting all of it: `mcp-tasks encrypt`.

A note in the store says that it is encrypted. It is encrypted itself, and read whenever the store is opened. A store
that was encrypted is never opened without its key, and one that was not is never opened with one: no secret is written
in plain because a variable was not set, and no server starts that cannot read its tasks. Where there is no note yet,
one task or note of the store tells; an empty store that is opened with a key becomes an encrypted one.

`encrypt_store` goes through all values, and encrypts each with the first key, also if it was encrypted with another, or
not at all. It can be stopped at any time, and continues when it is run again. First it leaves a note: until all of a
store is encrypted, no server can open it, and servers that have it open cannot write in plain any more. While only the
key changes, servers that have both keys may be running: a value is replaced only if it is still what was read.
"""

# ruff: noqa: S608 - statements are put together from constants

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from mcp_tasks.encryption import Cipher
from mcp_tasks.errors import CannotDecrypt, EncryptionMismatch, StoreCorrupt, StoreUnavailable
from mcp_tasks.stores.codec import BODY, META, REQUEST, STATE, Codec, entry_part, note_id, part_id

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


def note_to_write(codec: Codec, note: bytes | None, sample: Sample | None, place: str) -> bytes | None:
    """The note that a store is to get now that it is opened with this codec; None if it needs none.

    Args:
        note: The one that it has, as it is kept.
        sample: Any value that the store has, where there is no note.

    Raises:
        EncryptionMismatch: The store is not to be opened like this.
    """
    if not codec.encrypts:
        if note is not None or (sample is not None and is_encrypted(sample[1])):
            raise EncryptionMismatch(
                f"{place} is encrypted, and there is no key. Set MCP_TASKS_KEYS or MCP_TASKS_KEYS_FILE, or give "
                "Tasks(cipher=Keyring(...))."
            )
        return None
    if note is not None:
        if _said(codec, note, place) == BEGUN:
            raise EncryptionMismatch(
                f"{place} is being encrypted, and that has not come to its end. Wait for it; if it was stopped, run "
                "`mcp-tasks encrypt --store URL` again, which continues where it stopped."
            )
        return None
    if sample is not None:
        bound_to, data = sample
        if not is_encrypted(data):
            raise EncryptionMismatch(
                f"{place} has tasks that are not encrypted, and there is a key. To have all of it encrypted, {_TURN_ON}"
                "; to use it as it is, take the key away (cipher=, MCP_TASKS_KEYS)."
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
    """A value as bytes; anything else in a store is damage."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


def _said(codec: Codec, note: bytes, place: str) -> bytes:
    try:
        return codec.decode_note(NAMESPACE, NAME, note)
    except StoreCorrupt as exc:
        # Say which key is missing, and not which note of ours needs it.
        why: BaseException | None = exc
        while why is not None and not isinstance(why, CannotDecrypt):
            why = why.__cause__ or why.__context__
        raise _wrong_key(place, str(why or exc)) from exc


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
    """The raw operations of a backend for its encryption.

    Args:
        place: Where the store is, for messages.
    """

    def __init__(self, place: str) -> None:
        self.place: str = place

    @abstractmethod
    async def note(self) -> bytes | None:
        """The note on encryption, as it is kept."""

    @abstractmethod
    async def write_note(self, note: bytes) -> None:
        """Replace it."""

    async def sample(self) -> Sample | None:
        """Any value of the store but the note on encryption."""
        raise NotImplementedError

    async def mark(self, note: bytes) -> None:
        """Write the note, if there is none and no process has written anything in plain."""
        raise NotImplementedError

    async def agree(self, codec: Codec) -> None:
        """Check that the store is encrypted as the codec is, and mark an empty store.

        Raises:
            EncryptionMismatch: It is not.
        """
        # Twice: another process may have been first to mark it, or have written in plain.
        for _ in range(2):
            note = await self.note()
            new = note_to_write(codec, note, await self.sample() if note is None else None, self.place)
            if new is None:
                return
            await self.mark(new)

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

    @abstractmethod
    async def again(self, value: Value) -> Value | None:
        """The value as it is by now; None if it is gone."""

    async def clean(self, *, was_plain: bool) -> None:
        """Remove what is left of values where they were, as far as the backend can."""
        return


_PARTS: Final = (
    (STATE, "tasks", "key", "state"),
    (REQUEST, "requests", "task", "request"),
    (BODY, "outcomes", "task", "body"),
    (META, "outcomes", "task", "meta"),
)
"""The parts of a task: what each is bound to, its table, the column with the key of the task, and its own."""


def sql_samples(prefix: str = "") -> Sequence[tuple[str, Callable[..., str]]]:
    """Statements that give names and a value of a SQL store, and what the value is bound to."""
    return (
        (f"SELECT id, state FROM {prefix}tasks LIMIT 1", partial(part_id, part=STATE)),
        (f"SELECT namespace, name, value FROM {prefix}notes LIMIT 1", note_id),
    )


class SqlVault(Vault):
    """The tables of a SQL store. `Value.where` is a table, a column, and the columns that find the row.

    Args:
        prefix: The beginning of the names of tables.
        from_text: Reads text of the store.
    """

    def __init__(self, place: str, prefix: str, from_text: Callable[[Any], str]) -> None:
        super().__init__(place)
        self._prefix = prefix
        self._text = from_text

    @abstractmethod
    async def rows(self, sql: str, *values: Any) -> Sequence[Any]:
        """The rows of a statement, in which a question mark stands for each value."""

    async def note(self) -> bytes | None:
        sql = f"SELECT value FROM {self._prefix}notes WHERE namespace = ? AND name = ?"
        return next((as_bytes(value) for (value,) in await self.rows(sql, NAMESPACE, NAME)), None)

    async def values(self) -> AsyncIterator[Value]:
        rows, prefix, text = self.rows, self._prefix, self._text
        last = -1
        while found := await rows(f"SELECT key, id FROM {prefix}tasks WHERE key > ? ORDER BY key LIMIT 500", last):
            for last, stored_id in found:
                task_id = text(stored_id)
                for part, table, by, column in _PARTS:
                    where = table, column, {by: last}
                    for (data,) in await self._select(*where):
                        yield Value(where, part_id(task_id, part), as_bytes(data))
                number = -1
                entry = f"SELECT n, kind, key, value FROM {prefix}journal WHERE task = ? AND n > ? ORDER BY n LIMIT 1"
                while line := await rows(entry, last, number):
                    number, kind, key, data = line[0]
                    where = "journal", "value", {"task": last, "n": number}
                    yield Value(where, part_id(task_id, entry_part(text(kind))), as_bytes(data), text(key))
        notes = f"SELECT namespace, name, value FROM {prefix}notes WHERE (namespace, name) <> (?, ?)"
        for namespace, name, data in await rows(notes, NAMESPACE, NAME):
            where = "notes", "value", {"namespace": namespace, "name": name}
            yield Value(where, note_id(text(namespace), text(name)), as_bytes(data))

    async def again(self, value: Value) -> Value | None:
        for (data,) in await self._select(*value.where):
            return Value(value.where, value.bound_to, as_bytes(data), value.key)
        return None

    async def _select(self, table: str, column: str, by: Mapping[str, Any]) -> Sequence[Any]:
        sql = f"SELECT {column} FROM {self._prefix}{table} WHERE {_all_of(by)} AND {column} IS NOT NULL"
        return await self.rows(sql, *by.values())

    def update(
        self, value: Value, key: str | bytes | None, new: bytes, *, alone: bool = False
    ) -> tuple[str, Sequence[Any]]:
        """The statement that replaces a value, and its values. A caller that is not alone compares what is there."""
        table, column, by = value.where
        by = by if alone else {**by, column: value.data}
        changes = {column: new} if key is None else {column: new, "key": key}
        sql = f"UPDATE {self._prefix}{table} SET {', '.join(f'{name} = ?' for name in changes)} WHERE {_all_of(by)}"
        return sql, [*changes.values(), *by.values()]


def _all_of(by: Mapping[str, Any]) -> str:
    return " AND ".join(f"{column} = ?" for column in by)


@dataclass(frozen=True, slots=True)
class Resealed:
    """The result of encrypting a store.

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
    # Here, because the backends import this module.
    from mcp_tasks.stores.url import store_from_url

    codec = Codec(cipher)
    async with store_from_url(url, cipher).vault() as vault:
        note = await vault.note()
        turns_on = note is None or _said(codec, note, vault.place) != ON
        # From then on the writes of a process that runs tools would be refused. One that only serves does not beat.
        if turns_on and (before := await vault.heartbeats()):
            await asyncio.sleep(watch)
            if await vault.heartbeats() != before:
                raise StoreUnavailable(
                    f"{vault.place} is in use. Stop the servers and workers that have it, and try again."
                )
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
