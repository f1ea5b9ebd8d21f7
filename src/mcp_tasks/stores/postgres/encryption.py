"""Whether the tables are encrypted, and encrypting all that is in them.

A value is only changed if it is still what was read: a server that has both keys may go on while a key is changed.
`VACUUM FULL` removes earlier rows where something was not encrypted; what Postgres itself still has of them elsewhere
(its log, backups) is told of in docs/encryption.md.

From the moment the tables are marked, Postgres itself refuses what is not encrypted: a process that opened them while
they were plain cannot go on. A trigger, and not a constraint: that would put the row it refuses into Postgres's log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from psycopg.errors import InsufficientPrivilege

from mcp_tasks.stores.codec import BODY, META, REQUEST, STATE, Codec, entry_part, note_id, part_id
from mcp_tasks.stores.encryption import NAME, NAMESPACE, Sample, Value, Vault, is_encrypted, note_to_write
from mcp_tasks.stores.postgres.database import Connection
from mcp_tasks.stores.postgres.queries import NOTE, from_text, to_text

_PLACE: Final = {"namespace": NAMESPACE, "name": NAME}
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
_KEYS: Final = b"SELECT key, id FROM mcp_tasks_tasks WHERE key > %(last)s ORDER BY key LIMIT 500"


def _grows(change: bytes) -> bytes:
    """The change, with the size of the task: what is encrypted is longer."""
    return (
        b"WITH changed AS (%b RETURNING 1) UPDATE mcp_tasks_tasks SET size = size + %%(grown)s, "
        b"kept = kept + %%(grown)s WHERE key = %%(key)s AND EXISTS (SELECT FROM changed)"
    ) % change


_PARTS: Final = (
    (
        STATE,
        b"SELECT state FROM mcp_tasks_tasks WHERE key = %(key)s",
        b"UPDATE mcp_tasks_tasks SET state = %(new)s WHERE key = %(key)s AND state = %(old)s",
    ),
    (
        REQUEST,
        b"SELECT request FROM mcp_tasks_requests WHERE task = %(key)s",
        _grows(b"UPDATE mcp_tasks_requests SET request = %(new)s WHERE task = %(key)s AND request = %(old)s"),
    ),
    (
        BODY,
        b"SELECT body FROM mcp_tasks_outcomes WHERE task = %(key)s",
        _grows(b"UPDATE mcp_tasks_outcomes SET body = %(new)s WHERE task = %(key)s AND body = %(old)s"),
    ),
    (
        META,
        b"SELECT meta FROM mcp_tasks_outcomes WHERE task = %(key)s AND meta IS NOT NULL",
        _grows(b"UPDATE mcp_tasks_outcomes SET meta = %(new)s WHERE task = %(key)s AND meta = %(old)s"),
    ),
)
_ENTRY: Final = b"""
SELECT n, kind, key, value FROM mcp_tasks_journal WHERE task = %(key)s AND n > %(n)s ORDER BY n LIMIT 1
"""
_SET_ENTRY: Final = _grows(
    b"UPDATE mcp_tasks_journal SET key = %(name)s, value = %(new)s WHERE task = %(key)s AND n = %(n)s"
)
_NOTES: Final = b"""
SELECT namespace, name, value FROM mcp_tasks_notes WHERE (namespace, name) <> (%(namespace)s, %(name)s)
"""
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
_COLUMNS: Final = (
    ("tasks", "state"),
    ("requests", "request"),
    # With it, always: `meta`. It is encrypted after it, by itself.
    ("outcomes", "body"),
    ("journal", "value"),
    ("notes", "value"),
)


async def agree(connection: Connection, place: str, codec: Codec) -> None:
    """See that the tables are encrypted as the codec is, and say that they are if they are empty.

    Raises:
        EncryptionMismatch: They are not.
        psycopg.Error: Postgres refused; the caller translates.
    """
    for _ in range(2):
        note = await _note(connection)
        sample = await _sample(connection) if note is None else None
        # A name of its own for each: the loop goes round once more, to see what another process may have written.
        new = note_to_write(codec, note, lambda found=sample: found, place)
        if new is None:
            return
        try:
            async with connection.transaction():
                # No other process writes until this is done, so what is seen now is all that is there.
                await _refuse_plain(connection)
                if (found := await _sample(connection)) is not None and not is_encrypted(found[1]):
                    note_to_write(codec, None, lambda found=found: found, place)
                await connection.execute(_ADD_NOTE, {**_PLACE, "value": new})
        except InsufficientPrivilege:
            # The tables are another user's.
            await connection.execute(_ADD_NOTE, {**_PLACE, "value": new})


async def _refuse_plain(connection: Connection) -> None:
    await connection.execute(_REFUSE)
    for table, column in _COLUMNS:
        await connection.execute(f"DROP TRIGGER IF EXISTS mcp_tasks_sealed ON mcp_tasks_{table}".encode())
        await connection.execute(
            f"CREATE TRIGGER mcp_tasks_sealed BEFORE INSERT OR UPDATE OF {column} ON mcp_tasks_{table} FOR EACH ROW "
            f"WHEN (substring(NEW.{column} from 1 for 1) <> '\\x00'::bytea) "
            "EXECUTE FUNCTION mcp_tasks_sealed()".encode()
        )


async def _note(connection: Connection) -> bytes | None:
    rows = await _rows(connection, NOTE, _PLACE)
    return rows[0][0] if rows else None


async def _sample(connection: Connection) -> Sample | None:
    for task_id, state in await _rows(connection, _ONE_TASK):
        return part_id(from_text(task_id), STATE), state
    for namespace, name, value in await _rows(connection, _ONE_NOTE):
        return note_id(from_text(namespace), from_text(name)), value
    return None


async def _rows(connection: Connection, sql: bytes, values: dict[str, Any] | None = None) -> list[Any]:
    return await (await connection.execute(sql, values, binary=True)).fetchall()


class PostgresVault(Vault):
    """The tables, on a connection in autocommit mode."""

    def __init__(self, connection: Connection, place: str) -> None:
        self.place = place
        self._connection = connection

    async def note(self) -> bytes | None:
        return await _note(self._connection)

    async def write_note(self, note: bytes) -> None:
        await self._connection.execute(_SET_NOTE, {**_PLACE, "value": note})

    async def heartbeats(self) -> Mapping[str, int]:
        return {from_text(worker): beats for worker, beats in await _rows(self._connection, _BEATS)}

    async def refuse_plain(self) -> None:
        async with self._connection.transaction():
            await _refuse_plain(self._connection)

    async def values(self) -> AsyncIterator[Value]:
        last = -1
        while rows := await _rows(self._connection, _KEYS, {"last": last}):
            for last, stored_id in rows:
                task_id, where = from_text(stored_id), {"key": last}
                for part, select, update in _PARTS:
                    for (data,) in await _rows(self._connection, select, where):
                        yield Value((update, where, select), part_id(task_id, part), data)
                number = -1
                while found := await _rows(self._connection, _ENTRY, {**where, "n": number}):
                    number, kind, key, data = found[0]
                    name = part_id(task_id, entry_part(from_text(kind)))
                    yield Value((_SET_ENTRY, {**where, "n": number}, None), name, data, from_text(key))
        for namespace, name, data in await _rows(self._connection, _NOTES, _PLACE):
            where = {"namespace": namespace, "name": name}
            yield Value((_CHANGE_NOTE, where, NOTE), note_id(from_text(namespace), from_text(name)), data)

    async def replace(self, value: Value, key: str | None, new: bytes) -> bool:
        update, where, _ = value.where
        values = {**where, "old": value.data, "new": new, "grown": len(new) - len(value.data)}
        if key is not None:
            values["name"] = to_text(key)
        return (await self._connection.execute(update, values)).rowcount > 0

    async def again(self, value: Value) -> Value | None:
        _, where, select = value.where
        # What is in a journal does not change; it may be gone.
        for (data,) in await _rows(self._connection, select, where) if select else ():
            return Value(value.where, value.bound_to, data)
        return None

    async def clean(self, *, was_plain: bool) -> None:
        for table, _ in _COLUMNS if was_plain else ():
            await self._connection.execute(f"VACUUM (FULL) mcp_tasks_{table}".encode())
