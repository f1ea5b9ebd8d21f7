"""A server that offers all that the official server suite asks for, with tasks or without.

    python -m tests.conformance.everything_server --port 3000 [--tasks --db FILE]

The two variants are the same server, which is the point: what the suite finds in the plain one must not get
worse when `Tasks` is wired in. With `--tasks` every tool is marked as one that may run as a task, so a client
that never heard of the extension, in either era, meets nothing but marked tools and must not notice.

Tools, prompts and resources have the names, the arguments and the behaviour that the suite documents for them.
"""

import argparse
import base64
import json
import struct
import zlib
from collections.abc import Callable
from itertools import count
from typing import Annotated, Any, Final, TypeVar

import anyio
from mcp.server import MCPServer
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.mcpserver.prompts.base import Message, UserMessage
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.types import Image
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.shared.exceptions import MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    ClientCapabilities,
    Completion,
    ContentBlock,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    EmbeddedResource,
    EmptyResult,
    ImageContent,
    InputRequiredResult,
    JSONRPCMessage,
    ListRootsRequest,
    ListRootsResult,
    MissingRequiredClientCapabilityErrorData,
    SamplingCapability,
    SamplingMessage,
    SetLevelRequestParams,
    SubscribeRequestParams,
    TextContent,
    TextResourceContents,
    UnsubscribeRequestParams,
)
from pydantic import Field

from harness.serving import serve_app

F = TypeVar("F", bound=Callable[..., Any])

TOOLS: Final = list[Callable[..., Any]]()


def tool(fn: F) -> F:
    TOOLS.append(fn)
    return fn


# The suite asks for about this long between two notifications, so that a client can tell them apart.
BEAT = 0.05


def _png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def red_pixel() -> bytes:
    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\x00\xff\x00\x00")
    chunks = _png_chunk(b"IHDR", header) + _png_chunk(b"IDAT", pixels) + _png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def silence() -> bytes:
    form = struct.pack("<HHIIHH", 1, 1, 8000, 8000, 1, 8)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", 1) + b"\x80\x00"
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _image() -> ImageContent:
    return ImageContent(data=base64.b64encode(red_pixel()).decode(), mime_type="image/png")


def _text_resource(uri: str, mime_type: str, text: str) -> EmbeddedResource:
    return EmbeddedResource(resource=TextResourceContents(uri=uri, mime_type=mime_type, text=text))


# Content


@tool
def test_simple_text() -> str:
    return "This is a simple text response for testing."


@tool
def test_image_content() -> ImageContent:
    return _image()


@tool
def test_audio_content() -> AudioContent:
    return AudioContent(data=base64.b64encode(silence()).decode(), mime_type="audio/wav")


@tool
def test_embedded_resource() -> EmbeddedResource:
    return _text_resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")


@tool
def test_multiple_content_types() -> list[ContentBlock]:
    text = TextContent(text="Multiple content types test:")
    data = '{"test":"data","value":123}'
    return [text, _image(), _text_resource("test://mixed-content-resource", "application/json", data)]


@tool
def test_error_handling() -> str:
    raise ToolError("This tool intentionally returns an error for testing")


# Notifications during a call


@tool
async def test_tool_with_progress(ctx: Context) -> str:
    for done in (0, 50, 100):
        await ctx.report_progress(done, 100)
        await anyio.sleep(BEAT)
    return "Progress was reported."


@tool
async def test_tool_with_logging(ctx: Context) -> str:
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(line)  # pyright: ignore[reportDeprecated]
        await anyio.sleep(BEAT)
    return "Three lines were logged."


@tool
async def test_logging_tool(ctx: Context) -> str:
    await ctx.info("only for clients that asked")  # pyright: ignore[reportDeprecated]
    return "Logged."


# Asking the client while the call is open (2025-11-25)


@tool
async def test_sampling(prompt: str, ctx: Context) -> str:
    message = SamplingMessage(role="user", content=TextContent(text=prompt))
    answer = await ctx.session.create_message(  # pyright: ignore[reportDeprecated]
        [message], max_tokens=100, related_request_id=ctx.request_id
    )
    text = answer.content.text if isinstance(answer.content, TextContent) else str(answer.content)
    return f"LLM response: {text}"


async def _ask_form(ctx: Context, message: str, properties: dict[str, Any], required: list[str]) -> str:
    schema = {"type": "object", "properties": properties, "required": required}
    answer = await ctx.session.elicit_form(message, schema, related_request_id=ctx.request_id)
    return f"action={answer.action}, content={answer.content}"


@tool
async def test_elicitation(message: str, ctx: Context) -> str:
    properties = {
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    }
    return "User response: " + await _ask_form(ctx, message, properties, ["username", "email"])


@tool
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    properties: dict[str, Any] = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    return "Elicitation completed: " + await _ask_form(ctx, "Check these values", properties, [])


