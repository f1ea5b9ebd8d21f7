"""`Limits`: how much a server accepts from its callers.

Each attribute says whether it holds for each process or for the fleet: all processes that share the store. None means
no limit. A request that exceeds one is refused with an error that names it (`LimitExceeded`) and, where waiting helps,
says when to come back; nothing is left half done.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final

from mcp_tasks.errors import InvalidOption
from mcp_tasks.model.record import TaskRecord
from mcp_tasks.model.values import check_duration, check_flag, check_number

KIB: Final = 1024
MIB: Final = 1024 * KIB

MOST_OPEN: Final = 100_000
"""How far open tasks are counted."""

_NEVER_NONE: Final = frozenset({"json_depth", "stream_tasks", "anonymous"})
_RATES: Final = frozenset(
    {
        "owner_creates",
        "owner_requests",
        "owner_share",
        "connection_creates",
        "connection_cancels",
        "connection_unknown",
        "creates",
        "cancels",
        "unknown",
        "task_polls",
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What callers may take. The defaults are for a server that strangers can reach. One user over a pipe has no pace
    and no limit of an owner, and is held to sizes, times and the total like anybody.

    Of one owner, where callers are authenticated:

    Attributes:
        owner_open_tasks: Tasks that have not ended. For the fleet.
        owner_stored_bytes: Bytes that are kept of an owner's tasks, ended ones included. A call that comes beyond it is
            refused, and a task whose result would go beyond it fails. For the fleet.
        owner_streams: Streams of `subscriptions/listen` at a time, whatever they are about. For each process.
        owner_sessions: Sessions of versions before 2026-07-28 over HTTP, at a time. For each process.
        owner_waits: Requests that wait for tasks at a time: calls by callers without tasks, `task_status`, and
            `tasks/result` of 2025-11-25. For each process.
        owner_unread_bytes: Bytes of large responses over HTTP, of more than 64 KiB each, that were asked for and have
            not been read yet. A single one may be larger. For each process.
        owner_creates: New tasks a second, with as many at once. For each process.
        owner_requests: Requests of `tasks/*` a second, with as many at once. Who asks more often is slowed first, and
            refused only if that does not help. For each process.
        owner_share: The part of a process's slots that one owner's tasks have while tasks of others wait; all of them
            while nobody waits. For each process.
        open_tasks: Tasks that have not ended, whoever owns them; 100,000 at most, which is how far a store counts. For
            the fleet.
        stored_bytes: Bytes that are kept of tasks without an owner, ended ones included, as `owner_stored_bytes` is for
            each owner. For the fleet.
        anonymous: Whether the next six hold. They are for callers without a name over a network: a pipe and code of the
            server's own are not limited. Each is a number a second, with as many at once. Who is over it is slowed
            first, and refused only if that does not help. For each process. A poll of a task that is there counts for
            none of them.
        connection_creates: New tasks of one connection.
        connection_cancels: Requests to cancel of one connection.
        connection_unknown: Requests of one connection about tasks that are not there.
        creates: New tasks of all callers without a name together.
        cancels: Their requests to cancel.
        unknown: Their requests about tasks that are not there.
        unread_bytes: Such bytes as for `owner_unread_bytes`, of all callers together. For each process.
        task_polls: Requests of `tasks/get` a second about one task, of callers without a name. For each process.
        argument_bytes: Arguments of one call, as JSON.
        answer_bytes: One answer to a question, as JSON.
        result_bytes: The result of a tool, as JSON. The task fails beyond it.
        client_bytes: What a client says of itself with a call: its info and its capabilities, as JSON.
        status_message_bytes: A message of progress. A longer one is cut.
        question_wait: How long a question may stay unanswered before its task fails, where neither the tool nor
            `Tasks(max_wait=)` says less. A question with a timeout of its own waits for that long.
        task_age: How long a task may go on in all, from its creation, before it fails.
        ttl: The longest time for which a finished task is kept, where a caller may ask for one.
        open_questions: Questions of one task that are open at a time.
        journal_entries: Entries in the journal of one task: steps, questions, answers, timers.
        stream_tasks: Tasks that one stream may name.
        stream_life: How long a stream lasts, if the token that opened it does not end before. A `tasks/result` of
            2025-11-25 lasts as long as its task.
        read_wait: How long a response over HTTP waits for a client that does not read, before the server closes the
            connection. Holds for every response, streams included.
        json_depth: How deep the arguments of a call and an answer may be nested.
    """

    owner_open_tasks: int | None = 1_000
    owner_stored_bytes: int | None = 256 * MIB
    owner_streams: int | None = 16
    owner_sessions: int | None = 100
    owner_waits: int | None = 200
    owner_unread_bytes: int | None = 64 * MIB
    owner_creates: float | None = 10
    owner_requests: float | None = 50
    owner_share: float | None = 0.25
    open_tasks: int | None = 100_000
    stored_bytes: int | None = 1024 * MIB
    anonymous: bool = True
    connection_creates: float | None = 20
    connection_cancels: float | None = 20
    connection_unknown: float | None = 20
    creates: float | None = 200
    cancels: float | None = 200
    unknown: float | None = 200
    unread_bytes: int | None = 256 * MIB
    task_polls: float | None = None
    argument_bytes: int | None = 1 * MIB
    answer_bytes: int | None = 64 * KIB
    result_bytes: int | None = 16 * MIB
    client_bytes: int | None = 16 * KIB
    status_message_bytes: int | None = 4 * KIB
    question_wait: timedelta | None = timedelta(days=7)
    task_age: timedelta | None = timedelta(days=30)
    ttl: timedelta | None = timedelta(days=30)
    open_questions: int | None = 32
    journal_entries: int | None = 10_000
    stream_tasks: int = 100
    stream_life: timedelta | None = timedelta(hours=1)
    read_wait: timedelta | None = timedelta(seconds=30)
    json_depth: int = 64

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name not in _NEVER_NONE:
                continue
            if isinstance(field.default, bool):
                check_flag(field.name, value)
            elif isinstance(field.default, timedelta):
                check_duration(field.name, value)
            elif field.name in _RATES:
                _check_rate(field.name, value, most=1 if field.name == "owner_share" else None)
            else:
                check_number(field.name, value, 1)
        if self.open_tasks is not None and self.open_tasks > MOST_OPEN:
            raise InvalidOption(
                f"open_tasks must be at most {MOST_OPEN:,}, or None for no limit; got {self.open_tasks!r}"
            )


