"""`mcp-tasks call`, `answer` and `tools`: call a tool, answer its questions, and list the tools of a server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import click
from mcp import MCPError
from mcp_types import Tool
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from rich.text import Text

from mcp_tasks.cli.commands.completion import task_ids, tool_names
from mcp_tasks.cli.commands.tasks import wait_for
from mcp_tasks.cli.connection import SERVER, Chosen, connect, name_of, takes_tasks
from mcp_tasks.cli.fields import describe_words, fields_of
from mcp_tasks.cli.follow import Followed, open_questions, still_asked
from mcp_tasks.cli.interactive import Attending, report, say_how_to_return
from mcp_tasks.cli.options import (
    Access,
    Options,
    Output,
    Waiting,
    takes_access,
    takes_arguments,
    takes_options,
    takes_output,
    takes_waiting,
    taking,
)
from mcp_tasks.cli.prompt import how_to_answer, read_arguments, read_known
from mcp_tasks.cli.questions import Question, answers_to, questions_for
from mcp_tasks.cli.servers import ServerAddress, TaskSupport, declares_tasks, find_tool, list_tools, task_support
from mcp_tasks.cli.terminal import (
    Columns,
    Detached,
    Exit,
    LineBoard,
    Problem,
    command_line,
    is_terminal,
    listing,
    new_board,
    one_line,
    print_json,
    problem_of,
    say,
    stdout,
)
from mcp_tasks.client import LedgerEntry, TaskHandle, WaitTimedOut, user_ledger
from mcp_tasks.client.ledger import short_id
from mcp_tasks.errors import QuestionUnseen, UsageError


@click.command()
@click.argument("server", type=SERVER)
@click.argument("tool", shell_complete=tool_names)
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]... | -")
@takes_arguments("All arguments")
@click.option("--detach", is_flag=True, help="Start the task, print its id and leave.")
@takes_waiting("waiting")
@takes_options
async def call_command(
    *,
    server: ServerAddress,
    tool: str,
    words: Sequence[str],
    json_text: str | None,
    detach: bool,
    waiting: Waiting,
    options: Options,
) -> int:
    """Call a tool and wait for it, however long it takes.

    Values are typed by the tool's schema: numbers and yes/no as they are, lists as one value, by giving a key more than
    once or as JSON, objects as JSON. KEY:=JSON gives a value of any type.

    Questions are asked at the prompt. Ctrl-C offers to cancel the task or to leave it running.

    Examples:
      mcp-tasks call http://localhost:8000/mcp render scene=forest frames=24
      mcp-tasks call "python server.py" import_data --args '{"tables": ["a", "b"]}'
      generate-arguments | mcp-tasks call http://localhost:8000/mcp render -
      id=$(mcp-tasks call --detach http://localhost:8000/mcp render scene=forest)

    Exit codes: 0 done, 1 the tool failed, 2 wrong usage, 3 JSON-RPC error,
    4 cancelled, 5 --timeout, 6 server cannot be used, 7 a question and nobody to
    ask, 130 Ctrl-C. --on-abandon says what becomes of a task that has not ended.
    """
    if detach and waiting.save is not None:
        raise click.UsageError("--detach does not wait for the result that --save is for: give --save to `wait`")
    access, timeout = options.access, waiting.timeout
    attending = Attending(new_board(), access, waiting)
    follower, identity = attending.follower, access.identity or ""
    # Until the tool is called; from there on the follower keeps the time.
    reaching = asyncio.timeout(timeout)
    try:
        with user_ledger(options.ledger_path) as ledger:
            async with reaching, connect(server, access, ledger=ledger, elicit=follower.elicit) as client:
                found = await find_tool(client, tool)
                reaching.reschedule(None)
                arguments = read_arguments(found.input_schema, words, json_text)
                ledger.called(server.spec, name=name_of(server))
                followed = await attending.stay(
                    follower.call(client, tool, arguments, server=server.spec, identity=identity, detach=detach)
                )
    except TimeoutError:
        raise Problem(f"{server.label} did not answer within {timeout:.15g} s", Exit.TIMEOUT) from None
    if followed.task_id is None:
        _check_answer(followed, detach=detach)
    elif detach and options.output == "text":
        click.echo(one_line(followed.task_id) if sys.stdout.isatty() else followed.task_id)
        say_how_to_return([followed.entry], access)
        return Exit.OK
    code = report([followed], options, save=waiting.save)
    if followed.refuses_arguments:
        say(describe_words(found.input_schema))
    return code


def _check_answer(call: Followed, *, detach: bool) -> None:
    """Raise a problem if a call that became no task has no result."""
    if call.left_open:
        raise Problem("The question was left open, so the call is given up.", Exit.INPUT_REQUIRED, is_error=False)
    if call.questions:
        why = "the tool asks something before it starts, and there is no terminal to ask at"
        hint = "\n".join([*call.questions[0].describe(), "Call it on a terminal."])
        raise Problem(why, Exit.INPUT_REQUIRED, hint=hint)
    if call.problem is not None and not isinstance(call.problem, WaitTimedOut):
        raise problem_of(call.problem)
    if detach and call.problem is None:
        say("warning: the call was answered directly, so there is no task to come back to.", "yellow")


# ---- answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """An answer on the command line. Contradictions are refused before a task is looked for.

    Attributes:
        key: The question that it is for, if that is said.
        action: `accept`, `decline` or `cancel`, if one of them is said.
        wait: Whether to wait for the task then, as `waiting` says.
    """

    words: Sequence[str]
    json_text: str | None
    key: str | None
    action: str | None
    wait: bool
    waiting: Waiting

    def __post_init__(self) -> None:
        if self.action in ("decline", "cancel") and (self.words or self.json_text):
            raise click.UsageError(f"--{self.action} takes no values")
        if not self.wait and (self.waiting.timeout or self.waiting.save):
            raise click.UsageError("--timeout and --save are for a result: give --wait as well")

    def __bool__(self) -> bool:
        return bool(self.words or self.json_text or self.action)

    def answers(self, questions: Sequence[Question]) -> dict[str, dict[str, Any]]:
        """The answers to these questions, by key."""
        words, known = read_known(self.words, self.json_text)
        if known is None and (method := next((each.method for each in questions if not each.is_elicitation), None)):
            raise Problem(f"a {method} request takes a whole result, with --args", Exit.USAGE)
        return answers_to(questions, words, known=known, action=self.action or "accept")


takes_answer: Final = taking(
    click.argument("words", nargs=-1, metavar="[KEY=VALUE]... | -"),
    takes_arguments("The whole answer"),
    click.option("--question", "key", metavar="KEY", help="Which question, if the task asks several."),
    click.option(
        "--accept", "action", flag_value="accept", help="Accept a question that has no fields, or a page to visit."
    ),
    click.option("--decline", "action", flag_value="decline", help="Say no."),
    click.option(
        "--cancel", "action", flag_value="cancel", help="Dismiss the question. (The task is not cancelled by this.)"
    ),
    click.option("--wait", is_flag=True, help="Then wait for the task to end, as `wait` does."),
    takes_waiting("waiting (with --wait)"),
    into=Given,
    name="given",
)


@click.command()
@click.argument("ids", metavar="ID", shell_complete=task_ids)
@takes_answer
@takes_tasks
async def answer_command(*, chosen: Chosen, given: Given) -> int:
    """Answer what a task asks.

    Values are typed and checked by the question's own schema. Without any, the question is asked at the prompt.

    Examples:
      mcp-tasks answer task_AhLN                      (asks at the prompt)
      mcp-tasks answer task_AhLN confirm=yes
      mcp-tasks answer task_AhLN --question q2 --args '{"name": "Ann"}'
      mcp-tasks answer task_AhLN --decline --wait
    """
    options, [entry] = chosen.options, chosen.entries
    task, repeated = short_id(entry.task_id), options.access.repeated
    answer = partial(_answer, entry=entry, given=given, access=options.access)
    answered = (await chosen.at_each(answer, asks=True))[entry.key]
    if isinstance(answered, Exception):
        raise answered
    if answered is None:
        say(f"The question is left open. Answer it with:\n  {command_line('answer', task, options=repeated)}")
    elif given.wait:
        return await wait_for(chosen, given.waiting)
    elif options.output == "json":
        print_json({"taskId": entry.task_id, "answered": answered})
    else:
        say(f"Answered. Come back with:\n  {command_line('wait', task, options=repeated)}")
    return Exit.OK


async def _answer(handle: TaskHandle, entry: LedgerEntry, given: Given, access: Access) -> list[str] | None:
    """Answer the questions of a task; returns the keys of those that were answered, or None if one was left open."""
    can_answer, repeated = bool(given) or is_terminal(), access.repeated
    questions: Sequence[Question] = ()
    chosen: Sequence[Question] = ()
    try:
        questions = await open_questions(handle, server=entry.server_label, fetch=can_answer)
        chosen = questions_for(given.words, questions, key=given.key)
    except QuestionUnseen:
        if can_answer:
            raise
    if not can_answer:
        asked = [line for question in chosen for line in question.describe()]
        hint = "\n".join([*asked, *how_to_answer(entry.task_id, chosen, repeated)])
        raise Problem("there is no terminal to ask at, and no answer was given", Exit.INPUT_REQUIRED, hint=hint)
    answers = given.answers(chosen) if given else await _ask_all(chosen, access)
    if answers is None:
        return None
    if not given:
        answers = await still_asked(handle, answers)
    try:
        await handle.answer(answers)
    except UsageError as exc:
        raise Problem(str(exc), Exit.USAGE, hint="Nothing was sent; the task still waits for an answer.") from exc
    except MCPError as exc:
        lines = ["The task still waits for one:", *how_to_answer(entry.task_id, questions, repeated)]
        raise Problem(f"the server refused the answer: {exc}", Exit.FAILED, hint="\n".join(lines)) from exc
    return list(answers)


async def _ask_all(questions: Sequence[Question], access: Access) -> dict[str, Any] | None:
    """The answers that are given at the prompt; None if a question is left open."""
    attending = Attending(LineBoard(), access, Waiting())

    async def ask() -> dict[str, Any] | None:
        answers: dict[str, Any] = {}
        for question in questions:
            answers[question.key] = await attending.ask(question)
            if answers[question.key] is None:
                return None
        return answers

    try:
        return await attending.stay(ask())
    except Detached:
        raise Problem("nothing was answered", Exit.INTERRUPTED) from None


# ---- tools


_WORDS: Mapping[TaskSupport, str] = {
    "required": "always",
    "optional": "can be",
    "forbidden": "never",
    "undeclared": "the server decides",
}


@click.command()
@click.argument("server", type=SERVER)
@takes_access
@takes_output
async def tools_command(*, server: ServerAddress, access: Access, output: Output) -> int:
    """List a server's tools, what they take, and which can be tasks.

    On the 2026-07-28 protocol the server decides call by call, and no listing tells; where it says more, that is
    shown.

    Examples:
      mcp-tasks tools http://localhost:8000/mcp
      mcp-tasks tools "python server.py" --json
    """
    async with connect(server, access) as client:
        tools = [(tool, _WORDS[task_support(tool, client)]) for tool in await list_tools(client)]
        version, declared = client.protocol_version, declares_tasks(client)
    if output == "json":
        shown = [
            {"name": tool.name, "description": tool.description, "task": words, "inputSchema": tool.input_schema}
            for tool, words in tools
        ]
        print_json({"protocolVersion": version, "tasks": declared, "tools": shown})
        return Exit.OK
    columns: Columns[tuple[Tool, str]] = {
        "tool": lambda each: Text(one_line(each[0].name), style="bold"),
        "as a task": lambda each: each[1],
        "what it does and takes": lambda each: _about(each[0]),
    }
    stdout().print(listing(columns, tools, fixed=2))
    if version not in MODERN_PROTOCOL_VERSIONS:
        has = "tasks of its own. The client decides which calls become one" if declared else "no tasks"
        say(f"The server speaks {version}, with {has}.")
    elif declared is None:
        say(f"Spoken: {version}, without asking what the server supports.")
    elif declared:
        say(f"The server speaks {version} with tasks. It decides call by call which become one.")
    else:
        say(f"The server speaks {version} and does not support tasks: every call is answered directly.")
    return Exit.OK


def _about(tool: Tool) -> Text:
    about = Text(one_line(tool.description))
    for field in fields_of(tool.input_schema):
        about.append(f"\n  {one_line(field.name)}: {one_line(field.describe())}", style="bright_black")
    return about
