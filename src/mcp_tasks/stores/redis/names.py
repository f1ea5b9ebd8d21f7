"""How things are called in Redis, and where a task stands in the indexes.

An index is a sorted set with one score for all, so that its members are in the order of their bytes: a place, and
behind it the id of the task. The place of an instant has eight bytes, which are in the order of the instants. Names of
indexes are put together with colons, here and in `lua/tasks.lua`. A part has no colon of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from mcp_tasks.model.record import ALWAYS, TaskRecord, TaskStatus
from mcp_tasks.stores.base import Field, Share
from mcp_tasks.stores.codec import expiry, is_at_work, is_resuming, ready, sort_key, to_micros
from mcp_tasks.stores.fairness import TOOL_METHOD

Argument: TypeAlias = bytes | str | int

_AT_ANY_TIME = to_micros(ALWAYS)
_OFFSET = 2**63
PLACE = 8
"""Bytes of the place of an instant."""

AT_WORK, RESUMING = b"0", b"1"
"""The places of tasks in the indexes of those at work: behind them are those that are about to be again."""


def to_bytes(text: str) -> bytes:
    """A string as it is kept. A lone surrogate has no UTF-8 form, and any string may be asked for."""
    return text.encode("utf-8", "surrogatepass")


def from_bytes(data: bytes) -> str:
    """The string that `to_bytes` was given; for bytes that it never wrote, a text that names nothing."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "backslashreplace")


def part(text: str) -> bytes:
    """A string as a part of a name."""
    return to_bytes(text).replace(b"%", b"%25").replace(b":", b"%3A")


def whole(part: bytes) -> str:
    """The string that `part` was given."""
    return from_bytes(part.replace(b"%3A", b":").replace(b"%25", b"%"))


def name(kind: str, *parts: str) -> bytes:
    """The name of an index or of something else that is kept."""
    return b":".join((kind.encode(), *map(part, parts)))


def owner_part(owner: str | None) -> bytes:
    """An owner as a part of a name; an empty one for no owner."""
    return b"" if owner is None else b"=" + part(owner)


def of_owner(kind: str, namespace: str, owner: str | None, *parts: str) -> bytes:
    """The name of something that belongs to an owner."""
    return name(kind, namespace, *parts) + b":" + owner_part(owner)


def place(micros: int) -> bytes:
    """Where an instant stands, or another number."""
    return (micros + _OFFSET).to_bytes(PLACE, "big")


def instant(place: bytes) -> int:
    """The instant of a place."""
    return int.from_bytes(place[:PLACE], "big") - _OFFSET


def listing(namespace: str, field: Field, of: str | None, status: TaskStatus | None) -> bytes:
    """The index of a listing. A session, or a task, has few tasks: their statuses are read from the rows."""
    if field in ("session", "parent"):
        return name(field, namespace, of or "")
    if field == "owner":
        kind = "owner" if status is None else "owner-status"
        return of_owner(kind, namespace, of, *(() if status is None else (status.value,)))
    return name("tasks", namespace) if status is None else name("status", namespace, status.value)


def indexed(record: TaskRecord, since: int) -> Iterator[Argument]:
    """Where the task is to be found, as the scripts take it (`take_indexed`): pairs of an index and a place in it;
    where it stands while it is queued; and under which name the bytes of its owner are counted.

    Args:
        since: When it became queued, if it just did.
    """
    places = [each for pair in _places(record) for each in pair]
    line: Sequence[Argument] = ()
    if ready(record) == _AT_ANY_TIME:
        line = (
            part(record.namespace),
            part(record.queue),
            place(-record.priority),
            owner_part(record.owner),
            tool_part(record.method, record.name),
            place(sort_key(record)),
            place(since),
        )
    yield from (len(places), *places, len(line), *line, of_owner("bytes", record.namespace, record.owner))


def tool_part(method: str, tool: str) -> bytes:
    """A tool as two parts of a name: the method and the name of its tasks."""
    return part(method) + b":" + part(tool)


def _places(record: TaskRecord) -> Iterator[tuple[bytes, bytes]]:
    namespace, created, status = record.namespace, place(sort_key(record)), record.status
    ready_at, expires = ready(record), expiry(record)
    yield listing(namespace, "", None, None), created
    yield listing(namespace, "", None, status), created
    yield listing(namespace, "owner", record.owner, None), created
    yield listing(namespace, "owner", record.owner, status), created
    if record.session is not None:
        yield name("session", namespace, record.session), created
    if record.parent is not None:
        yield name("parent", namespace, record.parent), created
    if record.worker is not None:
        yield name("claimed", record.worker), created
        yield name("having", namespace), part(record.worker) + b":"
        if is_at_work(record):
            mark = RESUMING if is_resuming(record) else AT_WORK
            yield of_owner("owner-at-work", namespace, record.owner), mark
            yield name("tool-at-work", namespace, record.method, record.name), mark
    if ready_at is not None and ready_at != _AT_ANY_TIME:
        yield name("due", namespace), place(ready_at)
        yield name("parked", namespace), part(record.queue) + b":" + place(ready_at)
    if expires is not None:
        yield b"expiring", place(expires) + created


def share_arguments(share: Share | None) -> Iterator[Argument]:
    """A share as the scripts take it."""
    if share is None:
        yield 0
        return
    yield 2 + 2 * len(share.tools)
    yield from (share.owner, b"" if share.owner_at_work is None else share.owner_at_work)
    for tool, most in share.tools.items():
        yield from (tool_part(TOOL_METHOD, tool), most)
