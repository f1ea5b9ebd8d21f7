"""The prompts, resources and completions the official server suite asks for."""

from __future__ import annotations

import json
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.prompts.base import Message, UserMessage
from mcp.server.mcpserver.utilities.types import Image
from mcp_types import Completion, EmbeddedResource, TextResourceContents

from .everything_input import test_input_required_result_prompt
from .everything_tools import red_pixel


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
        test_input_required_result_prompt,
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
