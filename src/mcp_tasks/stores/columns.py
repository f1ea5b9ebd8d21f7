"""What a backend keeps beside the encoded parts, to find tasks by: instants as numbers, and cursors.

Instants are microseconds since 1970: exact, and they sort.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from mcp_tasks.core.pacing import expires_at
from mcp_tasks.core.record import TaskRecord

MICROSECOND = timedelta(microseconds=1)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_micros(instant: datetime) -> int:
    """An aware instant as microseconds since 1970."""
    return (instant - _EPOCH) // MICROSECOND


def from_micros(micros: int) -> datetime:
    """The instant `to_micros` came from."""
    return _EPOCH + micros * MICROSECOND


def earliest(*instants: int | None) -> datetime | None:
    """The first of some instants, leaving out those that are None."""
    micros = min((instant for instant in instants if instant is not None), default=None)
    return None if micros is None else from_micros(micros)


def sort_key(record: TaskRecord) -> int:
    """Where a task stands among all: by its creation."""
    return to_micros(record.created_at)


def expiry(record: TaskRecord) -> int | None:
    """When the task may be removed, for a backend's index; None for never or not yet."""
    deadline = expires_at(record)
    return None if deadline is None else to_micros(deadline)


def ready(record: TaskRecord) -> int | None:
    """From when on the task is queued, for a backend's index; None if it is not."""
    return None if record.ready_at is None else to_micros(record.ready_at)


def queued_since(record: TaskRecord) -> int:
    """Since when a task is queued that was not before.

    A run that is given back changes nothing that a client can see, and so not `updated_at`: then it is the instant at
    which the run began. A task waits for a little less than that says, never for longer.
    """
    if not record.attempt:
        # Its status may have said since that no worker is there.
        return to_micros(record.created_at)
    return to_micros(max(record.updated_at, record.started_at or record.updated_at))


def is_at_work(record: TaskRecord) -> bool:
    """Whether the task counts as being at work: a worker has it, it has not ended, and its run does not wait.

    One that is resuming counts, too, for all but those that are resuming themselves (`is_resuming`).
    """
    return record.worker is not None and not record.is_final and record.pause != "waiting"


def is_resuming(record: TaskRecord) -> bool:
    """Whether the run of the task wants to go on, and waits for a place under its limits."""
    return is_at_work(record) and record.pause == "resuming"


def encode_cursor(place: int, task_id: str) -> str:
    """The place after a task in a listing: where it stands, and its id for those that stand at the same place."""
    return f"{place}.{task_id}"


def decode_cursor(cursor: str) -> tuple[int, str]:
    """Place and id of the last task listed.

    Raises:
        ValueError: It is not a cursor of ours.
    """
    place, dot, task_id = cursor.partition(".")
    digits = place.removeprefix("-")
    # 18 digits hold every instant there is, and fit the integers of every backend.
    if not dot or not digits.isdecimal() or len(digits) > 18:
        raise ValueError("not a cursor of this store")
    return int(place), task_id
