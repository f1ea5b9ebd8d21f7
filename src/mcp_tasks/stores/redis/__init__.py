"""Tasks in Redis or Valkey, for all processes that reach one server."""

from mcp_tasks.model.values import needing_extra

with needing_extra("a task store in Redis", "redis"):
    from mcp_tasks.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
