"""The companion tools, with which a model gets the result of a tool that was still running.

They are not registered with the server: `service` adds them to `tools/list` for callers that may need them, and gets
their calls before the server does. Errors in a call are tool errors: a model reads them and tries again, where a
JSON-RPC error would end its turn.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias, cast

from mcp_tasks.errors import (
    InvalidOption,
    LimitExceeded,
    StoreUnavailable,
    TaskUnreadable,
    UnknownTask,
    UsageError,
    ValueNotStorable,
)
from mcp_tasks.fallback.messages import (
    LONGEST_NAME,
    CompanionNames,
    as_json,
    beyond_limit,
    facts,
    is_form,
    line,
    problem,
    quoted,
    text_result,
    tool_name,
    with_id,
)
from mcp_tasks.fallback.options import Host, ShownTo, host_of
from mcp_tasks.model.json import JsonObject
from mcp_tasks.model.options import Fallback
from mcp_tasks.model.record import FINAL_STATUSES, InputRequest, TaskRecord, TaskStatus
from mcp_tasks.protocol.answers import check_answers
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.methods import TasksProtocol, actor_of
from mcp_tasks.protocol.owners import Caller
from mcp_tasks.protocol.shapes import timestamp
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.server.catalog import Catalogue
from mcp_tasks.server.sdk import RequestContext
from mcp_tasks.stores.base import InSession, OwnedBy

# ---- definitions


DEFAULT_WAIT: Final = 25.0
LONGEST_WAIT: Final = 300.0
"""Seconds that `task_status` waits at most. A host that gives up sooner is answered sooner."""

_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]{0,64}")


def names_with(prefix: str, *, may_answer: bool) -> CompanionNames:
    """The names of the companion tools with that prefix."""
    return CompanionNames(
        status=f"{prefix}task_status",
        cancel=f"{prefix}task_cancel",
        answer=f"{prefix}task_answer" if may_answer else None,
    )


def definitions(names: CompanionNames, *, lists: bool = True) -> list[dict[str, Any]]:
    """The tools, as `tools/list` has them; with `lists`, the caller can be shown its own tasks."""
    tools = [_status(names, lists=lists), _cancel(names)]
    return tools if names.answer is None else [*tools, _answer(names.answer, names)]


_TASK_ID: Final = {
    "type": "string",
    "description": "The id of the task, from the answer that said that a tool is still running.",
}


_LOST: Final = " Without a task_id, lists your tasks, in case you lost the id."
_LEFT_OUT: Final = " Leave it out to list your tasks."


def _status(names: CompanionNames, *, lists: bool) -> dict[str, Any]:
    lost, left_out = (_LOST, _LEFT_OUT) if lists else ("", "")
    # No output schema: it returns the result of the task's own tool.
    return _tool(
        names.status,
        "Result of a running tool",
        "Get the result of a tool that answered that it is still running and gave a task id. Waits for the tool to "
        "finish, and returns the tool's own result, unchanged, as soon as there is one. If the tool has not finished "
        "after wait_seconds, says so again: then call this again. Use this in place of calling the tool a second "
        f"time, which would start its work again.{lost}",
        {
            "task_id": {**_TASK_ID, "description": f"{_TASK_ID['description']}{left_out}"},
            "wait_seconds": {
                "type": "number",
                "description": f"How long to wait for the tool to finish, from 0 to {LONGEST_WAIT:g} seconds.",
                "default": DEFAULT_WAIT,
            },
        },
        required=[] if lists else ["task_id"],
        annotations={"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False},
    )


def _cancel(names: CompanionNames) -> dict[str, Any]:
    return _tool(
        names.cancel,
        "Cancel a running tool",
        "Stop a tool that answered that it is still running, by its task id. Use it only if the user no longer wants "
        "the result: what has been done is not undone, and there will be no result. A tool that has already finished "
        f"stays as it is. To see how far a tool is, use {names.status}.",
        {"task_id": _TASK_ID},
        required=["task_id"],
        annotations={"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": False},
    )


def _answer(name: str, names: CompanionNames) -> dict[str, Any]:
    return _tool(
        name,
        "Answer a waiting tool",
        "Answer a question that a tool asks while it runs, on behalf of the user. The answer that said that the tool "
        "waits quotes the question and names the fields. If you do not know what the user wants, ask the user first. "
        f"Afterwards get the tool's result with {names.status}.",
        {
            "task_id": _TASK_ID,
            "action": {
                "type": "string",
                "enum": ["accept", "decline", "cancel"],
                "description": "accept: answer with content. decline: refuse to answer. cancel: dismiss the question.",
            },
            "content": {
                "type": "object",
                "description": "With accept: the fields that the question asks for, by their names.",
            },
            "question": {
                "type": "string",
                "description": "Which question is answered. Needed only if the tool asks several at once.",
            },
        },
        required=["task_id", "action"],
        # With the answer the tool goes on to do what it asked about; and the same answer may be given to two questions.
        annotations={"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True},
    )


def _tool(
    name: str, title: str, description: str, properties: dict[str, Any], *, required: list[str], annotations: Any
) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return {
        "name": name,
        "title": title,
        "description": description,
        "inputSchema": schema,
        "annotations": {"title": title, **annotations},
    }


# ---- arguments


ACTIONS: Final = ("accept", "decline", "cancel")

_AROUND: Final = " \t\r\n\"'`"
"""Characters that models put around an id, and that no id contains."""


_OTHER_SPELLING: Final = "taskId"
"""The spelling of `task_id` in the structured content of a handle."""


class BadArguments(Exception):
    """A call cannot be answered. The text says why, in whole sentences for a model."""


class Arguments:
    """The arguments of a companion tool, which models send nearly right: read leniently where the meaning is clear.

    Every method raises `BadArguments` if it is not.
    """

    def __init__(self, arguments: JsonObject) -> None:
        self._arguments = arguments

    def check_names(self, taken: Sequence[str]) -> None:
        """Refuse arguments that the tool does not take."""
        # Hosts add some of their own, such as `__tool_use_purpose`.
        others = [
            name for name in self._arguments if name not in (*taken, _OTHER_SPELLING) and not name.startswith("_")
        ]
        if not others:
            return
        said = f"This tool has no argument {quoted(others[0], LONGEST_NAME)}. It takes {', '.join(map(quoted, taken))}."
        has_id = "task_id" in self._arguments or _OTHER_SPELLING in self._arguments
        raise BadArguments(said if has_id else f'{said} The id of the task goes into "task_id".')

    def task_id(self) -> str | None:
        given = self._arguments.get("task_id", self._arguments.get(_OTHER_SPELLING))
        if given is not None and not isinstance(given, str):
            raise BadArguments(f"The task_id must be a string, and is {as_json(given, 80)}.")
        return (given or "").strip(_AROUND) or None

    def seconds(self) -> float:
        """How long to wait, limited to the range that is allowed."""
        given = self._arguments.get("wait_seconds")
        if given is None:
            return DEFAULT_WAIT
        seconds = _number(given)
        if seconds is None:
            raise BadArguments(f"The wait_seconds must be a number, and is {as_json(given, 80)}.")
        return float(min(max(seconds, 0), LONGEST_WAIT))

    def question(self) -> str | None:
        """The key of the question that is answered, if it is given."""
        given = self._arguments.get("question")
        if given is not None and not isinstance(given, str):
            raise BadArguments(f"The question must be named by a string, and is {as_json(given, 80)}.")
        return given or None

    def answer(self) -> dict[str, Any]:
        """The answer to an elicitation."""
        action = self._arguments.get("action")
        if action not in ACTIONS:
            raise BadArguments(f'The action must be "accept", "decline" or "cancel", and is {as_json(action, 80)}.')
        return {"action": action, "content": self._content()} if action == "accept" else {"action": action}

    def _content(self) -> dict[str, Any]:
        content = self._arguments.get("content")
        if isinstance(content, str):
            # A model that writes the object as text means the object.
            with suppress(ValueError, RecursionError):
                content = json.loads(content)
        if content is None:
            return {}
        if not isinstance(content, Mapping):
            raise BadArguments(
                f"The content must be an object with the fields of the answer, and is {as_json(content, 80)}."
            )
        return dict(cast("JsonObject", content))


def _number(given: Any) -> float | int | None:
    """The number, which may be given as text; None if it is not one."""
    if isinstance(given, str):
        with suppress(ValueError):
            given = float(given)
    if isinstance(given, bool) or not isinstance(given, int | float):
        return None
    # An int may be larger than any float.
    return None if isinstance(given, float) and math.isnan(given) else given


# ---- answering
# A model answers a question for the user, if the author allows it.


async def answer_for_person(
    runtime: TaskRuntime, record: TaskRecord, answer: JsonObject, question: str | None, names: CompanionNames
) -> dict[str, Any]:
    """Write the answer down, and say what to do next. `question` is the key that was given, if any.

    Raises:
        BadArguments: It is not an answer to an open question of the task.
    """
    key = _key_of(record, question, names)

    def check(task: TaskRecord) -> None:
        # Again before each write: the user, or a second call, may be first.
        if not task.inputs.answerable([key], runtime.now()):
            raise BadArguments(f"The question has been answered or withdrawn meanwhile. {_next(task, names)}")
        check_answers(task, {key: answer}, runtime.limits)

    try:
        after = await runtime.answer(record, {key: answer}, actor=actor_of(record), check=check)
    except (RpcError, LimitExceeded) as exc:
        raise BadArguments(f"{line(str(exc))}. The question stays open.") from exc
    except ValueNotStorable as exc:
        raise BadArguments("The answer is too large to be kept. The question stays open.") from exc
    said = f"The answer was given to the tool {tool_name(record.name)}, which goes on. {_next(after, names)}"
    return text_result([said, f"Task: {after.id}"], facts(after))


def _key_of(record: TaskRecord, named: str | None, names: CompanionNames) -> str:
    open_forms = {key: request for key, request in record.inputs.outstanding.items() if is_form(request)}
    if named is not None and named in open_forms:
        return named
    if not open_forms:
        others = " What it waits for cannot be answered by you." if record.inputs.outstanding else ""
        raise BadArguments(f"The tool {tool_name(record.name)} asks nothing now.{others} {_next(record, names)}")
    if len(open_forms) == 1:
        [(key, only)] = open_forms.items()
        if named is None:
            return key
        # Without its key, which the model was never told.
        raise BadArguments(
            f"There is no such question. The tool asks one thing: {_message(only)} To answer that, leave the question "
            "out."
        )
    asked = ", ".join(f"{quoted(key, 200)} ({_message(request)})" for key, request in list(open_forms.items())[:10])
    raise BadArguments(f"Say in question which of these is answered: {asked}.")


def _message(request: InputRequest) -> str:
    return quoted(str(request.params.get("message", "")), 120)


def _next(record: TaskRecord, names: CompanionNames) -> str:
    return f"To get the result, call the tool {tool_name(names.status)} with {with_id(record)}."


# ---- own tasks
# A caller's own tasks, found without an id: for a host that lost the answer with the id.


STDIO_SESSION: Final = "stdio"
"""The session of tasks that callers without tasks make over a pipe."""

MOST_TASKS: Final = 20
"""Tasks that are listed: the one that a model has lost is among the last."""

PAGE_SIZE: Final = 100
"""Tasks that are read in each status, newest first. Some of them may not be shown."""

_UNFINISHED: Final = (TaskStatus.WORKING, TaskStatus.INPUT_REQUIRED)


def session_of(caller: Caller) -> str | None:
    """The session that a caller's tasks are made in; None over HTTP, whose sessions end, or do not exist."""
    return None if caller.headers else STDIO_SESSION


