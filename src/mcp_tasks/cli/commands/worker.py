"""`mcp-tasks worker` and `backlog`: run the tools of a server without serving clients, and count what waits."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Generic, NoReturn, TypeAlias, TypeVar, cast

import click
from mcp.server import MCPServer, Server
from rich.table import Table
from rich.text import Text

from mcp_tasks.cli.options import Duration, Output, takes_format, takes_output
from mcp_tasks.cli.terminal import Exit, Problem, clean, print_json, say, stdout, store_problem, table_of
from mcp_tasks.encryption import keyring_from_environment
from mcp_tasks.engines import LocalEngine
from mcp_tasks.errors import StoreError, UsageError, WiringError
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.runtime.child_process import kill_children
from mcp_tasks.server import Waiting, Worker, waiting_in
from mcp_tasks.server.tasks import Tasks
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.base import EVERYBODY, full_page
from mcp_tasks.stores.url import store_from_url
from mcp_tasks.telemetry.metrics import QUEUE_AGE, QUEUE_READY

# ---- plan


NAMES_SHOWN: Final = 8
"""Tools in the line at the start; `--check` lists all."""


async def _plan_of(worker: Worker, runtime: TaskRuntime) -> dict[str, Any]:
    """What a worker runs, as `--check --json` prints it. `tools` is empty for a server that does not list them."""
    queues = None if runtime.queues is None else sorted(runtime.queues)
    return {
        "server": worker.server.name,
        "namespace": runtime.namespace,
        "store": repr(runtime.store),
        "engine": "local: processes of this machine"
        if isinstance(runtime.engine, LocalEngine)
        else repr(runtime.engine),
        "queues": queues,
        "concurrency": getattr(runtime.engine, "concurrency", None),
        "drainSeconds": runtime.settings.drains_for.total_seconds(),
        "tools": {
            name: {
                "queue": policy.queue,
                "priority": policy.priority,
                "version": policy.version,
                "maxAtWork": policy.max_at_work,
                "served": queues is None or policy.queue in queues,
            }
            for name, policy in (await runtime.tools()).items()
        },
    }


def _unknown_queues(plan: Mapping[str, Any]) -> Sequence[str]:
    """Queues that the worker was told to serve, and that no tool of the server is in."""
    tools = plan["tools"]
    # A server that does not list its tools may have any.
    return sorted(set(plan["queues"] or ()) - {tool["queue"] for tool in tools.values()}) if tools else ()


def _start_line(plan: Mapping[str, Any]) -> str:
    tools, queues, concurrency = plan["tools"], plan["queues"], plan["concurrency"]
    served = [name for name, tool in tools.items() if tool["served"]]
    shown = ", ".join(served[:NAMES_SHOWN]) or ("nothing" if tools else "whatever it has")
    more = f" and {len(served) - NAMES_SHOWN} more" if len(served) > NAMES_SHOWN else ""
    of = "all queues" if queues is None else f"queue{'s'[: len(queues) > 1]} {', '.join(queues)}"
    limit = "" if concurrency is None else f", at most {concurrency} at a time"
    return clean(f"{plan['server']}: running {shown}{more} ({of}){limit}. Tasks are kept in {plan['store']}.")


def _print_plan(plan: Mapping[str, Any]) -> None:
    facts = Table.grid(padding=(0, 2))
    tools, queues, concurrency = plan["tools"], plan["queues"], plan["concurrency"]
    for what, value in (
        *((name, plan[name]) for name in ("server", "namespace", "store", "engine")),
        ("queues", "all" if queues is None else ", ".join(queues)),
        ("at a time", "as many as the engine runs" if concurrency is None else str(concurrency)),
        ("drain", f"{plan['drainSeconds']:g} s"),
    ):
        facts.add_row(Text(what, style="bright_black"), Text(clean(value)))
    stdout().print(facts)
    if not tools:
        stdout().print("The server does not list its tools: tasks of any tool are taken.")
        return
    rows = [
        (
            name,
            tool["queue"],
            str(tool["priority"]),
            tool["version"] or "",
            "any number" if tool["maxAtWork"] is None else f"at most {tool['maxAtWork']}",
            "yes" if tool["served"] else "no",
        )
        for name, tool in sorted(tools.items())
    ]
    stdout().print()
    stdout().print(table_of(("tool", "queue", "priority", "version", "at work in all", "here"), rows))


# ---- loading
# MODULE:SERVER on the command line.


_SPEC = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<path>[^\W\d]\w*(\.[^\W\d]\w*)*)(?P<call>\(\))?")
_PACKAGE = Path(__file__).parents[2]
_NOT_THE_AUTHORS = ("<frozen importlib", importlib.__file__, __file__)
"""Files whose frames are left out of a traceback."""


def load_server(spec: str) -> tuple[MCPServer[Any] | Server[Any], Tasks]:
    """The server that `spec` names, and its tasks: `farm:server`, `farm:app.server`, or `farm:make()` for a function
    that makes it.

    Modules are looked for in the working directory first.

    Raises:
        Problem: There is none, or its module cannot be imported; it says why.
    """
    match = _SPEC.fullmatch(spec)
    if match is None or Path(spec.partition(":")[0]).is_file():
        raise Problem(f"{spec!r} does not name a server", Exit.USAGE, hint=_how_to_name(spec))
    module = _imported(match["module"])
    found = _attribute(module, match["path"])
    if match["call"]:
        found = _made_by(found, spec)
    if not isinstance(found, MCPServer | Server):
        raise Problem(f"{spec} is {_kind(found)}, and not a server", Exit.USAGE, hint=_hint(module, found, spec))
    server = cast("MCPServer[Any] | Server[Any]", found)
    return server, _tasks_of(server, module)


def show_traceback(exc: BaseException) -> None:
    """Print the traceback of the author's own code, without ours."""
    shown = traceback.TracebackException.from_exception(exc)
    shown.stack = traceback.StackSummary.from_list(
        [frame for frame in shown.stack if not frame.filename.startswith(_NOT_THE_AUTHORS)]
    )
    click.echo("".join(shown.format()), err=True, nl=False)


