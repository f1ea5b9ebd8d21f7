"""The text of answers to `tasks/get`, kept while there is room: as long as a task does not change, neither does what is
said of it, but for a few fields that go with the time.

Whether a task has changed is asked of the store each time, so a text is right whichever process changed the task.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime
from sys import getsizeof
from typing import Final

from mcp_tasks.model.json import JsonObject
from mcp_tasks.model.record import TaskRecord
from mcp_tasks.protocol.dialect import Dialect, Message
from mcp_tasks.protocol.shapes import encode_plain

MOST_BYTES: Final = 16 * 1024 * 1024
"""Of all texts of a server together."""

LARGEST: Final = 64 * 1024
"""Bytes of one text. A large answer is fetched once as a rule, and would take the place of hundreds that are polled."""

RECORD_BYTES: Final = 1_024
"""What is kept beside the text of a task, at the most, but for names, which are as long as they are."""


class Text:
    """What is said of one version of a task.

    Attributes:
        record: As much of the task as it takes to see whether it is still so, and for how long.
        size: Bytes of memory.
    """

    __slots__ = ("_dialect", "_lasting", "record", "size")

    def __init__(self, dialect: Dialect, record: TaskRecord, answer: Message, meta: JsonObject) -> None:
        self.record: TaskRecord = _slim(record)
        self._dialect = dialect
        moving = dialect.moving(record, record.updated_at)
        fields = {name: value for name, value in answer.fields.items() if name not in moving}
        fields["_meta"] = {**fields.get("_meta", {}), **meta}
        self._lasting = Message(fields=fields, large=answer.large).encode()[1:]
        names = (record.id, record.owner, record.namespace, record.method, record.name, record.trace)
        self.size: int = len(self._lasting) + RECORD_BYTES + sum(map(getsizeof, names))

    def at(self, now: datetime) -> bytes:
        """The whole answer, as of now."""
        return b"%b,%b" % (encode_plain(self._dialect.moving(self.record, now))[:-1], self._lasting)


class Texts:
    """The texts of one server.

    Args:
        meta: What the door adds to the `_meta` of every answer.
    """

    def __init__(self, meta: JsonObject, most_bytes: int = MOST_BYTES) -> None:
        self._meta = meta
        self._most_bytes = most_bytes
        self._texts: OrderedDict[str, Text] = OrderedDict()
        self._bytes = 0

    def find(self, task_id: str, owner: str | None) -> Text | None:
        """What was last said of the task to its owner, which may have changed since."""
        text = self._texts.get(task_id)
        if text is None or text.record.owner != owner:
            # Also for another's: it is then looked for as if nobody had it, with as many looks.
            return None
        self._texts.move_to_end(task_id)
        return text

    def add(self, dialect: Dialect, record: TaskRecord, answer: Message) -> Text:
        """The text of an answer, kept in place of what was said of the task before."""
        self.forget(record.id)
        text = Text(dialect, record, answer, self._meta)
        if text.size <= LARGEST:
            self._texts[record.id] = text
            self._bytes += text.size
            while self._bytes > self._most_bytes:
                self.forget(next(iter(self._texts)))
        return text

    def forget(self, task_id: str) -> None:
        """Drop what is kept of a task."""
        text = self._texts.pop(task_id, None)
        if text is not None:
            self._bytes -= text.size


def _slim(record: TaskRecord) -> TaskRecord:
    """The task without what its text says: of questions alone there may be a hundred times as much."""
    return TaskRecord(
        id=record.id,
        owner=record.owner,
        # These two for those who watch.
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
