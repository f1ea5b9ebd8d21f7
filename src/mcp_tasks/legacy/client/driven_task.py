"""One task of a 2025-11-25 server, driven over one connection.

What a task asks and how it ended are not in its state here. Questions come as requests of the server, on whatever
stream it likes; they are kept until somebody answers them, and shown with the state as if they had been in it. The
outcome is fetched with `tasks/result`, which is kept open while somebody waits: servers send questions on it, and it
tells of the end before the next look would. It is only ever a help; what counts is what `tasks/get` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    ErrorData,
    JSONRPCRequest,
    RequestId,
)

from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.pacing import backoff
from mcp_tasks.core.record import Progress
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import InvalidResponse, UnknownTask, UsageError
from mcp_tasks.failure import is_over_limit
from mcp_tasks.legacy.client.connection import Box, Connection
from mcp_tasks.legacy.client.reading import mapping, read_task
from mcp_tasks.legacy.client.slots import Bounded, Slots
from mcp_tasks.legacy.shapes import RESULT_INTERRUPTED, named_result, plain_data, related_data
from mcp_tasks.quiet import get_logger, short_id, what
from mcp_tasks.wire.models import QUESTION_META_KEY
from mcp_tasks.wire.parse import TaskSnapshot

logger: Final = get_logger(__name__)

TIMEOUT: Final = 60.0
"""Seconds for an answer that the server has at hand."""

MAX_QUESTIONS: Final = 100
"""Questions of one task that are kept; whatever is asked beyond that goes to the session like any other request."""

LINGER: Final = 5.0
"""Seconds for which `tasks/result` stays open when nobody waits any more. Besides sparing a request, this keeps from
cancelling one that is being answered: the Python SDK 1.30 breaks off the whole session over that."""

TRIES: Final = 3
"""How often a failed task may give an error that looks like a broken connection, before it is taken for its outcome."""

HELD_BACK: Final = 0.5
"""Seconds for the questions of a task that is said to ask something; they come on another stream than that."""

LOOKS: Final = (0.1, 0.4)
"""Seconds after which a task that its server seems not to know is looked at again."""

BY_SESSION: Final = "some servers of 2025-11-25 keep a task only for the session that made it"

_CUT: Final = frozenset({CONNECTION_CLOSED, REQUEST_TIMEOUT, PARSE_ERROR, RESULT_INTERRUPTED})
"""What a transport makes of an answer that did not come, or not as a whole; and a server that could not wait for it."""

_REFUSED: Final = frozenset({INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR})
"""Errors that say nothing of the task unless its state says that it failed: the request itself may be what failed."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request of the server that waits for its answer here."""

    request_id: RequestId
    method: str
    params: JsonObject

    @property
    def shown(self) -> JsonObject:
        """As the state of a task shows it."""
        return {"method": self.method, "params": {k: v for k, v in self.params.items() if k != "_meta"}}


