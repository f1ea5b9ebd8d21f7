"""The servers of this folder in one process, each three times: with tasks (`/tasks/...`), with tasks where a caller
without them gets a plain call (`/inline/...`), and without (`/plain/...`).

python -m tests.everything.site http --fd N
python -m tests.everything.site stdio [--kind plain] [--changes]
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, Final

from mcp.server import MCPServer
from starlette.applications import Starlette
from starlette.routing import Mount

from harness.ports import base_url
from harness.server import QUICK
from harness.serving import ServerProcess, serve_app, serve_stdio
from mcp_tasks import Tasks
from mcp_tasks.server import ListChanges
from tests.everything.server import build

WINDOW: Final = timedelta(milliseconds=200)

WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    "stateful": {},
    "json": {"json_response": True},
    "stateless-json": {"stateless_http": True, "json_response": True},
    "changes": {},
}
"""How a server is served, by the name of the place that it is served at."""


KINDS: Final[Mapping[str, Callable[[], Tasks | None]]] = {
    "tasks": lambda: Tasks("memory://", settings=QUICK),
    # A caller that does not speak tasks notices nothing of them.
    "inline": lambda: Tasks("memory://", settings=QUICK, fallback="inline", companions="never"),
    "plain": lambda: None,
}
"""The tasks of a server, by the name of its kind."""


@contextmanager
def site_process() -> Generator[str]:
    """A process that serves them over HTTP while the block lasts; gives its base URL."""
    with ServerProcess("tests.everything.site", "http", "--fd", "{fd}", polite=True) as server:
        yield base_url(server.port)


def site() -> Starlette:
    """All servers in one app, each at its own place."""
    managed: list[MCPServer[Any]] = []
    routes: list[Mount] = []
    for kind, tasks in KINDS.items():
        for way, options in WAYS.items():
            server = build(tasks(), ListChanges(window=WINDOW) if way == "changes" else None)
            managed.append(server)
            routes.append(Mount(f"/{kind}/{way}", server.streamable_http_app(**options)))
        routes.append(Mount(f"/{kind}/old", build(tasks()).sse_app()))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            for server in managed:
                await stack.enter_async_context(server.session_manager.run())
            yield

    return Starlette(routes=routes, lifespan=lifespan)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=("stdio", "http"))
    parser.add_argument("--fd", type=int)
    parser.add_argument("--kind", choices=KINDS, default="tasks")
    parser.add_argument("--changes", action="store_true")
    options = parser.parse_args()
    if options.transport == "http":
        serve_app(site(), fd=options.fd)
        return
    changes = ListChanges(window=WINDOW) if options.changes else None
    asyncio.run(serve_stdio(build(KINDS[options.kind](), changes)))


if __name__ == "__main__":
    main()
