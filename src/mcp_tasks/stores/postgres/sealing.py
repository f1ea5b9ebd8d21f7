"""Whether the tables are encrypted, and encrypting all that is in them, row by row.

A row is only changed if it is still what was read: a server that has both keys may go on while a key is changed. What
Postgres itself still has of earlier rows (dead ones, its log, backups) is told of in docs/encryption.md; the dead ones
go with `VACUUM FULL`, which is done where something was not encrypted.

From the moment the tables are marked, Postgres itself refuses what is not encrypted: a process that opened them while
they were plain cannot go on. A trigger, and not a constraint: that would put the row it refuses into Postgres's log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from psycopg.errors import InsufficientPrivilege

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
from mcp_tasks.stores.postgres.database import Connection
from mcp_tasks.stores.postgres.queries import from_text, to_text

_PLACE: Final = {"namespace": NAMESPACE, "name": NAME}
_NOTE: Final = b"SELECT value FROM mcp_tasks_notes WHERE namespace = %(namespace)s AND name = %(name)s"
_ADD_NOTE: Final = b"""
INSERT INTO mcp_tasks_notes (namespace, name, value) VALUES (%(namespace)s, %(name)s, %(value)s) ON CONFLICT DO NOTHING
"""
_SET_NOTE: Final = b"""
INSERT INTO mcp_tasks_notes (namespace, name, value) VALUES (%(namespace)s, %(name)s, %(value)s)
ON CONFLICT (namespace, name) DO UPDATE SET value = excluded.value
"""
_ONE_TASK: Final = b"SELECT id, state FROM mcp_tasks_tasks LIMIT 1"
_ONE_NOTE: Final = b"SELECT namespace, name, value FROM mcp_tasks_notes LIMIT 1"
_BEATS: Final = b"SELECT worker, beats FROM mcp_tasks_heartbeats"

_KEYS: Final = b"SELECT key FROM mcp_tasks_tasks WHERE key > %(last)s ORDER BY key LIMIT 500"


def _grows(change: bytes) -> bytes:
    """The change, with the size of the task: what is encrypted is longer."""
    return (
        b"WITH changed AS (%b RETURNING 1) UPDATE mcp_tasks_tasks SET size = size + %%(grown)s, "
        b"kept = kept + %%(grown)s WHERE key = %%(key)s AND EXISTS (SELECT FROM changed)"
    ) % change


_OF_TASKS: Final = (
    (
        STATE,
        b"SELECT id, state FROM mcp_tasks_tasks WHERE key = %(key)s",
        b"UPDATE mcp_tasks_tasks SET state = %(new)s WHERE key = %(key)s AND state = %(old)s",
    ),
    (
        REQUEST,
        b"SELECT t.id, p.request FROM mcp_tasks_requests p JOIN mcp_tasks_tasks t ON t.key = p.task "
        b"WHERE p.task = %(key)s",
        _grows(b"UPDATE mcp_tasks_requests SET request = %(new)s WHERE task = %(key)s AND request = %(old)s"),
    ),
    (
        BODY,
        b"SELECT t.id, p.body FROM mcp_tasks_outcomes p JOIN mcp_tasks_tasks t ON t.key = p.task "
        b"WHERE p.task = %(key)s",
        _grows(b"UPDATE mcp_tasks_outcomes SET body = %(new)s WHERE task = %(key)s AND body = %(old)s"),
    ),
    (
        META,
        b"SELECT t.id, p.meta FROM mcp_tasks_outcomes p JOIN mcp_tasks_tasks t ON t.key = p.task "
        b"WHERE p.task = %(key)s AND p.meta IS NOT NULL",
        _grows(b"UPDATE mcp_tasks_outcomes SET meta = %(new)s WHERE task = %(key)s AND meta = %(old)s"),
    ),
)
_NUMBERS: Final = b"SELECT n FROM mcp_tasks_journal WHERE task = %(key)s AND n > %(last)s ORDER BY n LIMIT 500"
_ENTRY: Final = b"""
SELECT t.id, j.kind, j.key, j.value FROM mcp_tasks_journal j JOIN mcp_tasks_tasks t ON t.key = j.task
WHERE j.task = %(key)s AND j.n = %(n)s
"""
_SET_ENTRY: Final = b"""
WITH changed AS (
    UPDATE mcp_tasks_journal SET key = %(name)s, value = %(new)s WHERE task = %(key)s AND n = %(n)s RETURNING 1
)
UPDATE mcp_tasks_tasks SET size = size + %(grown)s, kept = kept + %(grown)s
WHERE key = %(key)s AND EXISTS (SELECT FROM changed)
"""
_NOTES: Final = b"SELECT namespace, name, value FROM mcp_tasks_notes"
_CHANGE_NOTE: Final = b"""
UPDATE mcp_tasks_notes SET value = %(new)s WHERE namespace = %(namespace)s AND name = %(name)s AND value = %(old)s
"""
_REFUSE: Final = b"""
CREATE OR REPLACE FUNCTION mcp_tasks_sealed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the task store is encrypted' USING ERRCODE = 'MT001';
END
$$
"""
_REFUSING: Final = (
    ("tasks", "state"),
    ("requests", "request"),
    # With it, always: `meta`. It is encrypted after it, by itself.
    ("outcomes", "body"),
    ("journal", "value"),
    ("notes", "value"),
)
_TABLES: Final = ("tasks", "requests", "outcomes", "journal", "notes")


async def agree(connection: Connection, place: str, codec: Codec) -> None:
    """See that the tables are encrypted as the codec is, and say that they are if they are empty.

    Raises:
        EncryptionMismatch: They are not.
        psycopg.Error: Postgres refused; the caller translates.
    """
    for _ in range(2):
        note = await _note(connection)
        sample = await _sample(connection) if note is None else None
        # A name of its own for each: the loop goes round once more, to see what somebody else may have written.
        new = note_to_write(codec, note, lambda found=sample: found, place)
        if new is None:
            return
        await _mark(connection, place, codec, new)


async def _mark(connection: Connection, place: str, codec: Codec, value: bytes) -> None:
    try:
        async with connection.transaction():
            # Nobody else writes until this is done, so what is seen now is all that is there.
            await _refuse_plain(connection)
            if (found := await _sample(connection)) is not None and not is_encrypted(found[1]):
                note_to_write(codec, None, lambda: found, place)
            await connection.execute(_ADD_NOTE, {**_PLACE, "value": value})
    except InsufficientPrivilege:
        # The tables are another user's.
        await connection.execute(_ADD_NOTE, {**_PLACE, "value": value})


async def _refuse_plain(connection: Connection) -> None:
    await connection.execute(_REFUSE)
    for table, column in _REFUSING:
        await connection.execute(f"DROP TRIGGER IF EXISTS mcp_tasks_sealed ON mcp_tasks_{table}".encode())
        await connection.execute(
            f"CREATE TRIGGER mcp_tasks_sealed BEFORE INSERT OR UPDATE OF {column} ON mcp_tasks_{table} FOR EACH ROW "
            f"WHEN (substring(NEW.{column} from 1 for 1) <> '\\x00'::bytea) "
            "EXECUTE FUNCTION mcp_tasks_sealed()".encode()
        )


async def _note(connection: Connection) -> bytes | None:
    rows = await _rows(connection, _NOTE, _PLACE)
    return rows[0][0] if rows else None


async def _sample(connection: Connection) -> Sample | None:
    for task_id, state in await _rows(connection, _ONE_TASK):
        return part_id(from_text(task_id), STATE), state
    for namespace, name, value in await _rows(connection, _ONE_NOTE):
        return note_id(from_text(namespace), from_text(name)), value
    return None


async def heartbeats(connection: Connection) -> dict[str, int]:
    """How often each worker of any server has beaten."""
    return {from_text(worker): beats for worker, beats in await _rows(connection, _BEATS)}


async def turns_on(connection: Connection, codec: Codec, place: str) -> bool:
    """Whether the tables are to become encrypted ones, and are not merely to get another key.

    Raises:
        EncryptionMismatch: They are encrypted with a key that is not there.
    """
    return begin(codec, await _note(connection), place) is not None


async def begin_encrypting(connection: Connection, codec: Codec, place: str) -> None:
    """Let nobody in from now on, and nobody who is in write anything plain."""
    async with connection.transaction():
        await _refuse_plain(connection)
        if (value := begin(codec, await _note(connection), place)) is not None:
            await connection.execute(_SET_NOTE, {**_PLACE, "value": value})


async def encrypt_tables(connection: Connection, codec: Codec, *, vacuum: bool) -> Resealed:
    """Encrypt all that a task store keeps, and let servers in again. One value is in memory at a time.

    Args:
        vacuum: Whether there were plain rows, though none may be left: who encrypted them may not have come to this.
    """
    tally = Tally(codec)
    async for key in _numbers(connection, _KEYS, {}):
        for part, select, update in _OF_TASKS:
            await _cell(connection, tally, key, part, select, update)
        async for number in _numbers(connection, _NUMBERS, {"key": key}):
            for task_id, kind, name, old in await _rows(connection, _ENTRY, {"key": key, "n": number}):
                if (entry := tally.entry(from_text(task_id), from_text(kind), from_text(name), old)) is not None:
                    grown = len(entry[1]) - len(old)
                    values = {"key": key, "n": number, "name": to_text(entry[0]), "new": entry[1], "grown": grown}
                    await connection.execute(_SET_ENTRY, values)
    for namespace, name, old in await _rows(connection, _NOTES):
        if (namespace, name) == (NAMESPACE, NAME):
            continue
        if (new := tally.value(note_id(from_text(namespace), from_text(name)), old)) is not None:
            values = {"namespace": namespace, "name": name, "old": old, "new": new}
            await connection.execute(_CHANGE_NOTE, values)
    if vacuum or tally.found_plain:
        for table in _TABLES:
            await connection.execute(f"VACUUM (FULL) mcp_tasks_{table}".encode())
    value = codec.encode_note(NAMESPACE, NAME, ON)
    await connection.execute(_SET_NOTE, {**_PLACE, "value": value})
    return tally.result()


async def _cell(connection: Connection, tally: Tally, key: int, part: str, select: bytes, update: bytes) -> None:
    """Encrypt one value; again if somebody has changed it meanwhile."""
    for _ in range(ATTEMPTS):
        for task_id, old in await _rows(connection, select, {"key": key}):
            new = tally.value(part_id(from_text(task_id), part), old)
            if new is None:
                continue
            values = {"key": key, "old": old, "new": new, "grown": len(new) - len(old)}
            if not await _is_changed(connection, update, values):
                tally.missed()
                break
        else:
            return
    tally.gave_up()


async def _is_changed(connection: Connection, sql: bytes, values: dict[str, Any]) -> bool:
    return (await connection.execute(sql, values)).rowcount > 0


async def _numbers(connection: Connection, sql: bytes, values: dict[str, Any]) -> AsyncIterator[int]:
    last = -1
    while rows := await _rows(connection, sql, {**values, "last": last}):
        for (last,) in rows:
            yield last


async def _rows(connection: Connection, sql: bytes, values: dict[str, Any] | None = None) -> list[Any]:
    return await (await connection.execute(sql, values, binary=True)).fetchall()
