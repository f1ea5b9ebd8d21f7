"""The open questions of tasks, on their way to a client: each on one stream at a time.

A question goes out on an open `tasks/result` of its task if there is one, else on the own stream of a session that has
the task. It is sent again only when that stream is gone and there is another. The client may have read it before that,
so an answer to what was sent earlier still counts, until there is one. One whose answer does not fit it is asked again,
a few times, before its tool is told.
Who sees a task change says so here (`look`), and so does who opens or closes a stream. Streams of other processes are
not known here: a task that sessions of two processes have may be asked about in both, and the first answer counts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR

from mcp_tasks._utils import BoundedDict
from mcp_tasks.errors import AnswerRefused, InvalidResponse, StoreError, TasksError, TaskWasCancelled, UnknownTask
from mcp_tasks.legacy.client_tasks import Driver
from mcp_tasks.legacy.shapes import REQUEST_CANCELLED, plain_data
from mcp_tasks.legacy.streams import Audience, Carrier, related_params
from mcp_tasks.model.record import Actor, InputRequest, TaskRecord
from mcp_tasks.protocol.answers import misfit, take_answer
from mcp_tasks.protocol.shapes import TaskSnapshot
from mcp_tasks.quiet import get_logger, quietly, what
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.server.tool_runner import StreamLost

# ---- hosted questions
# Questions of a task that the client takes as tasks of its own.


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
        self._known: BoundedDict[tuple[str, str], str] = BoundedDict(REMEMBERED)

    async def ask(self, asked: Asked, carrier: Carrier) -> dict[str, Any]:
        """The client's answer.

        Raises:
            AnswerRefused: The client answered with an error.
            StreamLost: It did not answer, and cannot any more on this stream.
        """
        record, question = asked.record, asked.question
        if "task" not in question.params:
            return await carrier.ask(record.id, asked.name, question)
        plain = replace(question, params={name: value for name, value in question.params.items() if name != "task"})
        if not carrier.hosts(question):
            return await carrier.ask(record.id, asked.name, plain)
        driver = Driver(carrier.request)
        try:
            return await self._drive(driver, asked, related_params(record.id, asked.name, plain))
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
        creating: asyncio.Future[TaskSnapshot] | None = None
        for forgotten in range(MAX_FORGOTTEN):
            try:
                if task_id is None:
                    # Goes on if this is cancelled: the client may have taken the question already.
                    creating = asyncio.ensure_future(driver.create(question.method, params, _ttl(question)))
                    task_id = (await asyncio.shield(creating)).id
                    await self._note(record, key, task_id)
                result = await driver.result(task_id)
            except asyncio.CancelledError:
                with anyio.move_on_after(FAREWELL, shield=True):
                    await self._cancel_unless_open(driver, record, key, creating)
                raise
            except UnknownTask:
                # It has expired, or the client has lost it, or is another client.
                task_id = None
                if forgotten == MAX_FORGOTTEN - 1:
                    raise
            else:
                self._known.pop((record.id, key), None)
                return {name: value for name, value in result.items() if name != "_meta"}
        raise AssertionError("the last time raises")  # pragma: no cover - only a defect of ours comes here

    def _know(self, record: TaskRecord, key: str, task_id: str) -> None:
        self._known[record.id, key] = task_id

    async def _note(self, record: TaskRecord, key: str, task_id: str) -> None:
        self._know(record, key, task_id)
        try:
            await self._runtime().host(record, key, task_id, actor=Actor("client", record.owner))
        except (StoreError, UnknownTask) as exc:
            # After a crash the person would be asked again, which is better than not at all.
            logger.warning("task %s…: that its client holds a question is not stored: %s", record.id[:12], exc)

    async def _cancel_unless_open(
        self, driver: Driver, record: TaskRecord, key: str, creating: asyncio.Future[TaskSnapshot] | None
    ) -> None:
        """Cancel the client's task if the question is closed. While it is open, another stream will ask for it."""
        try:
            if creating is not None:
                self._know(record, key, (await creating).id)
            task_id = self._known.get((record.id, key))
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


