"""Processes that die, clocks that are set, rows that cannot be read, servers that share a file."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

from harness.waiting import eventually
from mcp_tasks import Settings, Tasks, current_task
from mcp_tasks.client import TaskHandle, TasksClient, resume_task
from mcp_tasks.model import TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.base import LocalNotifier
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import TaskTester
from tests.chaos.serving import Server, Site, site, until
from tests.client.connecting import begin
from tests.promises.test_waiting import Yes
from tests.unit.running import DeafStore

DEADLY = "tests.promises.deadly_server"


# 9. A tool that takes its process down


def test_a_tool_that_kills_its_process_is_not_run_for_ever_and_takes_no_other_task_with_it() -> None:
    with site() as place:
        server = place.serve(module=DEADLY)
        beside = server.call("bystander", folder=str(place.folder))
        deadly = server.call("poison", folder=str(place.folder))
        lives = _restart_until_it_stays_up(place, server, deadly)
        failed = server.until_status(deadly, "failed")
        assert failed["error"]["data"] == {"reason": "lost"}
        assert "died" in failed["error"]["message"]
        assert lives <= 5
        # What ran beside it each time is not to blame, and goes on.
        (place.folder / "done").touch()
        assert server.until_status(beside, "completed")["status"] == "completed"


def _restart_until_it_stays_up(place: Site, server: Server, deadly: str) -> int:
    """Start the server again whenever it died, as a supervisor does; how often it lived."""

    def has_died() -> bool:
        status = Path(f"/proc/{server.pid}/stat")
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"

    def has_ended() -> bool:
        try:
            return server.status(deadly) == "failed"
        except OSError:
            return False

    lives = 1
    while True:
        happened = until(
            lambda: "died" if has_died() else "ended" if has_ended() else None, 20, what="it dies or stops"
        )
        if happened == "ended":
            return lives
        assert lives < 10, "the tool is run for ever"
        server.kill()
        lives += 1
        server.start()


# 10. No kind of task starves


@pytest.mark.anyio
async def test_a_due_timer_is_started_while_this_process_has_a_backlog() -> None:
    tasks = Tasks("memory://")
    server = MCPServer("busy", **tasks.wiring())
    ended: list[str] = []

    @server.tool()
    @tasks.task(recover="rerun", park_after=timedelta(0))
    async def nap() -> str:
        await current_task().sleep(timedelta(hours=1))
        ended.append("nap")
        return "awake"

    @server.tool()
    @tasks.task()
    async def work() -> str:
        await anyio.sleep(0.01)  # sleep: work that takes a moment
        ended.append("work")
        return "worked"

    async with TaskTester(server, tasks, concurrency=1) as tester:
        sleeper = await tester.call("nap")
        await tester.settle()
        for _ in range(300):
            await tester.call("work")
        tester.clock.advance(timedelta(hours=1))
        await tester.runtime.janitor.sweep()
        await tester.finish(sleeper)
    assert ended.count("work") < 150, "it waited for the whole backlog"


# 11. One bad row is one bad task


@pytest.mark.parametrize("damage", ["{", '{"format": 99}'], ids=["damaged", "newer"])
def test_a_row_that_cannot_be_read_costs_that_task_only(damage: str) -> None:
    with site() as place:
        server = place.serve(module=DEADLY)
        tasks = [server.call("bystander", folder=str(place.folder)) for _ in range(3)]
        until(lambda: (place.folder / "log").exists(), 5, what="they have begun")
        server.kill()
        with sqlite3.connect(place.db) as db:
            db.execute("UPDATE tasks SET state = ? WHERE id = ?", (damage, tasks[1]))
        db.close()
        before = len(server.output)
        server.start()
        (place.folder / "done").touch()
        for task in (tasks[0], tasks[2], server.call("bystander", folder=str(place.folder))):
            server.until_status(task, "completed")
        with pytest.raises(Exception, match="cannot be read"):
            server.get(tasks[1])
        assert server.output[before:].count(tasks[1][:12]) == 1, "logged once"


# 12. A task belongs to a namespace and a tool


@asynccontextmanager
async def serving(
    store: Store | str, *, name: str = "one", clock: Callable[[], datetime] | None = None, **options: Any
) -> AsyncGenerator[tuple[Client, Tasks]]:
    """A server with a tool that asks and one that works until it is told to stop, and a client of it."""
    tasks = Tasks(store, **({"clock": clock} if clock else {}), **options)
    server = MCPServer(name, **tasks.wiring())

    @server.tool()
    @tasks.task(recover="fail")
    async def asks(ctx: Context) -> str:
        return (await ctx.elicit("Sure?", Yes)).action

    @server.tool()
    @tasks.task(recover="fail")
    async def works(seconds: float) -> str:
        await anyio.sleep(seconds)  # sleep: work that takes so long
        return "worked"

    async with Client(server, extensions=[TasksClient(push=False)], elicitation_callback=_unused) as client:
        yield client, tasks


async def _unused(context: object, params: object) -> Any:
    raise AssertionError("questions are answered by hand")


@pytest.mark.anyio
async def test_a_server_leaves_the_tasks_of_another_in_the_same_file_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    store = SqliteStore(tmp_path / "tasks.db")
    await store.open()
    # Left by a process of another server that is gone.
    now = datetime.now(UTC)
    left = TaskRecord(
        id="left",
        owner=None,
        name="works",
        created_at=now,
        updated_at=now,
        namespace="another",
    )
    await store.create(left, TaskRequest(name="works", arguments={"seconds": 0}))
    async with serving(url) as (client, _):
        own = await begin(client, "works", seconds=0.2)
        assert (await own.result(10)).structured_content == {"result": "worked"}
        assert await store.get("left") == left
    await store.close()


@pytest.mark.anyio
async def test_a_task_whose_tool_this_server_lacks_waits_for_one_that_has_it(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "tasks.db")
    await store.open()
    now = datetime.now(UTC)
    left = TaskRecord(id="left", owner=None, name="not here", created_at=now, updated_at=now, namespace="one")
    await store.create(left, TaskRequest(name="not here", arguments={}))
    async with serving(f"sqlite:///{tmp_path / 'tasks.db'}") as (client, _):
        own = await begin(client, "works", seconds=1.5)
        await own.result(10)
        assert await store.get("left") == left
    await store.close()


# 13. Clocks


@pytest.mark.anyio
@pytest.mark.parametrize("hours", [1, -1], ids=["forward", "back"])
async def test_a_clock_that_is_set_ends_no_living_task(tmp_path: Path, hours: int) -> None:
    url = f"sqlite:///{tmp_path / 'tasks.db'}"

    def wrong_clock() -> datetime:
        return datetime.now(UTC) + timedelta(hours=hours)

    settings = Settings(lease_duration=timedelta(seconds=6), sweep_interval=timedelta(milliseconds=100))
    async with serving(url, settings=settings) as (client, _):
        handle = await begin(client, "works", seconds=2)
        async with serving(url, settings=settings, clock=wrong_clock):
            assert (await handle.result(10)).structured_content == {"result": "worked"}


# 14. Every hint is lost


class BrokenNotifier(LocalNotifier):
    """Fails whoever listens."""

    def listen(self, *, origin: object = None) -> Any:
        raise RuntimeError("the connection is gone")


class BrokenStore(DeafStore):
    """A store whose listeners have errors."""

    def __init__(self) -> None:
        super().__init__()
        self._deaf = BrokenNotifier()


@pytest.mark.anyio
@pytest.mark.parametrize("store_type", [DeafStore, BrokenStore])
async def test_answers_and_cancels_given_elsewhere_reach_the_run_without_any_hint(
    store_type: type[MemoryStore],
) -> None:
    store = store_type()
    async with serving(store) as (client, _):
        asks, works = await begin(client, "asks"), await begin(client, "works", seconds=3600)
        key = await question_key(asks)
        async with serving(store) as (other, _):
            await resume_task(other, asks.id).answer({key: {"action": "accept", "content": {"yes": True}}})
            await resume_task(other, works.id).cancel()
            assert (await asks.result(10)).structured_content == {"result": "accept"}
        run = f"mcp-task-{works.id}"
        await eventually(lambda: all(task.get_name() != run for task in asyncio.all_tasks()))


# 15. Housekeeping that does not block serving


@pytest.mark.anyio
async def test_twenty_thousand_expired_tasks_do_not_delay_the_start(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "tasks.db")
    await store.open()
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)

    def expired(number: int) -> TaskRecord:
        return TaskRecord(
            id=f"task-{number}",
            owner=None,
            name="works",
            created_at=long_ago,
            updated_at=long_ago,
            finished_at=long_ago,
            status=TaskStatus.COMPLETED,
            retention=timedelta(days=1),
        )

    request = TaskRequest(name="works", arguments={})

    for start in range(0, 20_000, 1_000):
        await asyncio.gather(*(store.create(expired(number), request) for number in range(start, start + 1_000)))
    async with serving(f"sqlite:///{tmp_path / 'tasks.db'}") as (client, _):
        with sqlite3.connect(tmp_path / "tasks.db") as db:
            (left,) = db.execute("SELECT count(*) FROM tasks").fetchone()
        db.close()
        assert left > 10_000, "the server was not there before they were removed"
        handle = await begin(client, "works", seconds=0)
        assert (await handle.result(10)).structured_content == {"result": "worked"}
    await store.close()


@pytest.mark.anyio
async def test_a_journal_that_cannot_be_read_ends_its_task_and_says_so(tmp_path: Path) -> None:
    tasks = Tasks(f"sqlite:///{tmp_path / 'tasks.db'}")
    server = MCPServer("one", **tasks.wiring())

    @server.tool()
    @tasks.task(recover="rerun", park_after=timedelta(0))
    async def steps(ctx: Context) -> str:
        await current_task().step("first", dict)
        return (await ctx.elicit("Sure?", Yes)).action

    extensions = [TasksClient(push=False)]
    async with Client(server, extensions=extensions, elicitation_callback=_unused) as client:
        handle = await begin(client, "steps")
        key = await question_key(handle)
        with sqlite3.connect(tmp_path / "tasks.db") as db:
            db.execute("UPDATE journal SET value = '{' WHERE kind = 'step'")
        db.close()
        await eventually(lambda: _worker(tmp_path / "tasks.db") is None)
        await handle.answer({key: {"action": "accept", "content": {"yes": True}}})
        error = await eventually(lambda: _error_of(handle))
    assert error["data"] == {"reason": "journal"}


async def question_key(handle: TaskHandle) -> str:
    """The key of the first question of a task, once it asks."""

    async def look() -> list[str]:
        return list((await handle.status()).input_requests)

    return (await eventually(look))[0]


async def _error_of(handle: TaskHandle) -> Any:
    return (await handle.status()).error


def _worker(path: Path) -> str | None:
    with sqlite3.connect(path) as db:
        ((worker,),) = db.execute("SELECT worker FROM tasks").fetchall()
    db.close()
    return worker
