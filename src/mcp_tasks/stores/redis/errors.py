"""The driver's exceptions in our words."""

from __future__ import annotations

from typing import Final

from redis import exceptions as driver

from mcp_tasks.errors import EncryptionMismatch, StoreCorrupt, StoreError, StoreUnavailable

NOT_REACHED: Final = (driver.ConnectionError, driver.TimeoutError, OSError)
"""What is raised when no answer came: a connection that could not be made, or broke, or took too long."""

_REFUSED: Final = (driver.AuthenticationError, driver.AuthorizationError)
_MOVING: Final = (driver.MovedError, driver.TryAgainError, driver.ClusterDownError)
_FAULTS: Final = (driver.RedisError, OSError)


class NotConnected(driver.ConnectionError):
    """No connection could be had, so no request was sent."""


def is_unanswered(exc: Exception) -> bool:
    """Whether a request was sent and no answer came: the server may have carried it out."""
    # The driver has these as errors of the connection too, but the server sent them.
    answered = (*_REFUSED, driver.BusyLoadingError)
    return isinstance(exc, (*NOT_REACHED, driver.InvalidResponse)) and not isinstance(exc, (NotConnected, *answered))


def is_passing(exc: Exception) -> bool:
    """Whether another attempt, at once or a little later, may well do better."""
    if isinstance(exc, _REFUSED):
        return False
    # The others: a server that has begun to read its file, or a cluster in which something moves.
    return isinstance(exc, (*NOT_REACHED, driver.BusyLoadingError, *_MOVING))


def translate(exc: Exception, place: str, *, may_have_happened: bool) -> StoreError:
    """What a driver's exception means for the caller. Raise it `from exc`."""
    error = _translated(exc, place)
    if isinstance(error, StoreUnavailable):
        error.may_have_happened = may_have_happened
    return error


def _translated(exc: Exception, place: str) -> StoreError:
    said = f"{getattr(exc, 'status_code', None) or ''} {exc}".strip()
    for words, (kind, meaning) in _MEANINGS.items():
        if words in said:
            return kind(f"{place} {meaning} ({said})")
    reason = exc.__cause__ if isinstance(exc, NotConnected) else exc
    if isinstance(reason, driver.TimeoutError | TimeoutError):
        return StoreUnavailable(f"{place} did not answer in time; it is tried again by whoever needs it. ({said})")
    if isinstance(exc, NOT_REACHED):
        return StoreUnavailable(
            f"{place} cannot be reached. Start the server, or look at host, port and network. ({said})"
        )
    return StoreUnavailable(f"{place} cannot be used: {said}")


def is_driver_error(exc: Exception) -> bool:
    """Whether the exception is one that must not escape as it is."""
    return isinstance(exc, _FAULTS)


_MEANINGS: dict[str, tuple[type[StoreError], str]] = {
    "SEALED": (EncryptionMismatch, "has been encrypted since this process opened it. Restart it with the keys."),
    "WRONGTYPE": (
        StoreCorrupt,
        "has something else where tasks are kept. Give the store a prefix of its own, or another database.",
    ),
    "LOADING": (StoreUnavailable, "is reading its data after a start. Try again."),
    "OOM": (
        StoreUnavailable,
        "has no memory left: it takes no new tasks and no results until there is room. Raise its maxmemory, or keep "
        "results for a shorter time. Tasks that have expired are removed meanwhile.",
    ),
    "MISCONF": (StoreUnavailable, "cannot write to its disk. Look at its log, and make room."),
    "READONLY": (StoreUnavailable, "is a replica, which takes no writes. Give the address of the primary."),
    "MASTERDOWN": (StoreUnavailable, "is a replica that has lost its primary. Try again."),
    "NOREPLICAS": (StoreUnavailable, "has not enough replicas to take writes (min-replicas-to-write). Try again."),
    "CLUSTERDOWN": (StoreUnavailable, "is in a cluster that is down. Try again."),
    "MOVED": (
        StoreUnavailable,
        "is in a cluster whose servers do not agree which of them has the tasks. Try again.",
    ),
    "BUSY ": (StoreUnavailable, "runs somebody's script that does not end (SCRIPT KILL ends it). Try again."),
    "NOPERM": (
        StoreUnavailable,
        "does not let this user do what a task store needs: read, write, EVALSHA, EVAL, SUBSCRIBE and PUBLISH on the "
        "keys and channels of the prefix.",
    ),
    "WRONGPASS": (StoreUnavailable, "does not take this user and password. Correct them in the URL."),
    "NOAUTH": (StoreUnavailable, "asks for a password. Put it into the URL: redis://:PASSWORD@HOST/0."),
    "Authentication": (StoreUnavailable, "does not take this user and password. Correct them in the URL."),
    "DB index is out of range": (StoreUnavailable, "has no database of that number. Correct the URL."),
}