LEAVE_LIMIT: Final = 1.0
"""Seconds to wait until questions are cancelled at the client. A server that is being shut down cannot send that any
more, and is not to be kept."""

MAX_MISFITS: Final = 3
"""Answers to one question that do not fit it: the last of them is for its tool to deal with."""

MAX_EARLIER: Final = 4
"""How often a question may have been sent earlier and still be answered there: a client may reconnect without end."""


@dataclass(eq=False, slots=True)
class _Sent:
    """A question that was sent and has not been answered."""

    carrier: Carrier
    waiting: asyncio.Task[None] | None = None
    is_answered: bool = False

    def cancel(self) -> None:
        """Cancel it at the client. An answer that has come is on its way to the task, and is left alone."""
        if self.waiting is not None and not self.is_answered:
            self.waiting.cancel()


@dataclass(eq=False, slots=True)
class _Asking:
    """A task that asks.

    Attributes:
        misfits: How many answers to a question did not fit it.
    """

    record: TaskRecord
    sent: dict[str, _Sent] = field(default_factory=dict[str, _Sent])
    misfits: Counter[str] = field(default_factory=Counter[str])
    earlier: dict[str, list[_Sent]] = field(default_factory=dict[str, list[_Sent]])

    def set_aside(self, key: str, sent: _Sent) -> None:
        """A question is sent anew. Not as a task of the client's, of which it would have two."""
        if "task" in self.record.inputs.outstanding[key].params:
            sent.cancel()
            return
        earlier = self.earlier.setdefault(key, [])
        earlier.append(sent)
        if len(earlier) > MAX_EARLIER:
            earlier.pop(0).cancel()

    def settle(self, key: str) -> None:
        """A question is answered or withdrawn: cancel it wherever it was sent."""
        for sent in (self.sent.pop(key, None), *self.earlier.pop(key, ())):
            if sent is not None:
                sent.cancel()


