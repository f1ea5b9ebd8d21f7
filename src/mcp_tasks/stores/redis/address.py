"""Where the server is: the URL as redis-py reads it, and as people may see it."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from redis.asyncio.connection import parse_url

from mcp_tasks.core.urls import names_redis_database
from mcp_tasks.errors import UsageError

_SCHEMES: Final = {"redis": "redis", "valkey": "redis", "rediss": "rediss", "valkeys": "rediss", "unix": "unix"}


def driver_url(url: str) -> str:
    """The URL in the words of redis-py: a Valkey is addressed as a Redis is.

    Raises:
        UsageError: It is no URL of a server. What it says is not repeated: there may be a password in it.
    """
    # Not always a string: it is what authors pass.
    scheme, separator, rest = str(url).partition("://")
    if not separator or scheme not in _SCHEMES:
        raise UsageError("the URL of a Redis store begins with redis://, rediss:// (TLS), valkey:// or valkeys://")
    plain = f"{_SCHEMES[scheme]}://{rest}"
    try:
        parse_url(plain)
        is_read = names_redis_database(plain)
    except ValueError:
        is_read = False
    if not is_read:
        raise UsageError(
            "the URL of the Redis store cannot be read: write redis://[USER:PASSWORD@]HOST[:PORT]/DATABASE, where the "
            "database is a number, and what is special in the password percent-encoded (/ is %2F, @ is %40, # is %23)"
        )
    return plain


def at(url: str, host: str, port: int) -> str:
    """The same URL with another host and port."""
    parts = urlsplit(url)
    secret, separator, _ = parts.netloc.rpartition("@")
    # A server that does not know its own name says none: it is at the same host then.
    name = host or parts.hostname or "localhost"
    return parts._replace(netloc=f"{secret}{separator}{f'[{name}]' if ':' in name else name}:{port}").geturl()


def shown(url: str) -> str:
    """The URL without what is secret in it: user, password and options."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    host = parts.hostname or "localhost"
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{parts.port or 6379}{parts.path or '/0'}"
