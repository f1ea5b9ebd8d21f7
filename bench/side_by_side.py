"""Several servers side by side, each over the same yardstick, started anew several times.

CPU of the server process. In every round each server is sampled once, in an order drawn anew, and a ratio is made of
two samples of the same round: rounds are short and many, so that a busy neighbour slows all of a round. Two processes
of the same program differ by a few per cent for as long as they live (where their memory happens to lie), so the
servers are started anew several times; the median of all rounds of one start is one number, and what counts is the
median of those, with the lowest and the highest beside it. A second bare server is measured like the rest: how far its
ratio is from 1 is what this machine cannot tell apart.

`at rest` is what a server uses that nobody calls, as a share of one core: it belongs to no call, and is in all of them.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.options import at_least
from bench.servers import SETTLE, Mode, Server

MODES: Sequence[Mode] = ("sse", "json")

BARE = "bare SDK"
CONTROL = "bare SDK, a second one"

REST = 3.0
"""Seconds for which a server is left alone to see what it uses by itself."""

OPERATIONS = 25
"""Calls in one sample."""


@dataclass(frozen=True)
class Contender:
    """One server of a comparison: how it is started, the call that is measured, and the target for its ratio."""

    serve: Callable[[], AbstractContextManager[Server]]
    call: Callable[[Server], bytes]
    limit: float | None = None


@dataclass(frozen=True)
class Life:
    """One start of one server: microseconds of CPU for a call, its ratio to the bare server's, and its use at rest."""

    cpu: float
    ratio: float
    at_rest: float


def compare(contenders: Mapping[str, Contender], *, starts: int, rounds: int) -> None:
    """Measure them and print a table; one is called `BARE`, and all others are measured by it."""
    lives: list[dict[str, Life]] = []
    for _ in range(starts):
        lives.append(_lives(contenders, rounds))
        print("  ratios of this start:", *(f"{life.ratio:.3f}" for life in lives[-1].values()), flush=True)
    print(f"  {'':40}{'CPU µs':>8}{'ratio':>8}{'all starts':>16}{'at rest':>9}")
    for name, contender in contenders.items():
        print(_line(name, [life[name] for life in lives], contender.limit), flush=True)


def begin() -> None:
    """Refuse systems that cannot be measured on."""
    if not sys.platform.startswith("linux"):
        sys.exit("the bench reads the CPU clock of other processes as Linux shows it")


def add_options(parser: argparse.ArgumentParser, *, starts: int) -> None:
    """What can be said of every comparison."""
    parser.add_argument("--era", choices=("newer", "older"), default="newer", help="of the wire the calls are made on")
    parser.add_argument("--mode", action="append", choices=MODES, help="this way of answering and no other")
    parser.add_argument("--starts", type=at_least(1), default=starts, help="of all servers, in each mode")
    parser.add_argument("--rounds", type=at_least(1), default=100, help="of each start")
    parser.add_argument("--quick", action="store_true", help="fewer starts and rounds")
    parser.add_argument(
        "--dir", type=Path, help="where to put the SQLite files; a file system in memory proves nothing"
    )


def _lives(contenders: Mapping[str, Contender], rounds: int) -> dict[str, Life]:
    """Start all servers, measure them, and end them."""
    with ExitStack() as stack:
        servers = {name: stack.enter_context(contender.serve()) for name, contender in contenders.items()}
        calls = {name: contenders[name].call(server) for name, server in servers.items()}
        at_rest = _rest(servers, calls)
        samples = _rounds(servers, calls, rounds)
    return {
        name: Life(
            cpu=statistics.median(taken),
            ratio=statistics.median(one / bare for one, bare in zip(taken, samples[BARE], strict=True)),
            at_rest=at_rest[name],
        )
        for name, taken in samples.items()
    }


def _rest(servers: Mapping[str, Server], calls: Mapping[str, bytes]) -> dict[str, float]:
    """The share of a core that each server uses when nobody calls, after it has served a few."""
    for name, server in servers.items():
        _calls(server, 200, calls[name])
    time.sleep(1)
    began = {name: server.cpu() for name, server in servers.items()}
    time.sleep(REST)
    return {name: (server.cpu() - began[name]) / 1e9 / REST for name, server in servers.items()}


def _rounds(servers: Mapping[str, Server], calls: Mapping[str, bytes], rounds: int) -> dict[str, list[float]]:
    """Microseconds of CPU for a call, by server, one number a round."""
    taken: dict[str, list[float]] = {name: [] for name in servers}
    order = list(servers)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            taken[name].append(_calls(servers[name], OPERATIONS, calls[name]))
    return taken


def _calls(server: Server, operations: int, call: bytes) -> float:
    """Microseconds of CPU for one call, over one connection. The first is looked at, and not counted."""
    server.connection.renew()
    server.connection.result(call)
    began = server.cpu()
    for _ in range(operations):
        server.connection.exchange(call)
    time.sleep(SETTLE)
    return (server.cpu() - began) / operations / 1e3


def _line(name: str, lives: Sequence[Life], limit: float | None) -> str:
    ratio = statistics.median(life.ratio for life in lives)
    low, high = min(life.ratio for life in lives), max(life.ratio for life in lives)
    cpu = statistics.median(life.cpu for life in lives)
    at_rest = statistics.median(life.at_rest for life in lives)
    verdict = "" if limit is None else f"  ≤ {limit:g}  {'PASS' if ratio <= limit else 'MISS'}"
    return f"  {name:40}{cpu:8.0f}{ratio:8.3f}{f'{low:.3f}..{high:.3f}':>16}{at_rest:9.2%}{verdict}"
