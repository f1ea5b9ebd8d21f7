"""The echo server of the MCP documentation: a tool, a resource template and a prompt, all named echo. With tasks.

python examples/echo.py            # a client starts the server, tries everything in both eras, and says so
python examples/echo.py serve      # the server alone, over stdio
"""

from __future__ import annotations

import os
import sys

import anyio
from mcp import Client, StdioServerParameters
from mcp.server import MCPServer
from mcp_types import TextContent, TextResourceContents
from pydantic import BaseModel

from mcp_tasks import Tasks
from mcp_tasks.client import TaskHandle, TasksClient, start_task, stdio_transport

tasks = Tasks("memory://")
server = MCPServer("echo-server", version="1.0.0", log_level="ERROR", **tasks.wiring())


class Echo(BaseModel):
    """What comes back."""

    echo: str


@server.tool(title="Echo Tool")
@tasks.task()
def echo(message: str) -> Echo:
    """Echoes back the provided message."""
    return Echo(echo=f"Tool echo: {message}")


@server.resource("echo://{message}", name="echo", title="Echo Resource")
@tasks.task(kind="resource", name="echo")
def echo_resource(message: str) -> str:
    """Echoes back messages as resources."""
    return f"Resource echo: {message}"


@server.prompt(name="echo", title="Echo Prompt")
@tasks.task(kind="prompt", name="echo")
def echo_prompt(message: str) -> str:
    """Creates a prompt to process a message."""
    return f"Please process this message: {message}"


async def visit(mode: str) -> None:
    """Everything the server has, once."""
    command = StdioServerParameters(command=sys.executable, args=[__file__, "serve"], env=dict(os.environ))
    async with Client(stdio_transport(command), extensions=[TasksClient()], mode=mode) as client:
        handle = await start_task(client, "echo", {"message": "hello"})
        assert isinstance(handle, TaskHandle)
        result = await handle.result()
        assert result.structured_content == {"echo": "Tool echo: hello"}

        [content] = (await client.read_resource("echo://hello")).contents
        assert isinstance(content, TextResourceContents)
        assert content.text == "Resource echo: hello"

        [message] = (await client.get_prompt("echo", {"message": "hello"})).messages
        assert isinstance(message.content, TextContent)
        assert message.content.text == "Please process this message: hello"
        print(f"{client.protocol_version}: {result.structured_content['echo']} (as a task), {content.text}")


async def stay() -> None:
    """The prompt and the resource as tasks: in this process, and for clients of the older era that ask for it."""
    async with tasks.running(server):
        prompt = await tasks.start_prompt("echo", {"message": "hello"})
        [message] = (await prompt.wait()).messages
        assert isinstance(message.content, TextContent)
        resource = await tasks.start_resource("echo://hello")
        [content] = (await resource.wait()).contents
        assert isinstance(content, TextResourceContents)
        print(f"in-process: {message.content.text}, {content.text} (as tasks)")


async def main() -> None:
    """Both eras of the protocol, one after the other, and none."""
    for mode in ("auto", "legacy"):
        await visit(mode)
    await stay()


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        server.run()
    else:
        anyio.run(main)
