"""Whatever an author writes that cannot be meant is refused where it is written, in words that say what to write."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from mcp.server import MCPServer, Server

from harness.lowlevel import build_lowlevel
from harness.official import in_memory
from harness.rpc import Tasking
from harness.server import QUICK
from mcp_tasks import Fallback, Settings, Tasks, TasksError
from mcp_tasks.engines import LocalEngine
from mcp_tasks.errors import InvalidOption, UsageError, WiringError
from mcp_tasks.stores.memory import MemoryStore
from mcp_tasks.testing import TaskTester
from tests.wire.servers import new_tasks, server_of

NO_DURATIONS: list[Any] = [60, 0.5, "60", True, -1, float("nan")]
NO_QUEUES: list[Any] = ["a,b", "gpu ", "\tgpu", ",", " ", "", 3]
NO_QUEUE = r"must be a (name without commas|non-empty string)"
NO_FALLBACK = r"fallback must be 'auto', 'inline' or a Fallback, got .*Fallback\(wait="


async def _awaited(change: object) -> None: ...


class _Awaited:
    async def __call__(self, change: object) -> None: ...


# Values of `Tasks`


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ({"principal": "x"}, r"principal must be a function, such as lambda caller: caller\.principal; got 'x'"),
        ({"principal": _awaited}, r"principal must be a plain function \(def\)"),
        ({"augment": True}, "augment must be a function, such as .*; got True"),
        ({"clock": 5}, "clock must be a function"),
        ({"settings": {}}, r"settings must be a Settings, got \{\}: write settings=Settings\(\.\.\.\)"),
        ({"runs_tools": "no"}, "runs_tools must be True or False, got 'no'"),
        ({"queues": "gpu"}, "queues must be a list of names, got 'gpu'"),
        ({"queues": 3}, "queues must be a list of names, got 3"),
        ({"require_name_header": 1}, "require_name_header must be True or False, got 1"),
        ({"send_input": 1}, "send_input must be True or False, got 1"),
        ({"observers": print}, r"observers must be a list of functions, got .*: write observers=\[function\]"),
        ({"observers": "x"}, "observers must be a list of functions, got 'x'"),
        ({"observers": ["x"]}, "an observer must be a function, such as .*; got 'x'"),
        ({"observers": [_awaited]}, r"an observer must be a plain function \(def\), because nothing awaits it"),
        ({"observers": [_Awaited()]}, "an observer must be a plain function"),
        ({"concurrency": "4"}, "concurrency must be a whole number of at least 1, got '4'"),
        ({"concurrency": 0}, "concurrency must be a whole number of at least 1, got 0"),
        ({"concurrency": True}, "concurrency must be a whole number of at least 1, got True"),
        ({"namespace": 5}, "namespace must be a non-empty string, got 5"),
        ({"namespace": ""}, "namespace must be a non-empty string, got ''"),
        ({"max_lost_runs": 0}, "max_lost_runs must be a whole number of at least 1, got 0"),
        *(({"fallback": ways}, NO_FALLBACK) for ways in ("sometimes", True, Fallback, {"wait": 20}, None)),
        *(({"queues": [queue]}, f"a queue {NO_QUEUE}") for queue in NO_QUEUES),
    ],
    # The same in every process that collects them: no addresses of functions.
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_a_value_that_tasks_cannot_have_is_refused(mistake: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        Tasks("memory://", **mistake)


def test_a_default_ttl_that_is_none_is_refused_by_its_own_name() -> None:
    misfits: list[Any] = [-1, 0, True, 1.5, "5", 10**30]
    for ms in misfits:
        with pytest.raises(InvalidOption, match=f"default_ttl_ms must be a positive whole number .*got {ms!r}") as no:
            Tasks("memory://", default_ttl_ms=ms)
        assert isinstance(no.value, ValueError)
    with pytest.raises(UsageError, match="not both"):
        Tasks(default_ttl_ms=1, default_ttl=timedelta(seconds=1))


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ("x", "'x' names no engine; use 'local', postgresql://"),
        (3, "3 is not an engine: it lacks abilities, backlog, has_room, start, submit, drain, stop"),
        (LocalEngine, r"LocalEngine is a class, and an engine is an object of it: engine=LocalEngine\(\)"),
    ],
)
def test_what_is_not_an_engine_is_refused_and_so_is_a_concurrency_beside_one(engine: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Tasks("memory://", engine=engine)
    with pytest.raises(UsageError, match="engine"):
        Tasks("memory://", engine=LocalEngine(), concurrency=3)


class PutGetStore:
    """A store of the shape that was once planned for the SDK: it only puts and gets."""

    async def put(self, record: object) -> None: ...

    async def get(self, task_id: str) -> object | None: ...


def test_what_is_not_a_store_is_refused_with_what_it_lacks() -> None:
    for url in ("mongodb://host/db", "tasks.db", "sqlite://", "sqlite:///", "", "redis"):
        with pytest.raises(UsageError, match="sqlite:///") as refused:
            Tasks(url)
        assert repr(url) in str(refused.value)
    with pytest.raises(UsageError, match="is not a task store") as refused:
        Tasks(store=PutGetStore())  # pyright: ignore[reportArgumentType]
    for verb in ("create", "save", "delete", "journal", "notifier", "another process was first"):
        assert verb in str(refused.value)
    assert "lacks get" not in str(refused.value)
    with pytest.raises(UsageError, match=r"mcp_tasks\.stores\.Store") as refused:
        Tasks(store=object())  # pyright: ignore[reportArgumentType]
    assert "put and get" not in str(refused.value)
    with pytest.raises(UsageError, match=r"Tasks\(MemoryStore\(\.\.\.\)\)"):
        Tasks(MemoryStore)  # pyright: ignore[reportArgumentType]


async def test_a_store_that_cannot_be_opened_stops_the_server_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "tasks.db").write_text("this is no database, but it is longer than a header of one would be" * 50)
    with pytest.raises(TasksError, match=r"tasks\.db"):
        async with in_memory(server_of(Tasks(f"sqlite:///{tmp_path / 'tasks.db'}", settings=QUICK))):
            pass


@pytest.mark.parametrize("setting", [field.name for field in fields(Settings)])
def test_a_setting_that_is_no_duration_or_no_number_is_refused_with_what_to_write(setting: str) -> None:
    is_number = setting.startswith("max_")
    misfits: list[Any] = [-1, 1.5, True, "many"] if is_number else [15]
    says = setting if is_number else rf"{setting}=timedelta\(seconds=15\)"
    for wrong in misfits:
        with pytest.raises(InvalidOption, match=says):
            Settings(**{setting: wrong})


# Marks


def _by_decorator(tasks: Tasks, **options: Any) -> None:
    tasks.task(**options)


def _by_name(tasks: Tasks, **options: Any) -> None:
    tasks.mark("render", **options)


@pytest.mark.parametrize(("way", "where"), [(_by_decorator, "@tasks.task"), (_by_name, "tasks.mark")])
def test_an_option_that_does_not_exist_is_refused_with_those_that_do(way: Callable[..., None], where: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        way(new_tasks(), tll=timedelta(days=1))
    said = str(refused.value)
    assert said.startswith(f"{where} has no option 'tll'; did you mean 'ttl'? It has ")
    assert "mode, ttl, recover" in said
    with pytest.raises(InvalidOption, match=r"no option 'zzzzzz'\. It has "):
        way(new_tasks(), zzzzzz=1)


@pytest.mark.parametrize("way", [_by_decorator, _by_name])
@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ({"asks_first": "yes"}, "asks_first must be True or False, got 'yes'"),
        ({"poll_interval": timedelta.max}, "poll_interval must be at most 1 day, 0:00:00"),
        ({"mode": ["optional"]}, r"mode must be 'forbidden', 'optional' or 'required', got \['optional'\]"),
        *(({"mode": mode}, "mode") for mode in ("sometimes", None)),
        ({"recover": "maybe"}, "recover"),
        *(({duration: timedelta(0)}, duration) for duration in ("ttl", "poll_interval")),
        ({"max_runtime": -timedelta(1)}, "max_runtime"),
        *(({"fallback": ways}, NO_FALLBACK) for ways in ("sometimes", True, Fallback, {"wait": 20})),
        *(({"queue": queue}, f"queue {NO_QUEUE}") for queue in NO_QUEUES),
    ],
    ids=str,
)
def test_a_value_that_a_mark_cannot_have_is_refused(
    way: Callable[..., None], mistake: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        way(new_tasks(), **mistake)
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize("way", [_by_decorator, _by_name])
@pytest.mark.parametrize("option", ["ttl", "max_runtime", "poll_interval", "grace", "park_after"])
def test_a_duration_of_a_tool_that_is_no_timedelta_is_refused_with_what_to_write(
    way: Callable[..., None], option: str
) -> None:
    for wrong in NO_DURATIONS:
        with pytest.raises(UsageError, match=rf"{option}=timedelta\(seconds=") as refused:
            way(new_tasks(), **{option: wrong})
        assert isinstance(refused.value, TypeError)
        assert wrong not in (60, 0.5) or f"{option}=timedelta(seconds={wrong})" in str(refused.value)
    with pytest.raises(UsageError, match=option) as refused:
        way(new_tasks(), **{option: -timedelta(seconds=1)})
    assert isinstance(refused.value, ValueError)
    for of_server in ("default_ttl", "grace"):
        with pytest.raises(UsageError, match=rf"{of_server}=timedelta\(seconds="):
            new_tasks(**{of_server: NO_DURATIONS[0]})


def test_a_name_that_no_tool_has_is_refused() -> None:
    misfits: list[Any] = ["", 5]
    for name in misfits:
        with pytest.raises(InvalidOption, match=f"name must be a non-empty string, got {name!r}"):
            new_tasks().task(name=name)
        with pytest.raises(InvalidOption, match=f"tasks.mark takes must be a non-empty string, got {name!r}"):
            new_tasks().mark(name)
    with pytest.raises(InvalidOption, match=r"the name is a keyword: @tasks\.task\(name='render'\)"):
        new_tasks().task("render")  # pyright: ignore[reportArgumentType]


def test_two_functions_under_one_name_and_a_mark_without_parentheses_are_refused() -> None:
    tasks: Any = new_tasks()
    tasks.task(name="work")(lambda: None)

    def work() -> None: ...

    for marks in (tasks.task(name="work"), tasks.task()):
        with pytest.raises(UsageError, match="'work'") as refused:
            marks(work)
        assert "name=" in str(refused.value)
    with pytest.raises(UsageError, match=r"write @tasks\.task\(\)") as refused:
        tasks.task(work)
    assert isinstance(refused.value, TypeError)


# What is wired


def test_the_extension_without_its_lifespan_is_refused_when_the_server_is_made() -> None:
    wired = new_tasks()
    server_of(wired)
    for tasks in (new_tasks(), wired):
        with pytest.raises(WiringError, match=r"MCPServer\(\.\.\., \*\*tasks\.wiring\(\)\)") as refused:
            MCPServer("half", extensions=[tasks])
        assert "wiring(lifespan=yours)" in str(refused.value)


@asynccontextmanager
async def _own_lifespan(server: MCPServer[int]) -> AsyncGenerator[int]:
    yield 1


@pytest.mark.parametrize("around", [(), (_own_lifespan,)], ids=["ours", "around the author's"])
async def test_the_lifespan_without_the_extension_is_refused_at_the_start(around: Any) -> None:
    server: MCPServer[Any] = MCPServer("half", lifespan=new_tasks().wiring(*around)["lifespan"])
    with pytest.raises(WiringError, match=r"\*\*tasks\.wiring\(\)"):
        async with in_memory(server):
            pass


async def test_a_lifespan_in_place_of_that_of_the_wiring_is_told_to_whoever_runs_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = new_tasks()
    server: MCPServer[Any] = MCPServer("half", **{**tasks.wiring(), "lifespan": _own_lifespan}, log_level="CRITICAL")  # pyright: ignore[reportArgumentType]

    @server.tool()
    @tasks.task()
    def work() -> str:
        return "worked"

    async with in_memory(server) as wire:
        reply = await Tasking(wire).ask("tools/call", {"name": "work", "arguments": {}})
    assert "error" in reply.message
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert any("**tasks.wiring(lifespan=yours)" in message for message in errors), errors


def test_what_cannot_be_wired_is_refused_where_it_is_given() -> None:
    tasks: Any = new_tasks()

    async def own(server: MCPServer[int]) -> AsyncGenerator[int]:
        yield 1

    with pytest.raises(WiringError, match=r"lifespan=own\).*@asynccontextmanager"):
        tasks.wiring(lifespan=own)
    with pytest.raises(WiringError, match=r"takes a function of the server.*got 5"):
        tasks.wiring(lifespan=5)
    with pytest.raises(WiringError, match="tasks is already in its own wiring"):
        tasks.wiring(extensions=[tasks])
    with pytest.raises(WiringError, match=r"low-level .*MCPServer\(\.\.\., \*\*tasks\.wiring\(\)\)"):
        tasks.attach(MCPServer("high"))
    with pytest.raises(WiringError, match="on_call_tool"):
        tasks.attach(Server("toolless"))


@pytest.mark.parametrize("name", ["second", "first"])
async def test_one_tasks_object_cannot_serve_two_servers_at_a_time(name: str) -> None:
    tasks = new_tasks()
    first, second = server_of(tasks, "first"), server_of(tasks, name)
    async with in_memory(first):
        with pytest.raises(WiringError, match="'first'") as refused:
            async with in_memory(second):
                pass
    assert "make one for each server" in str(refused.value)


# Tasks run on asyncio


def _refusal(raised: Any) -> UsageError:
    """The refusal, out of the groups that the SDK's own task groups put it in."""
    while isinstance(raised, BaseExceptionGroup):
        [raised] = cast("BaseExceptionGroup[Exception]", raised).exceptions
    assert isinstance(raised, UsageError), raised
    return raised


@pytest.mark.parametrize("kind", ["high level", "low level", "tester"])
def test_on_trio_a_server_and_a_tester_are_refused_and_nothing_is_begun_or_left_behind(
    tmp_path: Path, kind: str
) -> None:
    begun: list[str] = []

    @asynccontextmanager
    async def own(server: Any) -> AsyncGenerator[Any]:
        begun.append("began")
        yield {}

    tasks = Tasks(f"sqlite:///{tmp_path / 'tasks.db'}")
    low = kind == "low level"
    server: Any = build_lowlevel(tasks, lifespan=own) if low else MCPServer("own", **tasks.wiring(own))

    async def begin() -> None:
        async with TaskTester(server, tasks) if kind == "tester" else in_memory(server):
            raise AssertionError("it must not start")

    with pytest.raises((UsageError, BaseExceptionGroup)) as raised:
        anyio.run(begin, backend="trio")
    refused = str(_refusal(raised.value))
    assert ("asyncio" in refused, "trio" in refused or kind == "tester") == (True, True)
    assert begun == [] == list(tmp_path.iterdir())