class DrivenTask:
    """One task of a server, as a handle drives it.

    Args:
        can_cancel: Whether the server says that it cancels tasks.

    Attributes:
        immediate_response: What the server gave the model to read while the task runs.
    """

    def __init__(self, wire: Connection, task_id: str, *, slots: Slots, can_cancel: bool) -> None:
        self.id = task_id
        self.immediate_response: str | None = None
        self._wire = wire
        self._slots = slots
        self._can_cancel = can_cancel
        self._boxes: set[Box] = set()
        self._waiting = 0
        self._last: TaskSnapshot | None = None
        self._progress: Progress | None = None
        self._questions: dict[str, Question] = {}
        # The last ones are enough: a server that asks without end gets no more of our memory than that.
        self._given: Bounded[str, Mapping[str, Any] | ErrorData] = Bounded(MAX_QUESTIONS)
        self._asked: Bounded[str, bool] = Bounded(10 * MAX_QUESTIONS)
        self._keeper: asyncio.Task[None] | None = None
        self._outcome: JsonObject | ErrorData | None = None
        # What `tasks/result` last gave; it counts when the server has forgotten the task meanwhile.
        self._heard: JsonObject | ErrorData | None = None
        self._cuts = 0
        # A question has come, or the end.
        self._stirred = asyncio.Event()
        self._held_back = False

    # For the handle

    async def get(self) -> TaskSnapshot:
        """`tasks/get`, and `tasks/result` once the task has ended."""
        snapshot = await self._state()
        return await self._with_outcome(snapshot) if snapshot.is_final else snapshot

    async def state(self) -> TaskSnapshot:
        """As `get`, but for an outcome that cannot be had now: the state is known without it."""
        snapshot = await self._state()
        try:
            return await self._with_outcome(snapshot) if snapshot.is_final else snapshot
        except MCPError as exc:
            logger.info(
                "task %s is %s, and its result could not be fetched: %s",
                short_id(self.id),
                snapshot.status.value,
                what(exc),
            )
            return snapshot

    async def _state(self) -> TaskSnapshot:
        snapshot = await self._look()
        if not snapshot.is_final:
            self._outcome = None
            self._keep(asks=snapshot.status is TaskStatus.INPUT_REQUIRED)
            if await self._ends_unasked(snapshot):
                snapshot = await self._look()
        if snapshot.is_final:
            self._questions.clear()
        return self._with_news(snapshot)

    async def answer(self, responses: Mapping[str, Any]) -> None:
        """Reply to the requests that ask."""
        unknown = responses.keys() - self._asked.keys()
        if unknown:
            raise UsageError(
                f"task {self.id} has not asked {', '.join(map(repr, sorted(unknown)))} over this connection: a server "
                "of 2025-11-25 sends its questions to one who waits; watch() the task until it shows them"
            )
        for key, response in responses.items():
            question = self._questions.get(key)
            # One that was withdrawn, or answered before, is no longer anybody's business.
            if question is not None:
                await self._reply(key, question, named_result(response, self.id))
        # A reply is not acknowledged. The server has it when it answers what is sent after it, and then a client that
        # only came to answer may leave.
        try:
            await self._wire.request("ping", timeout=TIMEOUT)
        except MCPError as exc:
            if exc.code != METHOD_NOT_FOUND:
                raise
        self._let_go()

    async def ask(self, key: str, request: JsonObject) -> dict[str, Any]:
        """Have the session's callbacks answer, as they would have without us."""
        question = self._questions.get(key)
        if question is None:
            return await self._wire.ask(str(request.get("method")), mapping(request.get("params")))
        return await self._wire.ask(question.method, question.params)

    async def refuse(self, key: str, error: ErrorData) -> bool:
        """Answer a request that asks with an error, as the session does outside of tasks."""
        question = self._questions.get(key)
        if question is not None:
            named = error.model_copy(update={"data": related_data(self.id, error.data)})
            await self._reply(key, question, named)
        return True

    async def _reply(self, key: str, question: Question, outcome: Mapping[str, Any] | ErrorData) -> None:
        await self._wire.reply(question.request_id, outcome)
        self._questions.pop(key, None)
        self._given[key] = outcome
        self._held_back = False

    async def cancel(self) -> None:
        """`tasks/cancel`. One that has ended is left as it is."""
        if not self._can_cancel:
            raise UsageError(f"task {self.id} cannot be cancelled: its server does not offer that (tasks.cancel)")
        try:
            await self._wire.request("tasks/cancel", {"taskId": self.id}, timeout=TIMEOUT)
        except MCPError as exc:
            # The same code for a task that is not there and one that has ended: a look tells them apart.
            if exc.code != INVALID_PARAMS or not read_task(await self._request("tasks/get")).is_final:
                raise

    @asynccontextmanager
    async def join(self, box: Box, *, questions: bool) -> AsyncGenerator[None]:
        """Put what becomes known into the box; with `questions`, keep `tasks/result` open meanwhile."""
        self._boxes.add(box)
        self._waiting += questions
        self._keep()
        self._show()
        try:
            yield
        finally:
            self._boxes.discard(box)
            self._waiting -= questions
            self._let_go()

    # For the connection

    def asks(self, request: JSONRPCRequest) -> bool:
        """Keep a question; whether it was."""
        params = request.params or {}
        said = mapping(params.get("_meta")).get(QUESTION_META_KEY)
        # The id of a request means something on this connection only, and so does the key then.
        key = said if isinstance(said, str) and said else f"{self._wire.new_id()}-asked"
        if key in self._given:
            # It did not get there, or crossed the question.
            self._wire.spawn(self._wire.reply(request.id, self._given[key]))
            return True
        if key not in self._questions and len(self._questions) >= MAX_QUESTIONS:
            return False
        self._asked[key] = True
        self._questions[key] = Question(request.id, request.method, dict(params))
        self._stirred.set()
        self._show()
        return True

    def withdrawn(self, request_id: RequestId) -> bool:
        """The server no longer wants an answer; whether it asked here."""
        for key, question in self._questions.items():
            if question.request_id == request_id:
                del self._questions[key]
                self._show()
                return True
        return False

    def progressed(self, progress: Progress) -> None:
        """The task got on."""
        self._progress = progress
        self._show()

    def told(self, state: Mapping[str, Any]) -> None:
        """The server tells of the task's state. Of one that has ended, a look tells the rest."""
        try:
            snapshot = read_task(state)
        except InvalidResponse:
            return
        if snapshot.is_final:
            self._tell()
        elif self._last is None or not self._last.is_final:
            self._last = snapshot
            self._keep(asks=snapshot.status is TaskStatus.INPUT_REQUIRED)
            self._show()

    # Looks

    async def _look(self) -> TaskSnapshot:
        try:
            self._last = read_task(await self._request("tasks/get"))
        except UnknownTask:
            if self._keeper is not None:
                # It may have ended and expired at once; then its result is on its way.
                await asyncio.wait([self._keeper], timeout=HELD_BACK)
            if self._heard is None:
                raise
            return self._forgotten(self._heard)
        if self._last.id != self.id:
            raise InvalidResponse(f"asked for task {self.id}, and the server answered with task {self._last.id}")
        return self._last

    def _forgotten(self, heard: JsonObject | ErrorData) -> TaskSnapshot:
        """The end of a task that its server told of and has forgotten since."""
        failed = isinstance(heard, ErrorData) or heard.get("isError") is True
        now = datetime.now(UTC)
        last = self._last or TaskSnapshot(id=self.id, status=TaskStatus.WORKING, created_at=now, updated_at=now)
        self._outcome = heard
        return replace(last, status=TaskStatus.FAILED if failed else TaskStatus.COMPLETED, updated_at=now)

    async def _ends_unasked(self, snapshot: TaskSnapshot) -> bool:
        """Give the questions of a state that is about to be shown a moment to come, once for each time that the task
        begins to ask; whether the task seems to have ended instead."""
        if snapshot.status is not TaskStatus.INPUT_REQUIRED:
            self._held_back = False
        elif self._keeper is not None and not self._questions and not self._held_back:
            self._held_back = True
            self._stirred.clear()
            with anyio.move_on_after(HELD_BACK):
                await self._stirred.wait()
                return not self._questions
        return False

    # The outcome

    async def _with_outcome(self, snapshot: TaskSnapshot) -> TaskSnapshot:
        if snapshot.status is TaskStatus.CANCELLED:
            return snapshot
        outcome = self._outcome if self._outcome is not None else await self._fetch()
        if isinstance(outcome, ErrorData) and snapshot.status is TaskStatus.COMPLETED:
            # A task that completed has a result; this was an error of the question for it.
            self._outcome = None
            outcome = await self._request("tasks/result")
            self._outcome = outcome
        if isinstance(outcome, ErrorData):
            error = outcome.model_copy(update={"data": plain_data(outcome.data)})
            return replace(snapshot, error=error.model_dump(by_alias=True, mode="json", exclude_none=True))
        if snapshot.status is TaskStatus.FAILED and "content" not in outcome:
            # Some servers have nothing more to say of a failure than the state says.
            return replace(snapshot, error={"code": INTERNAL_ERROR, "message": snapshot.message or "The task failed"})
        return replace(snapshot, result=outcome)

    async def _fetch(self) -> JsonObject | ErrorData:
        """Ask how the task ended, which its server has at hand.

        Raises:
            MCPError: The connection was cut, as far as can be told.
        """
        try:
            self._outcome = await self._wire.request("tasks/result", {"taskId": self.id}, timeout=TIMEOUT)
        except MCPError as exc:
            if is_over_limit(exc) or self._wire.is_closed:
                raise
            self._cuts += exc.code in _CUT
            if exc.code in _CUT and self._cuts < TRIES:
                # In other words than those of a connection that is gone for good: this one is there.
                raise MCPError(exc.code, f"tasks/result of {self.id} was cut off: {exc.message}") from exc
            self._outcome = exc.error
        return self._outcome

    def _keep(self, *, asks: bool = False) -> None:
        """See to it that `tasks/result` is open, if somebody waits. One that asks is served before all others."""
        if self._waiting and self._keeper is None and (asks or self._slots.take(self)):
            self._keeper = self._wire.spawn(self._await_result())
            self._keeper.add_done_callback(self._kept)

    def _let_go(self) -> None:
        """Nobody waits, for now: whoever has answered or watched often comes back for the result."""
        if self._keeper is not None and not self._waiting:
            asyncio.get_running_loop().call_later(LINGER, self._close)

    def _close(self) -> None:
        # With a question in hand it stays: to some servers an answer is worth nothing without it.
        if self._keeper is not None and not self._waiting and not self._questions:
            self._keeper.cancel()

    def _kept(self, keeper: asyncio.Task[None]) -> None:
        self._slots.give_back(self)
        if self._keeper is keeper:
            self._keeper = None

    async def _await_result(self) -> None:
        failures = 0
        while not self._wire.is_closed:
            try:
                self._outcome = self._heard = await self._wire.request("tasks/result", {"taskId": self.id})
            except MCPError as exc:
                if is_over_limit(exc):
                    # It would be again. Whoever waits is told when the state says that this was the result.
                    return self._tell()
                if exc.code not in _CUT:
                    # The task's own error, if the task has failed: a look tells.
                    self._outcome = exc.error
                    if exc.code not in _REFUSED:
                        self._heard = exc.error
                    return self._tell()
                logger.debug("tasks/result of %s was cut off: %s", short_id(self.id), what(exc))
                pause = backoff(failures, base=timedelta(milliseconds=250), limit=timedelta(seconds=10))
                failures += 1
                await anyio.sleep(pause.total_seconds())
            else:
                break
        return self._tell()

    def _tell(self) -> None:
        """The task seems to have ended: it is looked at ahead of its pace, a few times at most."""
        self._stirred.set()
        for box in self._boxes:
            box.over()

    # What becomes known

    def _show(self) -> None:
        if self._last is not None and not self._last.is_final:
            shown = self._with_news(self._last)
            for box in self._boxes:
                box.show(shown)

    def _with_news(self, snapshot: TaskSnapshot) -> TaskSnapshot:
        """The state, with what came beside it."""
        if snapshot.progress is None:
            snapshot = replace(snapshot, progress=self._progress)
        if snapshot.is_final or not self._questions:
            return snapshot
        asked = {key: question.shown for key, question in self._questions.items()}
        # A question that waits here is a fact, whatever the server calls the state it is in.
        return replace(snapshot, status=TaskStatus.INPUT_REQUIRED, input_requests=asked)

    async def _request(self, method: str) -> dict[str, Any]:
        """Ask for something that the server has at hand.

        Servers of the Python SDK 1 refuse whatever they fail to process with the code that an unknown task has. So
        unless that is what they say, they are asked again before they are believed.

        Raises:
            UnknownTask: The server does not know the task (any more).
        """
        for pause in (*LOOKS, None):
            try:
                return await self._wire.request(method, {"taskId": self.id}, timeout=TIMEOUT)
            except MCPError as exc:
                if exc.code != INVALID_PARAMS:
                    raise
                if pause is None or _says_unknown(exc):
                    raise UnknownTask(self.id, f"Task {self.id} not found", hint=BY_SESSION) from exc
                await anyio.sleep(pause)
        raise AssertionError("unreachable: the last look ends it")


def _says_unknown(exc: MCPError) -> bool:
    said = exc.message.lower()
    return any(words in said for words in ("not found", "unknown", "not exist", "no such", "expired"))
