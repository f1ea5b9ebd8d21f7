"""`mcp-tasks worker`: run the tools of a server in this process, and serve nobody."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final, NoReturn

import click

from mcp_tasks.cli.commands.worker.health import health_of
from mcp_tasks.cli.commands.worker.loading import load_server, show_traceback
from mcp_tasks.cli.commands.worker.plan import plan_json, plan_of, print_plan, start_line, unknown_queues
from mcp_tasks.cli.options import Duration, Output, takes_format
from mcp_tasks.cli.terminal.exits import Exit, Problem
from mcp_tasks.cli.terminal.views import print_json, say
from mcp_tasks.errors import StoreError, UsageError
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.runtime.child_process import kill_children
from mcp_tasks.server import Worker
from mcp_tasks.stores import MemoryStore

DRAIN: Final = timedelta(seconds=25)
"""How long tools may run on, unless the author or the operator says otherwise. With the time it takes to hand back what
is left it is less than the 30 s that Kubernetes gives a process to stop."""

LONGEST_DRAIN: Final = timedelta(days=7)
"""Nothing waits for longer than that for a process to stop."""


class _Count(click.IntRange):
    name = "whole number"


@click.command()
@click.argument("spec", metavar="MODULE:SERVER")
@click.option("--concurrency", type=_Count(min=1), metavar="N", help="How many tools run here at a time.")
@click.option("--queues", metavar="NAME,...", help="Run only tools of these queues.  [default: all]")
@click.option(
    "--drain",
    type=Duration(longest=LONGEST_DRAIN),
    metavar="DURATION",
    help=f"How long tools may run on when it is told to stop: 90 (seconds), 10m.  [default: as the server's Settings "
    f"say, or {DRAIN.total_seconds():g} s]",
)
@click.option(
    "--health",
    envvar="MCP_TASKS_HEALTH",
    show_envvar=True,
    metavar="HOST:PORT",
    help="Answer /live, /ready, /backlog and /metrics over HTTP there.",
)
@click.option("--check", is_flag=True, help="Load everything, open the store and the engine, say what would be run.")
@takes_format
def command(
    *,
    spec: str,
    concurrency: int | None,
    queues: str | None,
    drain: timedelta | None,
    health: str | None,
    check: bool,
    output: Output,
) -> Coroutine[Any, Any, int]:
    """Run the tools of a server in this process, and serve nobody.

    MODULE:SERVER is what the server's process loads too: the MCPServer or Server object, found in the working
    directory or, if it is not there, on PYTHONPATH. Workers and servers share one store; start as many of each as
    you like.

    Examples:
      mcp-tasks worker farm:server
      mcp-tasks worker farm:server --queues gpu --concurrency 2
      mcp-tasks worker farm:make_server() --health 0.0.0.0:8081
      mcp-tasks worker farm:server --check

    SIGTERM or Ctrl-C: take nothing more, let tools end, hand back the rest.
    A second one hands back at once.

    Exit codes: 0 stopped in order, 2 wrong usage, 10 the store cannot be used,
    11 the server's own code raised, 130 a second signal.
    """
    address = None if health is None else _address(health)
    names = None if queues is None else _names(queues)
    loaded = load_server(spec)
    _log_if_nobody_does()
    tasks = loaded.tasks
    try:
        worker = tasks.worker(
            loaded.server,
            concurrency=concurrency,
            queues=names,
            drain=drain,
            usual_drain=DRAIN,
        )
    except UsageError as exc:
        raise Problem(str(exc), Exit.USAGE) from None
    _check_shared(worker)
    return _check(worker, output) if check else _work(worker, address)


async def _work(worker: Worker, address: tuple[str, int] | None) -> int:
    async def started(runtime: TaskRuntime) -> None:
        say(start_line(await plan_of(worker, runtime)))
        for queue in await unknown_queues(runtime):
            say(f"No tool of {worker.server.name} is in queue {queue!r}.", "yellow")

    async with _health(worker, address):
        try:
            await worker.run(started)
        except (StoreError, UsageError) as exc:
            raise _problem(exc) from None
        except Exception as exc:
            show_traceback(exc)
            raise Problem(
                f"server {worker.server.name!r} could not be {'stopped in order' if worker.has_started else 'started'}",
                Exit.SERVER_CODE,
                hint="What it raised is above.",
            ) from None
    say(_end_line(worker))
    code = Exit.INTERRUPTED if worker.tally.cut_short else Exit.OK
    if worker.tally.left_behind:
        _leave(code)
    return code


async def _check(worker: Worker, output: Output) -> int:
    try:
        async with worker.rehearsing() as runtime:
            plan, unknown = await plan_of(worker, runtime), await unknown_queues(runtime)
    except (StoreError, UsageError) as exc:
        raise _problem(exc) from None
    except Exception as exc:
        # Of the drivers below an engine there is no list.
        raise Problem(f"the engine cannot be used: {exc}", Exit.STORE) from exc
    if output == "json":
        print_json(plan_json(plan))
    else:
        print_plan(plan)
    if unknown:
        raise Problem(f"no tool is in queue {' or '.join(map(repr, unknown))}", Exit.USAGE)
    return Exit.OK


def _problem(exc: StoreError | UsageError) -> Problem:
    return Problem(str(exc), Exit.STORE if isinstance(exc, StoreError) else Exit.USAGE)


def _check_shared(worker: Worker) -> None:
    if isinstance(worker.store, MemoryStore):
        raise Problem(
            f"the tasks of server {worker.server.name!r} are kept in memory, where no other process can have them",
            Exit.USAGE,
            hint='Name a store that processes share: Tasks("sqlite:///tasks.db") on one machine, '
            'Tasks("postgresql://…") or Tasks("redis://…") on several, or MCP_TASKS_URL.',
        )


@asynccontextmanager
async def _health(worker: Worker, address: tuple[str, int] | None) -> AsyncGenerator[None]:
    if address is None:
        yield
        return
    host, port = address
    pages = health_of(worker, host, port)
    try:
        port = await pages.__aenter__()
    except OSError as exc:
        raise Problem(f"--health {host}:{port} cannot be listened at: {exc}", Exit.USAGE) from None
    try:
        say(f"Health at http://{f'[{host}]' if ':' in host else host}:{port}/ready")
        yield
    finally:
        await pages.__aexit__(None, None, None)


def _end_line(worker: Worker) -> str:
    tally = worker.tally
    counts = [
        (tally.finished, "finished"),
        (tally.handed_back, "handed back"),
        (tally.parked, "left waiting"),
        (tally.interrupted, "ended as interrupted"),
        (tally.left_behind, "left behind in a thread that did not stop"),
    ]
    said = ", ".join(f"{count} {what}" for count, what in counts if count)
    return f"{worker.server.name}: stopped. {f'Tasks at work: {said}.' if said else 'Nothing was at work.'}"


def _leave(code: Exit) -> NoReturn:
    """End now. A thread that does not stop would be waited for, and goes on with what is another's by now."""
    # What is registered for the end of the process does not happen.
    kill_children()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _log_if_nobody_does() -> None:
    """An `MCPServer` sets logging up; with a low-level server that is for its author to do, or for us."""
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")


def _names(text: str) -> Sequence[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise click.UsageError(f"--queues takes names with commas between them, like gpu,default; not {text!r}")
    return names


def _address(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:\s]+)):(?P<port>\d{1,5})", text)
    if match is None or int(match["port"]) > 65535:
        raise click.UsageError(
            f"--health takes HOST:PORT, like 127.0.0.1:8081, or 0.0.0.0:8081 for every interface; not {text!r}"
        )
    return match["six"] or match["host"], int(match["port"])
