"""A server that dies between making a task and answering the call, once for each time that it is told to.

    python -m tests.trust.paying FOLDER PORT

It dies right after its store has kept a new task, if there is a file `die` in the folder, which it removes before. Its
tool writes a line into `runs` there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mcp.server import MCPServer

from harness.processes import crash
from harness.serving import serve_app
from mcp_tasks import Tasks
from mcp_tasks.model.record import TaskRecord
from mcp_tasks.stores.sqlite import SqliteStore


def main(folder: Path, port: int) -> None:
    class DyingStore(SqliteStore):
        async def create(self, *args: Any, **kwargs: Any) -> TaskRecord:
            created = await super().create(*args, **kwargs)
            if (folder / "die").exists():
                (folder / "die").unlink()
                crash()
            return created

    tasks = Tasks(DyingStore(folder / "tasks.db"), engine="local", namespace="paying")
    server = MCPServer("paying", **tasks.wiring())

    @server.tool()
    @tasks.task(recover="rerun")
    async def look_up(amount: int) -> str:
        with (folder / "runs").open("a") as runs:
            runs.write("look_up\n")
        return f"looked up {amount}"

    serve_app(server.streamable_http_app(), port=port)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
