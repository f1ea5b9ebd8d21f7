"""What a fleet costs, on SQLite, Postgres and Redis side by side.

    python -m bench.fleet times      create, get and end to end over HTTP, on all three in turns
    python -m bench.fleet trips      round trips of the same, counted at the socket
    python -m bench.fleet rate       no-op tasks a second, beside the engine alone on the same server
    python -m bench.fleet cpu        the processor's time of a task on Redis, beside that of a job of Docket alone
    python -m bench.fleet idle       round trips a second of three workers and two servers with nothing to do
    python -m bench.fleet memory     memory and connections of one process

What a thousand and a million stored tasks change is `python -m bench.stored`.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import docket, fleet_tasks, procrastinate
from bench.cases import MAX_POLLS
from bench.client import BenchError, task_get, tool_call
from bench.counting import CountingProxy, counting
from bench.machine import machine_facts
from bench.options import at_least
from bench.report import print_facts
from bench.servers import Server, fleet_server, fleet_worker
from harness.databases import postgres, valkey

SETTLED = 4.0
"""Seconds after which a new process has opened what it opens."""

POLL_PAUSE = 0.002
"""Seconds between two polls of the one client that there is: about what a task takes on the quickest store."""

CREATE = tool_call("noop")


# Times


def times(rounds: int) -> None:
    """Each case on each store in turns, so that a neighbour on the machine slows all of them."""
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        for name, url in stack.enter_context(urls()).items():
            servers[name] = stack.enter_context(fleet_server(url))
            if not url.startswith("sqlite:"):
                stack.enter_context(fleet_worker(url))
            ended(servers[name], create(servers[name]))
        cases = {"create": _create_ms, "get, working or not": _get_ms, "end to end": _end_to_end_ms}
        found: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for _ in range(rounds):
            for case, measure in cases.items():
                for name, server in servers.items():
                    found.setdefault((case, name), []).append(_with_cpu(server, measure))
    print(f"| ms, and µs of the server's CPU; medians of {rounds} rounds | " + " | ".join(servers) + " |")
    print("|---" * (1 + len(servers)) + "|")
    for case in cases:
        cells = [_medians(found[case, name]) for name in servers]
        print(f"| {case} | " + " | ".join(f"{wait:.1f} ms, {cpu:.0f} µs" for wait, cpu in cells) + " |")


OPERATIONS = 20


def _create_ms(server: Server) -> list[float]:
    waits = [_ms(lambda: server.connection.exchange(CREATE)) for _ in range(OPERATIONS)]
    # What is created has to run, and its turn is not the next case's.
    ended(server, create(server))
    return waits


def _get_ms(server: Server) -> list[float]:
    request = task_get(create(server))
    ended(server, create(server))
    return [_ms(lambda: server.connection.exchange(request)) for _ in range(OPERATIONS)]


def _end_to_end_ms(server: Server) -> list[float]:
    return [_ms(lambda: ended(server, create(server))) for _ in range(OPERATIONS)]


def _with_cpu(server: Server, measure: Callable[[Server], list[float]]) -> tuple[float, float]:
    server.connection.renew()
    before = server.cpu()
    waits = measure(server)
    return statistics.median(waits), (server.cpu() - before) / 1000 / len(waits)


def _medians(found: Sequence[tuple[float, float]]) -> tuple[float, float]:
    waits, cpus = zip(*found, strict=True)
    return statistics.median(waits), statistics.median(cpus)


def create(server: Server) -> str:
    """A new task."""
    task_id: str = server.connection.result(CREATE)["taskId"]
    return task_id


def ended(server: Server, task_id: str) -> None:
    """Ask for a task until it has ended."""
    request = task_get(task_id)
    for _ in range(MAX_POLLS):
        time.sleep(POLL_PAUSE)
        if server.connection.result(request)["status"] == "completed":
            return
    raise BenchError("a task did not end")


def _ms(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return 1000 * (time.perf_counter() - began)


# Round trips


COUNTED = 40
"""Operations of one count; fewer than one owner's share of what is handed out at once."""