def _how_to_name(spec: str) -> str:
    file = Path(spec.partition(":")[0])
    if file.suffix == ".py" or file.is_file():
        return f"Name the module and not the file, and the server in it: {'.'.join(file.with_suffix('').parts)}:server"
    return "Write MODULE:SERVER, as in farm:server, or MODULE:FUNCTION() for a function that makes it."


def _imported(name: str) -> ModuleType:
    here = os.getcwd()
    # First, even if it is also on PYTHONPATH.
    sys.path[:] = [here, *(folder for folder in sys.path if folder != here)]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (name == exc.name or name.startswith(f"{exc.name}.")):
            hint = f"Modules are looked for in {here} first, and then where Python looks (PYTHONPATH)."
            raise Problem(f"there is no module {exc.name!r}", Exit.USAGE, hint=hint) from None
        raise _raised(f"module {name!r} could not be imported", exc) from None
    except (Exception, SystemExit) as exc:
        raise _raised(f"module {name!r} could not be imported", exc) from None


def _raised(what: str, exc: BaseException) -> Problem:
    if isinstance(exc, UsageError):
        # Its message is enough.
        frames = traceback.extract_tb(exc.__traceback__)
        own = [frame for frame in frames if not frame.filename.startswith((*_NOT_THE_AUTHORS, str(_PACKAGE)))]
        where = f"In {own[-1].filename}, line {own[-1].lineno}." if own else None
        return Problem(f"{what}: {exc}", Exit.USAGE, hint=where)
    show_traceback(exc)
    return Problem(what, Exit.SERVER_CODE, hint="What it raised is above.")


