"""Writes the parts of the docs that come from code: `python -m docs.generate`, and a test that they are current."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from docs.api.pages import reference_pages
from docs.drawing import state_picture
from mcp_tasks.model.machine import TABLE
from mcp_tasks.model.record import TaskStatus

DOCS = Path(__file__).parent
LIFECYCLE = DOCS / "lifecycle.md"
ENGINES = DOCS / "engines.md"
CELERY = DOCS.parent / "examples" / "celery_engine.py"


def state_diagram() -> str:
    """The machine's table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {TaskStatus.WORKING}: created"]
    for status, rules in TABLE.items():
        arrows: dict[TaskStatus, list[str]] = {}
        for event, rule in rules.items():
            for target in rule.to:
                arrows.setdefault(target, []).append(event.__name__)
        lines += [f"    {status} --> {target}: {', '.join(events)}" for target, events in arrows.items()]
        if not rules:
            lines.append(f"    {status} --> [*]")
    return "\n".join(lines)


def event_table() -> str:
    """What each event does in each status, as a Markdown table."""
    statuses = list(TABLE)
    events = sorted({event for rules in TABLE.values() for event in rules}, key=lambda event: event.__name__)
    lines = ["| event | " + " | ".join(statuses) + " |", "|---" * (len(statuses) + 1) + "|"]
    for event in events:
        cells = [_cell(status, event) for status in statuses]
        lines.append(f"| `{event.__name__}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(status: TaskStatus, event: type) -> str:
    rule = TABLE[status].get(event)
    if rule is None:
        return "late: ignored" if status.is_final else "refused"
    return " or ".join(f"→ {target}" if target is not status else "stays" for target in rule.to)


def celery_engine() -> str:
    """The example of an engine, without what a page says in its own words."""
    return CELERY.read_text().partition("from __future__ import annotations\n")[2].strip()


def filled(page: str) -> str:
    """The page with its generated parts as they should be."""
    parts = {
        "diagram": f"```mermaid\n{state_diagram()}\n```",
        "events": event_table(),
        "celery": f"```python\n{celery_engine()}\n```",
    }
    for name, text in parts.items():
        pattern = rf"(<!-- generated: {name} -->\n).*?(\n<!-- end -->)"
        page = re.sub(pattern, lambda match, text=text: f"{match[1]}{text}{match[2]}", page, flags=re.DOTALL)
    return page


@cache
def pages() -> dict[Path, str]:
    """The pages that have generated parts, as they should be."""
    whole = {DOCS / path: text for path, text in reference_pages().items()}
    filled_in = {page: filled(page.read_text()) for page in (LIFECYCLE, ENGINES)}
    return {**filled_in, **whole, DOCS / "assets" / "lifecycle.svg": state_picture()}


def left_over() -> set[Path]:
    """Pages of the reference that nothing is written to any more."""
    return set((DOCS / "reference").glob("*.md")) - pages().keys()


def write() -> None:
    """Write all of them."""
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for path in left_over():
        path.unlink()


if __name__ == "__main__":
    write()
