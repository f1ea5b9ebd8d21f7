"""What a session is told of its tasks without asking: their status, their progress, their questions.

One listener for all tasks of a session. What waits for a slow reader is at most one hint per task: it is told less, and
never what has passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final, Protocol

import anyio.lowlevel

from mcp_tasks.core.record import Progress, TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.core.text import valid_text
from mcp_tasks.errors import StoreError
from mcp_tasks.legacy.server.asking import OpenQuestions
from mcp_tasks.legacy.server.audience import Audience, Holder
from mcp_tasks.legacy.server.carriers import Carrier
from mcp_tasks.legacy.server.render import render_detailed, render_task
from mcp_tasks.legacy.shapes import related_task
from mcp_tasks.quiet import get_logger, quietly
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.stores.base import Hint
from mcp_tasks.stores.hints import Inbox

logger: Final = get_logger(__name__)

STATUS: Final = "notifications/tasks/status"
PROGRESS: Final = "notifications/progress"

LEAST_PAUSE: Final = 1.0
SHARE_OF_AGE: Final = 16
"""Between two statuses that only tell of progress are a second and a sixteenth of the task's age. So 2,000 reports give
fewer than 100 of them, however far apart they are. Whoever wants each report sends a progress token."""


def pause_between(age: float) -> float:
    """The least seconds between two statuses that tell of progress, for a task of so many seconds."""
    return max(LEAST_PAUSE, age / SHARE_OF_AGE)


@dataclass(eq=False, slots=True)
class Followed:
    """A task that a session has, as far as it has been told of it.

    Attributes:
        told: The status that it was last told.
        token: Under what it asked for progress, if it did.
        progress: The progress that it was last told: the next must be more, whatever a run that was started again says.
        seen: The version of the task that was last looked at.
        shown: The progress that it was last told with the status.
        next_status: The earliest time, on the event loop's clock, at which it is told of progress alone.
        later: The look at it then, if there is to be one.
    """

    told: TaskStatus
    token: str | int | None = None
    progress: float | None = None
    seen: int = 0
    shown: Progress | None = None
    next_status: float = 0.0
    later: asyncio.TimerHandle | None = None


class Follower(Holder, Protocol):
    """A session, as far as it follows tasks."""

    @property
    def followed(self) -> Mapping[str, Followed]:
        """The tasks that it is told of."""
        ...

    def ended(self, task_id: str, record: TaskRecord | None) -> None:
        """A task has ended, or is gone: there is no more to tell of it."""
        ...

    async def flush(self, task_id: str) -> None:
        """Send what the tool of a task has said, as far as that can be sent now."""
        ...


class Pushes:
    """Tells one session of its tasks, for as long as it lives."""

    def __init__(
        self, follower: Follower, runtime: TaskRuntime, *, audience: Audience, questions: OpenQuestions, inbox: Inbox
    ) -> None:
        self._follower = follower
        self._runtime = runtime
        self._audience = audience
        self._questions = questions
        self._inbox = inbox

    async def keep_telling(self) -> None:
        """Tell of every change. Never ends by itself."""
        async for hint in self._inbox:
            # A store may answer without ever giving way, and so may a client.
            await anyio.lowlevel.checkpoint()
            followed = self._follower.followed.get(hint.task_id)
            if followed is None or hint.version <= followed.seen:
                continue
            try:
                await self._look(hint.task_id, followed)
            except StoreError as exc:
                logger.debug("task %s… cannot be looked at now: %s", hint.task_id[:12], exc)
                self._look_later(hint)
            except Exception:
                # Whatever it is about one task, the others are told of.
                logger.error("task %s… is not told of", hint.task_id[:12], exc_info=quietly())

    def _look_later(self, hint: Hint) -> None:
        delay = self._runtime.settings.look_interval.total_seconds()
        asyncio.get_running_loop().call_later(delay, self._inbox.put, hint)

    async def _look(self, task_id: str, followed: Followed) -> None:
        record = await self._runtime.store.get(task_id)
        if record is None:
            self._follower.ended(task_id, None)
            return
        followed.seen = record.version
        self._questions.look(record)
        if record.is_final:
            await self._follower.flush(task_id)
            self._follower.ended(task_id, record)
        else:
            await self._tell_progress(record, followed)
        if record.status is not followed.told or self._shows_progress(record, followed):
            now = self._runtime.now()
            followed.told, followed.shown = record.status, record.progress
            pause = pause_between((now - record.created_at).total_seconds())
            followed.next_status = asyncio.get_running_loop().time() + pause
            status = render_task(record, now) if record.is_final else render_detailed(record, now)
            await self._tell(self._follower.own, STATUS, status)

    def _shows_progress(self, record: TaskRecord, followed: Followed) -> bool:
        """Whether a status is to be sent for its progress now. If it is too early, the task is looked at again."""
        if record.is_final or record.progress in (None, followed.shown):
            return False
        loop = asyncio.get_running_loop()
        early = followed.next_status - loop.time()
        if early > 0 and followed.later is None:
            followed.later = loop.call_later(early, self._look_again, record.id, followed, context=Context())
        return early <= 0

    def _look_again(self, task_id: str, followed: Followed) -> None:
        followed.later = None
        self._inbox.put(Hint(task_id, followed.seen + 1))

    async def _tell_progress(self, record: TaskRecord, followed: Followed) -> None:
        progress = record.progress
        if followed.token is None or progress is None:
            return
        # 2025-11-25, "Progress": the value MUST increase with each notification. A run that was started again begins
        # anew, and is told of where it gets further than the one before.
        if followed.progress is not None and progress.progress <= followed.progress:
            return
        carrier = self._progress_carrier(record.id)
        if carrier is not None:
            followed.progress = progress.progress
            await self._tell(carrier, PROGRESS, _progress_params(record.id, followed.token, progress))

    def _progress_carrier(self, task_id: str) -> Carrier | None:
        results = [result.carrier for result in self._audience.results_of(self._follower, task_id)]
        own = self._follower.own
        return next((each for each in (*results, own) if each is not None and each.is_open), None)

    async def _tell(self, carrier: Carrier | None, method: str, params: dict[str, Any]) -> None:
        if carrier is not None:
            await carrier.tell(method, params)


def _progress_params(task_id: str, token: str | int, progress: Progress) -> dict[str, Any]:
    params: dict[str, Any] = {"progressToken": token, "progress": progress.progress, "_meta": related_task(task_id)}
    if progress.total is not None:
        params["total"] = progress.total
    if progress.message is not None:
        params["message"] = valid_text(progress.message)
    return params
