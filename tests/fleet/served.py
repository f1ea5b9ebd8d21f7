"""One process of a fleet: a replica, which serves HTTP and may run tools, or a worker, which only runs them.

python -m tests.fleet.served replica --url URL --folder FOLDER --name NAME --port PORT [--serves-only]
python -m tests.fleet.served worker --url URL --folder FOLDER --name NAME
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from mcp.server import MCPServer

from harness.server import UNPACED
from harness.serving import serving_until_told
from mcp_tasks import Settings, Tasks
from mcp_tasks.protocol.owners import Caller
from mcp_tasks.stores.url import store_from_url
from tests.fleet.notes import Notes
from tests.fleet.tools import Tools, add_chaos_tools, add_pool_tools
from tests.fleet.unfenced import Fence, delayed

LEASE = timedelta(seconds=3)
SWEEP = timedelta(milliseconds=300)


def settings(options: argparse.Namespace) -> Settings:
    """Everything quicker than usual, so that a test sees many of its turns."""
    return Settings(
        lease_duration=timedelta(seconds=options.lease),
        sweep_interval=timedelta(seconds=options.sweep),
        look_interval=timedelta(seconds=options.look),
        drain_timeout=timedelta(seconds=1),
        stop_timeout=timedelta(seconds=1),
        progress_interval=timedelta(milliseconds=50),
        trial_duration=timedelta(milliseconds=700),
        max_handed_out=options.share,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Serve or work until stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("replica", "worker"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--serves-only", action="store_true")
    parser.add_argument("--stateless", action="store_true")
    parser.add_argument("--concurrency", type=int, default=20)
    parser.add_argument("--lease", type=float, default=LEASE.total_seconds())
    parser.add_argument("--fence", choices=("kept", "slow", "removed"), default="kept")
    parser.add_argument("--queues", default="")
    parser.add_argument("--sweep", type=float, default=SWEEP.total_seconds())
    parser.add_argument("--look", type=float, default=1.0)
    parser.add_argument("--share", type=int, default=100)
    parser.add_argument("--pools", choices=("", "all", "without-rare"), default="")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    server, tasks = build(options)
    if options.role == "worker":
        asyncio.run(tasks.work(server, queues=options.queues.split(",") if options.queues else None))
    else:
        asyncio.run(_serve(server, options))


def build(options: argparse.Namespace) -> tuple[MCPServer, Tasks]:
    """The server, the same in every process but for what the options say of this one."""
    fence: Fence = options.fence
    tasks = Tasks(
        options.url if fence == "kept" else delayed(store_from_url(options.url), fence),
        # A store that is wrapped does not say which engine goes with it.
        engine="local" if options.url.startswith("sqlite:") else options.url,
        concurrency=options.concurrency,
        settings=settings(options),
        runs_tools=options.role == "worker" or not options.serves_only,
        principal=_named,
        limits=UNPACED,
    )
    server: MCPServer = MCPServer("fleet", **tasks.wiring())
    tools = Tools(server, tasks, Notes(options.folder), options.name)
    add_chaos_tools(tools)
    if options.pools:
        add_pool_tools(tools, rare=options.pools == "all")
    return server, tasks


def _named(caller: Caller) -> str | None:
    """Who calls is whoever the call says: these are tests, and need many owners more than they need safe ones."""
    return caller.headers.get("x-owner")


async def _serve(server: MCPServer, options: argparse.Namespace) -> None:
    app = server.streamable_http_app(stateless_http=options.stateless)
    await serving_until_told(app, port=options.port, log_config=None, access_log=False)


if __name__ == "__main__":
    main()
