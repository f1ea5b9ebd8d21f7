"""A server that dies between making a task and answering the call, once for each time that it is told to.

    python -m tests.trust.crashing FOLDER PORT STORE_URL

It dies right after its store has kept a new task, if there is a file `die` in the folder, which it removes before. Its
tool writes a line into `runs` there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mcp.server import MCPServer

from harness.processes import crash
from harness.server import QUICK
from harness.serving import serve_app
from mcp_tasks import Tasks
from mcp_tasks.model.record import TaskRecord
from mcp_tasks.stores.postgres import PostgresStore
from mcp_tasks.stores.sqlite import SqliteStore


def main(folder: Path, port: int, url: str) -> None:
    """Serve until killed."""

    def maybe_die() -> None:
        if (folder / "die").exists():
            (folder / "die").unlink()
            crash()

    class DyingSqlite(SqliteStore):
        async def create(self, *args: Any, **kwargs: Any) -> TaskRecord:
            created = await super().create(*args, **kwargs)
            maybe_die()
            return created

    class DyingPostgres(PostgresStore):
        async def create(self, *args: Any, **kwargs: Any) -> TaskRecord:
            created = await super().create(*args, **kwargs)
            maybe_die()
            return created

    store = DyingPostgres(url) if url.startswith("postgresql") else DyingSqlite(folder / "tasks.db")
    tasks = Tasks(store, engine="local", settings=QUICK, namespace="crashing")
    server = MCPServer("crashing", **tasks.wiring())

    @server.tool()
    @tasks.task(recover="rerun")
    async def pay(amount: int) -> str:
        with (folder / "runs").open("a") as runs:
            runs.write(f"{amount}\n")
        return f"paid {amount}"

    serve_app(server.streamable_http_app(), port=port)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