def _attribute(module: ModuleType, path: str) -> Any:
    found: Any = module
    name = module.__name__
    for part in path.split("."):
        if not hasattr(found, part):
            raise Problem(f"{name} has no {part!r}", Exit.USAGE, hint=_servers_in(module))
        found, name = getattr(found, part), f"{name}.{part}"
    return found


def _made_by(function: Any, spec: str) -> Any:
    if not callable(function):
        raise Problem(f"{spec} is not a function: leave the parentheses out", Exit.USAGE)
    try:
        made = function()
    except (Exception, SystemExit) as exc:
        raise _raised(f"{spec} failed", exc) from None
    if inspect.iscoroutine(made):
        made.close()
        raise Problem(f"{spec} is asynchronous; a function that makes a server must not be", Exit.USAGE)
    return made


def _kind(found: object) -> str:
    if isinstance(found, type) or inspect.isroutine(found):
        return f"the {'class' if isinstance(found, type) else 'function'} {found.__name__}"
    return f"a {type(found).__name__}"


def _hint(module: ModuleType, found: object, spec: str) -> str | None:
    if inspect.isfunction(found):
        return f"If it makes the server, write {spec}()"
    return _servers_in(module)


def _servers_in(module: ModuleType) -> str | None:
    names: Sequence[str] = [
        f"{module.__name__}:{name}" for name, value in vars(module).items() if isinstance(value, MCPServer | Server)
    ]
    return f"There is {' and '.join(names)}." if names else "A server is an MCPServer or a Server of the SDK."


def _tasks_of(server: MCPServer[Any] | Server[Any], module: ModuleType) -> Tasks:
    try:
        return Tasks.of(server)
    except WiringError as exc:
        # The author may have wrapped the lifespan; starting the server fails if these are not its tasks.
        candidates = {id(value): value for value in vars(module).values() if isinstance(value, Tasks)}
        if len(candidates) == 1:
            return next(iter(candidates.values()))
        raise Problem(str(exc), Exit.USAGE) from None


# ---- health http
# As much of HTTP as probes and scrapers need: one GET per connection.


logger: Final = get_logger(__name__)

LONGEST_HEAD: Final = 8 * 1024
"""Bytes of a request line and its headers. Probes send a few hundred."""

TIME_LIMIT: Final = 5.0
"""Seconds for one request and its answer."""

