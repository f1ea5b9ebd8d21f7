"""The servers of this folder in one process, each three times: with tasks (`/tasks/...`), with tasks where a caller
without them gets a plain call (`/inline/...`), and without (`/plain/...`).

python -m tests.everything.site http --fd N
python -m tests.everything.site stdio [--kind plain] [--low]
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, Final

from mcp.server import MCPServer, Server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Mount
from starlette.types import ASGIApp

from harness.ports import base_url
from harness.server import QUICK
from harness.serving import ServerProcess, serve_app, serve_stdio
from mcp_tasks import Tasks
from mcp_tasks.server import ListChanges
from tests.conformance.everything_server import MemoryEvents
from tests.everything import oauth
from tests.everything.lowlevel import build_lowlevel
from tests.everything.server import build

ORIGIN: Final = "https://app.example.com"
HOST: Final = "tools.example.com"
IDLE: Final = 0.3
WINDOW: Final = timedelta(milliseconds=100)

OWN_NAMES: Final = TransportSecuritySettings(allowed_hosts=[HOST], allowed_origins=[ORIGIN])
FROM_ELSEWHERE: Final = TransportSecuritySettings(allowed_hosts=["127.0.0.1:*"], allowed_origins=[ORIGIN])

WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    "stateful": {},
    "json": {"json_response": True},
    "stateless": {"stateless_http": True},
    "stateless-json": {"stateless_http": True, "json_response": True},
    "resumable": {"retry_interval": 10},
    "idle": {"session_idle_timeout": IDLE},
    "guarded": {"transport_security": OWN_NAMES},
    "cors": {"transport_security": FROM_ELSEWHERE},
    "changes": {},
}
"""How a server is served, by the name of the place that it is served at."""


@contextmanager
def site_process(what: str = "http", *arguments: str) -> Generator[str]:
    """A process that serves them over HTTP while the block lasts, or the one behind OAuth; gives its base URL."""
    url = base_url("{port}")
    with ServerProcess("tests.everything.site", what, "--fd", "{fd}", "--url", url, *arguments, polite=True) as server:
        yield base_url(server.port)


def new_tasks() -> Tasks:
    """Tasks that are kept in memory."""
    return Tasks("memory://", settings=QUICK)


def inline_tasks() -> Tasks:
    """The same, of which a caller that does not speak them notices nothing."""
    return Tasks("memory://", settings=QUICK, fallback="inline", companions="never")


def _no_tasks() -> None:
    return None


KINDS: Final[Mapping[str, Callable[[], Tasks | None]]] = {
    "tasks": new_tasks,
    "inline": inline_tasks,
    "plain": _no_tasks,
}
"""The tasks of a server, by the name of its kind."""


def site() -> Starlette:
    """All servers in one app, each at its own place."""
    managed: list[MCPServer[Any] | Server[Any]] = []
    routes: list[Mount] = []
    for kind, tasks in KINDS.items():
        for way, options in WAYS.items():
            changes = ListChanges(window=WINDOW) if way == "changes" else None
            server = build(tasks(), changes)
            managed.append(server)
            routes.append(Mount(f"/{kind}/{way}", _app(server, way, options)))
        low = build_lowlevel(tasks())
        managed.append(low)
        routes.append(Mount(f"/{kind}/low", low.streamable_http_app()))
        routes.append(Mount(f"/{kind}/old", build(tasks()).sse_app()))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            for server in managed:
                await stack.enter_async_context(server.session_manager.run())
            yield

    return Starlette(routes=routes, lifespan=lifespan)


def protected(url: str, tasks: Tasks | None) -> Starlette:
    """A server that is its own authorization server."""
    server = build(tasks, auth=oauth.settings(url), provider=oauth.Agreeable(url))
    return server.streamable_http_app()


def _app(server: MCPServer[Any], way: str, options: Mapping[str, Any]) -> ASGIApp:
    events: Mapping[str, Any] = {"event_store": MemoryEvents()} if way == "resumable" else {}
    app = server.streamable_http_app(**options, **events)
    if way != "cors":
        return app
    return CORSMiddleware(
        app,
        allow_origins=[ORIGIN],
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["Mcp-Session-Id"],
    )


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=("stdio", "http", "oauth"))
    parser.add_argument("--fd", type=int)
    parser.add_argument("--url")
    parser.add_argument("--kind", choices=KINDS, default="tasks")
    parser.add_argument("--low", action="store_true")
    parser.add_argument("--changes", action="store_true")
    options = parser.parse_args()
    tasks = KINDS[options.kind]()
    if options.transport != "stdio":
        app = site() if options.transport == "http" else protected(options.url, tasks)
        serve_app(app, fd=options.fd)
        return
    changes = ListChanges(window=WINDOW) if options.changes else None
    asyncio.run(serve_stdio(build_lowlevel(tasks) if options.low else build(tasks, changes)))


if __name__ == "__main__":
    main()
