"""Sends the open questions of tasks to clients of 2025-11-25, as requests on their streams.

`fallback` does so for calls that wait for their tool, `legacy` for sessions that have a task. A question is sent on the
first stream that takes it, and again only when no stream that has it is enough any more. The client may have read it
before that, so an answer to any of them counts until there is one.

Streams of other processes are not known here: a task that clients of two processes wait for may ask both of them, and
the first answer counts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import anyio
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp_types import CONNECTION_CLOSED, RequestId

from mcp_tasks._utils import BackgroundTasks
from mcp_tasks.errors import AnswerRefused
from mcp_tasks.model.record import InputRequest, TaskRecord
from mcp_tasks.protocol.answers import misfit, take_answer
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.quiet import get_logger, quietly
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.server.tool_runner import raw_request, require_capability

logger: Final = get_logger(__name__)

LEAVE_LIMIT: Final = 1.0
"""Seconds to wait until questions are cancelled at the client. A server that shuts down cannot send that any more, and
must not be held up by it."""

MAX_SENT: Final = 5
"""How many streams may have the same question at a time: a client may reconnect without end."""


class StreamLost(Exception):
    """The client did not answer, and cannot any more on this stream."""


class ClientStream:
    """One stream to a client.

    Args:
        session: The SDK's session, of the request whose stream this is or of any message of the connection.
        request_id: The request whose stream this is; None for the session's own.

    Attributes:
        declared: The capabilities of the client.
        sent: The questions that were sent on it and have no answer yet.
    """

    def __init__(self, session: ServerSession, request_id: RequestId | None = None) -> None:
        self.sent: set[SentQuestion] = set()
        self._session = session
        self._request_id = request_id
        declared = session.client_capabilities
        self.declared: dict[str, Any] = (
            {} if declared is None else declared.model_dump(by_alias=True, mode="json", exclude_none=True)
        )

    def takes(self, question: InputRequest) -> bool:
        """Whether the question can be sent here: the client declared that it answers such questions."""
        try:
            require_capability(question, self.declared)
        except RpcError:
            return False
        return True

    def hosts(self, question: InputRequest) -> bool:
        """Whether the client takes the question as a task of its own."""
        return False

    def has(self, sent: SentQuestion, other: ClientStream) -> bool:
        """Whether a question that was sent here need not be sent on the other stream as well."""
        raise NotImplementedError

    def lose(self) -> None:
        """Something that was sent here failed, and would fail again."""
        raise NotImplementedError

    async def request(self, method: str, params: Mapping[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """The client's answer to a request of any kind. Cancelled, it cancels the request at the client.

        Raises:
            MCPError: The client answered with this error, or did not answer in time.
            StreamLost: It did not answer, and cannot any more.
        """
        try:
            return await raw_request(self._session, method, params, request_id=self._request_id, timeout=timeout)
        except NoBackChannelError as exc:
            raise StreamLost from exc
        except MCPError as exc:
            error = exc.error
            # The SDK's own words for a connection that was lost; a client that says just that is as good as gone.
            if (error.code, error.message, error.data) == (CONNECTION_CLOSED, "Connection closed", None):
                raise StreamLost from exc
            raise

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The client's answer to a question, which need not fit it.

        Raises:
            AnswerRefused: The client answered with an error.
            StreamLost: It did not answer, and cannot any more.
        """
        try:
            return await self.request(method, params)
        except MCPError as exc:
            raise AnswerRefused(exc.error.code, exc.error.message, exc.error.data) from exc


@dataclass(eq=False, slots=True)
class SentQuestion:
    """A question that was sent on a stream.

    Attributes:
        misfits: How many answers to the question did not fit it before it was sent.
        at: When it was sent, in seconds of the event loop.
        waiting: Waits for the answer and writes it down.
    """

    record: TaskRecord
    key: str
    question: InputRequest
    misfits: int
    stream: ClientStream
    at: float
    waiting: asyncio.Task[None] | None = None
    is_answered: bool = False
    is_withdrawn: bool = False

    def withdraw(self) -> None:
        """Cancel it at the client, unless its answer has come and is being written down."""
        # Once: a second cancellation would interrupt the first, which tells the client.
        if self.waiting is not None and not self.is_answered and not self.is_withdrawn:
            self.is_withdrawn = True
            self.waiting.cancel()


AskClient: TypeAlias = Callable[[SentQuestion], Awaitable[dict[str, Any]]]
"""Sends a question on its stream and returns the client's answer. Raises what `ClientStream.ask` raises."""


@dataclass(eq=False, slots=True)
class _AskingTask:
    record: TaskRecord
    sent: dict[str, list[SentQuestion]] = field(default_factory=dict[str, list[SentQuestion]])
    misfits: Counter[str] = field(default_factory=Counter[str])


