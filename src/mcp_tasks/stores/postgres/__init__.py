"""Tasks in a Postgres database: the store of a fleet. Needs the extra `postgres`."""

from mcp_tasks.errors import MissingExtra

try:
    from mcp_tasks.stores.postgres.store import PostgresStore
except ModuleNotFoundError as exc:
    if exc.name is not None and exc.name.partition(".")[0] == "mcp_tasks":
        raise
    raise MissingExtra("a task store in Postgres", "postgres") from exc

__all__ = ["PostgresStore"]
