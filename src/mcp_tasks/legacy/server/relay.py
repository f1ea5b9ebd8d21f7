"""`tasks/result` of a task that has not ended: it waits, and what the task asks meanwhile goes out on its stream.

It waits for as long as its connection lives. Where the server has to end it before that, a stream that can be resumed
is closed without an answer: the client takes it up again, and the answer is kept for it. Any other is answered with an
error of its own (`RESULT_INTERRUPTED`), which no tool has raised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final

import anyio

from mcp_tasks.adapters.era import EraParts, RequestContext
from mcp_tasks.adapters.exchange import Exchange, exchange_of, is_pipe
from mcp_tasks.adapters.sdk import caller_of
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.errors import StoreError, TaskUnreadable, UnknownTask
from mcp_tasks.legacy.server.audience import OpenResult
from mcp_tasks.legacy.server.carriers import Carrier
from mcp_tasks.legacy.server.render import render_interrupted
from mcp_tasks.legacy.server.sessions import Session, Sessions
from mcp_tasks.protocol.stream_ends import expiry
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime

logger: Final = get_logger(__name__)

STOPPING: Final = "server_stopping"
LEFT: Final = "client_left"
EXPIRED: Final = "token_expired"

_WORDS: Final[Mapping[str, str]] = {
    STOPPING: "The server is stopping. The task goes on: ask for its result again, in a new session if need be",
    LEFT: "The client left before the task ended",
    EXPIRED: "The access token of this request has expired. The task goes on: ask again with a new one",
}
"""Why a request ends before its task: `data.reason`, and what it says."""


class Relay:
    """Lets `tasks/result` wait for the end of a task."""

    def __init__(self, parts: EraParts, sessions: Sessions) -> None:
        self._parts = parts
        self._audience = sessions.audience
        self._questions = sessions.questions

    async def until_final(self, ctx: RequestContext, record: TaskRecord, session: Session | None) -> TaskRecord:
        """The task once it has ended. Until then, what it asks goes out on the stream of this request if it can.

        Raises:
            UnknownTask: The task is gone.
            TaskUnreadable: It cannot be read.
            RpcError: -32802, the process has to exit, the client has left for good, or its token has expired.
        """
        if not ctx.session.can_send_request:
            # The answer will be all there is room for.
            return record if record.is_final else await self._wait(ctx, record, None)
        if record.is_final and (session is None or not session.has_notices(record.id)):
            return record
        carrier = Carrier(ctx.session, ctx.request_id)
        if not is_pipe(ctx) and exchange_of(ctx) is None:
            self._supersede(record.id, session)
        try:
            with self._audience.waiting(OpenResult(record.id, carrier, session)):
                if session is not None:
                    session.send_notices(record.id, known=True)
                seen = record if record.is_final else await self._wait(ctx, record, carrier)
                if session is not None:
                    # After its answer, a stream carries nothing more.
                    await session.flush(record.id)
                return seen
        finally:
            await self._questions.leave(carrier, record.id)

    def _supersede(self, task_id: str, session: Session | None) -> None:
        """A client asks again on a server where nobody tells whether it has hung up before: it has, for all we know."""
        if session is not None:
            for result in self._audience.results_of(session, task_id):
                result.carrier.is_open = False
            session.doubt_own()

    async def _wait(self, ctx: RequestContext, record: TaskRecord, carrier: Carrier | None) -> TaskRecord:
        exchange = exchange_of(ctx)
        found: TaskRecord | Exception | None = None
        async with anyio.create_task_group() as group:

            async def end_with(event: Callable[[], Awaitable[object]], reason: str) -> None:
                nonlocal found
                await event()
                if ctx.close_sse_stream is not None:
                    # The SDK gives this only where the client can take the stream up again.
                    await ctx.close_sse_stream()
                    return
                found = render_interrupted(record.id, reason, _WORDS[reason])
                group.cancel_scope.cancel()

            group.start_soon(end_with, self._parts.exiting, STOPPING)
            if exchange is not None and not exchange.can_resume:
                group.start_soon(end_with, partial(_until_left, exchange, carrier), LEFT)
            elif exchange is not None and carrier is not None:
                group.start_soon(self._cut_off, exchange.ended, carrier, record.id)
            expired = anyio.Event()
            group.start_soon(end_with, expired.wait, EXPIRED)
            # Not after `Limits.stream_life`. 2025-11-25: MUST block until the task reaches a terminal status.
            with self._ending_in(expiry(caller_of(ctx).identity), expired.set):
                found = await self._follow(self._parts.runtime(), record)
            group.cancel_scope.cancel()
        if isinstance(found, TaskRecord):
            return found
        raise UnknownTask(record.id) if found is None else found

    @contextmanager
    def _ending_in(self, second: int | None, end: Callable[[], None]) -> Generator[None]:
        """In here, `end` is called in that second."""
        ends = self._parts.protocol.stream_ends
        if second is None:
            yield
            return
        ends.add(second, end)
        try:
            yield
        finally:
            ends.leave(second, end)

    async def _cut_off(self, over: Callable[[], Awaitable[object]], carrier: Carrier, task_id: str) -> None:
        """The client has left and may come back: what it was asked stays asked, unless there is another way to it."""
        await over()
        carrier.is_open = False
        self._questions.send(task_id)

    async def _follow(self, runtime: TaskRuntime, record: TaskRecord) -> TaskRecord | Exception | None:
        """The task once it has ended; None if it is gone. Nothing is raised: out of a group it would come wrapped."""
        with runtime.hints.listen([record.id]) as hints:
            while True:
                try:
                    seen = await runtime.store.get(record.id)
                except TaskUnreadable as exc:
                    return exc
                except StoreError as exc:
                    logger.debug("task %s… cannot be looked at now: %s", record.id[:12], exc)
                else:
                    if seen is None:
                        return None
                    self._questions.look(seen)
                    if seen.is_final:
                        return seen
                # A hint may be lost; the store is the truth.
                with anyio.move_on_after(runtime.settings.look_interval.total_seconds()):
                    await anext(hints)


async def _until_left(exchange: Exchange, carrier: Carrier | None) -> None:
    """Return when the client has left, and nothing on its stream arrives any more."""
    await exchange.ended()
    if carrier is not None:
        carrier.is_open = False
