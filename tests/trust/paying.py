"""A server whose tools write down each time they run, on the store of a URL.

    python -m tests.trust.paying FOLDER PORT STORE_URL

`pay` may not run twice, `look_up` may. Each writes its name into `runs` in the folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mcp.server import MCPServer

from harness.serving import serve_app
from mcp_tasks import Tasks


def main(folder: Path, port: int, url: str) -> None:
    """Serve until killed."""
    tasks = Tasks(url, engine="local", namespace="paying")
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
