"""The machine's table as a picture that needs nothing to be shown: no script, no font, no other host."""

from __future__ import annotations

import textwrap

from mcp_tasks.model.machine import TABLE
from mcp_tasks.model.record import TaskStatus

WIDTH, LINE = 900, 16
PLACES = {
    TaskStatus.WORKING: (40, 200),
    TaskStatus.INPUT_REQUIRED: (40, 500),
    TaskStatus.COMPLETED: (680, 60),
    TaskStatus.FAILED: (680, 350),
    TaskStatus.CANCELLED: (680, 640),
}
"""Where each status stands, its upper left corner."""
BOX = (180, 60)
BENDS = {
    (TaskStatus.WORKING, TaskStatus.COMPLETED): ((220, 205), (680, 90), (430, 150)),
    (TaskStatus.WORKING, TaskStatus.FAILED): ((220, 240), (680, 365), (400, 262)),
    (TaskStatus.WORKING, TaskStatus.CANCELLED): ((220, 255), (690, 640), (545, 480)),
    (TaskStatus.WORKING, TaskStatus.INPUT_REQUIRED): ((90, 260), (90, 500), (100, 350)),
    (TaskStatus.INPUT_REQUIRED, TaskStatus.WORKING): ((180, 500), (180, 260), (190, 440)),
    (TaskStatus.INPUT_REQUIRED, TaskStatus.COMPLETED): ((220, 505), (700, 120), (600, 190)),
    (TaskStatus.INPUT_REQUIRED, TaskStatus.FAILED): ((220, 525), (680, 395), (400, 460)),
    (TaskStatus.INPUT_REQUIRED, TaskStatus.CANCELLED): ((220, 550), (680, 670), (400, 600)),
}
"""From where to where each arrow goes, and where its words begin."""
STYLE = """
  text { font: 13px sans-serif; fill: #24292f; stroke: #ffffff; stroke-width: 5px; paint-order: stroke }
  .status { font: bold 15px monospace }
  rect, path { fill: none; stroke: #57606a; stroke-width: 1.5 }
  rect.page { fill: #ffffff; stroke: none }
  rect.final { stroke-width: 3 }
"""


def state_picture() -> str:
    """The statuses, the arrows between them, and what leads along each."""
    arrows = _arrows()
    words: list[str] = []
    parts = [f'<rect class="page" width="{WIDTH}" height="760" rx="8"/>', _marker()]
    for status, (x, y) in PLACES.items():
        final = ' class="final"' if status.is_final else ""
        parts.append(f'<rect{final} x="{x}" y="{y}" width="{BOX[0]}" height="{BOX[1]}" rx="10"/>')
        parts.append(f'<text class="status" x="{x + BOX[0] / 2:g}" y="{y + 35}" text-anchor="middle">{status}</text>')
        if inside := arrows.get((status, status)):
            is_above = status is TaskStatus.WORKING
            words += _words(f"stays: {', '.join(inside)}", x, y - 12 if is_above else y + BOX[1] + 20, 40, up=is_above)
    for pair, (start, end, place) in BENDS.items():
        if pair in arrows:
            parts.append(f'<path marker-end="url(#arrow)" d="M{start[0]} {start[1]} L{end[0]} {end[1]}"/>')
            words += _words(", ".join(arrows[pair]), *place, 26)
    body = "\n".join([*parts, *words])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 760" role="img">\n'
        f"<title>The statuses of a task</title>\n<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


def _arrows() -> dict[tuple[TaskStatus, TaskStatus], list[str]]:
    found: dict[tuple[TaskStatus, TaskStatus], list[str]] = {}
    for status, rules in TABLE.items():
        for event, rule in rules.items():
            for target in rule.to:
                found.setdefault((status, target), []).append(event.__name__)
    missing = {pair for pair in found if pair[0] is not pair[1]} - BENDS.keys()
    if missing:
        raise LookupError(f"the picture of the machine has no arrow for {missing}: give it a place in docs/drawing.py")
    return found


def _marker() -> str:
    size = 'markerWidth="9" markerHeight="9" refX="8" refY="4" orient="auto"'
    return f'<defs><marker id="arrow" {size}><path d="M0 0 L8 4 L0 8"/></marker></defs>'


def _words(text: str, x: float, y: float, width: int, *, up: bool = False) -> list[str]:
    lines = textwrap.wrap(text, width)
    top = y - LINE * (len(lines) - 1) if up else y
    return [f'<text x="{x:g}" y="{top + LINE * index:g}">{line}</text>' for index, line in enumerate(lines)]
