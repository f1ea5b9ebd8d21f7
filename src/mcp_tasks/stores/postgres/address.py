"""Where the database is: the URL as people may see it."""

from __future__ import annotations

import re
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from mcp_tasks.errors import UsageError

_NO_URL: Final = (
    "this is not the URL of a Postgres database. It is postgresql://USER:PASSWORD@HOST:PORT/DATABASE, where special "
    "characters of user and password are written with a percent sign (%40 for @, %2F for /)"
)


def name_of(url: str) -> str:
    """The URL as it may be shown.

    Raises:
        UsageError: It is not the URL of a Postgres. What is wrong with it is not said in the driver's words: they
            show parts of it, and if the password has an @ or a / in it, parts of that.
    """
    try:
        parts = conninfo_to_dict(url)
    # AttributeError: what is no string.
    except (psycopg.ProgrammingError, AttributeError):
        raise UsageError(_NO_URL) from None
    user, host, port = (str(parts.get(name) or "") for name in ("user", "host", "port"))
    name = str(parts.get("dbname") or "")
    # A password with such a character in it is read as host, port or database, and would be shown.
    if not re.fullmatch(r"[\d,]*", port) or set("@/:") & set(name):
        raise UsageError(_NO_URL)
    return f"postgresql://{f'{user}@' if user else ''}{host}{f':{port}' if port else ''}/{name}"