@tool
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    options = ["option1", "option2", "option3"]
    titled = [{"const": f"value{n}", "title": f"Choice {n}"} for n in (1, 2, 3)]
    properties: dict[str, Any] = {
        "untitledSingle": {"type": "string", "enum": options},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    return "Elicitation completed: " + await _ask_form(ctx, "Choose", properties, [])


@tool
async def test_reconnection(ctx: Context) -> str:
    await ctx.close_sse_stream()
    await anyio.sleep(BEAT)
    return "Delivered after a reconnection."


# What the client declared, and changing lists


@tool
async def test_missing_capability(ctx: Context) -> str:
    declared = ctx.client_capabilities
    if declared is None or declared.sampling is None:
        needed = MissingRequiredClientCapabilityErrorData(
            required_capabilities=ClientCapabilities(sampling=SamplingCapability())
        )
        data = needed.model_dump(by_alias=True, mode="json", exclude_none=True)
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, "This tool needs sampling", data)
    return "Sampling is declared."


@tool
async def test_trigger_tool_change(ctx: Context) -> str:
    server = ctx.mcp_server
    server.add_tool(test_simple_text, name="test_added_tool")
    await ctx.notify_tools_changed()
    server.remove_tool("test_added_tool")
    await ctx.notify_tools_changed()
    return "The list of tools changed."


@tool
async def test_trigger_prompt_change(ctx: Context) -> str:
    server = ctx.mcp_server
    server.add_prompt(Prompt.from_function(test_simple_text, name="test_added_prompt"))
    await ctx.notify_prompts_changed()
    server.remove_prompt("test_added_prompt")
    await ctx.notify_prompts_changed()
    return "The list of prompts changed."


# Input schemas and headers


@tool
async def test_custom_header(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
    return f"Region {region}"


def json_schema_2020_12_tool(
    name: str = "", address: dict[str, str] | None = None, contactMethod: str = "", phone: str = "", email: str = ""
) -> str:
    return f"{name} {address} {contactMethod} {phone} {email}"


_SCHEMA_2020_12: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def schema_tool(fn: Callable[..., Any]) -> Tool:
    """`fn` as a tool that lists the 2020-12 schema word for word, which no Python signature could produce."""
    tool = Tool.from_function(fn, description=DESCRIPTION)
    tool.parameters = _SCHEMA_2020_12
    return tool


# Asking by returning `InputRequiredResult` and being called again (SEP-2322). The SDK seals `requestState`, so what a
# tool reads back is what it wrote, and a tampered one never reaches it.


def _elicit(message: str, field: str, kind: str = "string") -> ElicitRequest:
    schema = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def _sample(prompt: str, max_tokens: int) -> CreateMessageRequest:
    message = SamplingMessage(role="user", content=TextContent(text=prompt))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=max_tokens))


def _answer(ctx: Context, key: str) -> Any:
    return (ctx.input_responses or {}).get(key)


def _form(ctx: Context, key: str) -> dict[str, Any] | None:
    """What the user filled in under `key`, or None when there is no accepted answer yet."""
    answer = _answer(ctx, key)
    accepted = isinstance(answer, ElicitResult) and answer.action == "accept"
    return dict(answer.content or {}) if accepted else None


@tool
async def test_input_required_result_elicitation(ctx: Context) -> str | InputRequiredResult:
    form = _form(ctx, "user_name")
    if form is None:
        return InputRequiredResult(input_requests={"user_name": _elicit("What is your name?", "name")})
    return f"Hello, {form.get('name')}!"


@tool
async def test_input_required_result_sampling(ctx: Context) -> str | InputRequiredResult:
    answer = _answer(ctx, "capital_question")
    if not isinstance(answer, CreateMessageResult):
        question = _sample("What is the capital of France?", 100)
        return InputRequiredResult(input_requests={"capital_question": question})
    return f"The model said: {answer.content}"


@tool
async def test_input_required_result_list_roots(ctx: Context) -> str | InputRequiredResult:
    answer = _answer(ctx, "client_roots")
    if not isinstance(answer, ListRootsResult):
        return InputRequiredResult(input_requests={"client_roots": ListRootsRequest()})
    return "Roots: " + ", ".join(str(root.uri) for root in answer.roots)


@tool
async def test_input_required_result_request_state(ctx: Context) -> str | InputRequiredResult:
    if _form(ctx, "confirm") is None or ctx.request_state != "asked":
        question = _elicit("Please confirm", "ok", "boolean")
        return InputRequiredResult(input_requests={"confirm": question}, request_state="asked")
    return "state-ok"


@tool
async def test_input_required_result_tampered_state(ctx: Context) -> str | InputRequiredResult:
    return await test_input_required_result_request_state(ctx)


@tool
async def test_input_required_result_multiple_inputs(ctx: Context) -> str | InputRequiredResult:
    answers = [_answer(ctx, key) for key in ("user_name", "greeting", "client_roots")]
    if all(answer is not None for answer in answers):
        return "All three were answered."
    questions = {
        "user_name": _elicit("What is your name?", "name"),
        "greeting": _sample("Generate a greeting", 50),
        "client_roots": ListRootsRequest(),
    }
    return InputRequiredResult(input_requests=questions, request_state="three questions")


