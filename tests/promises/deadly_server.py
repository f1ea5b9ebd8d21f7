"""A server with a tool that takes its process down with it, and others that happen to run beside it.

python -m tests.promises.deadly_server --port 8000 --db tasks.db
"""

from __future__ import annotations

import argparse
from datetime import timedelta
from pathlib import Path

import anyio
from mcp.server import MCPServer

from harness.processes import crash
from mcp_tasks import Settings, Tasks


def note(folder: str, line: str) -> None:
    with Path(folder, "log").open("a") as file:
        file.write(f"{line}\n")


async def poison(folder: str) -> str:
    """Die as a segmentation fault or the kernel's memory killer would have it."""
    note(folder, "poison")
    await anyio.sleep(0.5)
    crash()


async def bystander(folder: str) -> str:
    """Work for as long as there is no file that says to stop."""
    note(folder, "bystander")
    while not Path(folder, "done").exists():  # noqa: ASYNC110, ASYNC240 - another process makes the file
        await anyio.sleep(0.02)
    return "done"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--db", required=True)
    parser.add_argument("--name", default="deadly")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tasks = Tasks(f"sqlite:///{options.db}", settings=Settings(trial_duration=timedelta(seconds=1)))
    server = MCPServer(options.name, **tasks.wiring())
    for tool in (poison, bystander):
        server.tool()(tasks.task(recover="rerun")(tool))
    server.run("streamable-http", port=options.port, json_response=options.json)


if __name__ == "__main__":
    main()
