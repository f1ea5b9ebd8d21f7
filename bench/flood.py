"""Two owners over real HTTP, one of whom floods: what the other notices of it.

    python -m bench.flood                with tokens, protected by the default limits, and with those on owners off
    python -m bench.flood --nobody       without authentication, where there is only a total

One owner creates a task and looks at it, again and again, with a pause between; first alone, then while the other keeps
thirty-two connections busy with creates and polls, each asking again as soon as it is answered. Both servers are up at
the same time and are measured by turns, so that whatever else the machine does is done to both. Server, flooder and the
one who is measured are processes of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from statistics import median
from typing import Final

from mcp_types import ToolAnnotations

from bench.client import Connection, answer_in, task_get, tool_call
from bench.servers import environment, serving
from harness.auth import Tokens, server_with
from harness.processes import python, running
from harness.serving import serve_app
from mcp_tasks import Limits, Tasks

ROUNDS: Final = 3
PAIRS: Final = 30
"""Creates, and as many gets, of the measured owner in each part of a round."""

PAUSE: Final = 0.02
"""Seconds after each, as somebody has who does not flood."""

CONNECTIONS: Final = 32
OPEN: Final = Limits(
    owner_open_tasks=None,
    owner_stored_bytes=None,
    owner_streams=None,
    owner_sessions=None,
    owner_waits=None,
    owner_unread_bytes=None,
    owner_creates=None,
    owner_requests=None,
    owner_share=None,
    anonymous=False,
)
NAMELESS: Final = Limits(anonymous=False)


def serve(port: int, *, protected: bool, nobody: bool) -> None:
    """Serve until killed."""
    tasks = Tasks("memory://", limits=OPEN if not protected else NAMELESS if nobody else None)
    server = server_with(tasks, "flood", None if nobody else Tokens())

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True))
    @tasks.task()
    async def work() -> str:
        """Take a moment."""
        await asyncio.sleep(0.1)
        return "ok"

    serve_app(server.streamable_http_app(), port=port, log_level="error", access_log=False)


def signed(request: bytes, owner: str) -> bytes:
    """The request with the token of its owner."""
    return request.replace(b"\r\nContent-Type", f"\r\nAuthorization: Bearer {owner}\r\nContent-Type".encode(), 1)


async def flood(port: int) -> None:
    """Ask for as much as there is, until killed."""
    create = signed(tool_call("work"), "flooder")
    first: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def keep(creates: bool) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        request = create if creates else signed(task_get(await first), "flooder")
        while True:
            writer.write(request)
            received = bytearray()
            while (body := answer_in(received)) is None:
                received += await reader.read(65_536) or _gone()
            if not first.done():
                first.set_result(json.loads(body)["result"]["taskId"])

    await asyncio.gather(*(keep(number % 2 == 0) for number in range(CONNECTIONS)))


def _gone() -> bytes:
    raise SystemExit


def measure(port: int) -> tuple[list[float], list[float]]:
    """Milliseconds of creates and of gets."""
    connection = Connection(port)
    creates: list[float] = []
    gets: list[float] = []
    try:
        for _ in range(PAIRS):
            began = time.perf_counter()
            made = json.loads(connection.exchange(signed(tool_call("work"), "honest")))
            creates.append((time.perf_counter() - began) * 1_000)
            time.sleep(PAUSE)
            if "result" in made:
                poll = signed(task_get(made["result"]["taskId"]), "honest")
                began = time.perf_counter()
                connection.exchange(poll)
                gets.append((time.perf_counter() - began) * 1_000)
            # Slower than the owner may: it is not measured how it is slowed itself.
            time.sleep(0.1)
    finally:
        connection.close()
    return creates, gets


def run(*, nobody: bool) -> None:
    """Measure both servers by turns, and print what came of it."""
    flags = ["--nobody"] if nobody else []
    taken: dict[tuple[str, str, str], list[float]] = {}
    with (
        serving("bench.flood", "--serve", *flags) as protected,
        serving("bench.flood", "--serve", "--open", *flags) as unprotected,
    ):
        ports = {"protected": protected.connection.port, "open": unprotected.connection.port}
        for _ in range(ROUNDS):
            for name, port in ports.items():
                for part in ("quiet", "flood"):
                    if part == "quiet":
                        told = measure(port)
                    else:
                        with running(python("bench.flood", "--flood", "--port", str(port)), env=environment()):
                            time.sleep(1.5)
                            told = measure(port)
                        time.sleep(1.5)
                    for what, values in zip(("create", "get"), told, strict=True):
                        taken.setdefault((name, part, what), []).extend(values)
    print(f"{'server':<11}{'request':<9}{'quiet':>9}{'flood':>9}{'times':>8}   (medians, ms)")
    for name in ports:
        for what in ("create", "get"):
            quiet, flooded = (median(taken[name, part, what]) for part in ("quiet", "flood"))
            print(f"{name:<11}{what:<9}{quiet:>9.2f}{flooded:>9.2f}{flooded / quiet:>8.1f}")


def main() -> None:
    """Measure, or be one of the processes that takes part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nobody", action="store_true", help="without authentication")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--flood", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--open", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.port, protected=not options.open, nobody=options.nobody)
    elif options.flood:
        asyncio.run(flood(options.port))
    else:
        run(nobody=options.nobody)


if __name__ == "__main__":
    main()
