"""What is printed: the words and layouts that all commands share.

Everything but results goes to stderr, so that stdout is what a script wants. Text that comes from a server is
never markup and never control codes.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar

import click
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from mcp_tasks.cli.terminal.text import clean, json_text, one_line
from mcp_tasks.client import Followed
from mcp_tasks.client.followed import COMPLETED_BADLY

T = TypeVar("T")

Columns: TypeAlias = Mapping[str, Callable[[T], Text | str | None]]
"""What a table shows of each item, by the titles of its columns. Text is a server's, unless it is drawn already."""

Line: TypeAlias = tuple[str, Text | str | None]
"""What something is called, and what it is, if it is anything."""

MARKS: Final[Mapping[str, tuple[str, str]]] = {
    "working": ("●", "blue"),
    "input_required": ("?", "yellow"),
    "completed": ("✔", "green"),
    COMPLETED_BADLY: ("✘", "red"),
    "tool error": ("✘", "red"),
    "failed": ("✘", "red"),
    "cancelled": ("○", "bright_black"),
}
"""Marks of the statuses, and colours as the MCP Inspector has them."""

_HELD: Final = list[list[Text]]()
"""Lines that wait."""

NARROW: Final = 100
"""Columns of a terminal below which what does not fit beside each other goes below each other."""


@cache
def stderr() -> Console:
    """The console for everything but results."""
    return Console(stderr=True, highlight=False)


@cache
def stdout() -> Console:
    """The console for results. Nothing is cut short in a pipe."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 240)


def can_redraw() -> bool:
    """Whether stderr is a terminal on which things can be drawn anew in place."""
    return stderr().is_terminal and not stderr().is_dumb_terminal


def say(text: Text | str, style: str = "") -> None:
    """A line on stderr, or several; as soon as the terminal is free, if somebody is asked something there. What is in
    it of a server's is on one line each, or meant to be on several."""
    line = text if isinstance(text, Text) else Text(clean(text), style=style)
    if _HELD:
        _HELD[-1].append(line)
    else:
        stderr().print(line, soft_wrap=True)


@contextmanager
def holding_lines() -> Generator[None]:
    """Have lines wait while something else is on the terminal."""
    _HELD.append([])
    try:
        yield
    finally:
        for line in _HELD.pop():
            say(line)


class Log(logging.Handler):
    """Log lines, which may have words of servers in them, among the other lines."""

    def emit(self, record: logging.LogRecord) -> None:
        """Say one."""
        say(self.format(record), "bright_black")


def print_json(value: Any) -> None:
    """One JSON value on stdout."""
    click.echo(json_text(value, indent=2 if sys.stdout.isatty() else None))


def badge(status: str) -> Text:
    """A status in its colour."""
    mark, style = MARKS.get(status, ("·", ""))
    return Text(f"{mark} {one_line(status).replace('_', ' ')}", style=style)


def status_of(task: Followed) -> Text:
    """A task's state for a column, which is as wide as its longest."""
    return badge("tool error" if task.state == COMPLETED_BADLY else task.status)


def listing(
    columns: Columns[T], items: Iterable[T], *, fixed: int, cut: bool = False, console: Console | None = None
) -> RenderableType:
    """A table whose first columns keep their widths, and whose others give way where it is narrow: they wrap, or are
    `cut`. On a narrow terminal on which it does not fit, a line for the first, and what is in the others below it."""
    rows = [[_cell(draw(item)) for draw in columns.values()] for item in items]
    for cell in (cell for row in rows for cell in row[fixed:] if cut):
        cell.no_wrap, cell.overflow = True, "ellipsis"
    width = (console or stdout()).width
    widths = [max([len(title), *(row[number].cell_len for row in rows)]) for number, title in enumerate(columns)]
    if width >= NARROW or sum(widths) + 2 * len(widths) <= width:
        headers = [Column(title, no_wrap=number < fixed) for number, title in enumerate(columns)]
        table = Table(*headers, box=None, pad_edge=False, header_style="bright_black")
        for row in rows:
            table.add_row(*row)
        return table
    blocks: list[RenderableType] = []
    for row in rows:
        line = Text("  ", overflow="fold").join(row[:fixed])
        blocks += [line, *(Padding(cell, (0, 0, 0, 2)) for cell in row[fixed:] if cell.plain)]
    return Group(*blocks)


def card(lines: Iterable[Line]) -> Table:
    """What is known of one thing, a line each."""
    grid = Table.grid(Column(style="bright_black", no_wrap=True), Column(overflow="fold"), padding=(0, 2))
    for name, value in lines:
        if value:
            grid.add_row(name, _cell(value))
    return grid


def _cell(value: Text | str | None) -> Text:
    return value if isinstance(value, Text) else Text(one_line(value))