LIMITS: Final = tuple(field.name for field in fields(Limits) if not isinstance(field.default, bool))
"""The names of the limits, which errors and metrics have."""


def _check_rate(name: str, value: Any, *, most: float | None) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= (float(most) if most is not None else 1e9):
        wanted = f"more than 0 and at most {most}" if most is not None else "a number of times a second, more than 0"
        raise InvalidOption(f"{name} must be {wanted}, got {value!r}")


# ---- pacing

MIN_POLL_INTERVAL = timedelta(milliseconds=200)
"""Short enough that a quick tool feels quick."""

MAX_POLL_INTERVAL = timedelta(seconds=10)
"""A thousand waiting clients cost a hundred requests a second."""

POLL_SHARE_OF_AGE = 10
"""A task of age t is to be polled every t/10: its end is noticed a tenth of the run time late at most."""

FOR_GOOD = timedelta(days=365_000)
"""A retention beyond this means for good: there is no date so far ahead, and no number of milliseconds that a client
could use."""


def poll_interval(record: TaskRecord, now: datetime) -> timedelta:
    """How long a client should wait before it asks again."""
    if record.poll_interval is not None:
        return record.poll_interval
    age = now - record.created_at
    return min(max(age / POLL_SHARE_OF_AGE, MIN_POLL_INTERVAL), MAX_POLL_INTERVAL)


def expires_at(record: TaskRecord) -> datetime | None:
    """When the task may be forgotten; None while it runs, and for a task that is kept for good."""
    if record.finished_at is None or record.retention is None or record.retention > FOR_GOOD:
        return None
    return record.finished_at + record.retention


def is_expired(record: TaskRecord, now: datetime) -> bool:
    """Whether the task counts as gone, removed already or not."""
    deadline = expires_at(record)
    return deadline is not None and deadline <= now


def lifetime(record: TaskRecord, now: datetime) -> timedelta | None:
    """The time to live counted from creation, as the wire words it; None for a task kept for good.

    While the task runs it grows in steps of half a retention, so that it always ends at least half a retention ahead
    and yet stays the same over most polls. At the end it becomes the run time plus the retention, which is at least
    what was said before: a promise is never taken back.
    """
    if record.retention is None or record.retention > FOR_GOOD:
        return None
    if record.finished_at is not None:
        return record.finished_at - record.created_at + record.retention
    age = max(now - record.created_at, timedelta(0))
    half = max(record.retention / 2, timedelta(milliseconds=1))
    return record.retention + half * (age // half)


def backoff(attempt: int, *, base: timedelta, limit: timedelta) -> timedelta:
    """How long to wait after failure number `attempt` (from 0): doubling, up to `limit`."""
    # The exponent is capped because 2**attempt outgrows a timedelta long before anyone stops retrying.
    return min(base * 2 ** min(attempt, 30), limit)
