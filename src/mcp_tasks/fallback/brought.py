"""What a request that comes back for its task brings along: the id of the task, and answers.

The store may be away just then. The task is not, so that is waited for: to answer with an error would have the client
start the work a second time, or ask its person again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, cast

import anyio

from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.pacing import backoff
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.errors import AnswerRefused, StoreUnavailable
from mcp_tasks.fallback.later import Later
from mcp_tasks.protocol.answers import answers_to
from mcp_tasks.protocol.taking import misfits, take_answer
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime

logger: Final = get_logger(__name__)

SOON: Final = timedelta(milliseconds=50)
SELDOM: Final = timedelta(seconds=2)
"""Pauses between looks at a store that is away: at first, and in the end."""


async def find_patiently(
    runtime: TaskRuntime, task_id: str, owner: str | None, limit: timedelta | None
) -> TaskRecord | None:
    """The owner's task of that id; None if the store is away for as long as `limit`.

    Raises:
        UnknownTask: There is no such task for this owner.
    """
    with anyio.move_on_after(None if limit is None else limit.total_seconds()):
        for failures in itertools.count():
            try:
                return await runtime.get(task_id, owner=owner)
            except StoreUnavailable as exc:
                logger.debug("task %s… cannot be looked at now: %s", task_id[:12], exc)
            await anyio.sleep(backoff(failures, base=SOON, limit=SELDOM).total_seconds())
    return None


class BroughtAnswers:
    """Takes the answers that requests of one server bring."""

    def __init__(self, runtime: Callable[[], TaskRuntime], later: Later) -> None:
        self._runtime = runtime
        self._later = later
        self._writing: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def take(self, record: TaskRecord, params: JsonObject, limit: timedelta | None) -> bool:
        """Write down the answers among the params of a request; whether they are within `limit`.

        One that does not fit its question is for the tool to see. One that cannot be written yet is written later,
        whatever becomes of the request: its person is not asked again, by the requests that come after it either.
        """
        brought = params.get("inputResponses")
        answers: Mapping[str, Any] = cast("Mapping[str, Any]", brought) if isinstance(brought, Mapping) else {}
        # One that is being written is there already: the first counts.
        new = {key: each for key, each in answers_to(record, answers).items() if (record.id, key) not in self._writing}
        for key, refused in misfits(record, new, self._runtime().limits).items():
            self._write(record, key, refused or new[key])
        outstanding = ((record.id, key) for key in record.inputs.outstanding)
        writing = [self._writing[which] for which in outstanding if which in self._writing]
        if not writing:
            return True
        _, unwritten = await asyncio.wait(writing, timeout=None if limit is None else limit.total_seconds())
        return not unwritten

    def _write(self, record: TaskRecord, key: str, answer: dict[str, Any] | AnswerRefused) -> None:
        """Begin to write an answer down."""
        which = (record.id, key)
        self._writing[which] = self._later.do(take_answer(self._runtime, record, key, answer))
        self._writing[which].add_done_callback(lambda _: self._writing.pop(which))
