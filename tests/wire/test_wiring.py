"""A server with only a part of what tasks need says so at its start, and says which part."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import anyio
import anyio.lowlevel
import pytest
from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.extension import Extension
from mcp.server.mcpserver import Context, Resolve
from mcp_types import CallToolRequestParams

from harness.http import serving
from harness.lowlevel import build_lowlevel
from harness.official import in_memory
from harness.rpc import EXTENSION, PATIENCE, Tasking, text_of
from harness.server import QUICK, Desk, Name, build
from mcp_tasks import Settings, Tasks, TasksError
from mcp_tasks.engines import InlineEngine, LocalEngine
from mcp_tasks.errors import InvalidOption, UsageError, WiringError
from mcp_tasks.model import TaskRecord
from mcp_tasks.stores.memory import MemoryStore
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing.clock import FakeClock

pytestmark = pytest.mark.anyio


def _tasks(**options: Any) -> Tasks:
    return Tasks("memory://", settings=QUICK, **options)


def _server(tasks: Tasks, name: str = "wired") -> MCPServer[Any]:
    return MCPServer(name, **tasks.wiring(), log_level="CRITICAL")


# What is missing


def test_the_extension_without_its_lifespan_is_refused_when_the_server_is_made() -> None:
    with pytest.raises(WiringError, match=r"MCPServer\(\.\.\., \*\*tasks\.wiring\(\)\)") as refused:
        MCPServer("half", extensions=[_tasks()])
    assert "wiring(lifespan=yours)" in str(refused.value)


async def test_the_lifespan_without_the_extension_is_refused_at_the_start() -> None:
    server = MCPServer("half", lifespan=_tasks().wiring()["lifespan"])
    with pytest.raises(WiringError, match=r"\*\*tasks\.wiring\(\)"):
        async with in_memory(server):
            pass


async def test_a_lifespan_around_the_authors_own_without_the_extension_is_refused_at_the_start() -> None:
    @asynccontextmanager
    async def own(server: MCPServer[int]) -> AsyncGenerator[int]:
        yield 1

    server = MCPServer("half", lifespan=_tasks().wiring(own)["lifespan"])
    with pytest.raises(WiringError, match=r"\*\*tasks\.wiring\(\)"):
        async with in_memory(server):
            pass


def test_a_lifespan_beside_the_wiring_is_one_too_many_for_python_itself() -> None:
    with pytest.raises(TypeError, match="lifespan"):
        MCPServer("twice", lifespan=_own_lifespan, **_tasks().wiring())  # pyright: ignore[reportCallIssue]


@asynccontextmanager
async def _own_lifespan(server: MCPServer[int]) -> AsyncGenerator[int]:
    yield 1


async def test_a_lifespan_in_place_of_that_of_the_wiring_is_told_to_whoever_runs_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = _tasks()
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


def test_a_lifespan_that_only_yields_is_refused_where_it_is_given() -> None:
    async def own(server: MCPServer[int]) -> AsyncGenerator[int]:
        yield 1

    with pytest.raises(WiringError, match=r"lifespan=own\).*@asynccontextmanager"):
        _tasks().wiring(lifespan=own)  # pyright: ignore[reportArgumentType, reportCallIssue]
    with pytest.raises(WiringError, match=r"takes a function of the server.*got 5"):
        _tasks().wiring(lifespan=5)  # pyright: ignore[reportArgumentType, reportCallIssue]


def test_tasks_are_not_an_extension_beside_themselves() -> None:
    tasks = _tasks()
    with pytest.raises(WiringError, match="tasks is already in its own wiring"):
        tasks.wiring(extensions=[tasks])


def test_an_mcp_server_is_not_attached_to() -> None:
    with pytest.raises(WiringError, match=r"low-level .*MCPServer\(\.\.\., \*\*tasks\.wiring\(\)\)"):
        _tasks().attach(MCPServer("high"))  # pyright: ignore[reportArgumentType]


class Other(Extension):
    """An extension of somebody else's, which sees every call."""

    identifier = "com.example/other"

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        self.seen.append(params.name)
        return await call_next(ctx)


