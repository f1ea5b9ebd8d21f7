"""Whether what a server keeps is encrypted, and encrypting all of it.

A value is only changed if it is still what was read: a process that has both keys may go on while a key is changed.
What the server still has of earlier values (its append-only file, snapshots, replicas) is told of in
docs/encryption.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final, cast

from mcp_tasks.stores.codec import BODY, META, REQUEST, STATE, Codec, entry_part, note_id, part_id
from mcp_tasks.stores.encryption import NAME, NAMESPACE, Sample, Value, Vault, is_encrypted, note_to_write
from mcp_tasks.stores.redis.connection import Connection
from mcp_tasks.stores.redis.names import from_bytes, name, to_bytes, whole

_PLACE: Final = name("note", NAMESPACE, NAME)
_FIELDS: Final = ((b"s", STATE), (b"r", REQUEST), (b"b", BODY), (b"m", META))
"""Of a task's row: its state, its request, its outcome, and what belongs to that."""


async def agree(connection: Connection, codec: Codec) -> None:
    """See that the store is encrypted as the codec is, and say that it is if the server has nothing in it yet.

    Raises:
        EncryptionMismatch: It is not.
    """
    for _ in range(2):
        note = await _note(connection)
        sample = await _sample(connection) if note is None else None
        # The loop goes round once more, to see what another process may have written.
        new = note_to_write(codec, note, lambda found=sample: found, connection.place)
        if new is None:
            return
        await connection.call("HSETNX", connection.prefix + _PLACE, "v", new)
        # From here on nothing plain can be added (`sealed.lua`). Just before, it could.
        if (sample := await _sample(connection)) is not None and not is_encrypted(sample[1]):
            await connection.call("DEL", connection.prefix + _PLACE)


async def _note(connection: Connection) -> bytes | None:
    return await connection.call("HGET", connection.prefix + _PLACE, "v")


async def _sample(connection: Connection) -> Sample | None:
    """Something that any server keeps there."""
    async for key in connection.names(b"t:"):
        if (state := await connection.call("HGET", connection.prefix + key, "s")) is not None:
            return part_id(from_bytes(key.removeprefix(b"t:")), STATE), state
    async for key in connection.names(b"note:"):
        if key != _PLACE and (value := await connection.call("HGET", connection.prefix + key, "v")) is not None:
            return _bound_to(key), value
    return None


def _bound_to(key: bytes) -> str:
    """What the note of that key is bound to."""
    _, namespace, note = (whole(part) for part in key.split(b":"))
    return note_id(namespace, note)


class RedisVault(Vault):
    """The keys of one prefix."""

    def __init__(self, connection: Connection) -> None:
        self.place: str = connection.place
        self._connection = connection

    async def note(self) -> bytes | None:
        return await _note(self._connection)

    async def write_note(self, note: bytes) -> None:
        await self._connection.call("HSET", self._connection.prefix + _PLACE, "v", note)

    async def heartbeats(self) -> Mapping[str, int]:
        found: dict[str, int] = {}
        async for key in self._connection.names(b"beats:"):
            beats = cast("dict[bytes, bytes]", await self._connection.call("HGETALL", self._connection.prefix + key))
            found |= {from_bytes(worker): int(count) for worker, count in beats.items()}
        return found

    async def values(self) -> AsyncIterator[Value]:
        async for key in self._connection.names(b"t:"):
            task_id = from_bytes(key.removeprefix(b"t:"))
            for field, part in _FIELDS:
                if (data := await self._field(key, field)) is not None:
                    yield Value(("field", key, field), part_id(task_id, part), data)
        async for key in self._connection.names(b"j:"):
            task_id, place = from_bytes(key.removeprefix(b"j:")), 1
            # Three items for each entry: kind, key and value.
            while len(entry := await self._entry(key, place)) == 3:
                kind, its_key, data = entry
                bound_to = part_id(task_id, entry_part(from_bytes(kind)))
                yield Value(("entry", key, place), bound_to, data, from_bytes(its_key))
                place += 3
        async for key in self._connection.names(b"note:"):
            if key != _PLACE and (data := await self._field(key, b"v")) is not None:
                yield Value(("field", key, b"v"), _bound_to(key), data)

    async def replace(self, value: Value, key: str | None, new: bytes) -> bool:
        values = (value.data, new) if key is None else (value.data, to_bytes(key), new)
        return bool(await self._connection.run("reseal", *value.where, *values))

    async def again(self, value: Value) -> Value | None:
        kind, key, field = value.where
        # What is in a journal does not change; it may be gone.
        data = await self._field(key, field) if kind == "field" else None
        return None if data is None else Value(value.where, value.bound_to, data)

    async def _field(self, key: bytes, field: bytes) -> bytes | None:
        return await self._connection.call("HGET", self._connection.prefix + key, field)

    async def _entry(self, key: bytes, place: int) -> list[bytes]:
        return await self._connection.call("LRANGE", self._connection.prefix + key, place - 1, place + 1)