MOST_CONNECTIONS: Final = 64
"""A machine has a handful of probes."""

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The content of a page."""

    body: str
    status: HTTPStatus = HTTPStatus.OK
    kind: str = TEXT


Page: TypeAlias = Callable[[], Awaitable[Answer]]


@asynccontextmanager
async def serving(host: str, port: int, pages: Mapping[str, Page]) -> AsyncGenerator[int]:
    """Serve pages by their path while the block lasts; gives the port, which is a free one for 0.

    Raises:
        OSError: The address cannot be listened at.
    """
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None  # noqa: S101 - each is served in one
        connections.add(connection)
        try:
            async with asyncio.timeout(TIME_LIMIT):
                writer.write(await _answered(reader, pages if len(connections) <= MOST_CONNECTIONS else None))
                await writer.drain()
                writer.write_eof()
                # Closed with unread data, the connection would be reset, and the answer lost.
                await reader.read(LONGEST_HEAD)
        except (TimeoutError, OSError):
            # Too slow, or gone.
            pass
        finally:
            connections.discard(connection)
            writer.close()

    server = await asyncio.start_server(connected, host, port, limit=LONGEST_HEAD)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(connections):
            task.cancel()


async def _answered(reader: asyncio.StreamReader, pages: Mapping[str, Page] | None) -> bytes:
    """The answer to the request; without pages there are too many connections."""
    if pages is None:
        return _bytes(_refused(HTTPStatus.SERVICE_UNAVAILABLE))
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return _bytes(_refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
    except asyncio.IncompleteReadError:
        return _bytes(_refused(HTTPStatus.BAD_REQUEST))
    words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return _bytes(_refused(HTTPStatus.BAD_REQUEST))
    answer = await _answer(words[0], words[1].partition("?")[0], pages)
    return _bytes(answer, with_body=words[0] != "HEAD")


async def _answer(method: str, path: str, pages: Mapping[str, Page]) -> Answer:
    if path not in pages:
        return _refused(HTTPStatus.NOT_FOUND, f"there is {', '.join(pages)}")
    if method not in ("GET", "HEAD"):
        return _refused(HTTPStatus.METHOD_NOT_ALLOWED)
    try:
        return await pages[path]()
    except Exception:
        logger.exception("%s could not be answered", path)
        return _refused(HTTPStatus.INTERNAL_SERVER_ERROR)


def _refused(status: HTTPStatus, why: str = "") -> Answer:
    return Answer(body=f"{status.phrase}{why and ': '}{why}\n", status=status)


def _bytes(answer: Answer, *, with_body: bool = True) -> bytes:
    body = answer.body.encode()
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.kind}\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + (body if with_body else b"")


# ---- health
# `/live`, `/ready`, `/backlog` and `/metrics`.


T = TypeVar("T")

KEPT_FOR: Final = 1.0
"""Seconds for which an answer of the store is reused."""

LOOK_LIMIT: Final = 3.0
"""Seconds that counting may take."""

PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"


class Health:
    """The pages of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._problems = Recent(worker.problems)
        self._backlog = Recent(self._look)
        self._metrics = worker.metrics()

    async def live(self) -> Answer:
        """The event loop runs. A process that does not answer this is to be restarted."""
        return Answer(body="alive\n")

    async def ready(self) -> Answer:
        """Whether tasks are taken: not while the worker starts or drains, nor without its store, engine or lease."""
        problems = await self._found_problems()
        said = {"ready": not problems, "state": self._worker.state, "problems": problems}
        return _json(said, HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK)

    async def backlog(self) -> Answer:
        """The tasks that wait in each queue, for the whole fleet."""
        found = await self._backlog.get()
        if isinstance(found, str):
            return _json({"error": found}, HTTPStatus.SERVICE_UNAVAILABLE)
        return _json(backlog_json(found))

    async def metrics(self) -> Answer:
        """The backlog, the state of this worker, and the metrics of its tasks, for Prometheus."""
        # Concurrently: each may wait for a store that is away, and one after the other takes too long.
        found, problems, more = await asyncio.gather(
            self._backlog.get(), self._found_problems(), self._metrics_of_tasks()
        )
        queues: Mapping[str, Waiting] = {} if isinstance(found, str) else found
        ready = not problems
        lines = [
            *_gauge("queue_ready", "Tasks that could run and nobody has.", {q: w.ready for q, w in queues.items()}),
            *_gauge(
                "queue_oldest_age_seconds",
                "For how long the task has waited that has waited longest.",
                {queue: round(waiting.age.total_seconds(), 3) for queue, waiting in queues.items()},
            ),
            *_gauge("worker_ready", "Whether this worker takes tasks.", {None: int(ready)}),
            *_gauge("worker_at_work", "Tools that are at work in this worker.", {None: self._worker.at_work()}),
        ]
        return Answer(body="\n".join(lines) + "\n" + more, kind=PROMETHEUS)

    async def _metrics_of_tasks(self) -> str:
        # If prometheus_client is installed; without the queues, which are in the page already.
        return "" if self._metrics is None else await self._metrics.text(without=(QUEUE_READY, QUEUE_AGE))

    async def _found_problems(self) -> Sequence[str]:
        # A worker that was told to stop must not get work for another second.
        return [self._worker.state] if self._worker.state != "working" else await self._problems.get()

    async def _look(self) -> Mapping[str, Waiting] | str:
        if self._worker.state in ("starting", "stopped"):
            return f"the worker is {self._worker.state}"
        try:
            async with asyncio.timeout(LOOK_LIMIT):
                return await self._worker.backlog()
        except TimeoutError:
            return f"the store did not answer within {LOOK_LIMIT:g} s"
        except StoreError as exc:
            return str(exc)


