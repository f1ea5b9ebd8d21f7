"""One server with all that MCP has for servers, tasks among the rest: the same for clients of both eras.

python examples/everything.py                # a client tries it all, in both eras, and says so
python examples/everything.py serve          # the server alone, at http://127.0.0.1:8000/mcp
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    ElicitRequestParams,
    ElicitResult,
    PromptReference,
    ResourceLink,
    ResourceTemplateReference,
    TextContent,
    TextResourceContents,
)
from pydantic import BaseModel
from server_process import ServerProcess
from starlette.middleware.cors import CORSMiddleware

from mcp_tasks import Tasks, current_task
from mcp_tasks.client import TaskHandle, TasksClient, reconnecting_http, start_task
from mcp_tasks.server import ListChanges

BROWSER = "https://app.example.com"
CITIES = {"Paris": 21.5, "Prague": 17.0, "Porto": 24.0}

tasks = Tasks("memory://")
changes = ListChanges()
server = MCPServer("travel", version="1.0.0", log_level="ERROR", **changes.wiring(), **tasks.wiring())


class Weather(BaseModel):
    """A structured result."""

    city: str
    degrees: float


class Booking(BaseModel):
    """What a person is asked before money is spent."""

    confirm: bool


@server.tool()
def weather(city: str) -> Weather:
    """Quick: a plain call."""
    return Weather(city=city, degrees=CITIES[city])


@server.tool()
@tasks.task()
async def book(city: str, ctx: Context) -> list[Any]:
    """Slow, and asks in the middle: a task, where the client knows them."""
    await ctx.report_progress(1, 2, "looking for a room")
    answer = await ctx.elicit(f"Book a room in {city}?", Booking)
    if answer.action != "accept" or not answer.data.confirm:
        return [TextContent(type="text", text="nothing was booked")]
    return [
        TextContent(type="text", text=f"booked in {city}, {'as a task' if current_task().id else 'during the call'}"),
        ResourceLink(type="resource_link", name="weather", uri=f"weather://{city}"),
    ]


@server.tool()
async def open_season(ctx: Context) -> str:
    """Tools that come at run time. Clients hear of them once, though each is announced."""
    for city in CITIES:
        server.add_tool(lambda: "ahoy", name=f"sail_{city.lower()}", description=f"A boat trip in {city}.")
        await ctx.notify_tools_changed()
    return f"{len(CITIES)} boat trips"


@server.resource("weather://{city}", mime_type="application/json")
def forecast(city: str) -> str:
    """A resource template."""
    return weather(city).model_dump_json()


@server.prompt()
def plan(city: str) -> list[UserMessage]:
    """A prompt."""
    return [UserMessage(f"Plan a weekend in {city}.")]


@server.completion()
async def complete(
    ref: PromptReference | ResourceTemplateReference, argument: CompletionArgument, context: CompletionContext | None
) -> Completion:
    """Cities, for both of them."""
    return Completion(values=[city for city in CITIES if city.startswith(argument.value)])


def serve(port: int) -> None:
    """For browsers too: they may come from one place, and must be able to read which session they have."""
    names = TransportSecuritySettings(allowed_hosts=["127.0.0.1:*", "localhost:*"], allowed_origins=[BROWSER])
    app = CORSMiddleware(
        server.streamable_http_app(transport_security=names),
        allow_origins=[BROWSER],
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["Mcp-Session-Id"],
    )
    uvicorn.run(app, port=port, log_level="error")


class Person:
    """Who sits before the client: says yes, and notices what comes by itself."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.changes = 0

    async def answer(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        """A question of a tool."""
        self.asked.append(params.message)
        return ElicitResult(action="accept", content={"confirm": True})

    async def hear(self, message: Any) -> None:
        """A notification."""
        self.changes += getattr(message, "method", "") == "notifications/tools/list_changed"


async def visit(url: str, mode: str) -> None:
    """Everything once."""
    person = Person()
    async with Client(
        reconnecting_http(url),
        extensions=[TasksClient()],
        mode=mode,
        elicitation_callback=person.answer,
        message_handler=person.hear,
    ) as client:
        assert (await client.call_tool("weather", {"city": "Porto"})).structured_content == {
            "city": "Porto",
            "degrees": 24.0,
        }
        for ref in (PromptReference(name="plan"), ResourceTemplateReference(uri="weather://{city}")):
            assert (await client.complete(ref, {"name": "city", "value": "Pr"})).completion.values == ["Prague"]
        [message] = (await client.get_prompt("plan", {"city": "Prague"})).messages
        assert isinstance(message.content, TextContent)
        assert message.content.text == "Plan a weekend in Prague."

        handle = await start_task(client, "book", {"city": "Paris"})
        assert isinstance(handle, TaskHandle)
        text, link = (await handle.result()).content
        assert isinstance(text, TextContent)
        assert isinstance(link, ResourceLink)
        assert person.asked == ["Book a room in Paris?"]
        [content] = (await client.read_resource(str(link.uri))).contents
        assert isinstance(content, TextResourceContents)
        assert Weather.model_validate_json(content.text).degrees == 21.5

        trips = await season(client, person)
        print(f"{client.protocol_version}: {text.text}; {len(trips)} new tools, told of {person.changes} time")


async def season(client: Client, person: Person) -> Sequence[str]:
    """New tools: a client of the newer era listens for them, one of the older era is told anyway."""
    if client.protocol_version >= "2026":
        async with client.listen(tools_list_changed=True):
            await _until_told(client, person)
    else:
        await _until_told(client, person)
    tools = (await client.list_tools(cache_mode="refresh")).tools
    return [tool.name for tool in tools if tool.name.startswith("sail_")]


async def _until_told(client: Client, person: Person) -> None:
    await client.call_tool("open_season", {})
    with anyio.fail_after(30):
        while not person.changes:  # noqa: ASYNC110 - it comes by itself
            await anyio.sleep(0.05)
    await anyio.sleep(0.3)
    assert person.changes == 1, f"told of the change {person.changes} times"


async def main() -> None:
    """A server of its own for each era, so that the boat trips are new to both."""
    for mode in ("auto", "legacy"):
        process = ServerProcess(Path(__file__), "serve")
        await process.start()
        try:
            await visit(process.url, mode)
        finally:
            process.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_subparsers(dest="command").add_parser("serve").add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    if options.command == "serve":
        serve(options.port)
    else:
        anyio.run(main)