def own_scope(caller: Caller, owner: str | None) -> OwnedBy | InSession | None:
    """The filter for the caller's own tasks; None if they cannot be told from those of others."""
    if owner is not None:
        return OwnedBy(owner)
    session = session_of(caller)
    return None if session is None else InSession(session)


async def list_own_tasks(runtime: TaskRuntime, scope: OwnedBy | InSession, owner: str | None) -> Sequence[TaskRecord]:
    """At most `MOST_TASKS` of the caller's tasks: unfinished ones first, newest first."""

    async def newest(statuses: Iterable[TaskStatus]) -> dict[str, TaskRecord]:
        # By id: the status of a task may change between two reads.
        found: dict[str, TaskRecord] = {}
        for status in statuses:
            page = await runtime.list(scope, status=status, limit=PAGE_SIZE, newest_first=True)
            # The caller knows of no task that is not announced. One of a prompt or a resource has no tool's result.
            own = [each for each in page.records if each.announced and each.owner == owner]
            found |= {each.id: each for each in [each for each in own if each.method == "tools/call"][:MOST_TASKS]}
        return dict(sorted(found.items(), key=lambda item: (item[1].created_at, item[0]), reverse=True))

    found = await newest(_UNFINISHED)
    if len(found) < MOST_TASKS:
        ended = await newest(sorted(FINAL_STATUSES))
        found = {task_id: each for task_id, each in found.items() if task_id not in ended} | ended
    return list(found.values())[:MOST_TASKS]


