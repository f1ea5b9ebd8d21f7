"""What the page on hosts without tasks says that a model reads is what it reads."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import ElicitResult
from pydantic import BaseModel

from harness.processes import ROOT
from harness.server import QUICK
from mcp_tasks import Fallback, Host, Tasks
from mcp_tasks.client import TasksClient
from mcp_tasks.fallback.options import UNKNOWN_HOST, patience_of_call, patience_of_leg

pytestmark = pytest.mark.anyio

PAGE = (ROOT / "docs" / "hosts.md").read_text()
MOMENT = timedelta(milliseconds=300)


class Publish(BaseModel):
    publish: bool


def _farm() -> tuple[MCPServer[Any], anyio.Event]:
    """A server whose tools need longer than the caller waits."""
    tasks = Tasks("memory://", fallback=Fallback(wait=MOMENT, legs=1), hosts={"mcp": Host(limit=2 * MOMENT)})
    server = MCPServer[Any]("render-farm", **tasks.wiring())
    done = anyio.Event()

    @server.tool()
    @tasks.task()
    async def render(frames: int, ctx: Context) -> str:  # pyright: ignore[reportUnusedFunction]
        await ctx.report_progress(12, frames, f"frame 12 of {frames}")
        await done.wait()
        return "scene.mp4"

    @server.tool()
    @tasks.task(fallback=Fallback(wait=MOMENT, model_may_answer=True))
    async def publish(ctx: Context) -> str:  # pyright: ignore[reportUnusedFunction]
        answer = await ctx.elicit("Publish it?", Publish)
        return answer.action

    return server, done


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_model_reads_what_the_page_shows(mode: str) -> None:
    running, waiting, cancelled = (_without_id(text) for text in re.findall(r"^```text\n(.*?)\n```", PAGE, re.M | re.S))
    server, done = _farm()
    async with Client(server, mode=mode) as client:
        answer = await client.call_tool("render", {"frames": 24})
        assert _read(answer) == running
        assert answer.structured_content is not None
        assert answer.structured_content.keys() == {"taskId", "status", "statusMessage"}
        done.set()
        result = await client.call_tool("task_status", {"task_id": answer.structured_content["taskId"]})
        assert result.structured_content == {"result": "scene.mp4"}
        answer = await client.call_tool("publish", {})
        assert _read(answer) == waiting
        assert answer.structured_content is not None
        task = {"task_id": answer.structured_content["taskId"]}
        await client.call_tool("task_cancel", task)
        answer = await client.call_tool("task_status", task)
        assert answer.is_error
        assert _read(answer) == cancelled


async def _agrees(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"publish": True})


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("has_tasks", [False, True])
async def test_the_tool_that_can_do_without_an_answer_does(mode: str, has_tasks: bool) -> None:
    names: dict[str, Any] = {"__name__": "docs.hosts"}
    exec(compile("\n\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)), "hosts.md", "exec"), names)
    said: list[str] = []
    for callback in (None, _agrees):
        extensions = [TasksClient()] if has_tasks else []
        client = Client(names["server"], mode=mode, extensions=extensions, elicitation_callback=callback)
        async with client:
            result = await client.call_tool("archive", {"film": "Metropolis"})
            assert not result.is_error
            said.append(_read(result))
    assert "nobody could be asked" in said[0]
    assert said[1] == "Metropolis is archived and published"


@pytest.mark.parametrize(
    ("ways", "requests"),
    [(Fallback(wait=timedelta(0)), 9), (Fallback(wait=timedelta(0), legs=0), 1), (Fallback(wait=MOMENT, legs=0), 1)],
)
async def test_a_call_takes_as_many_requests_as_the_page_says_and_without_legs_nobody_is_asked_on_it(
    ways: Fallback, requests: int
) -> None:
    tasks = Tasks("memory://", fallback=ways, settings=QUICK)
    server = MCPServer[Any]("render-farm", **tasks.wiring())
    seen: list[str] = []

    async def count(ctx: Any, call_next: Any) -> Any:
        seen.append(ctx.method)
        return await call_next(ctx)

    server.middleware.append(count)

    @server.tool()
    @tasks.task()
    async def render() -> None:  # pyright: ignore[reportUnusedFunction]
        await anyio.sleep_forever()

    @server.tool()
    @tasks.task()
    async def publish(ctx: Context) -> str:  # pyright: ignore[reportUnusedFunction]
        return (await ctx.elicit("Publish it?", Publish)).action

    async with Client(server, elicitation_callback=_agrees) as client:
        assert 'The tool "render" is still running.' in _read(await client.call_tool("render", {}))
        assert seen.count("tools/call") == requests
        if not ways.legs:
            answer = await client.call_tool("publish", {})
            assert answer.structured_content is not None
            task = {"task_id": answer.structured_content["taskId"], "wait_seconds": 1}
            assert "It has not finished, and this is not its result." in _read(answer)
            # `task_status` asks: once.
            assert _read(await client.call_tool("task_status", task)) == "accept"


def test_a_call_waits_as_long_as_the_page_says() -> None:
    table = PAGE.partition("## How long a call waits")[2].partition("\n\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    waits = {row[0]: (row[1], row[2]) for row in rows[2:]}
    limited, waiting, kept, unknown = waits.values()
    minute = Host(limit=timedelta(minutes=1))
    assert limited == ("five sixths of its limit", "five sixths of its limit")
    assert (_all_legs(minute), _open_call(minute)) == (50, 50)
    assert waiting == ("225 seconds: 8 legs, and one wait more", "until the tool is done")
    assert (_all_legs(Host()), _open_call(Host())) == (225, None)
    assert kept == ("225 seconds", "until the tool is done")
    extended = Host(limit=timedelta(minutes=1), progress_extends=True)
    assert (_all_legs(extended), _open_call(extended)) == (225, None)
    assert unknown == ("50 seconds", "25 seconds")
    assert (_all_legs(UNKNOWN_HOST), _open_call(None)) == (50, 25)


def _all_legs(host: Host) -> float:
    """Seconds that a call waits in all its requests."""
    elapsed, legs, comes_back = timedelta(0), 0, True
    while comes_back:
        patience = patience_of_leg(Fallback(), host, legs=legs, elapsed=elapsed, has_progress=True)
        assert patience.limit is not None
        elapsed, legs, comes_back = elapsed + patience.limit, legs + 1, patience.comes_back
    return elapsed.total_seconds()


def _open_call(host: Host | None) -> float | None:
    limit = patience_of_call(Fallback(), host, UNKNOWN_HOST, has_progress=True).limit
    return None if limit is None else limit.total_seconds()


def _read(result: Any) -> str:
    (content,) = result.content
    return _without_id(content.text)


def _without_id(text: str) -> str:
    return re.sub(r"task_[\w-]{27}", "ID", text)
