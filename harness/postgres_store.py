"""A Postgres store that is empty, quickly: the tables are made once and emptied for each test."""

import asyncio

import psycopg

from harness.databases import Postgres
from mcp_tasks.stores.postgres import PostgresStore

_EMPTY = b"""
TRUNCATE mcp_tasks_tasks, mcp_tasks_requests, mcp_tasks_outcomes, mcp_tasks_journal, mcp_tasks_heartbeats,
    mcp_tasks_notes, mcp_tasks_spent_keys;
DROP FUNCTION IF EXISTS mcp_tasks_sealed() CASCADE
"""
"""With what refuses plain text, which a test with a cipher leaves behind."""


def new_store_url(server: Postgres) -> str:
    """The URL of a database that has all tables."""
    url = server.new_database()

    async def make_tables() -> None:
        store = PostgresStore(url)
        await store.open()
        await store.close()

    asyncio.run(make_tables())
    return url


def empty(url: str) -> None:
    execute(url, _EMPTY)


def execute(url: str, sql: bytes, *values: object) -> int:
    """Run a statement behind the store's back; how many rows it changed."""
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(sql, values or None).rowcount