class OpenQuestions:
    """The questions that tasks ask of clients of this process.

    Args:
        runtime: Takes the answers.
        audience: Who has which task, and on which streams they can be asked.
    """

    def __init__(self, runtime: Callable[[], TaskRuntime], audience: Audience) -> None:
        self._runtime = runtime
        self._audience = audience
        self._tasks: dict[str, _Asking] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._hosted = HostedQuestions(runtime)

    @property
    def is_empty(self) -> bool:
        """Whether no task asks anything here."""
        return not self._tasks and not self._running

    def look(self, record: TaskRecord) -> None:
        """See what a task asks now: send what is new, and cancel what is answered or withdrawn."""
        asking = self._tasks.get(record.id)
        if asking is None:
            if not record.inputs.outstanding or not self._audience.has_task(record.id):
                return
            asking = self._tasks[record.id] = _Asking(record)
        elif record.version >= asking.record.version:
            asking.record = record
        outstanding = asking.record.inputs.outstanding
        for key in {*asking.sent, *asking.earlier} - set(outstanding):
            asking.settle(key)
        self.send(record.id)
        if not outstanding:
            del self._tasks[record.id]

    def send(self, task_id: str) -> None:
        """Send what the task asks and is on no open stream, as far as there is one."""
        asking = self._tasks.get(task_id)
        if asking is None:
            return
        for key, question in asking.record.inputs.outstanding.items():
            sent = asking.sent.get(key)
            if sent is not None and (sent.is_answered or sent.carrier.is_open):
                continue
            carrier = self._carrier(task_id, question)
            if carrier is None:
                continue
            if sent is not None:
                asking.set_aside(key, sent)
            asking.sent[key] = self._start(asking, key, question, carrier)

    async def leave(self, carrier: Carrier, task_id: str) -> None:
        """The stream of a request is about to end: cancel what was asked on it, and ask elsewhere if there is a way.

        On a stream that was cut off nothing can be cancelled, and the client may still answer what it has read.
        """
        unanswered = self._take_from(carrier, task_id) if carrier.is_open else ()
        carrier.is_open = False
        for sent in unanswered:
            sent.cancel()
        if waiting := [sent.waiting for sent in unanswered if sent.waiting is not None]:
            # Before the request is answered: after its answer, a stream carries nothing more.
            with anyio.move_on_after(LEAVE_LIMIT, shield=True):
                await asyncio.wait(waiting)
        self._ask_elsewhere(task_id)

    def lose(self, carrier: Carrier | None, task_ids: Iterable[str]) -> None:
        """A connection has ended: ask elsewhere if there is a way. The SDK ends what was asked on its stream."""
        if carrier is not None:
            carrier.is_open = False
        for task_id in task_ids:
            if carrier is not None:
                self._take_from(carrier, task_id)
            self._ask_elsewhere(task_id)

    def _ask_elsewhere(self, task_id: str) -> None:
        if self._audience.has_task(task_id):
            self.send(task_id)
        elif (asking := self._tasks.pop(task_id, None)) is not None:
            for key in {*asking.sent, *asking.earlier}:
                asking.settle(key)

    def _carrier(self, task_id: str, question: InputRequest) -> Carrier | None:
        carriers = self._audience.carriers(task_id)
        return next((each for each in carriers if each.is_open and each.takes(question)), None)

    def _take_from(self, carrier: Carrier, task_id: str) -> Sequence[_Sent]:
        """What was asked on a stream and is not answered, forgotten here: whoever has a stream has its connection."""
        asking = self._tasks.get(task_id)
        if asking is None:
            return []
        keys = [key for key, sent in asking.sent.items() if sent.carrier is carrier and not sent.is_answered]
        return [asking.sent.pop(key) for key in keys]

    def _start(self, asking: _Asking, key: str, question: InputRequest, carrier: Carrier) -> _Sent:
        sent = _Sent(carrier)
        asked = Asked(asking.record, key, question, before=asking.misfits[key])
        sent.waiting = asyncio.create_task(self._ask(asked, sent), name="mcp-tasks-question")
        self._running.add(sent.waiting)
        sent.waiting.add_done_callback(self._running.discard)
        return sent

    async def _ask(self, asked: Asked, sent: _Sent) -> None:
        record, key = asked.record, asked.key
        try:
            answer = await self._hosted.ask(asked, sent.carrier)
        except AnswerRefused as refused:
            sent.is_answered = True
            plain = AnswerRefused(refused.code, refused.message, plain_data(refused.data))
            await take_answer(self._runtime, record, key, plain)
        except StreamLost:
            sent.carrier.is_open = False
            self._drop(record.id, key, sent)
            self.send(record.id)
        except Exception:
            # The SDK could not send it. It would fail again on the same stream, and another may do better.
            logger.error("task %s… could not ask on a stream of its session", record.id[:12], exc_info=quietly())
            sent.carrier.is_open = False
            self._drop(record.id, key, sent)
        else:
            problem = misfit(record, key, answer, self._runtime().limits)
            if problem is None or self._is_last_misfit(record, key):
                sent.is_answered = True
                await take_answer(self._runtime, record, key, answer if problem is None else problem)
            else:
                self._drop(record.id, key, sent)
                self.send(record.id)

    def _is_last_misfit(self, record: TaskRecord, key: str) -> bool:
        """Count an answer that does not fit; whether its question is not to be asked again."""
        asking = self._tasks.get(record.id)
        if asking is None:
            # Nobody is there to be asked now. The question stays open for whoever comes.
            return False
        asking.misfits[key] += 1
        # Without the text, which quotes the answer.
        logger.warning(
            "task %s…: the answer to %r does not fit it (%d of %d)",
            *(record.id[:12], key, asking.misfits[key], MAX_MISFITS),
        )
        return asking.misfits[key] >= MAX_MISFITS

    def _drop(self, task_id: str, key: str, sent: _Sent) -> None:
        asking = self._tasks.get(task_id)
        if asking is None:
            return
        if asking.sent.get(key) is sent:
            del asking.sent[key]
        elif sent in asking.earlier.get(key, ()):
            asking.earlier[key].remove(sent)
