"""`mcp-tasks call`: call a tool and wait for it, as a task or not."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import click
from mcp import Client, MCPError
from mcp.client.session import ClientRequestContext
from mcp_types import INVALID_REQUEST, CallToolResult, ElicitRequestParams, ElicitResult, ErrorData
from pydantic import ValidationError

from mcp_tasks.cli.completing import tool_names
from mcp_tasks.cli.connection import connect
from mcp_tasks.cli.forms.arguments import describe_arguments, read_arguments
from mcp_tasks.cli.forms.form import Later
from mcp_tasks.cli.forms.questions import describe
from mcp_tasks.cli.options import (
    Access,
    Output,
    TakesArguments,
    takes_access,
    takes_arguments,
    takes_ledger,
    takes_on_abandon,
    takes_output,
    takes_save,
    takes_timeout,
)
from mcp_tasks.cli.remembered import find_task, opened_ledger
from mcp_tasks.cli.running import run
from mcp_tasks.cli.servers import SERVER
from mcp_tasks.cli.terminal.attending import Attending, outcome_followed
from mcp_tasks.cli.terminal.desk import Desk, TimeUp
from mcp_tasks.cli.terminal.exits import Detached, Exit, LeftOpen, Problem
from mcp_tasks.cli.terminal.outcomes import Outcome, report, say, say_how_to_return, what_became
from mcp_tasks.cli.terminal.rows import Row
from mcp_tasks.cli.terminal.text import one_line
from mcp_tasks.cli.terminal.views import Board, new_board
from mcp_tasks.client import CallLost, Follower, Ledger, TaskHandle, find_tool, start_task
from mcp_tasks.client.handle import OnAbandon
from mcp_tasks.client.questions import questions_of
from mcp_tasks.client.servers.address import ServerAddress
from mcp_tasks.errors import Fate

EPILOG = """\
\b
Examples:
  mcp-tasks call http://localhost:8000/mcp render scene=forest frames=24
  mcp-tasks call "python server.py" import_data --args '{"tables": ["a", "b"]}'
  generate-arguments | mcp-tasks call http://localhost:8000/mcp render -
  id=$(mcp-tasks call --detach http://localhost:8000/mcp render scene=forest)

\b
Exit codes: 0 done, 1 the tool failed, 2 wrong usage, 3 JSON-RPC error,
4 cancelled, 5 --timeout, 6 server cannot be used, 7 a question and nobody to
ask, 130 Ctrl-C. --on-abandon says what becomes of a task that has not ended.
"""


@click.command(cls=TakesArguments, epilog=EPILOG)
@click.argument("server", type=SERVER)
@click.argument("tool", shell_complete=tool_names)
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]... | -")
@takes_arguments("All arguments")
@click.option("--detach", is_flag=True, help="Start the task, print its id and leave.")
@takes_timeout("waiting")
@takes_on_abandon
@takes_save
@takes_access
@takes_ledger
@takes_output
def command(
    *,
    server: str,
    tool: str,
    words: Sequence[str],
    json_text: str | None,
    detach: bool,
    timeout: float | None,
    on_abandon: OnAbandon,
    save: Path | None,
    access: Access,
    ledger_path: Path | None,
    output: Output,
) -> int:
    """Call a tool and wait for it, however long it takes.

    Values are typed by the tool's schema: numbers and yes/no as they are, lists as one value, by giving a key more than
    once or as JSON, objects as JSON. KEY:=JSON is taken as it is.

    Questions are asked at the prompt. Ctrl-C offers to cancel the task or to leave it running.
    """
    target = ServerAddress.parse(server)

    async def work() -> int:
        with opened_ledger(ledger_path) as ledger:
            call = _Call(target, access, ledger, limit=timeout, detach=detach, on_abandon=on_abandon)
            outcome = await call.run(tool, words, json_text)
        if detach and outcome.task_id is None and outcome.problem is None:
            say("warning: the call was answered directly, so there is no task to come back to.", "yellow")
        if detach and outcome.task_id is not None and output == "text":
            click.echo(one_line(outcome.task_id) if sys.stdout.isatty() else outcome.task_id)
            say_how_to_return(outcome.task_id, outcome.server, access)
            return Exit.OK
        code = report([outcome], output, access, save=save)
        if outcome.refuses_arguments:
            say(call.takes)
        return code

    return run(work)


class _Call:
    """One call, from the connection to its outcome.

    Attributes:
        takes: What the tool takes, in words.
    """

    def __init__(
        self,
        target: ServerAddress,
        access: Access,
        ledger: Ledger,
        *,
        limit: float | None,
        detach: bool,
        on_abandon: OnAbandon,
    ) -> None:
        self._target = target
        self._access = access
        self._ledger = ledger
        self._limit = limit
        self._detach = detach
        self._board: Board = new_board()
        self._desk = Desk(self._board, limit=limit)
        self._follower = Follower(Attending(self._board, self._desk), on_abandon=on_abandon)
        self._row = Row(key="call", tool="", status="working")
        self.takes: str = ""
        self._task_id: str | None = None
        self._unanswered: Problem | None = None

    async def run(self, name: str, words: Sequence[str], json_text: str | None) -> Outcome:
        # Until the tool is called; from there on the clock stands still while somebody types.
        with anyio.move_on_after(self._limit) as reaching:
            return await self._run(name, words, json_text, reaching)
        raise Problem(f"{self._target.label} did not answer within {self._limit:.15g} s", Exit.TIMEOUT)

    async def _run(
        self, name: str, words: Sequence[str], json_text: str | None, reaching: anyio.CancelScope
    ) -> Outcome:
        async with connect(self._target, self._access, ledger=self._ledger, elicit=self._elicit) as client:
            tool = await find_tool(client, name)
            reaching.deadline = math.inf
            arguments = read_arguments(tool.input_schema, words, json_text)
            self.takes = describe_arguments(tool.input_schema)
            self._row = replace(self._row, tool=tool.name)
            with self._board:
                try:
                    return await self._desk.supervise(self._call(client, arguments), self._follower)
                except TimeUp:
                    return self._timed_out()
                except Detached:
                    self._say_goodbye()
                    raise

    async def _call(self, client: Client, arguments: dict[str, Any]) -> Outcome:
        self._board.show(self._row)
        try:
            # A call that does not become a task shows its progress, and takes as long as it takes.
            started = await start_task(
                client,
                self._row.tool,
                arguments,
                read_timeout_seconds=float("inf"),
                progress_callback=self._progress,
            )
        except MCPError as exc:
            if self._unanswered is not None:
                raise self._unanswered from exc
            if isinstance(exc, CallLost):
                made = "may have been made" if exc.may_have_run else "was not made"
                raise Problem(f"the server went away: {exc.message}. The call {made}", Exit.UNREACHABLE) from exc
            error = exc.error.model_dump(by_alias=True, mode="json", exclude_none=True)
            return self._outcome("failed", error=error)
        except (RuntimeError, ValidationError) as exc:
            # What the SDK says of a result that does not fit its tool's own schema, or is no result.
            raise Problem(f"the server's answer is not valid: {exc}", Exit.FAILED) from exc
        finally:
            self._board.drop(self._row.key)
        if self._unanswered is not None:
            raise self._unanswered
        if isinstance(started, CallToolResult):
            return self._outcome("completed", result=started.model_dump(by_alias=True, mode="json", exclude_none=True))
        return await self._follow(client, started)

    async def _follow(self, client: Client, handle: TaskHandle) -> Outcome:
        self._task_id = handle.id
        if self._detach:
            return self._outcome("working")
        self._desk.can_cancel = True
        identity = self._access.identity or ""
        entry = find_task(self._ledger, handle.id, server=self._target.spec, identity=identity)
        await self._follower.follow_all(client, [entry])
        return outcome_followed(self._follower.seen[entry.key])

    async def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        self._row = replace(self._row, done=progress, total=total, message=message)
        self._board.show(self._row)

    async def _elicit(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """A question on the call itself, before there is a task."""
        fields = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        [question] = questions_of(
            {"": {"method": "elicitation/create", "params": fields}}, self._row.tool, self._target.label
        )
        if not self._desk.is_staffed:
            self._unanswered = Problem(
                "the tool asks something before it starts, and there is no terminal to ask at",
                Exit.INPUT_REQUIRED,
                hint="\n".join([*describe(question), "Call it on a terminal."]),
            )
            return ErrorData(code=INVALID_REQUEST, message="Nobody is there to answer")
        try:
            return ElicitResult.model_validate(await self._desk.ask(question))
        except Later:
            self._unanswered = LeftOpen("The question was left open, so the call is given up.", Exit.INPUT_REQUIRED)
            return ErrorData(code=INVALID_REQUEST, message="Left open by the user")

    def _outcome(self, status: str, **fields: Any) -> Outcome:
        return Outcome(server=self._target.spec, tool=self._row.tool, status=status, task_id=self._task_id, **fields)

    def _timed_out(self) -> Outcome:
        what = "the task" if self._task_id else "the call"
        problem = f"{what} did not end within {self._limit:.15g} s{what_became(self._fate)}"
        seen = self._follower.seen.get(self._key)
        status = seen.snapshot.status.value if seen and seen.snapshot else "unknown"
        return self._outcome(status, problem=problem, code=Exit.TIMEOUT, fate=self._fate)

    @property
    def _key(self) -> tuple[str, str, str]:
        return self._target.spec, self._access.identity or "", self._task_id or ""

    @property
    def _fate(self) -> Fate:
        seen = self._follower.seen.get(self._key)
        return (seen and seen.fate) or "left"

    def _say_goodbye(self) -> None:
        if self._task_id is None:
            say("The call was given up before it became a task.")
        elif self._fate == "cancelled":
            say("The task was cancelled.")
        else:
            say_how_to_return(self._task_id, self._target.spec, self._access)
