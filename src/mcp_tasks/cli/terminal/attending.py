"""What a terminal does while tasks are followed: draws their states, asks their questions, and says what goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from mcp_tasks.cli.forms.form import Later
from mcp_tasks.cli.terminal.desk import Desk
from mcp_tasks.cli.terminal.exits import Exit, problem_of
from mcp_tasks.cli.terminal.outcomes import Outcome, outcome_of, say
from mcp_tasks.cli.terminal.rows import Row, row_key, row_of
from mcp_tasks.cli.terminal.text import one_line
from mcp_tasks.cli.terminal.views import Board
from mcp_tasks.client import Followed, Hooks, LedgerEntry, TaskSnapshot
from mcp_tasks.client.questions import questions_of
from mcp_tasks.core.json import JsonObject


class Attending(Hooks):
    """Whoever waits at a terminal, or reads its lines later."""

    def __init__(self, board: Board, desk: Desk) -> None:
        self.can_answer: bool = desk.is_staffed
        self._board = board
        self._desk = desk
        self._rows: dict[str, Row] = {}

    def on_state(self, entry: LedgerEntry, snapshot: TaskSnapshot) -> None:
        """Draw it."""
        self._show(row_of(entry, snapshot))

    async def on_question(self, entry: LedgerEntry, key: str, request: JsonObject) -> Mapping[str, Any] | None:
        """Ask the person."""
        [question] = questions_of({key: request}, entry.tool or entry.task_id, entry.server_label)
        if not question.is_elicitation:
            say(f"The task sends a {one_line(question.method)} request, which cannot be answered here.", "yellow")
            return None
        try:
            return await self._desk.ask(question)
        except Later:
            return None

    def on_withdrawn(self, entry: LedgerEntry, key: str) -> None:
        """Say so, because somebody was typing."""
        say("The question was withdrawn.", "yellow")

    def on_refused(self, entry: LedgerEntry, key: str, problem: Exception) -> None:
        """Say so, because it is asked again."""
        say(f"The server refused the answer, and the question is asked again: {one_line(str(problem))}", "red")

    def on_out_of_reach(self, entry: LedgerEntry, since: datetime) -> None:
        """Draw that nothing is known for now, and since when."""
        self._show(replace(self._row(entry), away_since=since))

    def on_back(self, entry: LedgerEntry, after: timedelta) -> None:
        """Say that the server is back, in a line that stays."""
        row = replace(self._row(entry), away_since=None)
        self._rows[row.key] = row
        self._board.back(row, after)

    def on_problem(self, entry: LedgerEntry, problem: Exception) -> None:
        """Draw no more of it."""
        self._board.drop(row_key(entry), problem_of(problem).message)

    def on_not_cancelled(self, entry: LedgerEntry, problem: Exception) -> None:
        """Say so."""
        say(one_line(f"{entry.task_id} could not be cancelled: {problem}"), "red")

    def _row(self, entry: LedgerEntry) -> Row:
        return self._rows.get(row_key(entry)) or row_of(entry)

    def _show(self, row: Row) -> None:
        self._rows[row.key] = row
        self._board.show(row)


def outcome_followed(followed: Followed) -> Outcome:
    """How a task stands that was followed."""
    entry, snapshot = followed.entry, followed.snapshot
    if snapshot is not None:
        outcome = outcome_of(entry, snapshot)
    elif entry.is_final and followed.problem is None:
        return outcome_of(entry)
    else:
        outcome = Outcome(server=entry.server, tool=entry.tool, task_id=entry.task_id, status="unknown")
    if followed.problem is not None:
        problem = problem_of(followed.problem)
        return replace(outcome, problem=problem.message, code=problem.code)
    if followed.fate in ("cancelled", "not cancelled") and outcome.status == "input_required":
        became = "was cancelled" if followed.fate == "cancelled" else "could not be cancelled"
        why = f"the task asks something and there is no terminal to ask at; it {became}"
        return replace(outcome, problem=why, code=Exit.INPUT_REQUIRED)
    if followed.left_open and all(each.is_elicitation for each in questions_of(outcome.requests or {}, entry.tool)):
        # What somebody has chosen is no failure.
        outcome = replace(outcome, code=Exit.OK)
    return replace(outcome, fate=followed.fate or "left")
