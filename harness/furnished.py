"""The furnished server (`harness.server`) in a process of its own.

python -m harness.furnished stdio [--lowlevel] [--store URL]
python -m harness.furnished http --fd N [--json] [--lowlevel] [--store URL]
"""

import argparse
import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from harness.lowlevel import build_lowlevel
from harness.server import QUICK, UNPACED, build
from harness.serving import ServerProcess, serve_app, serve_stdio
from mcp_tasks import Tasks


@contextmanager
def http_process(*arguments: str) -> Generator[str]:
    with ServerProcess("harness.furnished", "http", "--fd", "{fd}", *arguments, polite=True) as server:
        yield server.url


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=("stdio", "http"))
    parser.add_argument("--fd", type=int)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--lowlevel", action="store_true")
    parser.add_argument("--store", default="memory://")
    options = parser.parse_args(argv)
    # Kept for good: so there is a null on every wire. Some tests ask as quickly as they can.
    tasks = Tasks(options.store, default_ttl=None, settings=QUICK, limits=UNPACED)
    server = build_lowlevel(tasks) if options.lowlevel else build(tasks)
    if options.transport == "stdio":
        asyncio.run(serve_stdio(server))
    else:
        serve_app(server.streamable_http_app(json_response=options.json), fd=options.fd)


if __name__ == "__main__":
    main()
