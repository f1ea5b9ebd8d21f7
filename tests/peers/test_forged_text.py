"""Names from peers forge no log line and fill no log or metric, and odd tasks of an older server are refused."""

import io
import logging
import re
from collections.abc import Generator, Mapping
from typing import Any, Final

import pytest

from harness.http import HttpWire, serving
from harness.rpc import EVERYTHING, Tasking
from harness.server import QUICK, build
from harness.waiting import eventually
from mcp_tasks import Tasks
from mcp_tasks.errors import InvalidResponse
from mcp_tasks.legacy.shapes import read_task
from tests.legacy.tasking import over_http
from tests.trust.traced import any_name

FORGED: Final = "\nCRITICAL root: the disk was erased"
CLEAR: Final = "\x1b[2J\x1b[31m"
LARGE: Final = "x" * 50_000


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


def lines_of(log: io.StringIO) -> list[str]:
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
    assert not [line for line in lines_of(log) if line.startswith("CRITICAL")]
    assert r"\nCRITICAL root: the disk was erased" in log.getvalue()
    assert r"\x1b[2J" in log.getvalue()


async def test_invented_names_of_tools_share_one_metrics_label(log: io.StringIO) -> None:
    tasks = Tasks("memory://", settings=QUICK, default_mode="optional")

    async def counted() -> str:
        # Observers get their events a moment after the answer.
        text = await page.text()
        return text if 'mcp_tasks_ended_total{status="completed",tool="other"} 20' in text else ""

    page = tasks.metrics
    tasks.mark("own")
    async with serving(any_name(tasks)) as wire:
        await call(wire, "own")
        for number in range(20):
            # The header that names the tool has to fit into what an HTTP server takes.
            await call(wire, f"{number}{'x' * 20_000}")
        await eventually(lambda: "(19xx" in log.getvalue())
        text = await eventually(counted)
    assert set(re.findall(r'tool="([^"]*)"', text)) == {"own", "other"}
    assert len(text) < 60_000
    assert max(map(len, lines_of(log))) < 5_000


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
def test_an_odd_task_of_an_older_server_is_read_or_refused_with_a_short_error(odd: Any) -> None:
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
