"""Lines for logs and pipes: not too many, and never the last word left unsaid."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mcp_tasks.cli import terminal as boards
from mcp_tasks.cli.terminal import LineBoard
from mcp_tasks.client import Followed, LedgerEntry
from mcp_tasks.protocol.shapes import parse_task
from tests.client.peer import TASK_ID, completed, working

pytestmark = pytest.mark.anyio

ENTRY = LedgerEntry.begun(TASK_ID, server="http://127.0.0.1:9/mcp", tool="render")


def state(task: dict[str, Any]) -> Followed:
    return Followed(entry=ENTRY, snapshot=parse_task(task))


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> tuple[LineBoard, list[str]]:
    """A board, and its lines as they are said."""
    said: list[str] = []
    new = LineBoard()

    def keep(line: str, style: str = "") -> None:
        said.append(line)

    monkeypatch.setattr(boards, "say", keep)
    return new, said


async def test_what_comes_too_soon_is_said_a_little_later_and_only_the_last_of_it(
    board: tuple[LineBoard, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, said = board
    monkeypatch.setattr(boards, "LINE_PAUSE", 0.05)
    for step in (1, 2, 3):
        lines.show(state(working(step)))
    assert said == ["working  step 1"]
    async with asyncio.timeout(5):
        while len(said) < 2:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
    assert said == ["working  step 1", "working  step 3"]


async def test_what_is_to_be_said_later_is_said_before_anything_else_and_not_after_the_end(
    board: tuple[LineBoard, list[str]],
) -> None:
    lines, said = board
    for step in (1, 2):
        lines.show(state(working(step)))
    lines.stop()
    assert said == ["working  step 1", "working  step 2"]
    lines.show(state(working(3)))
    lines.show(state(completed()))
    lines.stop()
    assert said[2:] == ["completed"]


async def test_of_a_call_that_is_over_nothing_more_is_said(board: tuple[LineBoard, list[str]]) -> None:
    lines, said = board
    for step in (1, 2):
        lines.show(state(working(step)))
    lines.drop(state(working(2)))
    lines.stop()
    assert said == ["working  step 1"]


async def test_that_a_server_is_away_is_not_said_after_it_is_back(board: tuple[LineBoard, list[str]]) -> None:
    lines, said = board
    away = replace(state(working(1)), away_since=datetime.now(UTC) - timedelta(seconds=5))
    lines.show(away)
    # The next line on the same outage is for later: by then it is not true any more.
    async with asyncio.timeout(5):
        while away.says in said[0]:  # noqa: ASYNC110 - the clock that it shows goes on
            await asyncio.sleep(0.05)
    lines.show(away)
    lines.back(state(working(1)), timedelta(seconds=6))
    lines.stop()
    assert ["out of reach" in line for line in said] == [True, False]
    assert "server is back after 0:06" in said[1]