class ClientQuestions:
    """The questions that tasks ask of clients of this process.

    Args:
        ask: Sends one question.
        streams: The streams on which a task may ask now, best first; None if no client here has the task.
        max_misfits: How many answers to a question may not fit it; the last of them is given to the tool.
        outlive_streams: Whether questions stay with clients that do not have the task any more.
    """

    def __init__(
        self,
        runtime: Callable[[], TaskRuntime],
        ask: AskClient,
        streams: Callable[[str], Sequence[ClientStream] | None],
        *,
        max_misfits: int = 1,
        outlive_streams: bool = False,
    ) -> None:
        self._runtime = runtime
        self._ask = ask
        self._streams = streams
        self._max_misfits = max_misfits
        self._outlive_streams = outlive_streams
        self._tasks: dict[str, _AskingTask] = {}
        self._background = BackgroundTasks(
            lambda exc: logger.error("an answer to a task was not taken", exc_info=quietly(exc))
        )

    def is_sent(self, task_id: str, key: str | None = None) -> bool:
        """Whether a client here has a question of the task: the one of this key, or any."""
        task = self._tasks.get(task_id)
        return task is not None and bool(task.sent if key is None else key in task.sent)

    def look(self, record: TaskRecord) -> None:
        """See what a task asks now: send what is new, and cancel what is answered or withdrawn."""
        task = self._tasks.get(record.id)
        if task is None:
            if not record.inputs.outstanding or self._streams(record.id) is None:
                return
            task = self._tasks[record.id] = _AskingTask(record)
        elif record.version >= task.record.version:
            task.record = record
        outstanding = task.record.inputs.outstanding
        for key in task.sent.keys() - outstanding.keys():
            for sent in task.sent.pop(key):
                sent.withdraw()
        if outstanding:
            self.send(record.id)
        else:
            del self._tasks[record.id]

    def send(self, task_id: str) -> None:
        """Send what the task asks and no client has, as far as there is a stream. To be called when streams change."""
        task, streams = self._tasks.get(task_id), self._streams(task_id)
        if task is None:
            return
        if streams is None:
            if not (self._outlive_streams and task.sent):
                self.forget(task_id)
            return
        now = self._runtime().now()
        for key, question in task.record.inputs.outstanding.items():
            earlier = task.sent.get(key, [])
            if question.is_overdue(now) or any(sent.is_answered for sent in earlier):
                continue
            for stream in streams:
                if stream.takes(question) and not any(sent.stream.has(sent, stream) for sent in earlier):
                    self._send(task, key, question, stream)
                    break

    def take_back(self, stream: ClientStream, *, cancel: bool = True) -> None:
        """Let what was asked on a stream be asked elsewhere, and cancel it here unless the stream has ended."""
        for sent in [each for each in stream.sent if not each.is_answered]:
            if cancel:
                sent.withdraw()
            self._drop(sent)

    async def leave(self, task_id: str, stream: ClientStream) -> None:
        """The request of a stream is about to be answered: first, wait until what was withdrawn is cancelled there.

        After its answer, the stream of a request over HTTP carries nothing more.
        """
        ending = [sent.waiting for sent in stream.sent if sent.is_withdrawn and sent.waiting is not None]
        if ending:
            with anyio.move_on_after(LEAVE_LIMIT, shield=True):
                await asyncio.wait(ending)
        self.send(task_id)

    def forget(self, task_id: str) -> None:
        """Cancel all that the task asked: it is gone, or no client has it any more."""
        task = self._tasks.pop(task_id, None)
        for sent in task.sent.values() if task is not None else ():
            for each in sent:
                each.withdraw()

    def _send(self, task: _AskingTask, key: str, question: InputRequest, stream: ClientStream) -> None:
        earlier = task.sent.setdefault(key, [])
        # A client that takes it as a task of its own would have two of them.
        for each in list(earlier):
            if stream.hosts(question) or each.stream.hosts(question) or len(earlier) >= MAX_SENT:
                earlier.remove(each)
                each.withdraw()
        sent = SentQuestion(task.record, key, question, task.misfits[key], stream, asyncio.get_running_loop().time())
        earlier.append(sent)
        stream.sent.add(sent)
        sent.waiting = self._background.start(self._wait_for_answer(sent), name="mcp-tasks-question")
        sent.waiting.add_done_callback(lambda _: stream.sent.discard(sent))

    async def _wait_for_answer(self, sent: SentQuestion) -> None:
        record, key = sent.record, sent.key
        answer: dict[str, Any] | AnswerRefused
        try:
            answer = await self._ask(sent)
        except AnswerRefused as refused:
            answer = refused
        except StreamLost:
            # The question stays open in its task.
            self._lose(sent)
            return
        except Exception:
            # The SDK could not send it. Another stream may do better.
            logger.error("task %s… could not ask on a stream of its client", record.id[:12], exc_info=quietly())
            self._lose(sent)
            return
        problem = None
        if not isinstance(answer, AnswerRefused):
            problem = misfit(record, {key: answer}, self._runtime().limits)
        if problem is not None and not self._is_last_misfit(sent):
            self._drop(sent)
            self.send(record.id)
            return
        # It stays here until the record says so: a question that has its answer is not asked again.
        sent.is_answered = True
        await take_answer(self._runtime, record, key, answer if problem is None else problem)

    def _is_last_misfit(self, sent: SentQuestion) -> bool:
        """Count an answer that does not fit; whether the question is not to be asked again."""
        task = self._tasks.get(sent.record.id)
        if task is None:
            # No client is there to be asked now. The question stays open for the next one.
            return False
        task.misfits[sent.key] += 1
        count = task.misfits[sent.key]
        # Without the problem, which quotes the answer.
        logger.warning(
            "task %s…: the answer to %r does not fit it (%d of %d)",
            *(sent.record.id[:12], sent.key, count, self._max_misfits),
        )
        return count >= self._max_misfits

    def _lose(self, sent: SentQuestion) -> None:
        sent.stream.lose()
        self._drop(sent)
        self.send(sent.record.id)

    def _drop(self, sent: SentQuestion) -> None:
        task = self._tasks.get(sent.record.id)
        same = [] if task is None else task.sent.get(sent.key, [])
        if task is not None and sent in same:
            same.remove(sent)
            if not same:
                del task.sent[sent.key]
