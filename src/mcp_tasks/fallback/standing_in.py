"""A model answers a question in place of a person, where the author allows it."""

from __future__ import annotations

from typing import Any

from mcp_tasks.core.inputs import InputRequest
from mcp_tasks.core.json import JsonObject
from mcp_tasks.core.record import TaskRecord
from mcp_tasks.errors import LimitExceeded, ValueNotStorable
from mcp_tasks.fallback.arguments import BadArguments
from mcp_tasks.fallback.phrases import is_form, line, quoted, tool_name
from mcp_tasks.fallback.words import CompanionNames, facts, text_result, with_id
from mcp_tasks.protocol.answers import check_answers
from mcp_tasks.protocol.errors import RpcError
from mcp_tasks.protocol.methods import actor_of
from mcp_tasks.runtime import TaskRuntime


async def answer_for_person(
    runtime: TaskRuntime, record: TaskRecord, answer: JsonObject, question: str | None, names: CompanionNames
) -> dict[str, Any]:
    """Write the answer down, and say what to do next.

    Args:
        question: The key of the question; None if it is not said.

    Raises:
        BadArguments: It is not an answer to an open question of the task. The question stays open.
    """
    key = key_of(record, question, names)

    def check(task: TaskRecord) -> None:
        # Each time before it is written: the person, or a second call, may be first.
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


def key_of(record: TaskRecord, named: str | None, names: CompanionNames) -> str:
    """Which open question is answered, by its key.

    Args:
        named: What the caller says, if anything.

    Raises:
        BadArguments: It is not said, and there are several; or there is no such question.
    """
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
        # Its key is not shown: a model was never told it, and need not be.
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
