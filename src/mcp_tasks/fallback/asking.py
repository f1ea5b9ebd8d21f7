"""The questions of a task, asked on an open call of an older era as a plain call would ask them.

They are sent on the call's own stream, each once. What comes back goes to the task: an answer as it is, an error and an
answer that does not fit as what the tool would see in a plain call. A question outlives its call (`asked`).
"""

from __future__ import annotations

import asyncio
from typing import Final

import anyio

from mcp_tasks.adapters.era import RequestContext
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.fallback.asked import CallStream, Sent, TaskQuestions, asked_by
from mcp_tasks.runtime import TaskRuntime

LEAVE_LIMIT: Final = 1.0
"""Seconds to wait until questions are cancelled at the client, before its call is answered."""


class CallQuestions:
    """The questions of one task, asked on one open call.

    Args:
        runtime: Takes the answers.
        ctx: The call.
    """

    def __init__(self, runtime: TaskRuntime, ctx: RequestContext) -> None:
        self._runtime = runtime
        self._ctx = ctx
        self._stream: CallStream | None = None
        self._sent: list[Sent] = []
        self._task: TaskQuestions | None = None

    @property
    def can_ask(self) -> bool:
        """Whether there is a way to ask: none on the newest wire, over stateless HTTP, and in answers of plain JSON."""
        return self._ctx.session.can_send_request

    def reaches(self, record: TaskRecord) -> bool:
        """Whether anything that the task asks now has been asked on some call, or can be on this one.

        If not, waiting on this call leads nowhere.
        """
        task = asked_by(self._runtime).tasks.get(record.id)
        return any(
            (task is not None and task.is_asked(key)) or (self.can_ask and self._own_stream().takes(question))
            for key, question in record.inputs.outstanding.items()
        )

    def look(self, record: TaskRecord) -> None:
        """Ask what is new, and cancel what is answered or withdrawn.

        What some other call has asked is left alone for as long as its client has it.
        """
        asked = asked_by(self._runtime)
        if record.id in asked.tasks:
            asked.tasks[record.id].see(record)
        if record.inputs.outstanding and self.can_ask and self.reaches(record):
            self._task = asked.of(self._runtime, record)
            self._sent += self._task.ask(self._own_stream())

    async def leave(self) -> None:
        """The call is about to be answered: first see to it that what was cancelled is cancelled at the client.

        After its answer, the stream of a call over HTTP carries nothing more. What is open stays open.
        """
        if self._stream is not None:
            self._stream.leave()
        ending = [sent.waiting for sent in self._sent if sent.is_withdrawn and sent.waiting is not None]
        if ending:
            with anyio.move_on_after(LEAVE_LIMIT, shield=True):
                await asyncio.wait(ending)

    def take_back(self) -> None:
        """The client has cancelled the call, and in a plain call the questions with it: it does not show them now."""
        if self._stream is not None and self._task is not None:
            self._task.take_back(self._stream)

    def _own_stream(self) -> CallStream:
        if self._stream is None:
            self._stream = CallStream(self._ctx)
        return self._stream
