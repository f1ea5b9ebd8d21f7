"""What a task asks, in words for a terminal, and the commands that answer it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from mcp_tasks.cli.terminal.text import clean, command_line, one_line
from mcp_tasks.client.pages import link_to
from mcp_tasks.client.questions import Question
from mcp_tasks.client.short_ids import short_id


def describe(question: Question) -> list[str]:
    """The question and the fields of its answer, a line each."""
    lines = clean(question.message).splitlines()
    if question.url is not None:
        link = link_to(question.url)
        notes = [*link.warnings, *([] if link.refusal is None else [link.refusal])]
        return [
            *lines,
            f"  visit: {one_line(question.url)}",
            f"  host:  {link.host}",
            *(f"  ! {note}" for note in notes),
        ]
    fields = question.fields
    width = max((len(field.name) for field in fields), default=0)
    return [*lines, *(f"  {one_line(field.name):<{width}}  {one_line(field.describe())}" for field in fields)]


def how_to_answer_unseen(task_id: str, repeated: str) -> list[str]:
    """The commands that answer a question which its server has not sent here, a line each."""
    words = (short_id(task_id),)
    return [
        command_line("answer", *words, options=repeated),
        command_line("answer", *words, "KEY=VALUE", options=repeated),
    ]


def how_to_answer(task_id: str, questions: Sequence[Question], repeated: str) -> list[str]:
    """The commands that answer questions, a line each, with what has to be `repeated` in them."""
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
