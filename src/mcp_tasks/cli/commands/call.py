"""`mcp-tasks call`: call a tool and wait for it, as a task or not."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import click

from mcp_tasks.cli.commands.completion.completing import tool_names
from mcp_tasks.cli.commands.servers.names import SERVER, name_of
from mcp_tasks.cli.connection import connect
from mcp_tasks.cli.forms.arguments import read_arguments
from mcp_tasks.cli.options import Options, Waiting, takes_arguments, takes_options, takes_waiting
from mcp_tasks.cli.terminal.attending import Attending
from mcp_tasks.cli.terminal.boards import new_board
from mcp_tasks.cli.terminal.exits import Exit, Problem, problem_of
from mcp_tasks.cli.terminal.outcomes import report, say_how_to_return
from mcp_tasks.cli.terminal.text import one_line
from mcp_tasks.cli.terminal.views import say
from mcp_tasks.client import Followed, ServerAddress, WaitTimedOut, describe_words, find_tool, user_ledger


@click.command()
@click.argument("server", type=SERVER)
@click.argument("tool", shell_complete=tool_names)
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]... | -")
@takes_arguments("All arguments")
@click.option("--detach", is_flag=True, help="Start the task, print its id and leave.")
@takes_waiting("waiting")
@takes_options
async def command(
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
    # Until the tool is called; from there on no time passes while somebody types.
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
    """Raise a problem if a call that became no task came to nothing."""
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
