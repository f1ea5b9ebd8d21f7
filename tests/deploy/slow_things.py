"""The server that the recipes serve: tools that say in which process they run, and wait until they are let go.

It runs in the folder of a recipe, beside the files of the page. Its server is the page's own.
"""

import os
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Elicit, Resolve
from pydantic import BaseModel

from mcp_tasks import Tasks

keyed = import_module("keyed")
server: MCPServer[Any] = keyed.server
tasks: Tasks = keyed.tasks


class Name(BaseModel):
    name: str


def ask_name() -> Elicit[Name]:
    """Asked before there is a task, so that the answer comes back with a `requestState`."""
    return Elicit("Who is it?", Name)


@server.tool()
@tasks.task(recover="rerun")
async def again(job: str) -> int:
    return await _wait(job)


@server.tool()
@tasks.task(recover="fail")
async def once(job: str) -> int:
    return await _wait(job)


@server.tool()
@tasks.task()
async def greet(who: Annotated[Name, Resolve(ask_name)]) -> str:
    return f"Hello, {who.name}, from {os.getpid()}"


@server.tool()
def process() -> int:
    return os.getpid()


async def _wait(job: str) -> int:
    _note(job)
    while not _may_end(job):  # noqa: ASYNC110 - a test in another process says so
        await anyio.sleep(0.02)
    return os.getpid()


def _note(job: str) -> None:
    with Path("runs.log").open("a") as log:
        log.write(f"{job} {os.getpid()}\n")


def _may_end(job: str) -> bool:
    return Path(f"{job}.end").exists()
