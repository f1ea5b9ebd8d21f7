"""Calls and tasks inside the server's own process: `tasks.call(...)`, `tasks.start(...)` and what belongs to them.

A call in this process is synchronous until its caller asks for a task, whatever the mode of the tool: modes speak of
clients. A task that is started here is one like any other: kept, run from its record, recovered, and seen by its owner
on the wire.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from typing import Any

from mcp_types import CallToolResult, GetPromptResult, ReadResourceResult

from mcp_tasks.core.record import TaskRequest
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.core.values import check_text
from mcp_tasks.errors import InvalidOption, OwnerRequired, UsageError
from mcp_tasks.protocol import RpcError
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.runtime.context import current_run, current_runtime
from mcp_tasks.server.catalogue import Catalogue
from mcp_tasks.server.doors import Doors
from mcp_tasks.server.lifecycle import Lifecycle
from mcp_tasks.server.local_handle import LocalSnapshot, LocalTask
from mcp_tasks.server.local_listing import TaskPage, page_of, whose_tasks
from mcp_tasks.server.local_start import LocalStart, request_for
from mcp_tasks.server.options import UNSET, TaskOptions, Unset
from mcp_tasks.tools.body import ToolBody, body_at_work
from mcp_tasks.tools.sdk_errors import to_mcp_error


class LocalCalls:
    """What a `Tasks` object does for code in its server's own process."""

    _lifecycle: Lifecycle
    _catalogue: Catalogue
    _doors: Doors

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> CallToolResult:
        """Call a tool here and now, without a task; what the tool fails with is a result that says `isError`.

        In a tool that runs as a task, the called one is a part of that task: what it asks, the task asks. Otherwise
        there is nobody whom it could ask.

        Raises:
            UsageError: The server has no such tool, or it asks something by returning it.
            MCPError: The tool raised it.
            WiringError: The server is not running.
        """
        request = request_for("tools/call", name, arguments)
        if await self._catalogue.tool(name) is None:
            raise UsageError(f"the server has no tool {name!r}")
        return CallToolResult.model_validate(await self._result(request), by_name=False)

    async def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> GetPromptResult:
        """Get a prompt here and now, without a task. Raises what `call` raises."""
        request = request_for("prompts/get", name, arguments)
        await self._check_read(request)
        return GetPromptResult.model_validate(await self._result(request), by_name=False)

    async def read_resource(self, uri: str) -> ReadResourceResult:
        """Read a resource here and now, without a task. Raises what `call` raises."""
        request = request_for("resources/read", uri, None)
        await self._check_read(request)
        return ReadResourceResult.model_validate(await self._result(request), by_name=False)

    async def start(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        ttl: timedelta | Unset | None = UNSET,
        owner: str | Unset | None = UNSET,
        session: str | Unset | None = UNSET,
        key: str | None = None,
    ) -> LocalTask[CallToolResult]:
        """Start a tool as a task; it is durable on return.

        In a tool that itself runs as a task, this starts a child: its `parent` is that task, whose owner and session it
        has unless others are given. It is started once, however often the tool is run again: it is the same child if it
        is the same tool with the same arguments, and as many equal ones came before it. Cancelling a task leaves its
        children alone.

        Args:
            ttl: How long the task is kept after it ended; None for as long as the store lives. By default as the tool
                is marked. A child has a ttl of its own.
            owner: Whose task it is; None for nobody's. Only its owner sees it on the wire. It has to be given on a
                server that requires authentication.
            session: The session in whose listing it is.
            key: An idempotency key: if a task of the same owner stands under it, that one is given and none is started.
                For a child, it says which one it is in place of its tool and arguments.

        Raises:
            UsageError: The server has no such tool, it never becomes a task, or it does not take these arguments; or
                another call stands under the key.
            OwnerRequired: The server requires authentication, and no owner is given.
            WiringError: The server is not running.
            StoreError: The task could not be kept. `StoreUnavailable` says whether it may have been made all the same.
        """
        request = request_for("tools/call", name, arguments)
        runtime = self._runtime()
        await self.check_call(name, request.arguments)
        tool = await self._catalogue.tool(name)
        options = TaskOptions() if tool is None or tool.mark is None else tool.mark.options
        start = LocalStart(request=request, options=options, ttl=ttl, owner=owner, session=session, key=key)
        return await self._start(runtime, start)

    async def start_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        ttl: timedelta | Unset | None = UNSET,
        owner: str | Unset | None = UNSET,
        session: str | Unset | None = UNSET,
        key: str | None = None,
    ) -> LocalTask[GetPromptResult]:
        """Start a prompt as a task. Takes and raises what `start` does."""
        request = request_for("prompts/get", name, arguments)
        runtime = self._runtime()
        options = await self._check_read(request, as_task=True)
        start = LocalStart(request=request, options=options, ttl=ttl, owner=owner, session=session, key=key)
        return await self._start(runtime, start)

    async def start_resource(
        self,
        uri: str,
        *,
        ttl: timedelta | Unset | None = UNSET,
        owner: str | Unset | None = UNSET,
        session: str | Unset | None = UNSET,
        key: str | None = None,
    ) -> LocalTask[ReadResourceResult]:
        """Start the reading of a resource as a task. Takes and raises what `start` does."""
        request = request_for("resources/read", uri, None)
        runtime = self._runtime()
        options = await self._check_read(request, as_task=True)
        start = LocalStart(request=request, options=options, ttl=ttl, owner=owner, session=session, key=key)
        return await self._start(runtime, start)

    def handle(self, task_id: str, *, owner: str | Unset | None = UNSET, everybody: bool = False) -> LocalTask[Any]:
        """The task of that id, started on another day or in another process. Nothing is looked up yet.

        Args:
            owner: Whose task it has to be; None for nobody's. Another's is not there, as on the wire. In a tool that
                runs as a task it is by default the owner of that task, because the id may come from its caller;
                elsewhere it is anybody's, and has to be said on a server that requires authentication.
            everybody: Whoever's it is: for operators.

        Raises:
            OwnerRequired: It is not said whose, on a server that requires authentication.
            UsageError: It is said in two ways.
        """
        check_text("task_id", task_id)
        return LocalTask(self._runtime, task_id, self._whose(owner, everybody=everybody))

    async def list(
        self,
        *,
        owner: str | Unset | None = UNSET,
        session: str | None = None,
        parent: str | None = None,
        everybody: bool = False,
        status: TaskStatus | str | None = None,
        page_size: int = 100,
        cursor: str | None = None,
    ) -> TaskPage:
        """One page of tasks of this server, in the order of creation.

        Whose tasks must be said, in exactly one way: there is no default that shows everybody's.

        Args:
            owner: The tasks of one owner; None for those that nobody owns.
            session: The tasks of one session,
            parent: or the children of one task, whoever owns them; in a tool that runs as a task, those that the owner
                of that task has.
            everybody: All tasks: for operators.
            status: Only those in this status, as `LocalSnapshot.status` has it.
            page_size: How many tasks a page has at most.
            cursor: Where the page starts: `next_cursor` of the one before.

        Raises:
            UsageError: It is not said whose tasks, or in more than one way.
            InvalidOption: Another argument has a value that it cannot have.
        """
        whose = whose_tasks(owner, session, parent, everybody=everybody)
        run = current_run.get()
        # What it is given by its caller is no proof: another's session or task may be meant.
        only = UNSET if run is None or isinstance(owner, str | None) or everybody else run.record.owner
        return await page_of(self._runtime(), whose, owner=only, status=status, page_size=page_size, cursor=cursor)

    async def list_all(
        self,
        *,
        owner: str | Unset | None = UNSET,
        session: str | None = None,
        parent: str | None = None,
        everybody: bool = False,
        status: TaskStatus | str | None = None,
    ) -> AsyncGenerator[LocalSnapshot]:
        """All tasks of a listing, page by page. Takes and raises what `list` does."""
        cursor: str | None = None
        while True:
            page = await self.list(
                owner=owner, session=session, parent=parent, everybody=everybody, status=status, cursor=cursor
            )
            for task in page.tasks:
                yield task
            cursor = page.next_cursor
            if cursor is None:
                return

    async def check_call(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Refuse a call that cannot become a task.

        Raises:
            UsageError: There is no such tool, it is not marked, or it does not take these arguments.
        """
        tool = await self._catalogue.tool(name)
        if tool is None:
            raise UsageError(f"the server has no tool {name!r}")
        if not self._doors.calls.can_become_task(tool.mark):
            raise UsageError(f"tool {name!r} never becomes a task: {_why_not(tool.mark and tool.mark.options)}")
        problem = None if tool.mark is None or tool.mark.resolves else tool.mark.problem_with(arguments)
        if problem is not None:
            raise UsageError(f"tool {name!r} does not take these arguments: {problem}") from problem

    def _runtime(self) -> TaskRuntime:
        """The runtime of the task that the calling code is part of, or else the server's."""
        return current_runtime.get() or self._lifecycle.runtime()

    async def _result(self, request: TaskRequest) -> Mapping[str, Any]:
        body: ToolBody = body_at_work.get() or self._lifecycle.body()
        try:
            return await body.call(request)
        except RpcError as exc:
            raise to_mcp_error(exc) from exc

    async def _check_read(self, request: TaskRequest, *, as_task: bool = False) -> TaskOptions:
        """What was said of the prompt or resource of a request.

        Raises:
            UsageError: There is none, it does not take these arguments, or it never becomes a task.
        """
        self._runtime()
        what = f"{'prompt' if request.method == 'prompts/get' else 'resource'} {request.name!r}"
        read = await self._catalogue.read(request.method, request.name)
        if read is None:
            raise UsageError(f"the server has no {what}")
        problem = read.problem_with(request.arguments)
        if problem is not None:
            raise UsageError(f"{what} does not take these arguments: {problem}")
        if as_task and (read.options is None or read.options.mode == "forbidden"):
            raise UsageError(f"{what} never becomes a task: {_why_not(read.options)}")
        return read.options or TaskOptions()

    def _whose(self, owner: str | Unset | None, *, everybody: bool) -> str | Unset | None:
        """Whose a task has to be; unset for anybody's."""
        if not isinstance(owner, str | Unset | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(f"owner must be a string or None, got {owner!r}")
        if not isinstance(owner, Unset):
            if everybody:
                raise UsageError("say whose task it is in one way: owner=, or everybody=True")
            return owner
        run = current_run.get()
        if everybody or run is not None:
            return UNSET if run is None or everybody else run.record.owner
        if self._lifecycle.requires_owner:
            raise OwnerRequired(
                "this server requires authentication, so a task is somebody's: say whose, as in tasks.handle(task_id, "
                "owner=owner), or tasks.handle(task_id, everybody=True) for an operator"
            )
        return UNSET

    async def _start(self, runtime: TaskRuntime, start: LocalStart) -> LocalTask[Any]:
        run = current_run.get()
        if run is None:
            key = None if start.key is None else f"local/{start.key}"
            task_id = await start.launch(runtime, self._catalogue.usual, key)
        else:
            task_id = await run.children.start(
                start.identity, lambda key: start.launch(runtime, self._catalogue.usual, key, run), key=start.key
            )
        return LocalTask(self._runtime, task_id, start.owner_in(run))


def _why_not(options: TaskOptions | None) -> str:
    return "it is not marked with @tasks.task()" if options is None else 'its mode is "forbidden"'