def list_result(records: Sequence[TaskRecord], names: CompanionNames) -> dict[str, Any]:
    """The list of a caller's tasks, as a result for a model."""
    if not records:
        said = "You have no tasks here: none was started, or those that were have ended and expired."
        return text_result([said], {"tasks": []})
    lines = [
        f"You have these tasks here, unfinished ones first, newest first (at most {MOST_TASKS} are listed).",
        f"To get the result of one, call the tool {tool_name(names.status)} with its task_id. Do not start its tool "
        "again for that.",
        *map(_line, records),
    ]
    return text_result(lines, {"tasks": [_facts(record) for record in records]})


def _line(record: TaskRecord) -> str:
    shown = _facts(record)
    return (
        f"- {as_json({'task_id': record.id}, 1_000)}: the tool {tool_name(record.name)}, {shown['status']} "
        f"({quoted(shown['statusMessage'], 120)}), started {shown['createdAt']}"
    )


def _facts(record: TaskRecord) -> dict[str, Any]:
    return {**facts(record), "tool": line(record.name, LONGEST_NAME), "createdAt": timestamp(record.created_at)}


WaitFor: TypeAlias = Callable[[TaskRecord, RequestContext, Caller, float, float], Awaitable[dict[str, Any]]]
"""Waits for a task on an open call, at most so many seconds, and returns the answer to the call. The last argument is
when the call came, on the monotonic clock."""


