"""What became of a call or a task: in words, as JSON, and as an exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import click
from mcp_types import INVALID_PARAMS
from rich.text import Text

from mcp_tasks.cli.forms.questions import describe, how_to_answer, how_to_answer_unseen
from mcp_tasks.cli.options import Access, Output
from mcp_tasks.cli.terminal.exits import Exit, Problem, problem_of
from mcp_tasks.cli.terminal.rows import COMPLETED_BADLY
from mcp_tasks.cli.terminal.text import clean, command_line, fields, json_text, one_line, without_secrets
from mcp_tasks.cli.terminal.views import stderr
from mcp_tasks.client import LedgerEntry, TaskSnapshot
from mcp_tasks.client.questions import questions_of
from mcp_tasks.client.saving import save_files
from mcp_tasks.client.servers.address import ServerAddress
from mcp_tasks.client.short_ids import short_id
from mcp_tasks.core.json import JsonObject
from mcp_tasks.errors import Fate


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a call or a task stands when a command ends.

    Attributes:
        status: The task's. `completed` or `failed` for a call that did not become a task, `unknown` if there was no way
            to find out.
        problem: What kept us from knowing more, with `code` for it.
        fate: What became of a task that was given up before it ended.
        saved: Files that were written with `--save`, by the number of their block in the result.
        not_saved: Why one of them could not be.
    """

    server: str
    tool: str
    status: str
    task_id: str | None = None
    message: str | None = None
    result: JsonObject | None = None
    error: JsonObject | None = None
    requests: Mapping[str, JsonObject] | None = None
    problem: str | None = None
    code: Exit | None = None
    fate: Fate = "left"
    saved: Mapping[int, Path] = field(default_factory=dict[int, Path])
    not_saved: Problem | None = None

    @property
    def refuses_arguments(self) -> bool:
        """Whether the server did not take what it was called with: by its error, or in the words of the SDKs."""
        if self.error is not None:
            return self.error.get("code") == INVALID_PARAMS
        said = result_texts(self.result, self.saved) if self.result and self.result.get("isError") else []
        return any("validation error" in text.lower() for text in said)

    @property
    def exit(self) -> Exit:
        """The exit code."""
        if self.code is not None:
            return self.code
        match self.status:
            case "completed" | "failed" if (self.result or {}).get("isError"):
                # What is a result to newer servers is a failure to those of 2025-11-25.
                return Exit.TOOL_ERROR
            case "failed":
                return Exit.FAILED
            case "cancelled":
                return Exit.CANCELLED
            case "input_required":
                return Exit.INPUT_REQUIRED
            case _:
                return Exit.OK if self.not_saved is None else self.not_saved.code

    @property
    def state(self) -> str:
        """The status in words of its own where that says too little."""
        is_error = self.status == "completed" and (self.result or {}).get("isError")
        return COMPLETED_BADLY if is_error else self.status

    def to_json(self) -> dict[str, Any]:
        """The value that `--output json` prints."""
        return fields(
            server=self.server,
            tool=self.tool or None,
            taskId=self.task_id,
            status=self.status,
            statusMessage=self.message,
            result=self.result,
            error=self.error,
            inputRequests=self.requests or None,
            problem=self.not_saved.message if self.problem is None and self.not_saved else self.problem,
            saved=[str(path) for path in self.saved.values()] or None,
        )


def outcome_of(entry: LedgerEntry, snapshot: TaskSnapshot | None = None) -> Outcome:
    """How a task stands, or stood when it was last seen."""
    seen = snapshot or entry
    return Outcome(
        server=entry.server,
        tool=entry.tool,
        task_id=entry.task_id,
        status=str(entry.status if snapshot is None else snapshot.status.value),
        message=seen.message,
        result=seen.result,
        error=None if snapshot is None else snapshot.error,
        requests=None if snapshot is None else snapshot.input_requests,
    )


def report(
    outcomes: Sequence[Outcome], output: Output, access: Access, *, as_list: bool = False, save: Path | None = None
) -> int:
    """Print outcomes; gives the exit code: that of the first that is not well."""
    if save is not None:
        outcomes = [with_files(outcome, save) for outcome in outcomes]
    if output == "json":
        values = [outcome.to_json() for outcome in outcomes]
        print_json(values if as_list else values[0])
    else:
        for outcome in outcomes:
            _print(outcome, access, named=as_list and len(outcomes) > 1)
    return next((outcome.exit for outcome in outcomes if outcome.exit), Exit.OK)


def with_files(outcome: Outcome, folder: Path) -> Outcome:
    """The same after the files in its result were written into a folder. If they cannot be, that is said, and the
    result is printed all the same: it may be nowhere else."""
    if outcome.result is None:
        return outcome
    saved, failure = save_files(outcome.result, folder, outcome.tool)
    problem = None if failure is None else Problem(f"--save: {failure}", problem_of(failure).code)
    for path in saved.values():
        say(f"Saved {path}")
    if problem is not None:
        problem.show()
    return replace(outcome, saved=saved, not_saved=problem)


