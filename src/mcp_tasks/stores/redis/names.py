"""How things are called in Redis, and where a task stands in the indexes.

An index is a sorted set with one score for all, so that its members are in the order of their bytes: a place, and
behind it the id of the task. The place of an instant has eight bytes, which are in the order of the instants.

Names of indexes are put together with colons, here and in the scripts, which make up those of what is queued
(`lua/indexes.lua`). A part has no colon of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mcp_tasks.model.record import ALWAYS, TaskRecord, TaskStatus
from mcp_tasks.stores.base import EVERYBODY, ChildrenOf, InSession, OwnedBy, Owners, Share, Whose
from mcp_tasks.stores.codec import expiry, is_at_work, is_resuming, ready, sort_key, to_micros
from mcp_tasks.stores.fairness import TOOL_METHOD

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
    """An owner as a part of a name; nobody is none of them."""
    return b"" if owner is None else b"=" + part(owner)


def key_name(namespace: str, key: str, owner: str | None) -> bytes:
    """What has the id of the task that stands under an idempotency key."""
    return name("key", namespace, key) + b":" + owner_part(owner)


def tool_part(method: str, tool: str) -> bytes:
    """A tool as the last part of a name: the method and the name of its tasks."""
    return part(method) + b":" + part(tool)


def place(micros: int) -> bytes:
    """Where an instant stands."""
    return (micros + _OFFSET).to_bytes(PLACE, "big")


def instant(place: bytes) -> int:
    """The instant of a place."""
    return int.from_bytes(place[:PLACE], "big") - _OFFSET


def owner_at_work(namespace: str, owner: str | None) -> bytes:
    """The index of an owner's tasks that are at work."""
    return b"owner-at-work:" + part(namespace) + b":" + owner_part(owner)


def tool_at_work(namespace: str, method: str, tool: str) -> bytes:
    """The index of a tool's tasks that are at work."""
    return b"tool-at-work:" + part(namespace) + b":" + tool_part(method, tool)


def sizes(namespace: str, owner: str | None) -> bytes:
    """The index of an owner's tasks by how much is kept beside them."""
    return b"sized:" + part(namespace) + b":" + owner_part(owner)


def usage(namespace: str, whose: Owners) -> tuple[bytes, list[bytes]]:
    """The index of the sizes of somebody's tasks, or nothing for those of everybody; and those of the open ones."""
    open_ones = [listing(namespace, whose, status) for status in TaskStatus if not status.is_final]
    if whose is EVERYBODY:
        return b"", open_ones
    return sizes(namespace, whose.owner if isinstance(whose, OwnedBy) else None), open_ones


def listing(namespace: str, whose: Whose, status: TaskStatus | None) -> bytes:
    """The index of a listing. A session, or a task, has few tasks: their statuses are read from the rows."""
    if isinstance(whose, InSession):
        return name("session", namespace, whose.session)
    if isinstance(whose, ChildrenOf):
        return name("parent", namespace, whose.parent)
    if whose is EVERYBODY:
        return name("tasks", namespace) if status is None else name("status", namespace, status.value)
    return _owned(namespace, whose.owner if isinstance(whose, OwnedBy) else None, status)


def _owned(namespace: str, owner: str | None, status: TaskStatus | None) -> bytes:
    if status is None:
        return name("owner", namespace) + b":" + owner_part(owner)
    return name("owner-status", namespace, status.value) + b":" + owner_part(owner)


def indexed(record: TaskRecord, since: int) -> Iterator[bytes | int]:
    """Where the task is to be found, as the scripts take it (`take_indexed`): pairs of an index and a place in it; the
    tally of the namespace's workers, and the worker; and what `hand_out` goes by, if the task is queued.

    Args:
        since: When it became queued, if it just did.
    """
    namespace = part(record.namespace)
    places = [each for pair in _places(record) for each in pair]
    worker = [] if record.worker is None else [b"having:" + namespace, to_bytes(record.worker)]
    line: list[bytes] = []
    if ready(record) == _AT_ANY_TIME:
        line = [
            namespace,
            part(record.queue),
            b"%d" % record.priority,
            owner_part(record.owner),
            tool_part(record.method, record.name),
            place(sort_key(record)),
            place(since),
        ]
    for each in (places, worker, line):
        yield len(each)
        yield from each


def _places(record: TaskRecord) -> Iterator[tuple[bytes, bytes]]:
    namespace, created = record.namespace, place(sort_key(record))
    ready_at, expires = ready(record), expiry(record)
    yield name("tasks", namespace), created
    yield name("status", namespace, record.status.value), created
    yield _owned(namespace, record.owner, None), created
    yield _owned(namespace, record.owner, record.status), created
    if record.session is not None:
        yield name("session", namespace, record.session), created
    if record.parent is not None:
        yield name("parent", namespace, record.parent), created
    if record.worker is not None:
        yield name("claimed", record.worker), created
        if is_at_work(record):
            mark = RESUMING if is_resuming(record) else AT_WORK
            yield owner_at_work(namespace, record.owner), mark
            yield tool_at_work(namespace, record.method, record.name), mark
    if ready_at is not None and ready_at != _AT_ANY_TIME:
        yield name("due", namespace), place(ready_at)
        yield name("parked", namespace), part(record.queue) + b":" + place(ready_at)
    if expires is not None:
        yield b"expiring", place(expires) + created


def share_arguments(share: Share | None) -> Iterator[bytes | int]:
    """A share as the scripts take it."""
    if share is None:
        yield 0
        return
    tools: Mapping[str, int] = share.tools
    yield 2 + 2 * len(tools)
    yield share.owner
    yield b"" if share.owner_at_work is None else share.owner_at_work
    for tool, most in tools.items():
        yield tool_part(TOOL_METHOD, tool)
        yield most
