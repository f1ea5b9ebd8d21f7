"""The driver's exceptions in our words, and which of them pass by themselves.

No message of ours holds the URL: there is a password in it.
"""

from __future__ import annotations

from typing import Final, cast

import psycopg
from psycopg_pool import PoolTimeout, TooManyRequests

from mcp_tasks.errors import EncryptionMismatch, StoreCorrupt, StoreError, StoreUnavailable, ValueNotStorable

_LOST: Final = ("08", "57P01", "57P02", "57P03", "57P05")
"""The connection is gone, or the server is going or coming."""

_UNANSWERED: Final = ("08", "57P01", "57P02")
"""The server ended the connection under the statement, which may be committed: a shutdown also ends the wait for a
standby, and that comes after the commit."""

_COLLISION: Final = ("40",)
"""Two transactions were in each other's way, and this one was rolled back."""


def is_lost(exc: Exception) -> bool:
    """Whether the connection broke: nobody knows whether the statement that was under way was carried out."""
    if isinstance(exc, PoolTimeout) or not isinstance(exc, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    # An error that came from the server has a number; what the driver finds out by itself has none.
    return exc.sqlstate is None or exc.sqlstate.startswith(_LOST)


def is_unanswered(exc: Exception) -> bool:
    """Whether a statement was sent and no answer came: the server may have carried it out."""
    if isinstance(exc, PoolTimeout | TooManyRequests):
        return False
    if isinstance(exc, TimeoutError):
        # Given up here. The server was not told, and may still be at it.
        return True
    return is_lost(exc) and (cast(psycopg.Error, exc).sqlstate or "08").startswith(_UNANSWERED)


def is_collision(exc: Exception) -> bool:
    """Whether the same once more will probably do."""
    return isinstance(exc, psycopg.Error) and (exc.sqlstate or "").startswith(_COLLISION)


def translate(exc: Exception, place: str, *, may_have_happened: bool = False) -> StoreError:
    """What an exception means for the caller. Raise it `from exc`."""
    error = _translated(exc, place)
    if isinstance(error, StoreUnavailable):
        error.may_have_happened = may_have_happened
    return error


def _translated(exc: Exception, place: str) -> StoreError:
    if isinstance(exc, PoolTimeout | TooManyRequests):
        return StoreUnavailable(
            f"{place} gave no connection in time: it cannot be reached, or all connections are busy. Look whether the "
            "database runs; if it does, allow more connections."
        )
    if isinstance(exc, TimeoutError):
        return StoreUnavailable(f"{place} did not answer in time. Look whether the database is stopped or overloaded.")
    if isinstance(exc, UnicodeError | OverflowError):
        return ValueNotStorable(f"a value is of a kind that {place} cannot keep ({type(exc).__name__}: {exc})")
    state = exc.sqlstate or "" if isinstance(exc, psycopg.Error) else ""
    for prefix, (kind, meaning) in _MEANINGS.items():
        if state.startswith(prefix):
            return kind(f"{place} {meaning} ({_text(exc)})")
    if isinstance(exc, psycopg.DataError):
        return ValueNotStorable(f"{place} cannot keep a value ({_text(exc)})")
    if not state and isinstance(exc, psycopg.OperationalError | OSError):
        return unreachable(exc, place)
    return StoreUnavailable(f"{place} cannot be used: {_text(exc)}")


_MEANINGS: Final[dict[str, tuple[type[StoreError], str]]] = {
    "22": (ValueNotStorable, "cannot keep a value"),
    "25006": (
        StoreUnavailable,
        "is read-only. Give the URL of the primary, or several hosts and target_session_attrs=read-write.",
    ),
    "28": (StoreUnavailable, "refuses the user. Correct user and password in the URL."),
    "3D000": (StoreUnavailable, "is not there. Create the database, or correct its name in the URL."),
    "42501": (
        StoreUnavailable,
        "does not let the user do this. For the first start grant it CREATE on the database and on the schema, and all "
        "on its tables.",
    ),
    "42P01": (StoreCorrupt, "has lost tables of the store. Restore a backup, or restart to have them made."),
    "42703": (StoreCorrupt, "has tables of another shape. Restore a backup, or choose another database."),
    "53100": (StoreUnavailable, "cannot grow: its disk is full. Make room and try again."),
    "53300": (StoreUnavailable, "takes no more connections. Raise max_connections, or give each process fewer."),
    "54": (ValueNotStorable, "cannot keep a value, because it is too large"),
    "57014": (StoreUnavailable, "cancelled the statement. Look at its statement_timeout, and try again."),
    "MT001": (EncryptionMismatch, "has been encrypted since this process opened it. Restart it with the keys."),
    "XX001": (StoreCorrupt, "is damaged. Restore a backup."),
    "XX002": (StoreCorrupt, "is damaged. REINDEX it, or restore a backup."),
}

_CONNECTING: Final = {
    "password authentication failed": "refuses the user or the password. Correct them in the URL, with %40 for an @",
    "no password supplied": "wants a password. Put it into the URL (postgresql://USER:PASSWORD@HOST/DATABASE)",
    "no pg_hba.conf entry": "lets this user not in from here. Look at its pg_hba.conf",
    "FATAL: role ": "does not know the user. Correct it in the URL, or create it",
    "FATAL: database ": "is not there. Create the database (createdb), or correct its name in the URL",
    "too many clients": "takes no more connections. Raise max_connections, or give each process fewer",
    "starting up": "is starting. Try again",
    "shutting down": "is shutting down. Try again when it is back",
}
"""What the server says while one connects, which comes without a number."""


def unreachable(exc: Exception, place: str) -> StoreUnavailable:
    """Why no connection could be made, or kept."""
    text = _text(exc)
    for words, meaning in _CONNECTING.items():
        if words in text:
            return StoreUnavailable(f"{place} {meaning} ({text})")
    return StoreUnavailable(
        f"{place} cannot be reached. Start the database, or correct host and port in the URL ({text})"
    )


def is_passing(exc: Exception) -> bool:
    """Whether the server said on connecting that it will soon be there."""
    text = str(exc)
    return any(words in text for words in ("starting up", "shutting down", "recovery mode", "not yet accepting"))


def _text(exc: Exception) -> str:
    return " ".join(str(exc).split()) or type(exc).__name__