async def test_other_extensions_are_wired_along_and_see_calls_before_they_become_tasks() -> None:
    tasks, other = _tasks(), Other()
    server = MCPServer("two", **tasks.wiring(extensions=[other]), log_level="CRITICAL")

    @server.tool()
    @tasks.task()
    def work() -> str:
        return "worked"

    async with in_memory(server) as wire:
        assert text_of((await Tasking(wire).finish("work"))["result"]) == "worked"
        discovered = (await Tasking(wire).ask("server/discover")).result
    assert other.seen == ["work"]
    assert discovered["capabilities"]["extensions"].keys() == {EXTENSION, other.identifier}


async def test_a_server_has_each_middleware_of_ours_once_however_often_it_is_started() -> None:
    tasks = _tasks()
    server = _server(tasks)
    before = list(server.middleware)
    async with in_memory(server):
        first = list(server.middleware)
    async with in_memory(server):
        assert server.middleware == first
    assert [each for each in first if each in before] == before
    assert len(first) > len(before)


async def test_a_mark_that_belongs_to_no_tool_is_warned_of_at_the_start_with_the_tools_that_there_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = _tasks()
    server = _server(tasks)

    @tasks.task()
    def forgotten() -> None: ...

    tasks.mark("misspelled")

    @server.tool()
    @tasks.task()
    def known() -> str:
        return "here"

    async with in_memory(server) as wire:
        assert text_of((await Tasking(wire).finish("known"))["result"]) == "here"
    [warning] = [record.getMessage() for record in caplog.records if record.name.startswith("mcp_tasks")]
    marked, _, there = warning.partition("It has ")
    assert "'forgotten'" in marked
    assert "'misspelled'" in marked
    assert "'known'" in there
    assert "'known'" not in marked