class Companions:
    """The companion tools of one server.

    Args:
        prefix: The start of their names, if the server has tools of the same names.

    Raises:
        InvalidOption: The prefix cannot be the start of a tool's name.
    """

    def __init__(
        self,
        runtime: Callable[[], TaskRuntime],
        protocol: TasksProtocol,
        catalogue: Catalogue,
        wait_for: WaitFor,
        *,
        hosts: Mapping[str, Host],
        shown: ShownTo = "auto",
        prefix: str = "",
    ) -> None:
        if not isinstance(prefix, str) or _PREFIX.fullmatch(prefix) is None:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(
                'companion_prefix must be at most 64 letters, digits, and the characters _ . -, as in "render_": '
                f"got {prefix!r}"
            )
        self.shown: ShownTo = shown
        self._hosts = hosts
        self._runtime = runtime
        self._protocol = protocol
        self._catalogue = catalogue
        self._wait_for = wait_for
        self._prefix = prefix
        names = names_with(prefix, may_answer=True)
        self._answers = {names.status: self._status, names.cancel: self._cancel, names.answer: self._answer}
        self._taken = {tool["name"]: list(tool["inputSchema"]["properties"]) for tool in definitions(names)}

    def names_for(self, options: Fallback, caller: Caller | None) -> CompanionNames | None:
        """The companion tools that a call's caller is told of, if it has any; None for the caller of a companion."""
        is_there = self.shown == "always" or (self.shown == "auto" and may_hand_over(options))
        if not is_there or not (caller is None or self.is_shown_to(caller)):
            return None
        return names_with(self._prefix, may_answer=options.model_may_answer)

    def is_shown_to(self, caller: Caller) -> bool:
        """Whether a caller sees the companion tools."""
        if self.shown != "auto":
            return self.shown == "always"
        if caller.version.has_extension:
            return not caller.takes_tasks
        host = host_of(caller.client_info, self._hosts, over_stdio=not caller.headers)
        # A host can ask for tasks in one version only.
        return host is None or not host.asks_for_tasks or not caller.version.asks_for_tasks

    def names(self) -> frozenset[str]:
        """The names of tools that may be ours."""
        return frozenset(filter(None, self._answers)) if self.shown != "never" else frozenset()

    async def tools(self, caller: Caller) -> list[dict[str, Any]]:
        """The companion tools that a caller sees, as `tools/list` has them."""
        if not self.is_shown_to(caller):
            return []
        names = await self._present(caller.version.has_extension)
        if names is None:
            return []
        # A caller that needs an owner and has none is refused when it calls one.
        return definitions(
            names, lists=self._protocol.owners.known(caller) is not None or session_of(caller) is not None
        )

    async def check_names(self, tools: Iterable[str]) -> None:
        """Refuse tools of the server that have the same names, with `UsageError`."""
        names = await self._present()
        if names is not None and (taken := sorted(names.all() & set(tools))):
            raise UsageError(
                f"the server has a tool {taken[0]!r}, and so is called a tool that clients without tasks are given to "
                'come back for results: rename one of them, with Tasks(companion_prefix="my_") or in the server, or '
                'have none of ours with Tasks(companions="never")'
            )

    async def _present(self, is_modern: bool | None = None) -> CompanionNames | None:
        """Their names; None if no tool needs them."""
        needing = [
            options for options in await self._catalogue.fallbacks() if may_hand_over(options, is_modern=is_modern)
        ]
        if self.shown == "never" or (self.shown == "auto" and not needing):
            return None
        return names_with(self._prefix, may_answer=any(options.model_may_answer for options in needing))

    async def answer(
        self, name: str, arguments: JsonObject, ctx: RequestContext, caller: Caller
    ) -> dict[str, Any] | None:
        """The answer to a call of a companion tool; None if there is none of that name."""
        names = await self._present()
        if names is None or name not in names.all():
            return None
        given = Arguments(arguments)
        try:
            await self._protocol.limiting.request(self._protocol.owners.of(caller))
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

    async def _status(
        self, given: Arguments, names: CompanionNames, ctx: RequestContext, caller: Caller
    ) -> dict[str, Any]:
        since, seconds = time.monotonic(), given.seconds()
        if given.task_id() is not None:
            record = await self._find(given, caller)
            self._protocol.saw(record, "companion")
            return await self._wait_for(record, ctx, caller, seconds, since)
        owner = self._protocol.owners.of(caller)
        scope = own_scope(caller, owner)
        if scope is None:
            raise BadArguments(
                "A task_id is needed: on this connection nobody can tell which tasks are yours. It is in the answer "
                "that said that the tool is still running."
            )
        listed = await list_own_tasks(self._runtime(), scope, owner)
        self._protocol.saw_list(owner, "companion", len(listed))
        return list_result(listed, names)

    async def _cancel(
        self, given: Arguments, names: CompanionNames, ctx: RequestContext, caller: Caller
    ) -> dict[str, Any]:
        await self._protocol.limiting.nameless("cancels", self._protocol.owners.of(caller), caller.connection)
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

    async def _answer(
        self, given: Arguments, names: CompanionNames, ctx: RequestContext, caller: Caller
    ) -> dict[str, Any]:
        record = await self._find(given, caller)
        options = await self._catalogue.fallback(record.name)
        if options is None or not options.model_may_answer:
            raise BadArguments(
                f"What the tool {tool_name(record.name)} asks is for the user alone, and you may not answer it. Tell "
                "the user about the question."
            )
        answer = given.answer()
        await self._protocol.count_answers(record.owner, answer)
        return await answer_for_person(self._runtime(), record, answer, given.question(), names)

    async def _find(self, given: Arguments, caller: Caller) -> TaskRecord:
        task_id = given.task_id()
        if task_id is None:
            raise BadArguments("A task_id is needed: the id in the answer that said that the tool is still running.")
        owner = self._protocol.owners.of(caller)
        try:
            record = await self._runtime().get(task_id, owner=owner)
            if record.method != "tools/call":
                # A task of a prompt or a resource has no tool's result.
                raise UnknownTask(task_id)
        except UnknownTask:
            await self._protocol.limiting.nameless("unknown", owner, caller.connection)
            raise
        return record

    def _unknown(self, given: Arguments, names: CompanionNames, caller: Caller) -> str:
        said = (
            f"There is no task {tool_name(given.task_id() or '')} of yours here: the id is wrong, or the task ended "
            "long ago and has expired. Use the id exactly as it was in the answer that said that the tool is still "
            "running."
        )
        if own_scope(caller, self._protocol.owners.of(caller)) is None:
            return said
        return f"{said} To list your tasks, call the tool {tool_name(names.status)} without a task_id."


def may_hand_over(options: Fallback, *, is_modern: bool | None = None) -> bool:
    """Whether a call may be answered with a handle: one of 2026-07-28, of an older version, or (None) of any."""
    return options.handle and (
        (options.modern or options.older) if is_modern is None else answers_for(options, is_modern)
    )


def answers_for(options: Fallback, is_modern: bool) -> bool:
    """Whether calls of 2026-07-28, or of older versions, are answered by a task."""
    return options.modern if is_modern else options.older
