"""Responses to `tasks/get`, kept while there is room: as long as a task does not change, only its times do.

Whether a task has changed is asked of the store each time, so a response is right whichever process changed the task.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime
from sys import getsizeof
from typing import Final

from mcp_tasks.model.json import JsonObject
from mcp_tasks.model.record import TaskRecord
from mcp_tasks.protocol.shapes import Message, encode_plain, render_moving

MOST_BYTES: Final = 16 * 1024 * 1024
"""Of all responses of a server together."""

LARGEST: Final = 64 * 1024
"""Bytes of one response. A large one is usually fetched once, and would take the place of hundreds that are polled."""

RECORD_BYTES: Final = 1_024
"""The most that is kept beside the response of a task, but for names, which are as long as they are."""


class CachedResponse:
    """The response for one version of a task.

    Attributes:
        record: As much of the task as it takes to see whether it is still so, and for how long.
        size: Bytes of memory.
    """

    __slots__ = ("_lasting", "record", "size")

    def __init__(self, record: TaskRecord, response: Message, meta: JsonObject) -> None:
        # Without its questions and progress: there may be a hundred times as much of them.
        self.record: TaskRecord = TaskRecord(
            id=record.id,
            owner=record.owner,
            # These two for observers.
            name=record.name,
            trace=record.trace,
            method=record.method,
            namespace=record.namespace,
            version=record.version,
            created_at=record.created_at,
            updated_at=record.updated_at,
            finished_at=record.finished_at,
            retention=record.retention,
            poll_interval=record.poll_interval,
        )
        moving = render_moving(record, record.updated_at)
        fields = {name: value for name, value in response.fields.items() if name not in moving}
        fields["_meta"] = {**fields.get("_meta", {}), **meta}
        self._lasting = Message(fields=fields, large=response.large).encode()[1:]
        names = (record.id, record.owner, record.namespace, record.method, record.name, record.trace)
        self.size: int = len(self._lasting) + RECORD_BYTES + sum(map(getsizeof, names))

    def at(self, now: datetime) -> bytes:
        """The whole response, as of now."""
        return b"%b,%b" % (encode_plain(render_moving(self.record, now))[:-1], self._lasting)


class ResponseCache:
    """The responses of one server.

    Args:
        meta: What the server adds to the `_meta` of every response.
    """

    def __init__(self, meta: JsonObject, most_bytes: int = MOST_BYTES) -> None:
        self._meta = meta
        self._most_bytes = most_bytes
        self._responses: OrderedDict[str, CachedResponse] = OrderedDict()
        self._bytes = 0

    def find(self, task_id: str, owner: str | None) -> CachedResponse | None:
        """The last response for the task to its owner; the task may have changed since."""
        response = self._responses.get(task_id)
        if response is None or response.record.owner != owner:
            # Also for another's: it is then looked for as if it did not exist, with as many looks.
            return None
        self._responses.move_to_end(task_id)
        return response

    def add(self, record: TaskRecord, response: Message) -> CachedResponse:
        """The response, kept in place of the one before."""
        self._forget(record.id)
        cached = CachedResponse(record, response, self._meta)
        if cached.size <= LARGEST:
            self._responses[record.id] = cached
            self._bytes += cached.size
            while self._bytes > self._most_bytes:
                self._forget(next(iter(self._responses)))
        return cached

    def _forget(self, task_id: str) -> None:
        response = self._responses.pop(task_id, None)
        if response is not None:
            self._bytes -= response.size