async def test_a_low_level_server_is_warned_of_marks_that_it_does_not_list(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = _tasks()
    server = build_lowlevel(tasks)
    tasks.mark("unlisted")
    async with in_memory(server):
        pass
    [warning] = [record.getMessage() for record in caplog.records if record.name.startswith("mcp_tasks")]
    assert "no such tool: 'unlisted'. It has 'ask_name', 'crashes', 'echo'" in warning


async def test_the_two_decorators_of_a_tool_may_stand_in_either_order() -> None:
    tasks = _tasks()
    server = _server(tasks)

    @tasks.task(mode="required")
    @server.tool()
    def turned() -> str:
        return "as a task"

    async with in_memory(server) as wire:
        assert text_of((await Tasking(wire).finish("turned"))["result"]) == "as a task"


async def test_a_tool_that_asks_for_parameters_and_is_marked_too_late_is_refused() -> None:
    tasks = _tasks()
    server = _server(tasks)

    @tasks.task(mode="required")
    @server.tool()
    def turned(who: Annotated[Name, Resolve(_known_name)]) -> str:
        return f"Hello, {who.name}!"

    async with in_memory(server) as wire:
        refused = await Tasking(wire).ask("tools/call", {"name": "turned", "arguments": {}})
    assert "put @server.tool() above @tasks.task()" in refused.message["error"]["message"]


def _known_name() -> Name:
    return Name(name="Ada")


async def test_a_tool_that_is_marked_first_and_added_while_the_server_runs_becomes_a_task() -> None:
    tasks = _tasks()
    server = _server(tasks)
    tasks.mark("late")

    @tasks.task(mode="required")
    def later() -> str:
        return "here at last"

    async with in_memory(server) as wire:

        @server.tool()
        def late() -> str:
            return "here now"

        server.tool(name="renamed")(later)
        assert text_of((await Tasking(wire).finish("late"))["result"]) == "here now"
        assert text_of((await Tasking(wire).finish("renamed"))["result"]) == "here at last"


async def test_one_tasks_object_cannot_serve_two_servers_at_a_time() -> None:
    tasks = _tasks()
    first, second = _server(tasks, "first"), _server(tasks, "second")
    async with in_memory(first):
        with pytest.raises(WiringError, match="'first'") as refused:
            async with in_memory(second):
                pass
    assert "make one for each server" in str(refused.value)


async def test_two_servers_of_the_same_name_are_two_servers_all_the_same() -> None:
    tasks = _tasks()
    first, second = _server(tasks, "same"), _server(tasks, "same")
    async with in_memory(first):
        with pytest.raises(WiringError):
            async with in_memory(second):
                pass


def test_a_low_level_server_without_tools_cannot_have_tasks() -> None:
    with pytest.raises(WiringError, match="on_call_tool"):
        _tasks().attach(Server("toolless"))


@pytest.mark.parametrize("url", ["mongodb://host/db", "tasks.db", "sqlite://", "sqlite:///", "", "redis"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        Tasks(url)
    assert repr(url) in str(refused.value)
    assert "sqlite:///" in str(refused.value)


class PutGetStore:
    """A store of the shape that was once planned for the SDK: it only puts and gets."""

    async def put(self, record: TaskRecord) -> None: ...

    async def get(self, task_id: str) -> TaskRecord | None: ...


def test_a_store_with_only_put_and_get_is_refused_with_what_it_lacks() -> None:
    with pytest.raises(UsageError, match="is not a task store") as refused:
        Tasks(store=PutGetStore())  # pyright: ignore[reportArgumentType]
    for verb in ("create", "save", "delete", "journal", "notifier"):
        assert verb in str(refused.value)
    assert "lacks get" not in str(refused.value)
    assert "another process was first" in str(refused.value)


class FileLike:
    """Not a store of any shape."""


def test_what_is_no_store_at_all_is_refused_without_talk_of_the_planned_one() -> None:
    with pytest.raises(UsageError, match=r"mcp_tasks\.stores\.Store") as refused:
        Tasks(store=FileLike())  # pyright: ignore[reportArgumentType]
    assert "put and get" not in str(refused.value)


def test_an_option_that_there_is_not_is_refused_where_it_is_written() -> None:
    with pytest.raises(InvalidOption, match="hold"):
        _tasks().task(hold=timedelta(seconds=1))  # pyright: ignore[reportCallIssue]
    with pytest.raises(InvalidOption, match="hold"):
        _tasks().mark("tool", hold=timedelta(seconds=1))  # pyright: ignore[reportCallIssue]


def test_a_concurrency_beside_an_engine_is_refused() -> None:
    with pytest.raises(UsageError, match="engine"):
        Tasks("memory://", engine=LocalEngine(), concurrency=3)


@pytest.mark.parametrize("concurrency", [0, -1])
def test_a_concurrency_that_lets_nothing_run_is_refused(concurrency: int) -> None:
    with pytest.raises(ValueError, match="concurrency"):
        Tasks("memory://", concurrency=concurrency)


def test_options_of_a_tool_that_cannot_be_are_refused_where_they_are_written() -> None:
    tasks = _tasks()
    mistakes: list[dict[str, Any]] = [
        {"mode": "sometimes"},
        {"recover": "maybe"},
        {"ttl": timedelta(0)},
        {"max_runtime": -timedelta(1)},
    ]
    for wrong in mistakes:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            tasks.mark("tool", **wrong)


async def test_a_store_that_cannot_be_opened_stops_the_server_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "tasks.db").write_text("this is no database, but it is longer than a header of one would be" * 50)
    tasks = Tasks(f"sqlite:///{tmp_path / 'tasks.db'}", settings=QUICK)
    with pytest.raises(TasksError, match=r"tasks\.db"):
        async with in_memory(_server(tasks)):
            pass


# What a server that is planned for the SDK's own class would pass


@pytest.mark.parametrize("ms", [0, -1])
def test_a_default_ttl_that_is_not_positive_is_a_value_error(ms: int) -> None:
    with pytest.raises(ValueError, match="ttl"):
        Tasks(default_ttl_ms=ms)


def test_two_default_ttls_are_one_too_many() -> None:
    with pytest.raises(UsageError, match="not both"):
        Tasks(default_ttl_ms=1, default_ttl=timedelta(seconds=1))


async def test_the_four_arguments_of_the_planned_constructor_work() -> None:
    clock, store = FakeClock(), MemoryStore()
    asked: list[str] = []

    def augment(params: CallToolRequestParams) -> bool:
        asked.append(params.name)
        return params.name != "other"

    tasks = Tasks(augment=augment, clock=clock, default_ttl_ms=5000, store=store)
    server = _server(tasks)

    @server.tool()
    def work() -> str:
        return "worked"

    @server.tool()
    def other() -> str:
        return "at once"

    async with serving(server) as wire:
        client = Tasking(wire)
        created = await client.call("work")
        assert (created["resultType"], created["ttlMs"]) == ("task", 5000)
        assert created["createdAt"] == "2026-01-01T12:00:00.000Z"
        assert await store.get(created["taskId"]) is not None
        assert text_of((await client.until(created["taskId"], "completed"))["result"]) == "worked"
        assert text_of(await client.call("other")) == "at once"
    assert asked == ["work", "other"]


def _databases(folder: Path) -> list[str]:
    return [file.name for file in folder.rglob("*.db")]


async def test_without_a_store_tasks_go_to_a_file_named_after_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MCP_TASKS_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    async with in_memory(build(Tasks(settings=QUICK), name="My server / 2")) as wire:
        await Tasking(wire).finish("echo", value=1)
    (name,) = _databases(tmp_path)
    assert name.startswith("My-server-2-")
    assert "tests-wire-test_wiring.py-" in name


async def test_the_environment_chooses_the_store_of_an_author_who_chose_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = tmp_path / "chosen.db"
    monkeypatch.setenv("MCP_TASKS_URL", f"sqlite:///{chosen}")
    async with in_memory(build(Tasks(settings=QUICK))) as wire:
        await Tasking(wire).finish("echo", value=1)
    assert chosen.exists()


async def test_a_store_object_is_taken_as_it_is(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "own.db")
    async with in_memory(build(Tasks(store, settings=QUICK))) as wire:
        await Tasking(wire).finish("echo", value=1)
    assert (tmp_path / "own.db").exists()


async def test_an_engine_is_taken_as_it_is() -> None:
    async with in_memory(build(Tasks("memory://", engine=InlineEngine(), settings=QUICK))) as wire:
        client = Tasking(wire)
        # The inline engine has run the tool before the call is answered.
        assert (await client.get(await client.create("echo", value=1)))["status"] == "completed"


# The author's own state


@dataclass
class Farm:
    """State of an author's lifespan."""

    renderers: int
    closed: bool = False


def _farm_server(tasks: Tasks, farm: Farm) -> MCPServer[Farm]:
    @asynccontextmanager
    async def lifespan(server: MCPServer[Farm]) -> AsyncGenerator[Farm]:
        try:
            yield farm
        finally:
            farm.closed = True

    server = MCPServer("farm", **tasks.wiring(lifespan), log_level="CRITICAL")

    @server.tool()
    @tasks.task()
    async def count(ctx: Context[Farm]) -> str:
        state = ctx.request_context.lifespan_context
        return f"{state.renderers} renderers, closed: {state.closed}"

    return server


async def test_a_tool_sees_the_authors_state_in_a_task_as_in_a_call() -> None:
    farm = Farm(renderers=3)
    async with serving(_farm_server(_tasks(), farm)) as wire:
        client = Tasking(wire)
        as_task = text_of((await client.finish("count"))["result"])
        plain = text_of(await client.declaring({}).call("count"))
    assert as_task == plain == "3 renderers, closed: False"
    assert farm.closed


async def test_the_authors_state_is_there_until_the_last_tool_has_ended() -> None:
    farm, seen = Farm(renderers=1), list[bool]()
    started = asyncio.Event()
    tasks = _tasks()
    server = _farm_server(tasks, farm)

    @server.tool()
    @tasks.task()
    async def lasting() -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            seen.append(farm.closed)

    async with in_memory(server) as wire:
        await Tasking(wire).create("lasting")
        await started.wait()
    assert seen == [False]
    assert farm.closed


async def test_a_low_level_servers_own_lifespan_is_kept() -> None:
    entered: list[str] = []

    @asynccontextmanager
    async def own(server: Server[Any]) -> AsyncGenerator[dict[str, int]]:
        entered.append("in")
        yield {}
        entered.append("out")

    async with in_memory(build_lowlevel(_tasks(), lifespan=own)) as wire:
        assert entered == ["in"]
        assert text_of((await Tasking(wire).finish("echo", value=1))["result"]) == "1"
    assert entered == ["in", "out"]


# Several clients of one server in memory


async def test_the_first_client_to_leave_does_not_stop_the_tasks_of_the_second() -> None:
    desk = Desk()
    server = build(_tasks(), desk)
    first_may_leave, first_has_left = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with in_memory(server) as wire:
            await Tasking(wire).create("gated")
            await desk.started.wait()
            await first_may_leave.wait()
        first_has_left.set()

    async with anyio.create_task_group() as group:
        group.start_soon(first)
        await desk.started.wait()
        async with in_memory(server) as wire:
            client = Tasking(wire)
            task_id = await client.create("gated")
            first_may_leave.set()
            with anyio.fail_after(PATIENCE):
                await first_has_left.wait()
            assert (await client.get(task_id))["status"] == "working"
            desk.gate.set()
            assert text_of((await client.until(task_id, "completed"))["result"]) == "through"


async def test_a_client_sees_a_task_that_another_client_of_the_server_made() -> None:
    desk = Desk()
    server = build(_tasks(), desk)
    async with in_memory(server) as one, in_memory(server) as two:
        task_id = await Tasking(one).create("gated")
        assert (await Tasking(two).get(task_id))["status"] == "working"
        desk.gate.set()
        await Tasking(two).until(task_id, "completed")


async def test_a_server_serves_again_after_its_last_client_left() -> None:
    server = build(_tasks())
    for _ in range(3):
        async with in_memory(server) as wire:
            await Tasking(wire).finish("echo", value=1)


class WatchedEngine(LocalEngine):
    """An engine that says when it is being stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.draining = asyncio.Event()

    async def drain(self, timeout: timedelta) -> None:
        self.draining.set()
        await super().drain(timeout)


async def test_a_client_that_comes_while_the_last_one_leaves_gets_its_tasks_run() -> None:
    desk, engine, left = Desk(), WatchedEngine(), asyncio.Event()
    # The shutdown waits for a tool that the test holds up, so the second client comes in the middle of it.
    settings = Settings(drain_timeout=timedelta(seconds=PATIENCE), stop_timeout=timedelta(seconds=1))
    server = build(Tasks("memory://", engine=engine, settings=settings), desk)

    async def first() -> None:
        async with in_memory(server) as wire:
            await Tasking(wire).create("gated")
            await desk.started.wait()
        left.set()

    async def second() -> None:
        async with in_memory(server) as wire:
            await left.wait()
            await Tasking(wire).finish("echo", value=1)

    async with anyio.create_task_group() as group:
        group.start_soon(first)
        await engine.draining.wait()
        group.start_soon(second)
        for _ in range(50):
            # Nothing says that the second waits at the door; by then it does, or it is in already.
            await anyio.lowlevel.checkpoint()
        assert not left.is_set()
        desk.gate.set()


def test_each_server_needs_a_wiring_of_its_own() -> None:
    tasks = Tasks("memory://")
    MCPServer("wired", **tasks.wiring())
    with pytest.raises(WiringError, match=r"\*\*tasks\.wiring\(\)"):
        MCPServer("half wired", extensions=[tasks])