def trips() -> None:
    """Round trips of each case, without those that the processes make by themselves."""
    columns: list[dict[str, float]] = []
    with urls() as found:
        for url in (found["Postgres"], found["Redis"]):
            with counting(url) as serving, counting(url) as working:
                columns.append(_trips(serving, working))
    print("| round trips | Postgres | Redis |")
    print("|---|---|---|")
    for row in columns[0]:
        print(f"| {row} | " + " | ".join(f"{column[row]:.2f}" for column in columns) + " |")


def _trips(serving: CountingProxy, working: CountingProxy) -> dict[str, float]:
    found: dict[str, float] = {}
    with fleet_server(serving.url) as server:
        waiting = create(server)
        by_itself = at_rest(serving)

        def counted(what: str, act: Callable[[], object]) -> None:
            server.connection.renew()
            before, began = serving.round_trips, time.monotonic()
            for _ in range(COUNTED):
                act()
            own = (time.monotonic() - began) * by_itself
            found[what] = (serving.round_trips - before - own) / COUNTED
            print(f"  {what}: {found[what]:.2f}", flush=True)

        counted("create and enqueue", lambda: server.connection.exchange(CREATE))
        counted("`tasks/get`, queued", lambda: server.connection.exchange(task_get(waiting)))
        with fleet_worker(working.url):
            server.connection.renew()
            ended(server, waiting)
            time.sleep(SETTLED)
            counted("`tasks/get`, finished", lambda: server.connection.exchange(task_get(waiting)))
            by_itself = at_rest(working)
            for what, pause in (("worker, tasks one by one", 0.2), ("worker, tasks all at once", 0.0)):
                server.connection.renew()
                before, began = working.round_trips, time.monotonic()
                for task_id in [_after(pause, server) for _ in range(COUNTED)]:
                    ended(server, task_id)
                time.sleep(1.0)
                own = (time.monotonic() - began) * by_itself
                found[what] = (working.round_trips - before - own) / COUNTED
                print(f"  {what}: {found[what]:.2f}", flush=True)
    return found


def _after(pause: float, server: Server) -> str:
    time.sleep(pause)
    return create(server)


def at_rest(proxy: CountingProxy, seconds: float = 6.0) -> float:
    """Round trips a second of processes with nothing to do."""
    time.sleep(SETTLED)
    before = proxy.round_trips
    time.sleep(seconds)
    return (proxy.round_trips - before) / seconds


# Tasks a second


async def rates(rounds: int, count: int) -> None:
    """Rounds of the engine alone and of tasks, on one server each."""
    found: dict[str, list[float]] = {}

    def add(name: str, rate: float) -> None:
        found.setdefault(name, []).append(rate)
        print(f"  {name}: {rate:.0f}", flush=True)

    procrastinate.JOBS = count
    with postgres() as server, valkey() as other, tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            add("procrastinate alone", await procrastinate.bare(server.new_database()))
            add("tasks on Postgres", await fleet_tasks.rate(server.new_database(), count))
            add("Docket alone", await docket.bare(other.url, count))
            add("tasks on Redis", await fleet_tasks.rate(f"{other.url[:-1]}{number + 1}", count))
            add("tasks on SQLite", await fleet_tasks.rate(f"sqlite:///{folder}/{number}.db", count))
    print(f"| no-op a second, {count} at a time, medians of {rounds} | | of the engine alone |")
    print("|---|---|---|")
    for name, values in found.items():
        alone = {"tasks on Postgres": "procrastinate alone", "tasks on Redis": "Docket alone"}.get(name)
        ratio = f"{statistics.median(a / b for a, b in zip(values, found[alone], strict=True)):.0%}" if alone else ""
        print(f"| {name} | {statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f}) | {ratio} |")


# Processor time