def print_json(value: Any) -> None:
    """One JSON value on stdout."""
    click.echo(json_text(value, indent=2 if sys.stdout.isatty() else None))


def say(text: str, style: str = "") -> None:
    """A line on stderr, or several. What is in it of a server's is on one line each, or meant to be on several."""
    stderr().print(Text(clean(text), style=style), soft_wrap=True)


def what_became(fate: Fate) -> str:
    """What became of a task that was given up, to be added to why."""
    return {"left": "", "cancelled": "; it was cancelled", "not cancelled": "; it could not be cancelled"}[fate]


def say_how_to_return(task_id: str, server: str, access: Access) -> None:
    """The command that comes back to a task that goes on."""
    say(f"The task goes on. Come back with:\n  {command_line('wait', short_id(task_id), options=access.repeated)}")
    if ServerAddress.parse(server).url is None:
        say("It is worked on while its stdio server runs: from when you come back, or in another client of it.")


def print_result(result: JsonObject, saved: Mapping[int, Path]) -> None:
    """A tool's result, as text: on stdout, or on stderr if it is an error."""
    failed = bool(result.get("isError"))
    if failed:
        say("The tool failed:", "red")
    stream = sys.stderr if failed else sys.stdout
    for text in result_texts(result, saved):
        # What goes into a file or a pipe goes there as it came; on stderr it is for people to read, at once or later.
        click.echo(clean(text) if failed or stream.isatty() else without_secrets(text), file=stream)


def result_texts(result: JsonObject, saved: Mapping[int, Path]) -> list[str]:
    """A tool's result in words, block by block."""
    content = result.get("content")
    blocks = cast("list[object]", content) if isinstance(content, list) else []
    texts = [_block_text(block, saved.get(number)) for number, block in enumerate(blocks)]
    if not texts and result.get("structuredContent") is not None:
        return [json.dumps(result["structuredContent"], indent=2, ensure_ascii=False)]
    return texts


def _block_text(block: object, saved: Path | None) -> str:
    if not isinstance(block, Mapping):
        return "[content that is none; --json has it]"
    return _text_of(cast("JsonObject", block), saved)


def _text_of(block: JsonObject, saved: Path | None) -> str:
    where = "--save DIR writes it to a file" if saved is None else f"saved as {saved}"
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "image" | "audio" as kind:
            size = len(str(block.get("data", "")).rstrip("=")) * 3 // 4
            return f"[{kind}, {block.get('mimeType', 'unknown type')}, {size} bytes; {where}]"
        case "resource_link":
            return f"[resource {block.get('uri', '')}]"
        case "resource":
            held: Any = block.get("resource")
            resource = cast("JsonObject", held if isinstance(held, dict) else {})
            return str(resource.get("text") or f"[resource {resource.get('uri', '')}; {where}]")
        case kind:
            return f"[{kind} content; --json has it]"


def _print(outcome: Outcome, access: Access, *, named: bool) -> None:
    if named:
        state = outcome.state.replace("_", " ")
        say(f"── {short_id(outcome.task_id or '')}  {one_line(outcome.tool)}: {state}", "bold")
    if outcome.problem is not None:
        say(one_line(outcome.problem), "red")
        if outcome.task_id is not None and outcome.code is Exit.TIMEOUT and outcome.fate != "cancelled":
            say_how_to_return(outcome.task_id, outcome.server, access)
        return
    match outcome.status:
        case "completed" | "failed" if outcome.error is None and outcome.result is not None:
            print_result(outcome.result, outcome.saved)
        case "failed":
            say(f"The call failed: {_error_text(outcome)}", "red")
        case "cancelled":
            say(f"The task was cancelled{f': {one_line(outcome.message)}' if outcome.message else '.'}")
        case "input_required":
            _print_questions(outcome, access)
        case _:
            pass


def _error_text(outcome: Outcome) -> str:
    error = outcome.error or {}
    code = f" (code {error['code']})" if "code" in error else ""
    return one_line(str(error.get("message") or outcome.message or "the server does not say why")) + code


def _print_questions(outcome: Outcome, access: Access) -> None:
    questions = questions_of(outcome.requests or {}, outcome.tool)
    task_id = outcome.task_id or ""
    if not questions:
        # A server of 2025-11-25 says what to whoever stays to answer.
        say("The task asks something. Answer it on a terminal, or without one:")
        for line in how_to_answer_unseen(task_id, access.repeated):
            say(f"  {line}")
        return
    say("The task asks:")
    for question in questions:
        for line in describe(question):
            say(f"  {line}")
    say("Answer with (or --decline, or --cancel), then come back:")
    wait = command_line("wait", short_id(task_id), options=access.repeated)
    for line in [*how_to_answer(task_id, questions, access.repeated), wait]:
        say(f"  {line}")
