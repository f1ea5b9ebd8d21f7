"""Questions of a task that the client takes as tasks of its own.

A tool that asks this way (`elicit_as_task` in a task) has its question in the record like any other. The client is
asked for a task, whose id is noted in the record before anything else happens. So whoever comes next, over another
stream, in another session, or in another process after this one was killed, asks the client for that task, and no
person is asked twice. A client that does not take such questions as tasks is asked plainly.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR

from mcp_tasks.core.actor import Actor
from mcp_tasks.core.inputs import InputRequest
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.errors import AnswerRefused, InvalidResponse, StoreError, TasksError, TaskWasCancelled, UnknownTask
from mcp_tasks.legacy.server.carriers import Carrier, related_params
from mcp_tasks.legacy.server.client_driver import Driver
from mcp_tasks.legacy.shapes import REQUEST_CANCELLED
from mcp_tasks.quiet import get_logger, what
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.tools.client_stream import StreamLost

logger: Final = get_logger(__name__)

MAX_FORGOTTEN: Final = 3
"""How often a client may forget a question before its tool is told."""

REMEMBERED: Final = 10_000
"""Questions whose tasks are known here before the record says so; the record is the truth."""

FAREWELL: Final = 4.0
"""Seconds to cancel a task that nobody waits for."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question of a task, as it is put to a client.

    Attributes:
        before: How many answers to it did not fit. It is another question to the client then, which may keep its
            answers by the name of the question, and would give the same one again.
    """

    record: TaskRecord
    key: str
    question: InputRequest
    before: int = 0

    @property
    def name(self) -> str:
        """What the client is told that the question is called."""
        return self.key if self.before == 0 else f"{self.key}~{self.before + 1}"


class HostedQuestions:
    """Asks, as a task of the client's where the tool wants that and the client does it."""

    def __init__(self, runtime: Callable[[], TaskRuntime]) -> None:
        self._runtime = runtime
        self._known: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def ask(self, asked: Asked, carrier: Carrier) -> dict[str, Any]:
        """The client's answer.

        Raises:
            AnswerRefused: The client answered with an error.
            StreamLost: It did not answer, and cannot any more on this stream.
        """
        record, key, question = asked.record, asked.key, asked.question
        if "task" not in question.params:
            return await carrier.ask(record.id, asked.name, question)
        plain = replace(question, params={name: value for name, value in question.params.items() if name != "task"})
        if not carrier.hosts(question):
            return await carrier.ask(record.id, asked.name, plain)
        driver = Driver(carrier.request)
        try:
            return await self._drive(driver, asked, related_params(record.id, asked.name, plain))
        except asyncio.CancelledError:
            with anyio.move_on_after(FAREWELL, shield=True):
                await self._cancel_unless_open(driver, record, key)
            raise
        except TaskWasCancelled as exc:
            raise AnswerRefused(REQUEST_CANCELLED, str(exc)) from exc
        except (UnknownTask, InvalidResponse) as exc:
            raise AnswerRefused(INTERNAL_ERROR, str(exc)) from exc
        except MCPError as exc:
            raise AnswerRefused(exc.error.code, exc.error.message, exc.error.data) from exc

    async def _drive(self, driver: Driver, asked: Asked, params: dict[str, Any]) -> dict[str, Any]:
        record, key, question = asked.record, asked.key, asked.question
        # Of a question that is asked again, the task in the record is the one whose answer did not fit.
        task_id = self._known.get((record.id, key)) or (question.hosted_as if asked.before == 0 else None)
        for forgotten in range(MAX_FORGOTTEN):
            try:
                if task_id is None:
                    task_id = (await driver.create(question.method, params, _ttl(question))).id
                    await self._note(record, key, task_id)
                result = await driver.result(task_id)
            except UnknownTask:
                # It has expired, or the client has lost it, or is another client.
                task_id = None
                if forgotten == MAX_FORGOTTEN - 1:
                    raise
            else:
                self._known.pop((record.id, key), None)
                return {name: value for name, value in result.items() if name != "_meta"}
        raise AssertionError("the last time raises")  # pragma: no cover - only a defect of ours comes here

    async def _note(self, record: TaskRecord, key: str, task_id: str) -> None:
        self._known[record.id, key] = task_id
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        try:
            await self._runtime().host(record, key, task_id, actor=Actor("client", record.owner))
        except (StoreError, UnknownTask) as exc:
            # After a crash the person would be asked again, which is better than not at all.
            logger.warning("task %s…: that its client holds a question is not stored: %s", record.id[:12], exc)

    async def _cancel_unless_open(self, driver: Driver, record: TaskRecord, key: str) -> None:
        """Cancel the client's task if the question is closed. While it is open, another stream will ask for it."""
        task_id = self._known.get((record.id, key))
        try:
            seen = await self._runtime().store.get(record.id)
            if seen is not None and key in seen.inputs.outstanding:
                return
            self._known.pop((record.id, key), None)
            if task_id is not None:
                await driver.cancel(task_id)
        except (TasksError, MCPError, StreamLost) as exc:
            logger.debug("a task of a client is left to expire: %s", what(exc))


def _ttl(question: InputRequest) -> timedelta | None:
    ttl: Any = question.params["task"].get("ttl")
    return None if ttl is None else timedelta(milliseconds=ttl)
