"""A server whose tools have a version, with one tool for each thing that may become of a task of another version.

python -m tests.promises.versioned_server --port 8000 --db tasks.db --version 2
"""

from __future__ import annotations

import argparse
from datetime import timedelta
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel

from mcp_tasks import Tasks, current_task
from mcp_tasks.runtime.policy import OnOtherVersion


class Name(BaseModel):
    """Somebody's name."""

    name: str


def note(folder: str, line: str) -> str:
    """Write a line down."""
    with Path(folder, "log").open("a") as file:
        file.write(f"{line}\n")
    return line


def add_tool(server: MCPServer[Any], tasks: Tasks, name: str, version: str, on_other: OnOtherVersion) -> None:
    """A tool that does a step, asks, and does another."""
    changed = name == "changed" and version != "1"

    async def tool(folder: str, ctx: Context) -> str:
        """Ask for a name."""
        task = current_task()
        await task.step("renamed" if changed else "first", note, folder, f"{name} first {version}")
        given = await ctx.elicit("What is your name?", Name)
        await task.step("second", note, folder, f"{name} second {version}")
        return f"{given.data.name} from {version}" if given.action == "accept" else given.action

    mark = tasks.task(name=name, version=version, on_other_version=on_other, recover="rerun", park_after=timedelta(0))
    server.add_tool(mark(tool), name=name)


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--db", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tasks = Tasks(f"sqlite:///{options.db}")
    server = MCPServer[Any]("versioned", **tasks.wiring(), log_level="WARNING")
    choices: dict[str, OnOtherVersion] = {
        "goes_on": "continue",
        "changed": "continue",
        "starts_over": "restart",
        "fails": "fail",
    }
    for name, on_other in choices.items():
        add_tool(server, tasks, name, options.version, on_other)
    server.run("streamable-http", port=options.port, json_response=options.json)


if __name__ == "__main__":
    main()
