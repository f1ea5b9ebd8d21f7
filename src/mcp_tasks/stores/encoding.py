"""Encoding and decoding without holding the event loop: small values at once, large ones in a thread.

The hop to a thread and back takes about as long as encoding `LARGE` bytes does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from mcp_tasks.core.journal import JournalEntry
from mcp_tasks.core.json_bytes import LARGE, is_large
from mcp_tasks.core.record import Outcome, TaskRequest
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.fields import request_fields

T = TypeVar("T")

Line: TypeAlias = tuple[str, str, bytes]
"""A journal entry: its kind, its key (empty where it is encrypted with the value) and its encoded value."""


async def encoded_request(codec: Codec, task_id: str, request: TaskRequest) -> bytes:
    """The request as it is to be kept; raises `ValueNotStorable`, as the others here do."""
    fields = request_fields(request)
    large = is_large(fields)
    return await in_thread_if(large, codec.encode_request_fields, task_id, fields, large)


async def encoded_entries(codec: Codec, task_id: str, entries: Sequence[JournalEntry]) -> list[Line]:
    """The entries as they are to be kept."""
    lines: list[Line] = []
    for entry in entries:
        large = is_large(entry.value)
        lines.append((entry.kind, *await in_thread_if(large, codec.encode_entry, task_id, entry, large)))
    return lines


async def encoded_outcome(codec: Codec, task_id: str, outcome: Outcome | None) -> Outcome | None:
    """The outcome as it is to be kept, if there is one."""
    if outcome is None:
        return None
    return await in_thread_if(size_of(outcome) > LARGE, codec.encode_outcome, task_id, outcome)


async def in_thread_if(large: bool, act: Callable[..., T], *values: Any) -> T:
    """What comes of the act, done here or in a thread. Not one of anyio's: tools that block may have all of those."""
    return await asyncio.to_thread(act, *values) if large else act(*values)


def size_of(outcome: Outcome) -> int:
    """The bytes of an outcome."""
    return len(outcome.body) + len(outcome.meta or b"")
