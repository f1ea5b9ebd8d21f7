"""What an author says of tools, and what it means for their runs. Mistakes: `tests/wire/test_mistakes.py`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from mcp.server import MCPServer
from mcp_types import ToolAnnotations

from mcp_tasks import Tasks, current_task
from mcp_tasks.errors import InvalidOption
from mcp_tasks.model import TaskRecord, TaskStatus
from mcp_tasks.runtime import Settings
from mcp_tasks.testing import TaskTester
from tests.unit.running import MeddledStore, settle

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


@pytest.mark.anyio
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


# Early start


@pytest.mark.anyio
@pytest.mark.parametrize("everywhere", [False, True])
async def test_a_tool_starts_early_if_it_may_run_again_and_that_was_said_of_it_or_of_all(everywhere: bool) -> None:
    begun, begun_early = set[str](), set[str]()
    name = ""

    async def write_slowly(record: TaskRecord, *args: Any, **options: Any) -> None:
        await settle()
        begun_early.update(begun)

    tasks = Tasks(MeddledStore(create=write_slowly), early_start=everywhere)
    server = MCPServer("early", **tasks.wiring())
    tools: dict[str, tuple[ToolAnnotations, dict[str, Any]]] = {
        "silent": (READ_ONLY, {}),
        "early": (READ_ONLY, {"early_start": True}),
        "late": (READ_ONLY, {"early_start": False}),
        "destructive": (DESTRUCTIVE, {}),
    }

    async def work() -> str:
        begun.add(name)
        return "done"

    for name, (hints, options) in tools.items():
        server.add_tool(tasks.task(name=name, **options)(work), name=name, annotations=hints)
    async with tasks.running(server):
        # A tool that was quick the first time may start early the second time.
        for name in [each for each in tools for _ in range(2)]:
            begun.clear()
            await (await tasks.start(name, {})).wait()
    assert begun_early == ({"silent", "early"} if everywhere else {"early"})


@pytest.mark.anyio
async def test_a_tool_that_may_not_run_again_cannot_be_told_to_start_early() -> None:
    tasks = Tasks("memory://")
    with pytest.raises(InvalidOption, match="say recover='rerun'"):
        tasks.mark("transfer", early_start=True, recover="fail")
    server = MCPServer("early", **tasks.wiring())

    @server.tool()
    @tasks.task(early_start=True)
    def transfer() -> str:
        return "done"

    with pytest.raises(InvalidOption, match=r"early_start=True of tool 'transfer'.*recover='rerun'"):
        async with tasks.running(server):
            pass
