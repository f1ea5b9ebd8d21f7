"""A server whose tools write down each time they run, on the store of a URL.

    python -m tests.trust.paying FOLDER PORT STORE_URL

`pay` may not run twice, `look_up` may. Each writes its name into `runs` in the folder. If there is a file `die` in the
folder, which it removes before, the server dies right after its file has kept a new task: once for each time.
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


def main(folder: Path, port: int, url: str) -> None:
    """Serve until killed."""

    class DyingStore(SqliteStore):
        async def create(self, *args: Any, **kwargs: Any) -> TaskRecord:
            created = await super().create(*args, **kwargs)
            if (folder / "die").exists():
                (folder / "die").unlink()
                crash()
            return created

    store = DyingStore(folder / "tasks.db") if url.startswith("sqlite") else url
    tasks = Tasks(store, engine="local", namespace="paying")
    server = MCPServer("paying", **tasks.wiring())

    def note(name: str) -> None:
        with (folder / "runs").open("a") as runs:
            runs.write(f"{name}\n")

    @server.tool()
    @tasks.task()
    async def pay(amount: int) -> str:
        note("pay")
        return f"paid {amount}"

    @server.tool()
    @tasks.task(recover="rerun")
    async def look_up(amount: int) -> str:
        note("look_up")
        return f"looked up {amount}"

    serve_app(server.streamable_http_app(), port=port)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
