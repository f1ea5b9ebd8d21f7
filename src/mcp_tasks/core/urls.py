"""URLs that authors give: which kind one is, and how it is repeated to them without what is secret in it."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

POSTGRES: Final = ("postgresql://", "postgres://")
REDIS: Final = ("redis://", "rediss://", "valkey://", "valkeys://")

_LOCAL: Final = ("sqlite:", "memory:")
_SECRET: Final = re.compile(r"(?i)(\w*(?:pass|pwd|secret|token|key)\w*\s*=\s*)[^\s&]+")


def with_plain_scheme(url: str) -> str:
    """The URL with its scheme in small letters, as the drivers want it: to everybody else the case is the same."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme.lower()}{separator}{rest}" if separator else url


def names_redis_database(url: str) -> bool:
    """Whether what a URL has after the host is the number of a database, or nothing. Anything else is left out by
    redis-py, which would take another database than the one that was meant."""
    parts = urlsplit(url)
    number = "" if parts.scheme == "unix" else parts.path.strip("/")
    return not number or (number.isascii() and number.isdigit())


def shown(url: str) -> str:
    """The URL in quotes for a message, without user, password and the values of options."""
    if url.startswith(_LOCAL):
        return repr(url)
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    address, mark, options = rest.partition("?")
    secret, at, place = address.rpartition("@")
    if not at and "@" in options:
        # A question mark in a password that should have been encoded.
        return repr(f"{scheme}{separator}…@{options.rpartition('@')[2]}")
    address = f"…@{place}" if secret else address
    options = re.sub(r"=[^&]*", "=…", options)
    return repr(_SECRET.sub(r"\1…", f"{scheme}{separator}{address}{mark}{options}"))
