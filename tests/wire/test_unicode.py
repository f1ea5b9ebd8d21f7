"""Text that is not valid Unicode, as file names may hold it, breaks no answer and no stream."""

import json
import os
import sys
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Elicit, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitRequestParams, ElicitResult, InputRequiredResult
from pydantic import BaseModel, Field

from harness.http import HttpWire, serving
from harness.processes import ENVIRONMENT, ROOT
from harness.rpc import EVERYTHING, Tasking, accept, text_of
from harness.server import CUSTOM_ERROR, QUICK
from mcp_tasks import Tasks
from mcp_tasks.client import TasksClient
from tests.push.listening import listening

NAME = os.fsdecode(b"caf\xe9.txt")
READABLE = "caf\ufffd.txt"


class Keep(BaseModel):
    keep: bool = Field(title=f"Keep {NAME}")


def resolve_keep() -> Elicit[Keep]:
    return Elicit(f"Keep {NAME}?", Keep)


async def reports(ctx: Context) -> str:
    await ctx.report_progress(1, 2, f"reading {NAME}")
    await ctx.session.elicit_form("Go on?", {"type": "object", "properties": {}})
    return "read"


async def fails() -> str:
    raise ToolError(f"there is no {NAME}")


async def breaks() -> str:
    raise MCPError(code=CUSTOM_ERROR, message=f"there is no {NAME}", data={NAME: [NAME]})


async def asks(ctx: Context) -> str:
    return (await ctx.elicit(f"Keep {NAME}?", Keep)).action


async def asks_by_returning(ctx: Context) -> str | InputRequiredResult:
    if ctx.input_responses is None:
        form = ElicitRequestFormParams(message=f"Keep {NAME}?", requested_schema=Keep.model_json_schema())
        return InputRequiredResult(input_requests={"keep": ElicitRequest(params=form)})
    return "kept"


async def asks_before(keep: Annotated[Keep, Resolve(resolve_keep)]) -> str:
    return "kept"


async def returns() -> str:
    return NAME


def build(tasks: Tasks) -> MCPServer[Any]:
    """A server whose tools talk about a file with such a name, in every way that a tool can."""
    server = MCPServer("files", **tasks.wiring(), log_level="CRITICAL")
    for tool in (reports, fails, breaks, asks, asks_by_returning, asks_before, returns):
        server.add_tool(tasks.task()(tool))
    in_the_task = tasks.task(name="asks_by_returning_in_the_task", asks_first=False)
    server.add_tool(in_the_task(asks_by_returning), name="asks_by_returning_in_the_task")
    server.add_tool(returns, name="returns_in_a_plain_call")
    return server


@pytest.fixture
async def wire() -> AsyncGenerator[HttpWire]:
    async with serving(build(Tasks("memory://", settings=QUICK))) as way:
        yield way


@pytest.fixture
def client(wire: HttpWire) -> Tasking:
    return Tasking(wire, EVERYTHING)


def _sent(message: Any) -> str:
    """The message in UTF-8; fails for text that has none."""
    return json.dumps(message, ensure_ascii=False).encode().decode()


async def test_progress_errors_and_failures_are_shown_with_what_can_be_read_of_them(
    client: Tasking, wire: HttpWire
) -> None:
    task_id = await client.create("reports")
    await client.until(task_id, "input_required")
    async with listening(wire, [task_id]) as stream:
        await stream.acknowledged()
        pushed = await stream.task()
    for task in (await client.get(task_id), pushed):
        assert task["statusMessage"] == f"reading {READABLE}"
        assert _sent(task)
    failed = await client.finish("fails")
    assert failed["result"]["isError"] is True
    assert text_of(failed["result"]).endswith(f"there is no {READABLE}")
    broken = await client.until(await client.create("breaks"), "failed")
    said = f"there is no {READABLE}"
    assert broken["error"] == {"code": CUSTOM_ERROR, "message": said, "data": {READABLE: [READABLE]}}
    assert broken["statusMessage"] == said
    # A result is not touched.
    returned = await client.until(await client.create("returns"), "failed")
    assert "not valid Unicode" in returned["error"]["message"]
    assert _sent([failed, broken, returned])


@pytest.mark.parametrize("tool", ["asks", "asks_by_returning_in_the_task"])
async def test_a_question_of_a_task_can_be_read_and_answered(client: Tasking, tool: str) -> None:
    task_id = await client.create(tool)
    task = await client.until(task_id, "input_required")
    [(key, asked)] = task["inputRequests"].items()
    assert asked["params"]["message"] == f"Keep {READABLE}?"
    assert asked["params"]["requestedSchema"]["properties"]["keep"]["title"] == f"Keep {READABLE}"
    assert _sent(task)
    await client.update(task_id, **{key: accept(keep=True)})
    assert (await client.until(task_id, "completed"))["result"]["isError"] is False


@pytest.mark.parametrize("tool", ["asks_by_returning", "asks_before"])
async def test_a_question_on_the_original_call_can_be_read(client: Tasking, tool: str) -> None:
    result = await client.call(tool)
    assert result["resultType"] == "input_required"
    [asked] = result["inputRequests"].values()
    assert asked["params"]["message"] == f"Keep {READABLE}?"
    assert _sent(result)


@pytest.mark.slow
async def test_over_stdio_nothing_of_it_disturbs_the_connection() -> None:
    async def keep(context: Any, params: ElicitRequestParams) -> ElicitResult:
        assert _sent(params.message)
        return ElicitResult(action="accept", content={"keep": True})

    command = ["-m", "tests.wire.test_unicode"]
    parameters = StdioServerParameters(command=sys.executable, args=command, cwd=ROOT, env=ENVIRONMENT)
    async with Client(stdio_client(parameters), extensions=[TasksClient()], elicitation_callback=keep) as client:
        for tool in ("fails", "asks", "asks_by_returning", "asks_by_returning_in_the_task", "asks_before"):
            result = await client.call_tool(tool, {})
            assert result.is_error is (tool == "fails")
        for tool in ("breaks", "returns"):
            with pytest.raises(MCPError):
                await client.call_tool(tool, {})
        assert (await client.call_tool("asks", {})).is_error is False


if __name__ == "__main__":
    build(Tasks("memory://", settings=QUICK)).run("stdio")
