# pyright: basic, reportMissingImports=false, reportArgumentType=false
"""FastMCP's client with our `TasksClient`: `python fastmcp_with_ours.py URL SELDOM_URL`."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

import fastmcp
from common import PARKED, filled_in, report, run_all
from fastmcp import Client

from mcp_tasks.client import TaskHandle, TasksClient, TasksError, resume_task

URL, SELDOM_URL = sys.argv[1:]
SOON = 10.0  # seconds: far below the hour for which the server asks not to be polled

asked: list[str] = []


async def answer(message: str, response_type: Any, params: Any, context: Any) -> dict[str, Any]:
    asked.append(message)
    return filled_in(params.requested_schema)


def client_of(tasks: TasksClient, url: str = URL, **options: Any) -> Client:
    return Client(url, extensions=[tasks], elicitation_handler=answer, **options)


def text(result: Any) -> str:
    return result.content[0].text


async def started(tasks: TasksClient, client: Client, tool: str, **arguments: Any) -> TaskHandle:
    handle = await tasks.start(client, tool, arguments)
    assert isinstance(handle, TaskHandle), handle
    return handle


async def raised(attempt: Any) -> dict[str, Any]:
    try:
        return {"result": str(await attempt)}
    except TasksError as exc:
        return {"type": type(exc).__name__, "fate": getattr(exc, "fate", None), "message": str(exc)}


async def transparent() -> dict[str, Any]:
    """`client.call_tool` as it is, for longer than the client waits for any answer."""
    heard = []

    async def hear(progress: Any) -> None:
        heard.append(progress.progress)

    async with client_of(TasksClient(on_progress=hear), timeout=1) as client:
        result = await client.call_tool("slow_compute", {"seconds": 2.5, "label": "long"})
        return {"text": text(result), "data": result.data.result, "heard": len(heard)}


async def asking() -> dict[str, Any]:
    tasks = TasksClient()
    async with client_of(tasks) as client:
        first = await client.call_tool("confirm_delete", {"filename": "fast.txt"})
        before_the_task = await tasks.call(client, "test_tool_with_task")
        return {"texts": [text(first), text(before_the_task)], "asked": asked.count("Delete fast.txt?")}


async def in_hand() -> dict[str, Any]:
    tasks = TasksClient()
    async with client_of(tasks) as client:
        handle = await started(tasks, client, "slow_compute", seconds=1, label="hand")
        inline = await tasks.start(client, "greet", {"name": "Ada"})
        return {"tool": handle.tool, "text": text(await handle.result(SOON)), "inline": text(inline)}


async def given_up() -> dict[str, Any]:
    tasks = TasksClient()
    async with client_of(tasks) as client:
        return await raised(tasks.call(client, "park", {"seconds": PARKED}, timeout=0.5, on_abandon="cancel"))


async def ledger() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "ledger.db")
        tasks = TasksClient(ledger=file, server=URL)
        async with client_of(tasks) as client:
            handle = await started(tasks, client, "slow_compute", seconds=1.5, label="left")
        again = TasksClient(ledger=file, server=URL)
        async with client_of(again) as client:
            found = again.pending(client)
            texts = [text(await each.result(SOON)) for each in found]
            return {"ids": [each.id for each in found] == [handle.id], "texts": texts, "left": again.pending(client)}


async def entered_again() -> dict[str, Any]:
    """FastMCP's client can be entered again, and has another session then: it is still told of its tasks."""
    tasks = TasksClient()
    client = client_of(tasks, SELDOM_URL)
    async with client:
        first = await tasks.call(client, "count", {"to": 5}, timeout=SOON)
        handle = await started(tasks, client, "count", to=20)
    async with client:
        second = await tasks.resume(client, handle.id).result(SOON)
    copy = client.new()
    async with copy:
        third = await tasks.call(copy, "count", {"to": 5}, timeout=SOON)
    return {"texts": [text(first), text(second), text(third)]}


async def strangers() -> dict[str, Any]:
    tasks = TasksClient()
    async with Client(URL) as client:

        async def not_given() -> None:
            tasks.resume(client, "x")

        async def by_function() -> None:
            resume_task(client, "x")

        return {"not_given": await raised(not_given()), "by_function": await raised(by_function())}


async def main() -> None:
    scenarios = (transparent, asking, in_hand, given_up, ledger, entered_again, strangers)
    outcome = await run_all({scenario.__name__: scenario for scenario in scenarios})
    report([outcome], version=fastmcp.__version__)


asyncio.run(main())
