"""Everything else that a server offers keeps working when tasks are wired in: both eras, every transport.

The client here is the SDK's own and never heard of the extension. Most of the tools it meets are marked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.subscriptions import ListenNotSupportedError
from mcp.server import MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CreateMessageResult,
    ElicitResult,
    ListRootsResult,
    PromptReference,
    ResourceTemplateReference,
    Root,
    TextContent,
    TextResourceContents,
)
from pydantic import FileUrl

from harness.forking import piped
from harness.processes import ENVIRONMENT, ROOT
from harness.rpc import METHOD_NOT_FOUND, MISSING_CAPABILITY, MODERN, PATIENCE
from harness.server import QUICK, build
from mcp_tasks import Tasks
from tests.client.connecting import text
from tests.wire.conftest import HttpProcesses

pytestmark = pytest.mark.anyio

TRANSPORTS = ("memory", "stdio", "http-sse", "http-json")
ERAS = {"legacy": "legacy", "modern": MODERN}


@dataclass
class Host:
    """What sits around a client: it answers questions, and keeps what it is told."""

    client: Client
    modern: bool
    streams: bool
    logged: list[Any] = field(default_factory=list[Any])


@asynccontextmanager
async def _connected(transport: str, mode: str, processes: HttpProcesses) -> AsyncGenerator[Host]:
    logged: list[Any] = []

    async def keep(params: Any) -> None:
        logged.append(params.data)

    client = Client(
        _target(transport, processes),
        mode=mode,
        log_level="info",
        logging_callback=keep,
        elicitation_callback=_fill_in,
        sampling_callback=_think,
        list_roots_callback=_name_roots,
    )
    async with client:
        yield Host(client, modern=mode == MODERN, streams=transport != "http-json", logged=logged)


def _target(transport: str, processes: HttpProcesses) -> MCPServer[Any] | StdioServerParameters | str:
    if transport == "memory":
        return build(Tasks("memory://", settings=QUICK))
    if transport == "stdio":
        command, *arguments = piped("harness.furnished", "stdio")
        return StdioServerParameters(command=command, args=arguments, cwd=ROOT, env=ENVIRONMENT)
    return processes.url(*(["--json"] if transport == "http-json" else []))


async def _fill_in(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada"})


async def _think(context: Any, params: Any) -> CreateMessageResult:
    return CreateMessageResult(role="assistant", model="m", content=TextContent(type="text", text="Forty-two."))


async def _name_roots(context: Any) -> ListRootsResult:
    return ListRootsResult(roots=[Root(uri=FileUrl("file:///home/ada"))])


@pytest.fixture(
    scope="module",
    params=[(transport, era) for transport in TRANSPORTS for era in ERAS],
    ids=lambda pair: "-".join(pair),
)
async def host(request: pytest.FixtureRequest, http_processes: HttpProcesses) -> AsyncGenerator[Host]:
    """A client of the furnished server over one of the transports, in one of the eras."""
    transport, era = request.param
    async with _connected(transport, ERAS[era], http_processes) as connected:
        yield connected


async def test_tools_are_listed_and_called_as_plain_tools(host: Host) -> None:
    tools = {tool.name: tool for tool in (await host.client.list_tools()).tools}
    assert {"greet", "echo", "gated", "ask_name"} <= tools.keys()
    assert tools["echo"].input_schema["required"] == ["value"]
    assert text(await host.client.call_tool("greet", {"name": "Ada"})) == "Hello, Ada!"
    assert text(await host.client.call_tool("echo", {"value": "plain"})) == "plain"
    structured = await host.client.call_tool("point", {"x": 1.5})
    assert structured.structured_content == {"x": 1.5, "y": None}


async def test_a_tool_that_fails_answers_with_is_error(host: Host) -> None:
    result = await host.client.call_tool("fails", {})
    assert result.is_error
    assert "it did not work out" in text(result)


async def test_resources_and_templates_are_listed_and_read(host: Host) -> None:
    [resource] = (await host.client.list_resources()).resources
    assert str(resource.uri) == "memo://greeting"
    [template] = (await host.client.list_resource_templates()).resource_templates
    assert template.uri_template == "memo://{day}/note"
    for uri, expected in (("memo://greeting", "Good day."), ("memo://monday/note", "Nothing on monday.")):
        [content] = (await host.client.read_resource(uri)).contents
        assert isinstance(content, TextResourceContents)
        assert content.text == expected


async def test_prompts_are_listed_and_rendered(host: Host) -> None:
    [prompt] = (await host.client.list_prompts()).prompts
    assert prompt.name == "introduce"
    [message] = (await host.client.get_prompt("introduce", {"person": "Ada"})).messages
    assert isinstance(message.content, TextContent)
    assert message.content.text == "Introduce Ada."


async def test_arguments_are_completed(host: Host) -> None:
    for ref in (PromptReference(name="introduce"), ResourceTemplateReference(uri="memo://{day}/note")):
        completed = await host.client.complete(ref, {"name": "day", "value": "t"})
        assert completed.completion.values == ["tuesday"]


async def test_progress_and_logs_of_a_plain_call_reach_the_client(host: Host) -> None:
    host.logged.clear()
    reported: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        reported.append((progress, total, message))

    assert text(await host.client.call_tool("logs", {}, progress_callback=note)) == "Good day."
    # With JSON answers there is nothing that could carry them before the result.
    assert reported == ([(1, 2, "half of it")] if host.streams else [])
    assert host.logged == (["a line for the log"] if host.streams else [])


async def test_a_tool_asks_its_questions_on_the_call(host: Host) -> None:
    """By requests to the client in the older era; by returning them in the newer one, which has no such requests."""
    if host.modern:
        assert text(await host.client.call_tool("ask_by_returning", {})) == "Hello, Ada!"
    if host.modern or host.streams:
        assert text(await host.client.call_tool("ask_name", {})) == "Hello, Ada!"
        assert text(await host.client.call_tool("ask_before", {})) == "Hello, Ada!"
        assert text(await host.client.call_tool("ask_model", {})) == "Forty-two."
        assert text(await host.client.call_tool("ask_roots", {})) == "file:///home/ada"


async def test_changes_of_the_tool_list_reach_whoever_listens(host: Host) -> None:
    if not host.modern:
        with pytest.raises(ListenNotSupportedError):
            await host.client.listen(tools_list_changed=True).__aenter__()
        return
    with anyio.fail_after(PATIENCE):
        async with host.client.listen(tools_list_changed=True) as subscription:
            assert text(await host.client.call_tool("grow", {})) == "grown"
            event = await anext(aiter(subscription))
    assert type(event).__name__ == "ToolsListChanged"
    assert "fresh" in {tool.name for tool in (await host.client.list_tools()).tools}
    assert text(await host.client.call_tool("fresh", {})) == "fresh"


async def test_a_tool_that_must_be_a_task_is_refused_in_the_words_of_the_era(host: Host) -> None:
    with pytest.raises(MCPError) as refused:
        await host.client.call_tool("must", {})
    assert refused.value.error.code == (MISSING_CAPABILITY if host.modern else METHOD_NOT_FOUND)
