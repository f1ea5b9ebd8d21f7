"""What an author says of tools, and what it means for their runs. Mistakes: `tests/wire/test_mistakes.py`."""

from datetime import timedelta
from typing import Any

import pytest
from mcp.server import MCPServer
from mcp_types import ToolAnnotations

from mcp_tasks import Tasks, current_task
from mcp_tasks.model import TaskStatus
from mcp_tasks.runtime import Settings
from mcp_tasks.testing import TaskTester

REPEATABLE = ToolAnnotations(idempotent_hint=True)
READ_ONLY = ToolAnnotations(read_only_hint=True)
DESTRUCTIVE = ToolAnnotations(destructive_hint=True, idempotent_hint=False)

RECOVERS: list[tuple[dict[str, Any], ToolAnnotations | None, bool]] = [
    ({}, REPEATABLE, True),
    ({}, READ_ONLY, True),
    ({}, None, False),
    ({}, ToolAnnotations(), False),
    ({}, DESTRUCTIVE, False),
    ({}, ToolAnnotations(read_only_hint=False), False),
    ({"recover": "rerun"}, DESTRUCTIVE, True),
    ({"recover": "fail"}, REPEATABLE, False),
]


async def test_a_tool_runs_again_after_a_crash_if_its_author_says_so_or_else_its_annotations() -> None:
    tasks = Tasks("memory://")
    server = MCPServer("crashing", **tasks.wiring())

    async def work() -> str:
        if current_task().attempt == 1:
            await current_task().sleep(timedelta(days=1))
        return "done"

    for number, (options, hints, _) in enumerate(RECOVERS):
        server.add_tool(tasks.task(name=f"{number}", **options)(work), name=f"{number}", annotations=hints)
    async with TaskTester(server, tasks) as tester:
        made = [await tester.call(f"{number}") for number in range(len(RECOVERS))]
        await tester.settle()
        await tester.crash()
        await tester.advance(timedelta(days=2))
        ended = [(await tester.finish(task)).status is TaskStatus.COMPLETED for task in made]
    assert ended == [may for _, _, may in RECOVERS]


@pytest.mark.parametrize(
    ("settings", "drains_for"),
    [
        (None, 25),
        (Settings(lease_duration=timedelta(seconds=30)), 25),
        (Settings(drain_timeout=timedelta(seconds=5)), 5),
        (Settings(drain_timeout=timedelta(0)), 0),
    ],
)
def test_a_worker_drains_for_as_long_as_is_usual_unless_that_itself_was_said(
    settings: Settings | None, drains_for: int
) -> None:
    tasks = Tasks("memory://", settings=settings)
    server = MCPServer("farm", **tasks.wiring())
    assert tasks.worker(server, usual_drain=timedelta(seconds=25)).drain == timedelta(seconds=drains_for)
    assert tasks.worker(server, drain=timedelta(seconds=1)).drain == timedelta(seconds=1)
    assert Settings().drains_for == timedelta(seconds=5)
