"""A server that offers all that the official server suite asks for, with tasks or without.

    python -m tests.conformance.everything_server --port 3000 [--tasks --db FILE]

The two variants are the same server, which is the point: what the suite finds in the plain one must not get
worse when `Tasks` is wired in. With `--tasks` every tool is marked as one that may run as a task, so a client
that never heard of the extension, in either era, meets nothing but marked tools and must not notice.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from itertools import count
from typing import Any

from mcp.server import MCPServer
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver.prompts.base import Message, UserMessage
from mcp.server.mcpserver.utilities.types import Image
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp_types import (
    Completion,
    EmbeddedResource,
    EmptyResult,
    JSONRPCMessage,
    SetLevelRequestParams,
    SubscribeRequestParams,
    TextResourceContents,
    UnsubscribeRequestParams,
)

from harness.serving import serve_app

from . import everything_input, everything_tools
from .everything_tools import red_pixel

Mark = Callable[[Callable[..., Any]], Callable[..., Any]]
NAME = "everything"


class MemoryEvents(EventStore):
    """Remembers what went out on each stream, so that a dropped stream can be resumed."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._events: list[tuple[int, str, JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        number = next(self._numbers)
        self._events.append((number, stream_id, message))
        return str(number)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        last = int(last_event_id)
        stream = next((stream for number, stream, _ in self._events if number == last), None)
        for number, of, message in self._events:
            if of == stream and number > last and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


async def _accept(ctx: ServerRequestContext[Any, Any], params: object) -> EmptyResult:
    return EmptyResult()


def _add_legacy_methods(server: MCPServer[Any]) -> None:
    """Serve the methods that 2026-07-28 removed and the suite still tries in the older era.

    `MCPServer` binds none of them; the low-level server behind its HTTP app does.
    """
    lowlevel = server.session_manager.app
    lowlevel.add_request_handler("logging/setLevel", SetLevelRequestParams, _accept)
    lowlevel.add_request_handler("resources/subscribe", SubscribeRequestParams, _accept)
    lowlevel.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, _accept)


def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with two arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


def test_prompt_with_embedded_resource(resourceUri: str) -> list[Message]:
    """A prompt that embeds a resource."""
    text = "Embedded resource content for testing."
    contents = TextResourceContents(uri=resourceUri, mime_type="text/plain", text=text)
    return [
        UserMessage(EmbeddedResource(resource=contents)),
        UserMessage("Please process the embedded resource above."),
    ]


def test_prompt_with_image() -> list[Message]:
    """A prompt that shows an image."""
    return [
        UserMessage(Image(data=red_pixel(), format="png")),
        UserMessage("Please analyze the image above."),
    ]


def add_prompts(server: MCPServer[Any]) -> None:
    """Register the prompts and the completion of their arguments."""
    for prompt in (
        test_simple_prompt,
        test_prompt_with_arguments,
        test_prompt_with_embedded_resource,
        test_prompt_with_image,
        everything_input.test_input_required_result_prompt,
    ):
        server.prompt()(prompt)
    server.completion()(_complete)


async def _complete(ref: object, argument: Any, context: object) -> Completion:
    words = [word for word in ("paris", "park", "party") if word.startswith(argument.value)]
    return Completion(values=words, total=len(words), has_more=False)


def _static_text() -> str:
    """A text that never changes."""
    return "This is the content of the static text resource."


def _static_binary() -> bytes:
    """An image that never changes."""
    return red_pixel()


def _watched() -> str:
    """A text that clients may subscribe to."""
    return "Watched."


def _template(id: str) -> str:  # noqa: A002 - the suite names the variable
    """Data for one id."""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


def add_resources(server: MCPServer[Any]) -> None:
    """Register the resources and the template."""
    server.resource("test://static-text", name="static-text", mime_type="text/plain")(_static_text)
    server.resource("test://static-binary", name="static-binary", mime_type="image/png")(_static_binary)
    server.resource("test://watched-resource", name="watched-resource", mime_type="text/plain")(_watched)
    server.resource("test://template/{id}/data", name="template", mime_type="application/json")(_template)


def _unmarked(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn


def _furnish(server: MCPServer[Any], mark: Mark) -> MCPServer[Any]:
    for fn in (*everything_tools.TOOLS, *everything_input.TOOLS):
        server.add_tool(mark(fn))
    add_prompts(server)
    add_resources(server)
    return server


def plain_server() -> MCPServer[Any]:
    """The server as the SDK alone serves it."""
    tool = everything_tools.schema_tool(everything_tools.json_schema_2020_12_tool)
    return _furnish(MCPServer(NAME, version="1", tools=[tool], log_level="WARNING"), _unmarked)


def tasks_server(db: str) -> MCPServer[Any]:
    """The same server with every tool marked as a task, stored in the SQLite file `db`."""
    # Imported here: the plain variant is the measure, and must not depend on what it measures.
    from mcp_tasks import Tasks

    tasks = Tasks(f"sqlite:///{db}")
    mark: Mark = tasks.task()
    tool = everything_tools.schema_tool(mark(everything_tools.json_schema_2020_12_tool))
    server = MCPServer(NAME, version="1", tools=[tool], log_level="WARNING", **tasks.wiring())
    return _furnish(server, mark)


def main() -> None:
    parser = argparse.ArgumentParser(description="The conformance suite's everything server")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tasks", action="store_true", help="wire Tasks in and mark every tool")
    parser.add_argument("--db", default="everything.db", help="SQLite file of the tasks")
    options = parser.parse_args()
    server = tasks_server(options.db) if options.tasks else plain_server()
    app = server.streamable_http_app(event_store=MemoryEvents(), retry_interval=100)
    _add_legacy_methods(server)
    serve_app(app, port=options.port)


if __name__ == "__main__":
    main()
