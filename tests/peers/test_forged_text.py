"""What peers invent: names that forge no log line and fill neither logs nor metrics, and odd tasks."""

import io
import logging
import re
from collections.abc import Generator, Mapping
from typing import Any, Final

import pytest
from mcp.server import Server, ServerRequestContext
from mcp_types import CallToolRequestParams, CallToolResult, TextContent

from harness.http import HttpWire, serving
from harness.rpc import EVERYTHING, Tasking
from harness.server import QUICK, build
from harness.waiting import eventually
from mcp_tasks import Tasks
from mcp_tasks.errors import InvalidResponse
from mcp_tasks.legacy.shapes import read_task
from tests.legacy.tasking import over_http

FORGED: Final = "\nCRITICAL root: the disk was erased"
CLEAR: Final = "\x1b[2J\x1b[31m"
LARGE: Final = "x" * 50_000


def low_level(tasks: Tasks) -> Server[Any]:
    """A server that takes every name; its author marked one."""

    async def call_tool(ctx: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text="done")])

    server: Server[Any] = Server("low", version="1", on_call_tool=call_tool)
    tasks.mark("own")
    tasks.attach(server)
    return server


async def call(wire: HttpWire, name: str) -> None:
    client = Tasking(wire, EVERYTHING)
    await client.until(await client.create(name), "completed")


@pytest.fixture
def log() -> Generator[io.StringIO]:
    text = io.StringIO()
    handler, logger = logging.StreamHandler(text), logging.getLogger("mcp_tasks")
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield text
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def _lines(log: io.StringIO) -> list[str]:
    lines = log.getvalue().split("\n")
    for line in lines:
        assert line.isprintable(), repr(line[:200])
    return lines


async def test_the_uri_of_a_resource_forges_no_line_of_the_log(log: io.StringIO) -> None:
    tasks = Tasks("memory://", settings=QUICK)
    server = build(tasks)

    @server.resource("page://{name}")
    @tasks.task(kind="resource")
    async def page(name: str) -> str:
        return name

    async with serving(server) as wire:
        old = await over_http(wire)
        params: dict[str, Any] = {"uri": f"page://{FORGED}{CLEAR}", "task": {}}
        task_id = (await old.ask("resources/read", params)).result["task"]["taskId"]
        await old.result(task_id)
        await eventually(lambda: "completed after" in log.getvalue())
    assert not [line for line in _lines(log) if line.startswith("CRITICAL")]
    assert r"\nCRITICAL root: the disk was erased" in log.getvalue()
    assert r"\x1b[2J" in log.getvalue()


async def test_invented_names_of_tools_are_one_label_of_metrics(log: io.StringIO) -> None:
    tasks = Tasks("memory://", settings=QUICK, default_mode="optional")
    page = tasks.metrics

    async def told() -> str:
        """The page once it says so: observers are told a moment later."""
        text = await page.text()
        return text if 'mcp_tasks_ended_total{status="completed",tool="other"} 20' in text else ""

    async with serving(low_level(tasks)) as wire:
        await call(wire, "own")
        for number in range(20):
            # The header that names the tool has to fit into what an HTTP server takes.
            await call(wire, f"{number}{'x' * 20_000}")
        await eventually(lambda: "(19xx" in log.getvalue())
        text = await eventually(told)
    assert set(re.findall(r'tool="([^"]*)"', text)) == {"own", "other"}
    assert len(text) < 60_000
    assert max(map(len, _lines(log))) < 5_000


SNAPSHOT: Final[Mapping[str, Any]] = {
    "taskId": "t",
    "status": "working",
    "createdAt": "2026-07-28T10:00:00Z",
    "lastUpdatedAt": "2026-07-28T10:00:00",
    "ttl": 1_000,
    "pollInterval": 5,
}


@pytest.mark.parametrize(
    "odd", [None, True, -1, 1e300, "", LARGE, [LARGE], {LARGE: 1}, ...], ids=lambda odd: str(odd)[:9]
)
def test_whatever_an_older_server_shows_is_a_task_or_refused_in_few_words(odd: Any) -> None:
    refusals: dict[str, str] = {}
    for name in (*SNAPSHOT, "statusMessage", "_meta"):
        shown = {each: value for each, value in {**SNAPSHOT, name: odd}.items() if value is not ...}
        try:
            task = read_task(shown)
        except InvalidResponse as exc:
            refusals[name] = str(exc)
        else:
            assert (task.id, task.status) == (shown["taskId"], shown["status"])
            assert task.created_at.tzinfo is not None
            assert task.updated_at.tzinfo is not None
    assert refusals.keys() <= {"taskId", "status", "createdAt", "lastUpdatedAt"}
    assert max(map(len, refusals.values())) < 10_000
