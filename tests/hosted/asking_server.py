"""A server whose tools ask the client for sampling and elicitation as tasks.

python -m tests.hosted.asking_server stdio [--store URL]
python -m tests.hosted.asking_server http PORT [--stateless] [--json] [--store URL]
"""

import sys
from datetime import timedelta
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import SamplingMessage, TextContent, ToolAnnotations
from pydantic import BaseModel

from harness.server import QUICK
from mcp_tasks import Tasks
from mcp_tasks.legacy.client_tasks import (
    ClientTasksUnsupported,
    client_task,
    elicit_as_task,
    list_client_tasks,
    sample_as_task,
)


class Approval(BaseModel):
    ok: bool


async def written(ctx: Context, text: str) -> str:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=text))
    sampled = await (await sample_as_task(ctx, [message], max_tokens=10)).result()
    return sampled.content.text if isinstance(sampled.content, TextContent) else "?"


def build(store: str = "memory://") -> MCPServer[Any]:
    tasks = Tasks(store, settings=QUICK)
    server = MCPServer("asking", **tasks.wiring())

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True))
    @tasks.task()
    async def publish(ctx: Context) -> str:
        task = await elicit_as_task(ctx, "Publish?", Approval, ttl=timedelta(minutes=5))
        answer = await task.result()
        return f"published {answer.data.ok}" if answer.action == "accept" else answer.action

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True))
    @tasks.task()
    async def publish_soon(ctx: Context) -> str:
        try:
            await (await elicit_as_task(ctx, "Soon?", Approval)).result(timedelta(seconds=0.5))
        except TimeoutError:
            return "too late"
        return "in time"

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True))
    @tasks.task()
    async def compose(ctx: Context) -> str:
        return await written(ctx, "Write")

    @server.tool()
    async def approve(question: str, ctx: Context) -> str:
        task = await elicit_as_task(ctx, question, Approval, ttl=timedelta(minutes=5))
        answer = await task.result(timedelta(seconds=30))
        return f"{answer.action} {answer.data.ok}" if answer.action == "accept" else answer.action

    @server.tool()
    async def begin(question: str, ctx: Context) -> str:
        return (await elicit_as_task(ctx, question, Approval)).id

    @server.tool()
    async def fetch(task_id: str, seconds: float, ctx: Context) -> str:
        answer = await client_task(ctx, task_id, Approval).result(timedelta(seconds=seconds))
        return answer.action

    @server.tool()
    async def status(task_id: str, ctx: Context) -> str:
        return (await client_task(ctx, task_id).status()).status.value

    @server.tool()
    async def cancel(task_id: str, ctx: Context) -> str:
        return (await client_task(ctx, task_id).cancel()).status.value

    @server.tool()
    async def listed(ctx: Context) -> list[str]:
        return [task.id async for task in list_client_tasks(ctx)]

    @server.tool()
    async def write(text: str, ctx: Context) -> str:
        return await written(ctx, text)

    @server.tool()
    async def try_to_ask(ctx: Context) -> str:
        try:
            await elicit_as_task(ctx, "Anybody there?", Approval)
        except ClientTasksUnsupported as exc:
            return exc.message
        return "asked"

    return server


def main() -> None:
    server = build(sys.argv[sys.argv.index("--store") + 1] if "--store" in sys.argv else "memory://")
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run(
            "streamable-http",
            port=int(sys.argv[2]),
            stateless_http="--stateless" in sys.argv,
            json_response="--json" in sys.argv,
        )


if __name__ == "__main__":
    main()
