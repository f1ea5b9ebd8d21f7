"""The server that Docket's streams are on: its URL, as redis-py and as Docket want it, and whether it answers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from redis.asyncio import ConnectionPool, Redis
from redis.exceptions import NoPermissionError, RedisClusterException, RedisError

from mcp_tasks.core.urls import names_redis_database
from mcp_tasks.errors import StoreUnavailable, UsageError

FAULTS: Final = (RedisError, RedisClusterException, OSError)
"""What is raised when the server cannot be asked."""


class Server:
    """A Redis or a Valkey.

    Args:
        url: `redis://`, `rediss://`, `valkey://` or `valkeys://`.
    """

    def __init__(self, url: str) -> None:
        self._url = _of_redis(url)
        self._in_cluster = False

    def __str__(self) -> str:
        parts = urlsplit(self._url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def url_for_docket(self) -> str:
        """The URL as Docket wants it, which asks to be told of a cluster."""
        scheme, _, rest = self._url.partition("://")
        return f"{scheme}+cluster://{rest}" if self._in_cluster else self._url

    async def reach(self, seconds: float) -> None:
        """Connect, and find out whether the server is one of a cluster.

        Raises:
            StoreUnavailable: It does not answer, or does not let us in.
        """
        found: dict[str, object] = {}
        try:
            async with asyncio.timeout(seconds), Redis.from_url(self._url) as redis:
                # A user who may not ask is answered all the same.
                with suppress(NoPermissionError):
                    await redis.ping()
                with suppress(NoPermissionError):
                    found = await redis.info("cluster")
        except FAULTS as exc:
            raise self.unavailable(exc) from exc
        self._in_cluster = bool(found.get("cluster_enabled"))

    def unavailable(self, exc: Exception) -> StoreUnavailable:
        """What it means for us that the server could not be asked. Raise it `from exc`."""
        # asyncio's, which is an OSError, says nothing.
        said = str(exc).rstrip(".") or "it does not answer in time"
        return StoreUnavailable(
            f"the streams on {self} cannot be used: {said}. Start the server, or correct host, port, user and password "
            "in the engine's URL"
        )


_NO_URL: Final = (
    "a URL that Redis cannot be reached by: write redis://[USER:PASSWORD@]HOST[:PORT]/DATABASE, where the database is "
    "a number, and what is special in the password percent-encoded (/ is %2F, @ is %40, # is %23)"
)


def _of_redis(url: str) -> str:
    """The URL as redis-py has it, with room for as many connections as there may be requests at a time."""
    try:
        parts = urlsplit(url)
        options = {"max_connections": "1000", **dict(parse_qsl(parts.query, keep_blank_values=True))}
        plain = urlunsplit(parts._replace(scheme=parts.scheme.replace("valkey", "redis"), query=urlencode(options)))
        ConnectionPool.from_url(plain)
    except (TypeError, ValueError):
        # What is wrong is not passed on: it may quote the password.
        raise UsageError(_NO_URL) from None
    if not names_redis_database(plain):
        raise UsageError(_NO_URL)
    return plain
