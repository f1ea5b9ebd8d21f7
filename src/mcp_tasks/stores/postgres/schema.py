"""Whose tables these are, and bringing them to the schema of this release.

All names begin with `mcp_tasks_`, in the first schema of the search path. `mcp_tasks_meta` says which schema they have:
how many of the files in `migrations/` were applied. Processes that start together queue for an advisory lock, and all
but the first find the work done.

A store of a newer release is used as it is, if it says that releases such as this one may (`compatible_from`).
"""

from __future__ import annotations

from functools import cache
from typing import Final

import psycopg

from mcp_tasks.errors import StoreCorrupt
from mcp_tasks.stores.migrations import compatible_from, scripts_of, this_release
from mcp_tasks.stores.postgres.database import Connection

_LOCK: Final = b"SELECT pg_advisory_lock(%(lock)s)"
_LOCK_NUMBER: Final = int.from_bytes(b"mcptasks", "big", signed=True)

# Read from the catalogue: `to_regclass` remembers what was not there, also when another process has made it meanwhile.
_IDENTITY: Final = b"""
SELECT bool_or(relname = 'mcp_tasks_meta') IS TRUE, bool_or(relname = 'mcp_tasks_tasks') IS TRUE
FROM pg_catalog.pg_class
WHERE relname IN ('mcp_tasks_meta', 'mcp_tasks_tasks') AND relkind IN ('r', 'p') AND pg_catalog.pg_table_is_visible(oid)
"""
_META: Final = b"SELECT schema, compatible_from, release FROM mcp_tasks_meta"
_CREATE_META: Final = b"""
CREATE TABLE mcp_tasks_meta (schema integer NOT NULL, compatible_from integer NOT NULL, release text NOT NULL)
"""
_INSERT_META: Final = b"INSERT INTO mcp_tasks_meta (schema, compatible_from, release) VALUES (0, 0, '')"
_UPDATE_META: Final = b"""
UPDATE mcp_tasks_meta SET schema = %(schema)s, compatible_from = %(compatible_from)s, release = %(release)s
"""


@cache
def migrations() -> tuple[str, ...]:
    """The SQL scripts in their order."""
    return scripts_of("mcp_tasks.stores.postgres")


async def prepare(connection: Connection, place: str) -> None:
    """Have the tables of this release, on a connection in autocommit mode that is for nothing else.

    Raises:
        StoreCorrupt: There are tables of these names that are not ours, or those of a newer release.
        psycopg.Error: Postgres refused; the caller translates.
    """
    if await schema_of(connection, place) >= len(migrations()):
        return
    # Of the session and not of the transaction: one that began before another process made the tables may know from
    # its cache that they are not there. It is let go of with the connection, which is closed after this.
    await connection.execute(_LOCK, {"lock": _LOCK_NUMBER})
    async with connection.transaction():
        # Asked again under the lock: another process may have been first.
        schema = await schema_of(connection, place)
        if schema >= len(migrations()):
            return
        if schema == 0:
            await connection.execute(_CREATE_META)
            await connection.execute(_INSERT_META)
        for script in migrations()[schema:]:
            await connection.execute(script.encode())
        done = {"schema": len(migrations()), "release": this_release()}
        await connection.execute(_UPDATE_META, done | {"compatible_from": compatible_from(migrations())})


async def schema_of(connection: Connection, place: str) -> int:
    """The schema number, 0 if there is nothing yet; raises if it is not ours to use."""
    ((has_meta, has_tasks),) = await (await connection.execute(_IDENTITY)).fetchall()
    if not has_meta:
        if has_tasks:
            raise StoreCorrupt(
                f"{place} has a table mcp_tasks_tasks and no mcp_tasks_meta, so it is of another application, or part "
                "of a backup. Choose another database or search_path, or restore all tables."
            )
        return 0
    try:
        rows = await (await connection.execute(_META)).fetchall()
    except psycopg.errors.UndefinedColumn as exc:
        raise StoreCorrupt(f"{place} has a table mcp_tasks_meta of another application. Choose another.") from exc
    if len(rows) != 1:
        raise StoreCorrupt(f"{place} has {len(rows)} rows in mcp_tasks_meta instead of one. Restore a backup.")
    schema, first, release = rows[0]
    if schema > len(migrations()) and first > len(migrations()):
        raise StoreCorrupt(
            f"{place} has schema {schema}, and this release knows up to {len(migrations())}. "
            f"Use mcp-tasks {release} or a newer one."
        )
    return int(schema)
