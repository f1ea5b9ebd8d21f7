"""Tasks in a Postgres database: the store of a fleet. Needs the extra `postgres`."""

from mcp_tasks.model.values import needing_extra

with needing_extra("a task store in Postgres", "postgres"):
    from mcp_tasks.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
