"""Tasks in a Postgres database: the store of a fleet. Needs the extra `postgres`."""

from mcp_tasks.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
