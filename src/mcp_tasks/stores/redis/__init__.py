"""Tasks in Redis or Valkey, for all processes that reach one server."""

from mcp_tasks.errors import MissingExtra

try:
    from mcp_tasks.stores.redis.store import RedisStore
except ModuleNotFoundError as exc:
    if exc.name is not None and exc.name.partition(".")[0] == "mcp_tasks":
        raise
    raise MissingExtra("a task store in Redis", "redis") from exc

__all__ = ["RedisStore"]
