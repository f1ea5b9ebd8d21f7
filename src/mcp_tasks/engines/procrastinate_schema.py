"""procrastinate's tables, in a schema of their own: made and brought up to date by whichever process comes first.

A database may have procrastinate's tables already, for jobs of somebody else. These are ours alone, so nobody's worker
takes our jobs, and nobody's clean-up deletes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
from procrastinate.schema import SchemaManager
from psycopg.sql import SQL, Identifier

SCHEMA: Final[LiteralString] = "mcp_tasks_jobs"

_LOCK: Final = 0x6D63705F6A6F6273
"""Whom processes that start at once wait for: a number that nobody else is likely to have chosen."""

_TABLE: Final[LiteralString] = "mcp_tasks_migrations"
_APPLIED: Final = Identifier(SCHEMA, _TABLE)


async def prepare(connection: psycopg.AsyncConnection[Any]) -> None:
    """Make the tables, or bring them up to date. Costs one look where there is nothing to do."""
    known = _migrations()
    if known.keys() <= await _applied(connection):
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        applied = await _applied(connection)
        missing = sorted(known.keys() - applied)
        if not missing:
            return
        if applied:
            await _search_here(connection)
            for name in missing:
                await connection.execute(known[name].read_bytes())
        else:
            await _create(connection)
        await _work_from_anywhere(connection)
        note = SQL("INSERT INTO {} (name) SELECT unnest(%s::text[])").format(_APPLIED)
        await connection.execute(note, [missing])


def _migrations() -> dict[str, Path]:
    """What procrastinate has to bring older tables up to date, by name.

    Each release has migrations for before its code comes ("pre") and for after the older code has gone ("post"). The
    newest "post" ones wait until there is a newer release: a fleet is rolled, and older workers are still at work.
    """
    files = {file.name: file for file in Path(SchemaManager.get_migrations_path()).glob("*.sql")}
    newest = max(_release(name) for name in files)
    return {name: file for name, file in files.items() if "_post_" not in name or _release(name) < newest}


def _release(name: str) -> str:
    return name.partition("_")[0]


async def _applied(connection: psycopg.AsyncConnection[Any]) -> set[str]:
    """Which migrations the tables have seen; none if there are no tables."""
    # Not by `to_regclass`: having looked before it waited for another, it goes by what it saw then.
    look = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = %s"
    if await (await connection.execute(look, [SCHEMA, _TABLE])).fetchone() is None:
        return set()
    rows = await (await connection.execute(SQL("SELECT name FROM {}").format(_APPLIED))).fetchall()
    return {name for (name,) in rows}


async def _create(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.execute(SQL("CREATE SCHEMA IF NOT EXISTS {}").format(Identifier(SCHEMA)))
    await _search_here(connection)
    await connection.execute(SchemaManager.get_schema())
    await connection.execute(SQL("CREATE TABLE {} (name text PRIMARY KEY)").format(_APPLIED))


async def _search_here(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.execute(SQL("SET LOCAL search_path TO {}").format(Identifier(SCHEMA)))


async def _work_from_anywhere(connection: psycopg.AsyncConnection[Any]) -> None:
    """Let a job be written by whoever keeps tasks in this database: its connections do not look for names here."""
    await connection.execute(
        f"ALTER FUNCTION {SCHEMA}.procrastinate_defer_jobs_v1({SCHEMA}.procrastinate_job_to_defer_v1[])"
        f" SET search_path TO {SCHEMA}"
    )
