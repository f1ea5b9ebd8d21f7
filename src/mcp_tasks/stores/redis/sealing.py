"""Whether what a server keeps is encrypted, and encrypting all of it, value by value.

A value is only changed if it is still what was read: a process that has both keys may go on while a key is changed.
What the server still has of earlier values (its append-only file, snapshots, replicas) is told of in
docs/encryption.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, cast

from mcp_tasks.stores.codec import BODY, META, REQUEST, STATE, Codec, note_id, part_id
from mcp_tasks.stores.encryption import (
    ATTEMPTS,
    NAME,
    NAMESPACE,
    ON,
    Resealed,
    Sample,
    Tally,
    begin,
    is_encrypted,
    note_to_write,
)
from mcp_tasks.stores.redis import names
from mcp_tasks.stores.redis.connection import Connection
from mcp_tasks.stores.redis.names import PLACE, from_bytes

_PLACE: Final = names.name("note", NAMESPACE, NAME)
_FIELDS: Final = ((b"s", STATE), (b"r", REQUEST), (b"b", BODY), (b"m", META))
"""Of a task's row: its state, its request, its outcome, and what belongs to that."""


async def agree(connection: Connection, codec: Codec, namespace: str) -> None:
    """See that the store is encrypted as the codec is, and say that it is if the server has nothing in it yet.

    Raises:
        EncryptionMismatch: It is not.
    """
    for _ in range(2):
        note = await _note(connection)
        sample = await _sample(connection, codec, namespace) if note is None else None
        # The loop goes round once more, to see what somebody else may have written.
        new = note_to_write(codec, note, lambda found=sample: found, connection.place)
        if new is None:
            return
        await connection.call("HSETNX", connection.prefix + _PLACE, "v", new)
        # From here on nobody can add anything plain (`sealed.lua`). Just before, somebody could.
        if (sample := await _any(connection)) is not None and not is_encrypted(sample[1]):
            await connection.call("DEL", connection.prefix + _PLACE)


async def _note(connection: Connection) -> bytes | None:
    return await connection.call("HGET", connection.prefix + _PLACE, "v")


async def _sample(connection: Connection, codec: Codec, namespace: str) -> Sample | None:
    index = connection.prefix + names.name("tasks", namespace)
    for member in cast("list[bytes]", await connection.call("ZRANGE", index, 0, 0)):
        task_id = member[PLACE:]
        state = await connection.call("HGET", connection.prefix + b"t:" + task_id, "s")
        if state is not None:
            return part_id(from_bytes(task_id), STATE), state
    # All keys are gone through only where what is found decides whether the store is marked: once in its life.
    return await _any(connection) if codec.encrypts else None


async def _any(connection: Connection) -> Sample | None:
    """Something that any server keeps there."""
    async for key in _keys(connection, b"t:"):
        if (state := await connection.call("HGET", key, "s")) is not None:
            return part_id(from_bytes(key.removeprefix(connection.prefix + b"t:")), STATE), state
    async for key in _keys(connection, b"note:"):
        if (name := key.removeprefix(connection.prefix)) != _PLACE:
            value = await connection.call("HGET", key, "v")
            if value is not None:
                return _bound_to(name), value
    return None


async def heartbeats(connection: Connection) -> dict[str, int]:
    """How often each worker of any server has beaten."""
    found: dict[str, int] = {}
    async for key in _keys(connection, b"beats:"):
        beats = cast("dict[bytes, bytes]", await connection.call("HGETALL", key))
        found |= {from_bytes(worker): int(count) for worker, count in beats.items()}
    return found


async def turns_on(connection: Connection, codec: Codec) -> bool:
    """Whether the store is to become an encrypted one, and is not merely to get another key.

    Raises:
        EncryptionMismatch: It is encrypted with a key that is not there.
    """
    return begin(codec, await _note(connection), connection.place) is not None


async def begin_encrypting(connection: Connection, codec: Codec) -> None:
    """Let nobody in from now on, and nobody who is in write anything plain."""
    if (value := begin(codec, await _note(connection), connection.place)) is not None:
        await connection.call("HSET", connection.prefix + _PLACE, "v", value)


async def encrypt_keys(connection: Connection, codec: Codec) -> Resealed:
    """Encrypt all that a task store keeps, and let servers in again. One value is in memory at a time."""
    tally = Tally(codec)
    async for key in _keys(connection, b"t:"):
        await _row(connection, tally, key)
    async for key in _keys(connection, b"j:"):
        await _journal(connection, tally, key)
    async for key in _keys(connection, b"note:"):
        name = key.removeprefix(connection.prefix)
        if name != _PLACE:
            await _field(connection, tally, key, b"v", _bound_to(name))
    value = codec.encode_note(NAMESPACE, NAME, ON)
    await connection.call("HSET", connection.prefix + _PLACE, "v", value)
    return tally.result()


def _bound_to(name: bytes) -> str:
    """What the note of that key is bound to."""
    _, namespace, note = (names.whole(part) for part in name.split(b":"))
    return note_id(namespace, note)


async def _row(connection: Connection, tally: Tally, key: bytes) -> None:
    task_id = from_bytes(key.removeprefix(connection.prefix + b"t:"))
    for field, part in _FIELDS:
        await _field(connection, tally, key, field, part_id(task_id, part))


async def _field(connection: Connection, tally: Tally, key: bytes, field: bytes, bound_to: str) -> None:
    """Encrypt one value; again if somebody has changed it meanwhile."""
    for _ in range(ATTEMPTS):
        old: bytes | None = await connection.call("HGET", key, field)
        if old is None or (new := tally.value(bound_to, old)) is None:
            return
        if await connection.run("reseal", "field", key.removeprefix(connection.prefix), field, old, new):
            return
        tally.missed()
    tally.gave_up()


async def _journal(connection: Connection, tally: Tally, key: bytes) -> None:
    """Three items for each entry: kind, key and value."""
    task_id, place = from_bytes(key.removeprefix(connection.prefix + b"j:")), 1
    while len(found := cast("list[bytes]", await connection.call("LRANGE", key, place - 1, place + 1))) == 3:
        kind, name, old = found
        if (entry := tally.entry(task_id, from_bytes(kind), from_bytes(name), old)) is not None:
            new = names.to_bytes(entry[0]), entry[1]
            # What is in a journal does not change; it may be gone.
            await connection.run("reseal", "entry", key.removeprefix(connection.prefix), place, old, *new)
        place += 3


async def _keys(connection: Connection, start: bytes) -> AsyncIterator[bytes]:
    """The keys of the store that begin like this. One may be given twice."""
    # What means something in a pattern is taken literally: a prefix may have it.
    escaped = b"".join(b"\\" + bytes([c]) if c in b"*?[]^\\" else bytes([c]) for c in connection.prefix + start)
    cursor: bytes = b"0"
    while True:
        found = cast(
            "tuple[bytes, list[bytes]]", await connection.call("SCAN", cursor, "MATCH", escaped + b"*", "COUNT", 500)
        )
        cursor, keys = found
        for key in keys:
            yield key
        if cursor in (b"0", 0):
            return
