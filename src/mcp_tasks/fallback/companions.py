"""The companion tools: what a model calls to get the result of a tool that was still running.

They are not registered with the server. `listing` shows them to callers that may need them, and calls of them come here
before the server sees them. Whatever is wrong with a call is a tool error in words: a model reads it and tries again,
where a JSON-RPC error would end its turn.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from mcp.server import ServerRequestContext
from mcp_types.version import LATEST_HANDSHAKE_VERSION

from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import LimitExceeded, StoreUnavailable, TaskUnreadable, UnknownTask, UsageError
from mcp_tasks.fallback.arguments import BadArguments, Given
from mcp_tasks.fallback.companion_tools import check_prefix, definitions, names_with
from mcp_tasks.fallback.hosts import Host, host_of
from mcp_tasks.fallback.mine import Mine, list_result, mine, my_tasks, session_of
from mcp_tasks.fallback.phrases import tool_name
from mcp_tasks.fallback.standing_in import answer_for_person
from mcp_tasks.fallback.ways import Fallback, ShownTo
from mcp_tasks.fallback.words import CompanionNames, beyond_limit, facts, problem, text_result, with_id
from mcp_tasks.protocol import Caller, TasksProtocol
from mcp_tasks.protocol.methods import actor_of
from mcp_tasks.runtime import TaskRuntime

RequestContext: TypeAlias = ServerRequestContext[Any, Any]

WaitFor: TypeAlias = Callable[[TaskRecord, RequestContext, Caller, float, float], Awaitable[dict[str, Any]]]
"""Waits for a task on an open call, for so many seconds or as long as the caller can, and gives the answer to the call:
the tool's own result, the handle again, or a question. Last, when the call came, on the monotonic clock."""


class ToolWays(Protocol):
    """How calls of a server's tools are answered whose callers speak no tasks."""

    async def of(self, tool: str) -> Fallback | None:
        """How those of one tool are; None if they are plain calls, or there is no such tool."""
        ...

    async def all(self) -> Sequence[Fallback]:
        """How those of every tool are that may become tasks; of tools that are treated alike, once is enough."""
        ...


