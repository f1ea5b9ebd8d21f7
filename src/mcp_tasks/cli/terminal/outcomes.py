"""What became of a call or a task: in words, as JSON, and as an exit code."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from mcp_tasks.cli.credentials import SECRETS
from mcp_tasks.cli.forms.arguments import how_to_answer
from mcp_tasks.cli.options import Access, Options
from mcp_tasks.cli.terminal.exits import WHAT_BECAME, Exit, Problem, problem_of
from mcp_tasks.cli.terminal.text import clean, command_line, one_line
from mcp_tasks.cli.terminal.views import print_json, say
from mcp_tasks.client import Followed, LedgerEntry, ServerAddress, result_texts, short_id
from mcp_tasks.core.json import JsonObject

HOW_TO_SAVE: Final = "--save DIR writes it to a file"

_EXITS: Final[Mapping[str, Exit]] = {
    "tool_error": Exit.TOOL_ERROR,
    "failed": Exit.FAILED,
    "cancelled": Exit.CANCELLED,
    "input_required": Exit.INPUT_REQUIRED,
}
"""For outcomes that are not well. What somebody has chosen is no failure."""


def report(followed: Sequence[Followed], options: Options, *, save: Path | None = None, as_list: bool = False) -> int:
    """Print how calls or tasks stand; gives the exit code: that of the first that is not well."""
    outcomes = [with_files(each, save) for each in followed]
    if options.output == "json":
        values = [as_json(outcome) for outcome in outcomes]
        print_json(values if as_list else values[0])
    else:
        for outcome in outcomes:
            _print(outcome, options.access, named=as_list and len(outcomes) > 1)
    return next((code for outcome in outcomes if (code := _exit_of(outcome))), Exit.OK)


def with_files(followed: Followed, save: Path | None) -> Followed:
    """The same, after the files in its result were written into a folder. If they cannot be, that is said, and the
    result is printed all the same: it may be nowhere else."""
    if save is None:
        return followed
    followed = followed.save(save)
    named = "\n".join(result_texts(followed.result or {}, followed.saved))
    for path in followed.saved.values():
        # What is text is printed as it is, without a word on where it went.
        if str(path) not in named:
            say(f"Saved {path}")
    if followed.not_saved is not None and (problem := problem_in(followed)) is not None:
        problem.show()
    return followed


def problem_in(followed: Followed) -> Problem | None:
    """What kept us from knowing more, or from writing a file with `--save`."""
    if followed.problem is not None:
        return problem_of(followed.problem)
    if followed.status == "input_required" and followed.fate in ("cancelled", "not cancelled"):
        why = "the task asks something and there is no terminal to ask at"
        return Problem(why + WHAT_BECAME[followed.fate], Exit.INPUT_REQUIRED)
    if followed.not_saved is not None:
        return Problem(f"--save: {followed.not_saved}", problem_of(followed.not_saved).code)
    return None


def as_json(followed: Followed) -> dict[str, Any]:
    """The value that `--output json` prints, with the problem as it is said here."""
    problem = problem_in(followed)
    return followed.to_json() | ({} if problem is None else {"problem": problem.message})


def _exit_of(followed: Followed) -> Exit:
    problem = problem_in(followed)
    return _EXITS.get(followed.outcome) or (Exit.OK if problem is None else problem.code)


def say_how_to_return(entries: Sequence[LedgerEntry], access: Access, *, goes_on: bool = True) -> None:
    """The command that comes back to tasks; they go on, as far as we know and their servers do."""
    over_stdio = any(ServerAddress.parse(entry.server).url is None for entry in entries)
    title = "The task goes on. " if len(entries) == 1 else "The tasks go on. "
    come_back = command_line("wait", *(short_id(entry.task_id) for entry in entries), options=access.repeated)
    say(f"{title if goes_on and not over_stdio else ''}Come back with:\n  {come_back}")
    if over_stdio:
        # Whether a tool may be run again is not for a client to know.
        fate = "A task whose tool may be run again goes on\nwhen you come back; any other ends as interrupted."
        say(f"Its stdio server ends with this command. {fate}")


def _print(followed: Followed, access: Access, *, named: bool) -> None:
    entry, problem = followed.entry, problem_in(followed)
    if named:
        say(f"── {short_id(entry.task_id)}  {one_line(entry.tool)}: {followed.state.replace('_', ' ')}", "bold")
    if problem is not None and followed.not_saved is None:
        say(one_line(problem.message), "red")
        if problem.hint:
            say(f"  {problem.hint}")
        if problem.code in (Exit.TIMEOUT, Exit.UNREACHABLE) and followed.task_id and followed.fate != "cancelled":
            say_how_to_return([entry], access, goes_on=problem.code is Exit.TIMEOUT)
        return
    if followed.status in ("completed", "failed") and followed.error is None and followed.result is not None:
        print_result(followed.result, followed.saved)
    elif followed.status == "failed":
        say(f"The call failed: {one_line(followed.failure)}", "red")
    elif followed.status == "cancelled":
        say(f"The task was cancelled{f': {one_line(followed.message)}' if followed.message else '.'}")
    elif followed.status == "input_required":
        _print_questions(followed, access)


def print_result(result: JsonObject, saved: Mapping[int, Path]) -> None:
    """A tool's result, as text: on stdout, or on stderr if it is an error."""
    failed = bool(result.get("isError"))
    if failed:
        say("The tool failed:", "red")
    stream = sys.stderr if failed else sys.stdout
    for text in result_texts(result, saved, unsaved=HOW_TO_SAVE):
        # What goes into a file or a pipe goes there as it came; on stderr it is for people to read, at once or later.
        click.echo(clean(text) if failed or stream.isatty() else SECRETS.hidden_in(text), file=stream)


def _print_questions(followed: Followed, access: Access) -> None:
    short, questions, repeated = short_id(followed.entry.task_id), followed.questions, access.repeated
    lines = how_to_answer(followed.entry.task_id, questions, repeated)
    if questions:
        say("\n  ".join(["The task asks:", *(line for question in questions for line in question.describe())]))
        title = "Answer with (or --decline, or --cancel), then come back:"
        lines.append(command_line("wait", short, options=repeated))
    else:
        # A server of 2025-11-25 says what it asks to whoever stays to answer.
        title = "The task asks something. Answer it on a terminal, or without one:"
        lines.insert(0, command_line("answer", short, options=repeated))
    say("\n  ".join([title, *lines]))
