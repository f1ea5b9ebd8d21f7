"""What the tasks of this process have asked on calls, and nobody has answered.

A question goes out on the stream of one call and outlives that call: the client has it, and its person may answer when
the call has long been answered in other words. So it is watched from here until it is answered, withdrawn, or its
connection ends, and other calls that wait for the same task leave it alone as long as its client has it.

Questions that another process asks are not known here: the first answer counts, as everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary

import anyio

from mcp_tasks.errors import AnswerRefused, StoreError, TaskUnreadable
from mcp_tasks.model.json import valid_json
from mcp_tasks.model.record import InputRequest, TaskRecord
from mcp_tasks.protocol.answers import misfit, take_answer
from mcp_tasks.quiet import get_logger, quietly
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.server.sdk import RequestContext, exchange_of, is_pipe
from mcp_tasks.server.tool_runner import ClientStream, StreamLost

# ---- call stream
# The stream of one call, on which its client is asked.


class CallStream(ClientStream):
    """The stream of one call.

    Attributes:
        connection: Which connection it is of, told by what it is.
        is_lost: Whether something that was sent on it went wrong. It would again.
    """

    def __init__(self, ctx: RequestContext) -> None:
        super().__init__(ctx.session, ctx.request_id)
        self.connection: object = ctx.session.client_params
        self.is_lost: bool = False
        self._is_pipe = is_pipe(ctx)
        self._exchange = exchange_of(ctx)
        self._was_cut_off = False
        self._is_left = False

    @property
    def is_open(self) -> bool:
        """Whether its client has it before it, as far as is known. A pipe stays open after a call; a client may close
        its dialogs with the call all the same."""
        if self._is_pipe:
            return not self._is_left
        return self._session.can_send_request and not self.is_cut_off

    @property
    def is_cut_off(self) -> bool:
        """Whether the client left before the call was answered, so that it may have read nothing."""
        return self._was_cut_off or (self._session.can_send_request and self._is_over())

    def takes(self, question: InputRequest) -> bool:
        """Whether the client can be asked this here."""
        return not self.is_lost and not self.is_cut_off and super().takes(question)

    def leave(self) -> None:
        """Its call is about to be answered: after that, a stream that is over was not cut off."""
        self._was_cut_off = self._is_over()
        self._is_left = True

    def _is_over(self) -> bool:
        # A client that can come back for the rest of a stream is taken to do so.
        return self._exchange is not None and not self._exchange.can_resume and self._exchange.over.is_set()


logger: Final = get_logger(__name__)

AGAIN_AFTER: Final = 300.0
"""Seconds after which a client may be asked again what it was asked on a call that is over. It still has the question,
unless it closes its dialogs with the calls they came on and says nothing: then nobody could answer any more."""

LOOK_AFTER: Final = 30.0
"""Seconds after which a task that asks is looked at without a hint. The runtime makes up for hints that are lost, for
all tasks at once; but of a task that is gone there is none, and the store may have been away when one came."""

MAX_EARLIER: Final = 4
"""How often a question may have been asked before and still be answered there: a client may come back without end."""


@dataclass(eq=False, slots=True)
class Sent:
    """A question on its way.

    Attributes:
        at: When it was sent, in the seconds of the event loop.
        waiting: What waits for its answer and takes it to the task.
        is_answered: Whether there is an answer, which is then left alone.
        is_withdrawn: Whether it is being cancelled at the client.
    """

    stream: CallStream
    at: float
    waiting: asyncio.Task[None] | None = None
    is_answered: bool = False
    is_withdrawn: bool = False

    def withdraw(self) -> None:
        """Cancel it at the client, unless its answer has come and is on its way to the task."""
        if self.waiting is not None and not self.is_answered:
            self.is_withdrawn = True
            self.waiting.cancel()

    def suffices_for(self, stream: CallStream) -> bool:
        """Whether it need not be asked on another stream as well."""
        if self.is_answered or self.stream.is_open:
            return True
        has_read_it = self.stream.connection is stream.connection and not self.stream.is_cut_off
        return has_read_it and asyncio.get_running_loop().time() < self.at + AGAIN_AFTER


class AskedQuestions:
    """What the tasks of one runtime have asked, by task. Empty whenever nothing is open."""

    def __init__(self) -> None:
        self.tasks: dict[str, TaskQuestions] = {}
        self._running: set[asyncio.Task[None]] = set()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked or being cancelled."""
        return not self.tasks and not self._running

    def of(self, runtime: TaskRuntime, record: TaskRecord) -> TaskQuestions:
        """The questions of a task."""
        known = self.tasks.get(record.id)
        if known is None:
            known = self.tasks[record.id] = TaskQuestions(self, runtime, record)
        return known

    def start(self, coro: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let something go on by itself; no block of code encloses a question that outlives its call."""
        running = asyncio.create_task(coro, name="mcp-tasks-question")
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return running


_asked: WeakKeyDictionary[TaskRuntime, AskedQuestions] = WeakKeyDictionary()


def asked_by(runtime: TaskRuntime) -> AskedQuestions:
    """What the tasks of a runtime have asked on calls."""
    return _asked.setdefault(runtime, AskedQuestions())


@dataclass(eq=False, slots=True)
class TaskQuestions:
    """What one task has asked, and nobody has answered."""

    _all: AskedQuestions
    _runtime: TaskRuntime
    _record: TaskRecord
    _sent: dict[str, list[Sent]] = field(default_factory=dict[str, list[Sent]])
    _watching: asyncio.Task[None] | None = None

    def is_asked(self, key: str) -> bool:
        """Whether some client of this process has the question."""
        return key in self._sent

    def see(self, record: TaskRecord) -> None:
        """See what the task asks now, and cancel what is answered or withdrawn wherever it was asked."""
        if record.version < self._record.version:
            return
        self._record = record
        for key in self._sent.keys() - record.inputs.outstanding.keys():
            for sent in self._sent.pop(key):
                sent.withdraw()
        self._end_if_done()

    def ask(self, stream: CallStream) -> Iterator[Sent]:
        """Ask on a stream what its client takes and no other stream suffices for."""
        now = self._runtime.now()
        for key, question in self._record.inputs.outstanding.items():
            is_asked = any(sent.suffices_for(stream) for sent in self._sent.get(key, ()))
            if not is_asked and stream.takes(question) and not question.is_overdue(now):
                yield self._send(key, question, stream)

    def _send(self, key: str, question: InputRequest, stream: CallStream) -> Sent:
        sent = Sent(stream, asyncio.get_running_loop().time())
        sent.waiting = self._all.start(self._wait_for_answer(self._record, key, question, sent))
        there = self._sent.setdefault(key, [])
        there.append(sent)
        if len(there) > MAX_EARLIER:
            there.pop(0).withdraw()
        if self._watching is None:
            self._watching = self._all.start(self._watch())
        return sent

    def take_back(self, stream: CallStream) -> None:
        """Cancel what was asked on a stream, and has not been answered; the next call may ask it at once."""
        for key, there in list(self._sent.items()):
            for sent in [each for each in there if each.stream is stream and not each.is_answered]:
                sent.withdraw()
                self._drop(key, sent)

    async def _wait_for_answer(self, record: TaskRecord, key: str, question: InputRequest, sent: Sent) -> None:
        answer: dict[str, Any] | AnswerRefused
        try:
            answer = await sent.stream.put(question.method, _plain_params(question))
        except AnswerRefused as refused:
            answer = refused
        except StreamLost:
            # The question stays open in its task, for whoever comes.
            self._lose(key, sent)
            return
        except Exception:
            logger.error("task %s… could not ask on the call that waits for it", record.id[:12], exc_info=quietly())
            self._lose(key, sent)
            return
        # It stays here until its task has it: nobody asks what has been answered.
        sent.is_answered = True
        fitting = answer
        if not isinstance(answer, AnswerRefused):
            fitting = misfit(record, key, answer, self._runtime.limits) or answer
        await take_answer(lambda: self._runtime, record, key, fitting)
        self._drop(key, sent)

    async def _watch(self) -> None:
        """See the task whenever it may have changed, for as long as something is open."""
        with self._runtime.hints.listen([self._record.id]) as hints:
            while self._sent:
                await self._look()
                with anyio.move_on_after(LOOK_AFTER):
                    await anext(hints)

    async def _look(self) -> None:
        task_id = self._record.id
        try:
            found = await self._runtime.store.get(task_id)
        except TaskUnreadable:
            found = None
        except StoreError as exc:
            logger.debug("task %s… cannot be looked at now: %s", task_id[:12], exc)
            return
        if found is None:
            self._withdraw_all()
        else:
            self.see(found)

    def _withdraw_all(self) -> None:
        """The task is gone."""
        for sent in (each for there in self._sent.values() for each in there):
            sent.withdraw()
        self._sent.clear()
        self._end_if_done()

    def _lose(self, key: str, sent: Sent) -> None:
        sent.stream.is_lost = True
        self._drop(key, sent)

    def _drop(self, key: str, sent: Sent) -> None:
        there = self._sent.get(key, [])
        if sent in there:
            there.remove(sent)
        if not there:
            self._sent.pop(key, None)
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._sent:
            return
        if self._all.tasks.get(self._record.id) is self:
            del self._all.tasks[self._record.id]
        if self._watching is not None:
            self._watching.cancel()


def _plain_params(question: InputRequest) -> dict[str, Any]:
    """The params as in a plain call: this client knows of no task, of the server's or of its own."""
    params: dict[str, Any] = valid_json(question.params)
    return {name: value for name, value in params.items() if name != "task"}


# ---- asking
# The questions of a task, asked on an open call of an older era as a plain call would ask them.


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
