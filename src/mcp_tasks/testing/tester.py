"""Tests of tools as tasks, in memory and without waiting: answer what a tool asks, crash it, let time pass.

async with TaskTester(server, tasks) as tester:
    task = await tester.call("release", {"version": "2.0"})
    await tester.until_asked(task)
    await tester.crash()
    await tester.answer(task, {"publish": True})
    assert (await tester.result(task)).structured_content == {"result": "2.0 published"}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self

import anyio
from mcp.server import MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult
from mcp_types.version import LATEST_MODERN_VERSION

from mcp_tasks.engines import LocalEngine
from mcp_tasks.errors import TaskWasCancelled, UnknownTask, UsageError
from mcp_tasks.model import InputRequest, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.json import decode_json
from mcp_tasks.model.record import Actor
from mcp_tasks.model.values import check_duration
from mcp_tasks.protocol.answers import check_answers
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.runtime.launch import LaunchSpec
from mcp_tasks.server import Tasks
from mcp_tasks.server.local import ALL_CAPABILITIES
from mcp_tasks.server.tool_runner import to_mcp_error
from mcp_tasks.stores import MemoryStore
from mcp_tasks.testing.clock import FakeClock

logger: Final = get_logger(__name__)

LIMIT = timedelta(seconds=10)
"""How long, in real time, a test waits for its tool before it fails."""

UNANSWERED_FOR = timedelta(seconds=1)
"""How long, in real time, a tool may wait for an answer that `result` does not give. Not no time at all: the tool may
have a deadline of its own around the question (`asyncio.timeout`), of which nothing is known here."""


class TaskTester:
    """Runs the tools of a server as tasks, in memory, on a clock that the test moves.

    Args:
        server: The server under test.
        tasks: Its `Tasks` object. Its own store and engine are not touched.
        state: What the tools find as their lifespan context.
        concurrency: How many tools run at a time.

    Raises:
        UsageError: The two are something else, or the other way round.
    """

    def __init__(self, server: MCPServer[Any], tasks: Tasks, *, state: Any = None, concurrency: int = 100) -> None:
        if not isinstance(server, MCPServer) or not isinstance(tasks, Tasks):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"TaskTester(server, tasks) takes an MCPServer and its Tasks, in this order; got {server!r}, {tasks!r}"
            )
        self.clock: FakeClock = FakeClock()
        self.store: MemoryStore = MemoryStore()
        self._server = server
        self._tasks = tasks
        self._state = state
        self._concurrency = concurrency
        self._engine = LocalEngine(concurrency)
        self._runtime: TaskRuntime | None = None

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Whatever the test did: it may have been cancelled, and what it failed with is what should be shown.
        with anyio.move_on_after(LIMIT.total_seconds(), shield=True):
            try:
                await self.runtime.abandon()
            except Exception:
                if exc is None:
                    raise
                logger.exception("the tools could not be ended")

    @property
    def runtime(self) -> TaskRuntime:
        """The runtime that has the tasks now; a crash makes a new one."""
        if self._runtime is None:
            raise RuntimeError("use `async with TaskTester(...)`")
        return self._runtime

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        capabilities: Mapping[str, Any] = ALL_CAPABILITIES,
        owner: str | None = None,
    ) -> str:
        """Call a tool as a task, for a client with these capabilities; the task's id.

        Args:
            owner: Whose task it is; on a server that requires authentication somebody's, if it is not said.

        Raises:
            UsageError: The server has no such tool, it is not marked, or it does not take these arguments: what a
                server answers without a task.
        """
        given = dict(arguments or {})
        await self._tasks.check_call(tool, given)
        request = TaskRequest(
            name=tool,
            arguments=given,
            protocol_version=LATEST_MODERN_VERSION,
            client_capabilities=capabilities,
        )
        if owner is None and self.runtime.requires_owner:
            owner = "somebody"
        return (await self.runtime.launch(LaunchSpec(request=request, owner=owner))).id

    async def record(self, task_id: str) -> TaskRecord:
        """The task as it is now."""
        record = await self.store.get(task_id)
        if record is None:
            raise UnknownTask(task_id)
        return record

    async def until_asked(self, task_id: str, count: int = 1) -> Mapping[str, InputRequest]:
        """Wait until the tool has at least `count` open questions; all of them, by key."""
        what = "asking" if count == 1 else f"asking {count} things at a time"
        record = await self._until(task_id, lambda task: len(task.inputs.outstanding) >= count, what)
        return record.inputs.outstanding

    async def answer(
        self,
        task_id: str,
        content: Mapping[str, Any] | None = None,
        *,
        action: str = "accept",
        key: str | None = None,
        response: Mapping[str, Any] | None = None,
    ) -> None:
        """Answer an open question: the one under `key`, or the only one.

        `content` is what a person enters into a form; `response` is a whole answer, for sampling and roots. It is
        checked as the server checks it.

        Raises:
            MCPError: -32602: it does not fit the question, which stays open.
        """
        questions = await self.until_asked(task_id)
        if key is None:
            if len(questions) != 1:
                raise ValueError(f"several questions are open, say which: {', '.join(sorted(questions))}")
            key = next(iter(questions))
        if response is None:
            response = {"action": action} if content is None else {"action": action, "content": dict(content)}
        responses = {key: response}
        record = await self.record(task_id)
        try:
            await self.runtime.answer(
                record, responses, actor=_client(record), check=lambda task: check_answers(task, responses)
            )
        except RpcError as exc:
            raise to_mcp_error(exc) from exc

    async def cancel(self, task_id: str) -> None:
        """Cancel the task, as a client would. A finished one stays as it is."""
        record = await self.record(task_id)
        await self.runtime.cancel(record, "Cancelled by the test", actor=_client(record))

    async def advance(self, by: timedelta) -> None:
        """Let the tools come to where they wait, let time pass, and let what is due happen.

        The time that passes is that of durable sleeps and time-outs, not the event loop's.

        Raises:
            InvalidOption: It is not a `timedelta`.
        """
        check_duration("by", by, zero=True)
        await self.settle()
        self.clock.advance(by)
        self.runtime.alarms.recheck()
        await self.runtime.janitor.sweep()

    async def settle(self) -> None:
        """Wait until every tool has ended or waits for an answer or a timer.

        Raises:
            AssertionError: Some do not, and which.
        """
        with anyio.move_on_after(LIMIT.total_seconds()):
            quiet = 0
            # A tool that is about to go on is not at work yet; it is within a few turns of the event loop.
            while quiet < 20:
                is_quiet = self._engine.is_idle and not self.runtime.at_work()
                await anyio.sleep(0 if is_quiet else 0.001)
                quiet = quiet + 1 if is_quiet else 0
            return
        names = ", ".join(f"{tool!r} ({task_id})" for task_id, tool in self.runtime.at_work().items())
        still = names or "tasks that wait for a slot"
        raise AssertionError(f"still at work after {LIMIT.total_seconds():g} s: {still}")

    async def crash(self) -> None:
        """End the process that runs the tools, without any of it being told, and start another.

        A tool in an `await` is torn out of it there, as if the process had died; what it writes after that is lost.
        """
        await self.runtime.abandon()
        await self._start()

    async def finish(self, task_id: str) -> TaskRecord:
        """Wait until the task has ended."""
        return await self._until(task_id, lambda task: task.is_final, "ending")

    async def result(self, task_id: str) -> CallToolResult:
        """Wait until the task has ended; what the call would have returned, or raised.

        Where something else is to answer meanwhile, or a deadline of the tool's own is to pass, wait with `finish`.

        Raises:
            AssertionError: The tool waits for an answer that nobody gave, or does not end.
            MCPError: The task failed.
            TaskWasCancelled: It was cancelled.
        """
        await self._check_answered(task_id)
        record = await self.finish(task_id)
        outcome = await self.runtime.store.outcome(task_id)
        if record.status is TaskStatus.CANCELLED or outcome is None:
            raise TaskWasCancelled(task_id, record.status_message)
        body = decode_json(outcome.body)
        if record.status is TaskStatus.FAILED:
            raise MCPError(code=body["code"], message=body["message"], data=body.get("data"))
        meta = {} if outcome.meta is None else {"_meta": decode_json(outcome.meta)}
        return CallToolResult.model_validate({**body, **meta}, by_name=False)

    async def _until(self, task_id: str, condition: Callable[[TaskRecord], bool], what: str) -> TaskRecord:
        record = await self.runtime.follow(task_id, lambda task: task.is_final or condition(task), timeout=LIMIT)
        if record is None or not condition(record):
            now = await self.record(task_id)
            said = f": {now.status_message}" if now.status_message else ""
            if now.is_final:
                raise AssertionError(f"the tool ended ({now.status.value}) without {what}{said}")
            seconds = f"{LIMIT.total_seconds():g} s"
            raise AssertionError(f"after {seconds} without {what}, the task is {now.status.value}{said}")
        return record

    async def _check_answered(self, task_id: str) -> None:
        """Wait until the task has ended, or only waits for an answer, which is then a mistake of the test."""
        asked: Mapping[str, InputRequest] = {}
        with anyio.move_on_after(LIMIT.total_seconds()):
            quiet_since = anyio.current_time()
            while anyio.current_time() - quiet_since < UNANSWERED_FOR.total_seconds():
                record = await self.runtime.follow(task_id, lambda task: task.is_final or _asks(task), timeout=LIMIT)
                if record is None or record.is_final:
                    return
                if record.inputs.outstanding != asked or task_id in self.runtime.at_work():
                    quiet_since = anyio.current_time()
                asked = record.inputs.outstanding
                await anyio.sleep(0.005)
            questions = "; ".join(f"{key!r}: {_words(question)}" for key, question in asked.items())
            raise AssertionError(
                f"the task waits for an answer to {questions}. Give it with tester.answer({task_id!r}, ...) first"
            )

    async def _start(self) -> None:
        self._engine = LocalEngine(self._concurrency)
        self._runtime = await self._tasks.runtime_for(
            self._server, store=self.store, engine=self._engine, clock=self.clock, state=self._state
        )
        await self._runtime.start()


def _asks(record: TaskRecord) -> bool:
    return bool(record.inputs.outstanding)


def _words(question: InputRequest) -> str:
    """A question as the test's author will know it again."""
    message = question.params.get("message")
    return message if isinstance(message, str) else question.method


def _client(record: TaskRecord) -> Actor:
    return Actor("client", record.owner)