class Recent(Generic[T]):
    """A value that is found again once it is older than `KEPT_FOR`."""

    def __init__(self, find: Callable[[], Awaitable[T]]) -> None:
        self._find = find
        self._found: tuple[float, T] | None = None
        self._finding = asyncio.Lock()

    async def get(self) -> T:
        """The value; concurrent callers share one look."""
        async with self._finding:
            now = asyncio.get_running_loop().time()
            if self._found is None or now - self._found[0] > KEPT_FOR:
                value = await self._find()
                self._found = asyncio.get_running_loop().time(), value
            return self._found[1]


def backlog_json(queues: Mapping[str, Waiting]) -> dict[str, Any]:
    """The backlog, for scripts and autoscalers."""
    return {
        "ready": sum(waiting.ready for waiting in queues.values()),
        "oldestAgeSeconds": max((_seconds(waiting) for waiting in queues.values()), default=0.0),
        "queues": {
            queue: {"ready": waiting.ready, "oldestAgeSeconds": _seconds(waiting)} for queue, waiting in queues.items()
        },
    }


def _seconds(waiting: Waiting) -> float:
    return round(waiting.age.total_seconds(), 3)


def _json(value: Mapping[str, Any], status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return Answer(body=json.dumps(value) + "\n", status=status, kind=JSON)


def _gauge(name: str, about: str, values: Mapping[str | None, float]) -> list[str]:
    full = f"mcp_tasks_{name}"
    samples = [f"{full}{_label(queue)} {value}" for queue, value in values.items()]
    return [f"# HELP {full} {about}", f"# TYPE {full} gauge", *samples]


def _label(queue: str | None) -> str:
    if queue is None:
        return ""
    escaped = queue.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{{queue="{escaped}"}}'


DRAIN: Final = timedelta(seconds=25)
"""How long tools may run on by default. With the time to hand back the rest it is less than the 30 s that Kubernetes
gives a process to stop."""

LONGEST_DRAIN: Final = timedelta(days=7)
"""No supervisor waits longer for a process to stop."""


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
def worker_command(
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
    server, tasks = load_server(spec)
    if not logging.getLogger().handlers:
        # An `MCPServer` sets logging up; the author of a low-level server may not.
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        worker = tasks.worker(server, concurrency=concurrency, queues=names, drain=drain, usual_drain=DRAIN)
    except UsageError as exc:
        raise Problem(str(exc), Exit.USAGE) from None
    _check_shared(worker)
    return _check(worker, output) if check else _work(worker, address)


async def _work(worker: Worker, address: tuple[str, int] | None) -> int:
    async def started(runtime: TaskRuntime) -> None:
        plan = await _plan_of(worker, runtime)
        say(_start_line(plan))
        for queue in _unknown_queues(plan):
            say(f"No tool of {worker.server.name} is in queue {queue!r}.", "yellow")

    async with _health(worker, address):
        try:
            await worker.run(started)
        except (StoreError, UsageError) as exc:
            raise store_problem(exc) from None
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
            plan = await _plan_of(worker, runtime)
    except (StoreError, UsageError) as exc:
        raise store_problem(exc) from None
    except Exception as exc:
        # The drivers of engines have many exceptions.
        raise Problem(f"the engine cannot be used: {exc}", Exit.STORE) from exc
    if output == "json":
        print_json(plan)
    else:
        _print_plan(plan)
    if unknown := _unknown_queues(plan):
        raise Problem(f"no tool is in queue {' or '.join(map(repr, unknown))}", Exit.USAGE)
    return Exit.OK


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
    """Serve the pages of a worker while the block lasts."""
    if address is None:
        yield
        return
    host, port = address
    health = Health(worker)
    pages = {"/live": health.live, "/ready": health.ready, "/backlog": health.backlog, "/metrics": health.metrics}
    async with AsyncExitStack() as stack:
        try:
            port = await stack.enter_async_context(serving(host, port, pages))
        except OSError as exc:
            raise Problem(f"--health {host}:{port} cannot be listened at: {exc}", Exit.USAGE) from None
        say(f"Health at http://{f'[{host}]' if ':' in host else host}:{port}/ready")
        yield


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
    """Exit at once: the interpreter would wait for a thread that does not stop, and whose task is another worker's."""
    # Without exit handlers.
    kill_children()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


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


# ---- backlog


@click.command()
@click.argument("where", metavar="MODULE:SERVER|URL")
@click.option(
    "--namespace", metavar="NAME", help="Whose tasks; needed with the URL of a store. The server's name, usually."
)
@takes_output
async def backlog_command(*, where: str, namespace: str | None, output: Output) -> int:
    """Count the tasks that could run and nobody has, by queue, and say for how long the oldest has waited.

    It is the number to scale workers by. A worker with --health answers it at /backlog, too.

    Examples:
      mcp-tasks backlog farm:server
      mcp-tasks backlog farm:server --json
      mcp-tasks backlog postgresql://db/tasks --namespace render-farm --json

    Exit codes: 0 counted, 2 wrong usage, 10 the store cannot be used,
    11 the server's own code raised.
    """
    if "://" in where and not namespace:
        raise click.UsageError(
            "--namespace NAME is missing: a store may keep tasks of several servers. Usually it is the server's name"
        )
    if "://" not in where and namespace is not None:
        raise click.UsageError("--namespace goes with the URL of a store, and only with that")

    try:
        queues = await (_of_server(where) if namespace is None else _of_store(where, namespace))
    except (StoreError, UsageError) as exc:
        raise store_problem(exc) from None
    _print(queues, output)
    return Exit.OK


async def _of_server(spec: str) -> Mapping[str, Waiting]:
    server, tasks = load_server(spec)
    worker = tasks.worker(server)
    await _backlog_check(worker.store)
    return await worker.backlog()


async def _backlog_check(store: Store | None) -> None:
    """Refuse a store that is not there: opening it would create an empty one."""
    if isinstance(store, MemoryStore):
        raise UsageError("tasks in memory:// are seen only by the process that has them")
    if store is not None and await store.standing() == "absent":
        raise UsageError(f"there is no task store ({store!r}): no server has kept tasks there yet")


async def _of_store(url: str, namespace: str) -> Mapping[str, Waiting]:
    store = store_from_url(url, keyring_from_environment())
    await _backlog_check(store)
    try:
        await store.open()
        now = await store.now()
        queues = await waiting_in(store, namespace, now)
        if not queues and not await _is_known(store, namespace, now):
            say(
                f"No task there is of namespace {namespace!r}, and no process runs any for it. Is it spelled right?",
                "yellow",
            )
        return queues
    finally:
        await store.close()


async def _is_known(store: Store, namespace: str, now: datetime) -> bool:
    """Whether the namespace has tasks or workers."""
    if await store.workers(namespace):
        return True
    # A page without tasks but with a cursor is one of a namespace that has, or had, very many.
    page = await full_page(store, namespace, EVERYBODY, now=now, limit=1)
    return bool(page.records or page.cursor)


def _print(queues: Mapping[str, Waiting], output: Output) -> None:
    if output == "json":
        print_json(backlog_json(queues))
        return
    if not queues:
        say("Nothing waits.")
        return
    rows = [(queue, str(waiting.ready), f"{waiting.age.total_seconds():.1f} s") for queue, waiting in queues.items()]
    stdout().print(table_of(("queue", "ready", "oldest"), rows))
