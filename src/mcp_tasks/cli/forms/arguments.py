"""Values that are given on the command line: as `key=value` words and `--args`, and how those are written."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from typing import Any, cast

from mcp_tasks.cli.terminal.exits import Exit, Problem
from mcp_tasks.cli.terminal.text import command_line, one_line
from mcp_tasks.client import Question, read_words, short_id
from mcp_tasks.core.json import JsonObject


def read_arguments(schema: JsonObject, words: Sequence[str], json_text: str | None) -> dict[str, Any]:
    """The arguments that were typed, checked against `schema`.

    Args:
        words: `key=value`, typed by the schema; `key:=JSON`, of any type; or `-`, for JSON from stdin.
        json_text: An object to begin with; `-` for stdin. Words come on top of it.

    Raises:
        BadValue: Something is unknown, missing or wrong; it says what, and how to write it.
        Problem: What should be JSON is none.
    """
    words, known = read_known(words, json_text)
    return read_words(schema, words, known=known)


def read_known(words: Sequence[str], json_text: str | None) -> tuple[Sequence[str], dict[str, Any] | None]:
    """The words that are `key=value`, and what is given as JSON."""
    if "-" in words:
        words, json_text = [word for word in words if word != "-"], "-"
    if json_text is None:
        hint = "`call` and `answer` take a JSON object with --args."
        if whole := next((word for word in words if word.startswith("{")), None):
            raise Problem(f"{whole!r} is not KEY=VALUE", Exit.USAGE, hint=hint)
        return words, None
    try:
        value = json.loads(sys.stdin.read() if json_text == "-" else json_text)
    except ValueError as exc:
        what = "what stdin has" if json_text == "-" else "--args"
        raise Problem(f"{what} is not valid JSON: {exc}", Exit.USAGE) from exc
    if not isinstance(value, dict):
        raise Problem('--args takes an object, like \'{"key": "value"}\'', Exit.USAGE)
    return words, cast("dict[str, Any]", value)


def how_to_answer(task_id: str, questions: Sequence[Question], repeated: str) -> list[str]:
    """The commands that answer questions, a line each, with what has to be `repeated` in them. Without questions, one
    for what a server has not sent here."""
    if not questions:
        return [command_line("answer", short_id(task_id), "KEY=VALUE", options=repeated)]
    lines: list[str] = []
    for question in questions:
        options = f" --question={shlex.quote(one_line(question.key))}" if len(questions) > 1 else ""
        fields = [field for field in question.fields if field.required or len(question.fields) == 1]
        words = [f"{field.name}=..." for field in fields] if question.is_elicitation and question.url is None else []
        if not question.is_elicitation:
            options += " --args RESULT"
        elif not words:
            options += " --accept"
        lines.append(command_line("answer", short_id(task_id), *words, options=options + repeated))
    return lines
