"""The companion tools as `tools/list` shows them: what they are called, and what a model is told of them."""

from __future__ import annotations

import re
from typing import Any, Final

from mcp_tasks.errors import InvalidOption
from mcp_tasks.fallback.words import CompanionNames

DEFAULT_WAIT: Final = 25.0
LONGEST_WAIT: Final = 300.0
"""Seconds that a model may have `task_status` wait. More is taken for this; a host that gives up sooner is answered
sooner."""

_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]{0,64}")


def check_prefix(prefix: object) -> None:
    """Refuse what cannot be the beginning of a tool's name.

    Raises:
        InvalidOption: It is not a string, has other characters than those of tools' names, or is too long.
    """
    if not isinstance(prefix, str) or _PREFIX.fullmatch(prefix) is None:
        raise InvalidOption(
            'companion_prefix must be at most 64 letters, digits, and the characters _ . -, as in "render_": '
            f"got {prefix!r}"
        )


def names_with(prefix: str, *, may_answer: bool) -> CompanionNames:
    """What the companion tools are called with that prefix."""
    return CompanionNames(
        status=f"{prefix}task_status",
        cancel=f"{prefix}task_cancel",
        answer=f"{prefix}task_answer" if may_answer else None,
    )


def definitions(names: CompanionNames, *, lists: bool) -> list[dict[str, Any]]:
    """The tools of those names, as `tools/list` has them.

    Args:
        lists: Whether it can be told which tasks are the caller's own.
    """
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
    # No output schema: what comes back is the result of whichever tool the task is of.
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
        # The tool goes on by the answer, to do whatever it asked for leave to do; and equal answers may be to two
        # questions.
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