class Companions:
    """Shows and answers the companion tools of one server.

    Args:
        ways: How calls of its tools are answered.
        wait_for: Waits on the call of `task_status`.
        hosts: What is known of hosts, by `clientInfo.name`.
        shown: Who has them.
        prefix: What their names begin with, where a server has tools of the same names.

    Raises:
        InvalidOption: The prefix cannot be the beginning of a tool's name.
    """

    def __init__(
        self,
        runtime: Callable[[], TaskRuntime],
        protocol: TasksProtocol,
        ways: ToolWays,
        wait_for: WaitFor,
        *,
        hosts: Mapping[str, Host],
        shown: ShownTo = "auto",
        prefix: str = "",
    ) -> None:
        check_prefix(prefix)
        self.shown: ShownTo = shown
        self._hosts = hosts
        self._runtime = runtime
        self._protocol = protocol
        self._ways = ways
        self._wait_for = wait_for
        self._prefix = prefix
        names = names_with(prefix, may_answer=True)
        self._answers = {names.status: self._status, names.cancel: self._cancel, names.answer: self._answer}
        self._taken = {tool["name"]: list(tool["inputSchema"]["properties"]) for tool in definitions(names, lists=True)}

    # What is there

    def names_for(self, ways: Fallback, caller: Caller | None) -> CompanionNames | None:
        """What the caller of a tool whose calls are answered so is told to call; None if it is shown nothing to call.

        Args:
            caller: None for one that has called a companion.
        """
        is_there = self.shown == "always" or (self.shown == "auto" and may_hand_over(ways))
        if not is_there or not (caller is None or self.is_shown_to(caller)):
            return None
        return names_with(self._prefix, may_answer=ways.model_may_answer)

    def is_shown_to(self, caller: Caller) -> bool:
        """Whether a caller is shown those that there are."""
        if self.shown != "auto":
            return self.shown == "always"
        if self._protocol.speaks(caller.protocol_version):
            return not self._protocol.takes_tasks(caller)
        host = host_of(caller.client_info, self._hosts, over_stdio=not caller.headers)
        # A host that asks for tasks can do so in one version only.
        return host is None or not host.asks_for_tasks or caller.protocol_version != LATEST_HANDSHAKE_VERSION

    def is_companion(self, name: str) -> bool:
        """Whether a tool of this name may be one of them: a look-up, because it is asked on every call."""
        return self.shown != "never" and name in self._answers

    async def tools(self, caller: Caller) -> list[dict[str, Any]]:
        """Those that a caller is shown, as `tools/list` has them."""
        if not self.is_shown_to(caller):
            return []
        names = await self._present(self._protocol.speaks(caller.protocol_version))
        return [] if names is None else definitions(names, lists=self._can_list(caller))

    def _can_list(self, caller: Caller) -> bool:
        # For who is only shown the tools: a caller without an owner is refused when it calls one.
        return self._protocol.has_owner(caller) or session_of(caller) is not None

    async def check_names(self, tools: Iterable[str]) -> None:
        """Refuse a server that has tools of the same names itself. To be called when it starts.

        Raises:
            UsageError: It has, and the message says what to set.
        """
        names = await self._present()
        if names is not None and (taken := sorted(names.all() & set(tools))):
            raise UsageError(
                f"the server has a tool {taken[0]!r}, and so is called a tool that clients without tasks are given to "
                'come back for results: rename one of them, with Tasks(companion_prefix="my_") or in the server, or '
                'have none of ours with Tasks(companions="never")'
            )

    async def _present(self, is_modern: bool | None = None) -> CompanionNames | None:
        """What they are called; None where no tool can need them."""
        needing = [ways for ways in await self._ways.all() if may_hand_over(ways, is_modern=is_modern)]
        if self.shown == "never" or (self.shown == "auto" and not needing):
            return None
        return names_with(self._prefix, may_answer=any(ways.model_may_answer for ways in needing))

    # Calls

    async def answer(
        self, name: str, arguments: JsonObject, ctx: RequestContext, caller: Caller
    ) -> dict[str, Any] | None:
        """The answer to a call of one of them; None if this server has no companion of that name, and the call is not
        for us."""
        names = await self._present()
        if names is None or name not in names.all():
            return None
        given = Given(arguments)
        try:
            await self._protocol.limiting.request(self._protocol.owner(caller))
            given.check_names(self._taken[name])
            return await self._answers[name](given, names, ctx, caller)
        except BadArguments as exc:
            return problem(f"{exc} This call changed nothing.")
        except LimitExceeded as exc:
            self._protocol.refused(caller, "companion", exc, task_id=given.task_id())
            return beyond_limit(name, exc)
        except UnknownTask as exc:
            self._protocol.refused(caller, "companion", exc, task_id=given.task_id())
            return problem(self._unknown(given, names, caller))
        except TaskUnreadable:
            return problem("This task cannot be read; the server's log says why. Tell the user.")
        except StoreUnavailable as exc:
            # To cancel a task again, or to answer a question again, changes nothing more.
            done = "The change may have been made all the same." if exc.may_have_happened else "Nothing was changed."
            return problem(f"The server cannot look at its tasks now. {done} Call {tool_name(name)} again later.")

    async def _status(self, given: Given, names: CompanionNames, ctx: RequestContext, caller: Caller) -> dict[str, Any]:
        since, seconds = time.monotonic(), given.seconds()
        if given.task_id() is not None:
            record = await self._find(given, caller)
            self._protocol.saw(record, "companion")
            return await self._wait_for(record, ctx, caller, seconds, since)
        whose = self._mine(caller)
        if whose is None:
            raise BadArguments(
                "A task_id is needed: on this connection nobody can tell which tasks are yours. It is in the answer "
                "that said that the tool is still running."
            )
        listed = await my_tasks(self._runtime(), whose)
        self._protocol.saw_list(whose.owner, "companion", len(listed))
        return list_result(listed, names)

    async def _cancel(self, given: Given, names: CompanionNames, ctx: RequestContext, caller: Caller) -> dict[str, Any]:
        await self._protocol.limiting.cancel(self._protocol.owner(caller), caller.connection)
        before = await self._find(given, caller)
        after = await self._runtime().cancel(before, f"Cancelled with {names.cancel}", actor=actor_of(before))
        tool, task = tool_name(after.name), f"Task: {after.id}"
        if after.status is not TaskStatus.CANCELLED:
            kept = f"To get what it ended with, call the tool {tool_name(names.status)} with {with_id(after)}."
            return text_result([f"The tool {tool} had already ended, and stays as it is. {kept}", task], facts(after))
        if before.is_final:
            return text_result([f"The tool {tool} had already been cancelled, and has no result.", task], facts(after))
        done = "Its work had not begun." if after.attempt == 0 else "What it had done by then is not undone."
        return text_result([f"The tool {tool} is cancelled, and has no result. {done}", task], facts(after))

    async def _answer(self, given: Given, names: CompanionNames, ctx: RequestContext, caller: Caller) -> dict[str, Any]:
        record = await self._find(given, caller)
        ways = await self._ways.of(record.name)
        if ways is None or not ways.model_may_answer:
            raise BadArguments(
                f"What the tool {tool_name(record.name)} asks is for the user alone, and you may not answer it. Tell "
                "the user about the question."
            )
        answer = given.answer()
        await self._protocol.count_answers(record.owner, answer)
        return await answer_for_person(self._runtime(), record, answer, given.question(), names)

    async def _find(self, given: Given, caller: Caller) -> TaskRecord:
        task_id = given.task_id()
        if task_id is None:
            raise BadArguments("A task_id is needed: the id in the answer that said that the tool is still running.")
        owner = self._protocol.owner(caller)
        try:
            record = await self._runtime().get(task_id, owner=owner)
            if record.method != "tools/call":
                # Of a prompt or a resource: it has no tool's result to give.
                raise UnknownTask(task_id)
        except UnknownTask:
            await self._protocol.limiting.unknown(owner, caller.connection)
            raise
        return record

    def _mine(self, caller: Caller) -> Mine | None:
        return mine(caller, self._protocol.owner(caller))

    def _unknown(self, given: Given, names: CompanionNames, caller: Caller) -> str:
        said = (
            f"There is no task {tool_name(given.task_id() or '')} of yours here: the id is wrong, or the task ended "
            "long ago and has expired. Use the id exactly as it was in the answer that said that the tool is still "
            "running."
        )
        if self._mine(caller) is None:
            return said
        return f"{said} To list your tasks, call the tool {tool_name(names.status)} without a task_id."


def may_hand_over(ways: Fallback, *, is_modern: bool | None = None) -> bool:
    """Whether a call that is answered so may end with word that the tool is still running: one of the newest wire, of
    an older one, or (None) of any."""
    return ways.handle and ((ways.modern or ways.older) if is_modern is None else answers_for(ways, is_modern))


def answers_for(ways: Fallback, is_modern: bool) -> bool:
    """Whether calls of the newest wire, or of the older ones, are answered so, and are not plain calls."""
    return ways.modern if is_modern else ways.older