@tool
async def test_input_required_result_multi_round(ctx: Context) -> str | InputRequiredResult:
    if _form(ctx, "step2") is not None:
        return f"Done, {ctx.request_state}"
    first = _form(ctx, "step1")
    if first is not None:
        question = _elicit("Step 2: What is your favorite color?", "color")
        return InputRequiredResult(input_requests={"step2": question}, request_state=f"name {first.get('name')}")
    question = _elicit("Step 1: What is your name?", "name")
    return InputRequiredResult(input_requests={"step1": question}, request_state="no name yet")


@tool
async def test_input_required_result_capabilities(ctx: Context) -> str | InputRequiredResult:
    declared = ctx.client_capabilities
    questions: dict[str, Any] = {}
    if declared is not None and declared.sampling is not None:
        questions["sampled"] = _sample("Say hello", 10)
    if declared is not None and declared.elicitation is not None:
        questions["elicited"] = _elicit("Say hello", "greeting")
    if not questions or ctx.input_responses:
        return "Nothing left to ask."
    return InputRequiredResult(input_requests=questions)


@tool
async def test_streaming_elicitation(ctx: Context) -> str | InputRequiredResult:
    if _form(ctx, "choice") is not None:
        return "Chosen."
    await ctx.report_progress(1, 2)
    return InputRequiredResult(input_requests={"choice": _elicit("Choose", "choice")})


# The server


Mark = Callable[[Callable[..., Any]], Callable[..., Any]]
NAME, DESCRIPTION = "everything", "Documented by the suite."


class MemoryEvents(EventStore):
    """Remembers what went out on each stream, so that a dropped stream can be resumed."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self.stored: list[tuple[int, str, JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        number = next(self._numbers)
        self.stored.append((number, stream_id, message))
        return str(number)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        last = int(last_event_id)
        stream = next((stream for number, stream, _ in self.stored if number == last), None)
        for number, of, message in self.stored:
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


def _add_prompts(server: MCPServer[Any]) -> None:
    @server.prompt(description=DESCRIPTION)
    def test_simple_prompt() -> str:
        return "This is a simple prompt for testing."

    @server.prompt(description=DESCRIPTION)
    def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    @server.prompt(description=DESCRIPTION)
    def test_prompt_with_embedded_resource(resourceUri: str) -> list[Message]:
        text = "Embedded resource content for testing."
        resource = TextResourceContents(uri=resourceUri, mime_type="text/plain", text=text)
        words = "Please process the embedded resource above."
        return [UserMessage(EmbeddedResource(resource=resource)), UserMessage(words)]

    @server.prompt(description=DESCRIPTION)
    def test_prompt_with_image() -> list[Message]:
        return [UserMessage(Image(data=red_pixel(), format="png")), UserMessage("Please analyze the image above.")]

    @server.prompt(description=DESCRIPTION)
    async def test_input_required_result_prompt(ctx: Context) -> str | InputRequiredResult:
        form = _form(ctx, "user_context")
        if form is None:
            question = _elicit("What context should the prompt use?", "context")
            return InputRequiredResult(input_requests={"user_context": question})
        return f"Use this context: {form.get('context')}"

    @server.completion()
    async def complete(ref: object, argument: Any, context: object) -> Completion:
        words = [word for word in ("paris", "park", "party") if word.startswith(argument.value)]
        return Completion(values=words, total=len(words), has_more=False)


def _add_resources(server: MCPServer[Any]) -> None:
    @server.resource("test://static-text", name="static-text", mime_type="text/plain")
    def static_text() -> str:
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", name="static-binary", mime_type="image/png")
    def static_binary() -> bytes:
        return red_pixel()

    @server.resource("test://watched-resource", name="watched-resource", mime_type="text/plain")
    def watched() -> str:
        return "Watched."

    @server.resource("test://template/{id}/data", name="template", mime_type="application/json")
    def template(id: str) -> str:  # noqa: A002 - the suite names the variable
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


def _furnish(server: MCPServer[Any], mark: Mark) -> MCPServer[Any]:
    for fn in TOOLS:
        server.add_tool(mark(fn), description=DESCRIPTION)
    _add_prompts(server)
    _add_resources(server)
    return server


def plain_server() -> MCPServer[Any]:
    tool = schema_tool(json_schema_2020_12_tool)
    return _furnish(MCPServer(NAME, version="1", tools=[tool], log_level="WARNING"), lambda fn: fn)


def tasks_server(db: str) -> MCPServer[Any]:
    """The same server with every tool marked as a task, stored in the SQLite file `db`."""
    # Imported here: the plain variant is the measure, and must not depend on what it measures.
    from mcp_tasks import Tasks

    tasks = Tasks(f"sqlite:///{db}")
    mark: Mark = tasks.task()
    tool = schema_tool(mark(json_schema_2020_12_tool))
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
