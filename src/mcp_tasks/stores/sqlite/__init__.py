"""Tasks in one SQLite file: the store that needs nothing installed."""

from mcp_tasks.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