async def processor(count: int) -> None:
    """What Docket alone needs for a job and we for a task, in the processor's time: others at work disturb it less."""
    with valkey() as server:
        few, many = [await _of_bare(server.url, number) for number in (10, 2 * count)]
        # What both have in common is the start of the worker.
        worker, sender = ((after - before) / (2 * count - 10) for before, after in zip(few, many, strict=True))
        print("| ms of the processor, on Redis | worker | sender |")
        print("|---|---|---|")
        print(f"| a job of Docket alone | {1000 * worker:.2f} | {1000 * sender:.2f} |")
        worker, sender = await fleet_tasks.processor(f"{server.url[:-1]}1", count)
        print(f"| a task | {1000 * worker:.2f} | {1000 * sender:.2f} |")


async def _of_bare(url: str, jobs: int) -> tuple[float, float]:
    children, own = resource.getrusage(resource.RUSAGE_CHILDREN), time.process_time()
    await docket.bare(url, jobs)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    worker = after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime
    return worker, time.process_time() - own


# At rest


def idle(seconds: float) -> None:
    """Three workers and two servers with nothing to do, counted at the socket."""
    print(f"| round trips a second at rest, over {seconds:.0f} s | 3 workers | 2 servers | in all | connections |")
    print("|---|---|---|---|---|")
    with urls() as found:
        for name in ("Postgres", "Redis"):
            with ExitStack() as stack:
                proxies = [stack.enter_context(counting(found[name])) for _ in range(2)]
                working, serving = proxies
                servers = [stack.enter_context(fleet_server(serving.url)) for _ in range(2)]
                for _ in range(3):
                    stack.enter_context(fleet_worker(working.url))
                ended(servers[0], create(servers[0]))
                # On a busy machine the last of them takes its time to start.
                time.sleep(20)
                before, began = [proxy.round_trips for proxy in proxies], time.monotonic()
                time.sleep(seconds)
                took = time.monotonic() - began
                rates = [(proxy.round_trips - was) / took for proxy, was in zip(proxies, before, strict=True)]
                cells = [f"{rate:.1f}" for rate in (*rates, sum(rates))]
                print(f"| {name} | {' | '.join(cells)} | {working.connections} and {serving.connections} |", flush=True)


# Memory


def memory() -> None:
    """Resident memory and connections of a server and of a worker, at rest and after a burst of tasks."""
    print("| server and worker | MiB | after 500 tasks | connections | with 500 tasks |")
    print("|---|---|---|---|---|")
    with urls() as found:
        for name in ("Postgres", "Redis"):
            with ExitStack() as stack:
                serving, working = (stack.enter_context(counting(found[name])) for _ in range(2))
                server = stack.enter_context(fleet_server(serving.url))
                worker = Server(stack.enter_context(fleet_worker(working.url)), server.connection, server.db)
                ended(server, create(server))
                time.sleep(SETTLED)
                cells = [_resident(server, worker), f"{serving.connections} and {working.connections}"]
                server.connection.renew()
                created = [create(server) for _ in range(500)]
                cells.append(f"{serving.connections} and {working.connections}")
                ended(server, created[-1])
                cells.insert(1, _resident(server, worker))
                print(f"| {name} | {' | '.join(cells)} |", flush=True)


def _resident(*servers: Server) -> str:
    return " and ".join(f"{server.resident() / 2**20:.0f}" for server in servers)


@contextmanager
def urls() -> Generator[dict[str, str]]:
    """Where tasks can be kept, while the block lasts."""
    with tempfile.TemporaryDirectory() as folder, postgres() as server, valkey() as other:
        yield {"SQLite": f"sqlite:///{folder}/tasks.db", "Postgres": server.new_database(), "Redis": other.url}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["times", "trips", "rate", "cpu", "idle", "memory"])
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--count", type=at_least(1), default=500, help="tasks of one rate")
    parser.add_argument("--seconds", type=at_least(0.1), default=20.0, help="of being idle")
    options = parser.parse_args()
    print_facts(machine_facts(Path(tempfile.gettempdir())))
    match options.what:
        case "times":
            times(options.rounds)
        case "trips":
            trips()
        case "rate":
            asyncio.run(rates(options.rounds, options.count))
        case "cpu":
            asyncio.run(processor(options.count))
        case "idle":
            idle(options.seconds)
        case _:
            memory()


if __name__ == "__main__":
    main()
