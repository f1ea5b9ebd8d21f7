"""The tools the official server suite calls, apart from those in `everything_input` that ask by returning.

Each is an ordinary SDK tool with the name, the arguments and the behaviour that the suite documents for it.
They are plain functions in a tuple, so that the server can register them bare or marked as tasks without a
second copy.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable
from typing import Annotated, Any

import anyio
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.mcpserver.tools import Tool
from mcp.shared.exceptions import MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    ClientCapabilities,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    MissingRequiredClientCapabilityErrorData,
    SamplingCapability,
    SamplingMessage,
    TextContent,
    TextResourceContents,
)
from pydantic import Field

# The suite asks for about this long between two notifications, so that a client can tell them apart.
BEAT = 0.05


def _png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def red_pixel() -> bytes:
    """A valid PNG of one red pixel."""
    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\x00\xff\x00\x00")
    chunks = _png_chunk(b"IHDR", header) + _png_chunk(b"IDAT", pixels) + _png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def silence() -> bytes:
    """A valid WAV file of one silent 8-bit sample."""
    form = struct.pack("<HHIIHH", 1, 1, 8000, 8000, 1, 8)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", 1) + b"\x80\x00"
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _image() -> ImageContent:
    return ImageContent(data=base64.b64encode(red_pixel()).decode(), mime_type="image/png")


def _text_resource(uri: str, mime_type: str, text: str) -> EmbeddedResource:
    return EmbeddedResource(resource=TextResourceContents(uri=uri, mime_type=mime_type, text=text))


# --- content ------------------------------------------------------------------------------------------------


def test_simple_text() -> str:
    """Answers with one text block."""
    return "This is a simple text response for testing."


def test_image_content() -> ImageContent:
    """Answers with one image."""
    return _image()


def test_audio_content() -> AudioContent:
    """Answers with one sound."""
    return AudioContent(data=base64.b64encode(silence()).decode(), mime_type="audio/wav")


def test_embedded_resource() -> EmbeddedResource:
    """Answers with one embedded resource."""
    return _text_resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")


def test_multiple_content_types() -> list[ContentBlock]:
    """Answers with a text, an image and a resource."""
    text = TextContent(text="Multiple content types test:")
    data = '{"test":"data","value":123}'
    return [text, _image(), _text_resource("test://mixed-content-resource", "application/json", data)]


def test_error_handling() -> str:
    """Always fails as a tool."""
    raise ToolError("This tool intentionally returns an error for testing")


# --- notifications during a call ----------------------------------------------------------------------------


async def test_tool_with_progress(ctx: Context) -> str:
    """Reports progress three times."""
    for done in (0, 50, 100):
        await ctx.report_progress(done, 100)
        await anyio.sleep(BEAT)
    return "Progress was reported."


async def test_tool_with_logging(ctx: Context) -> str:
    """Logs three times at level info."""
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(line)  # pyright: ignore[reportDeprecated]
        await anyio.sleep(BEAT)
    return "Three lines were logged."


async def test_logging_tool(ctx: Context) -> str:
    """Logs once; a client that set no log level must see nothing of it."""
    await ctx.info("only for clients that asked")  # pyright: ignore[reportDeprecated]
    return "Logged."


# --- asking the client while the call is open (2025-11-25) --------------------------------------------------


async def test_sampling(prompt: str, ctx: Context) -> str:
    """Has the client's model answer a prompt."""
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


async def test_elicitation(message: str, ctx: Context) -> str:
    """Asks the user for a name and an address."""
    properties = {
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    }
    return "User response: " + await _ask_form(ctx, message, properties, ["username", "email"])


async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Asks with a default for each primitive type."""
    properties: dict[str, Any] = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    return "Elicitation completed: " + await _ask_form(ctx, "Check these values", properties, [])


async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Asks with each form an enum can take."""
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


async def test_reconnection(ctx: Context) -> str:
    """Drops its own response stream; the client must come back with Last-Event-ID for the result."""
    await ctx.close_sse_stream()
    await anyio.sleep(BEAT)
    return "Delivered after a reconnection."


# --- what the client declared, and changing lists -----------------------------------------------------------


async def test_missing_capability(ctx: Context) -> str:
    """Refuses a client that did not declare sampling."""
    declared = ctx.client_capabilities
    if declared is None or declared.sampling is None:
        needed = MissingRequiredClientCapabilityErrorData(
            required_capabilities=ClientCapabilities(sampling=SamplingCapability())
        )
        data = needed.model_dump(by_alias=True, mode="json", exclude_none=True)
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, "This tool needs sampling", data)
    return "Sampling is declared."


async def test_trigger_tool_change(ctx: Context) -> str:
    """Changes the list of tools and says so; the list is as before afterwards."""
    server = ctx.mcp_server
    server.add_tool(test_simple_text, name="test_added_tool")
    await ctx.notify_tools_changed()
    server.remove_tool("test_added_tool")
    await ctx.notify_tools_changed()
    return "The list of tools changed."


async def test_trigger_prompt_change(ctx: Context) -> str:
    """Changes the list of prompts and says so; the list is as before afterwards."""
    server = ctx.mcp_server
    server.add_prompt(Prompt.from_function(test_simple_text, name="test_added_prompt"))
    await ctx.notify_prompts_changed()
    server.remove_prompt("test_added_prompt")
    await ctx.notify_prompts_changed()
    return "The list of prompts changed."


# --- input schemas and headers ------------------------------------------------------------------------------


async def test_custom_header(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})],
) -> str:
    """Takes an argument that must also travel as a header."""
    return f"Region {region}"


def json_schema_2020_12_tool(
    name: str = "",
    address: dict[str, str] | None = None,
    contactMethod: str = "",
    phone: str = "",
    email: str = "",
) -> str:
    """Has an input schema that uses what JSON Schema 2020-12 added."""
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
    tool = Tool.from_function(fn)
    tool.parameters = _SCHEMA_2020_12
    return tool


TOOLS: tuple[Callable[..., Any], ...] = (
    test_simple_text,
    test_image_content,
    test_audio_content,
    test_embedded_resource,
    test_multiple_content_types,
    test_error_handling,
    test_tool_with_progress,
    test_tool_with_logging,
    test_logging_tool,
    test_sampling,
    test_elicitation,
    test_elicitation_sep1034_defaults,
    test_elicitation_sep1330_enums,
    test_reconnection,
    test_missing_capability,
    test_trigger_tool_change,
    test_trigger_prompt_change,
    test_custom_header,
)
