"""A statement that one party writes and another runs inside its own transaction: the job of a task, beside its row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """One statement for one database.

    Attributes:
        place: Which database it is for. Whoever keeps tasks elsewhere cannot run it.
        text: The statement, in the words of that database.
        values: Its named parameters.
    """

    place: str
    text: str
    values: dict[str, Any]


def database_place(url: str) -> str:
    """Which Postgres database a URL means, as `Statement.place` says it: hosts, ports and name; no user, no password.

    Two URLs of one database may give two places (a name and an address of one host, say). That costs a transaction of
    its own for the job, and nothing else.
    """
    parts = urlsplit(url)
    # What comes after the question mark counts before the rest, as libpq has it.
    options = dict(parse_qsl(parts.query))
    user, _, hosts = parts.netloc.rpartition("@")
    name = unquote(parts.path.lstrip("/")) or unquote(user.partition(":")[0])
    where = [options.get("hostaddr") or options.get("host") or hosts.lower(), options.get("port", "")]
    return f"postgresql://{':'.join(filter(None, where))}/{options.get('dbname', name)}"
