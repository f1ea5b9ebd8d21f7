"""A server that is killed with SIGKILL, or asked to stop, while tasks are at every stage: each ends as it must.

One server of each kind has a task at each stage when it goes. Then it is started again, or another one takes over.
"""

import asyncio
import json
import signal
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from mcp import Client

from harness.backends import Backend, BackendName
from harness.forking import forked
from harness.http import HttpWire, http_client
from harness.older import OWN_STREAM, RELATED, HttpClient, http_session
from harness.processes import PIPE
from harness.rpc import EVERYTHING, PATIENCE, Tasking, accept, request, text_of
from harness.serving import ServerProcess
from harness.stored import all_tasks, opened
from harness.waiting import eventually
from mcp_tasks.client import Patience, TaskHandle, TasksClient, reconnecting_http, start_task
from mcp_tasks.model import InputRequest, JournalEntry, TaskRecord, TaskRequest, TaskStatus
from mcp_tasks.model.machine import InputRequested, RunParked, RunStarted, apply
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.stores.url import store_from_url
from mcp_tasks.testing import make_record
from tests.chaos.subject import NAME, Name

pytestmark = pytest.mark.slow


WHO, SURE = "What is your name?", "Are you sure?"
ANSWERS: Final[Mapping[str, Mapping[str, Any]]] = {WHO: {"name": "Ann"}, SURE: {"confirm": True}}
STEPS = ["step before", "step between", "step after"]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Where a task is when its server goes, and how it ends after that.

    Attributes:
        passed: The gates that it has passed.
        answered: The questions that have their answers.
        at: The gate that it stands at.
        asks: The question that it waits with.
        starts: How often its body is entered in all.
        reason: Why it fails; None for one that completes.
    """

    tool: str
    passed: Sequence[str] = ()
    answered: Sequence[str] = ()
    at: str | None = None
    asks: str | None = None
    ended: bool = False
    starts: int | None = None
    reason: str | None = None


STAGES: Final[Mapping[str, Stage]] = {
    "at work, may run again": Stage(tool="again", at="work", starts=2),
    "at work, may not run again": Stage(tool="once", at="work", starts=1, reason="interrupted"),
    "at work, blocks a thread": Stage(tool="blocks", at="work", starts=1, reason="interrupted"),
    "before its first question": Stage(tool="survey", at="asking"),
    "asks, in memory": Stage(tool="survey", passed=["asking"], asks=WHO),
    "asks, not in memory": Stage(tool="parked_survey", passed=["asking"], asks=WHO),
    "was answered, waits for a slot": Stage(tool="survey", passed=["asking"], asks=WHO),
    "asks the second time": Stage(tool="survey", passed=["asking"], answered=[WHO], asks=SURE),
    "before its last step": Stage(tool="survey", passed=["asking"], answered=[WHO, SURE], at="finishing"),
    "before its result": Stage(tool="survey", passed=["asking", "finishing"], answered=[WHO, SURE], at="ending"),
    "sleeps": Stage(tool="sleeps"),
    "has ended": Stage(tool="again", passed=["work"], ended=True, starts=1),
    "waits for a slot": Stage(tool="once", starts=1),
}
LATE: Final = "waits for a slot"
ASLEEP: Final = "was answered, waits for a slot"
OLDER: Final = ("older", "older, on its own stream")


@dataclass
class Place:
    """A store, a folder with what tools have written down, and the server that has the tasks in the end."""

    url: str
    folder: Path
    server: ServerProcess
    client: Tasking
    tasks: dict[str, str] = field(default_factory=dict[str, str])
    keys: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    answered: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    stopped: Sequence[TaskRecord] = ()

    @property
    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def of(self, job: str) -> list[str]:
        return [line.removeprefix(f"{job} ") for line in self.log if line.startswith(f"{job} ")]

    async def noted(self, line: str) -> None:
        await eventually(lambda: line in self.log)

    async def begin(self, job: str, stage: Stage) -> None:
        for gate in stage.passed:
            (self.folder / f"{job}.{gate}").touch()
        self.tasks[job] = await self.client.create(stage.tool, job=job)
        for message in stage.answered:
            await self.answer(job, message)
        if stage.asks is not None:
            await eventually(lambda: self.question(job, str(stage.asks)))
        if stage.at is not None:
            await self.noted(f"{job} at {stage.at}")
        if stage.ended:
            await self.client.until(self.tasks[job], "completed")

    async def question(self, job: str, message: str) -> str | None:
        """The key of a question, if it is open. It has one key for life, and none that was answered is asked again."""
        task = await self.client.get(self.tasks[job])
        for key, asked in task.get("inputRequests", {}).items():
            assert self.keys.setdefault((job, asked["params"]["message"]), key) == key
        assert task["status"] not in ("failed", "cancelled"), task
        return next((k for k, q in task.get("inputRequests", {}).items() if q["params"]["message"] == message), None)

    async def answer(self, job: str, message: str) -> None:
        key = await eventually(lambda: self.question(job, message))
        await self.client.update(self.tasks[job], **{str(key): accept(**ANSWERS[message])})
        self.answered.add((job, message))

    async def stored(self) -> list[TaskRecord]:
        async with opened(store_from_url(self.url)) as store:
            return await all_tasks(store, NAME)


def server_on(url: str, folder: Path) -> ServerProcess:
    return ServerProcess("tests.chaos.subject", "--fd", "{fd}", "--url", url, "--folder", folder)


@pytest.fixture(
    scope="module", params=["sqlite killed", "postgres killed", "redis killed", "sqlite taken over", "sqlite stopped"]
)
async def place(
    request: pytest.FixtureRequest,
    shared_backend: Callable[[BackendName], Backend],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncGenerator[Place]:
    """A server has gone with a task at each stage, and now all gates are open."""
    name, _, how = request.param.partition(" ")
    url, folder = shared_backend(name).fresh(), tmp_path_factory.mktemp("chaos")
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(server_on(url, folder))
        place = Place(url, folder, first, await stack.enter_async_context(client_of(first)))
        await bring_to_stages(place)
        if how == "taken over":
            place.server = await stack.enter_async_context(server_on(url, folder))
            place.client = await stack.enter_async_context(client_of(place.server))
        await place.client.cancel(place.tasks["cancelled"])
        await place.noted("cancelled stopped")
        # No slot is left for a task that is new, nor for one that wakes up.
        await place.begin("in the last slot", Stage(tool="again", at="work"))
        await place.begin(LATE, STAGES[LATE])
        if how != "stopped":
            await place.answer(ASLEEP, WHO)
        if how == "stopped":
            await asyncio.to_thread(first.stop)
            place.stopped = await place.stored()
        else:
            first.kill()
        if how == "killed":
            assert place.of(LATE) == []
            assert "step between" not in place.of(ASLEEP)
        (folder / "open").touch()
        if how != "taken over":
            await first.started()
            place.client = await stack.enter_async_context(client_of(first))
        yield place


@asynccontextmanager
async def client_of(server: ServerProcess) -> AsyncGenerator[Tasking]:
    async with http_client() as http:
        yield Tasking(HttpWire(server.url, http), EVERYTHING)


@asynccontextmanager
async def older_client_of(server: ServerProcess) -> AsyncGenerator[HttpClient]:
    async with http_client() as http, http_session(HttpWire(server.url, http)) as session:
        yield session


async def bring_to_stages(place: Place) -> None:
    """Tasks of both eras, all but those that need all slots to be in use."""
    async with asyncio.TaskGroup() as group:
        for job, stage in STAGES.items():
            if job != LATE:
                group.create_task(place.begin(job, stage))
        group.create_task(place.begin("parent", Stage(tool="parent")))
        group.create_task(ask_older_client(place))
    await place.noted("parent-child at work")
    await place.begin("cancelled", Stage(tool="again", at="work"))


async def ask_older_client(place: Place) -> None:
    """A client of 2025-11-25 goes with questions open."""
    async with older_client_of(place.server) as older:
        for job in OLDER:
            (place.folder / f"{job}.asking").touch()
            place.tasks[job] = await older.start("survey", job=job)
            await older.until(place.tasks[job], "input_required")


@pytest.mark.parametrize("job", STAGES)
async def test_a_task_ends_as_it_must_wherever_it_was(place: Place, job: str) -> None:
    stage = STAGES[job]
    if stage.tool.endswith("survey"):
        for message in ANSWERS:
            if (job, message) in place.answered:
                assert await place.question(job, message) is None
            else:
                await place.answer(job, message)
        ended = await place.client.until(place.tasks[job], "completed")
        assert ended["result"]["structuredContent"] == {"result": "Ann: True"}
        assert [line for line in place.of(job) if line.startswith("step")] == STEPS
    elif stage.reason is None:
        ended = await place.client.until(place.tasks[job], "completed")
        assert ended["result"]["structuredContent"] == {"result": f"{job} end"}
    else:
        ended = await place.client.until(place.tasks[job], "failed")
        assert ended["error"]["data"] == {"reason": stage.reason}
        assert "nterrupted" in ended["statusMessage"]
    assert stage.starts in (None, place.of(job).count("start"))


async def test_a_parent_finds_the_child_that_it_had_started(place: Place) -> None:
    ended = await place.client.until(place.tasks["parent"], "completed")
    assert ended["result"]["structuredContent"] == {"result": "parent-child end"}
    assert place.of("parent-child").count("start") == 2


async def test_a_task_that_was_cancelled_stays_so(place: Place) -> None:
    assert (await place.client.get(place.tasks["cancelled"]))["status"] == "cancelled"
    assert place.of("cancelled").count("start") == 1


@pytest.mark.parametrize("job", OLDER)
async def test_an_older_client_is_asked_again_in_a_new_session(place: Place, job: str) -> None:
    task = place.tasks[job]
    async with older_client_of(place.server) as older, AsyncExitStack() as stack:
        if job == OLDER[1]:
            await stack.enter_async_context(older.listening())
            await older.get(task)
        else:
            older.begin_result(task)
        asked = 0
        for message, content in ANSWERS.items():
            question = await older.question(task, after=asked)
            asked = older.arrived.index(question) + 1
            assert question.params["message"] == message
            assert (question.stream == OWN_STREAM) is (job == OLDER[1])
            await older.answer(question, accept(**content))
        result = (await older.result(task)).result
    assert result["structuredContent"] == {"result": "Ann: True"}
    assert result["_meta"][RELATED] == {"taskId": task}
    assert [line for line in place.of(job) if line.startswith("step")] == STEPS


@pytest.mark.parametrize("place", ["sqlite stopped"], indirect=True, scope="module")
async def test_a_server_that_is_asked_to_stop_hands_its_tasks_over_and_signs_off(place: Place) -> None:
    assert {(record.worker, record.lost) for record in place.stopped} == {(None, 0)}
    by_id = {record.id: record.status.value for record in place.stopped}
    statuses = {job: by_id[place.tasks[job]] for job in STAGES}
    assert {job for job, status in statuses.items() if status == "failed"} == {
        job for job, stage in STAGES.items() if stage.reason
    }
    # The one that sleeps may have woken up by then.
    assert {job for job, status in statuses.items() if status == "completed"} - {"sleeps"} == {"has ended"}


async def test_a_server_that_its_host_ends_while_it_drains_hands_its_runs_over(tmp_path: Path) -> None:
    """Otherwise a task would count as one that takes its process down, because a host came to look at it."""
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    options = ("--url", url, "--folder", tmp_path, "--drain", "60")
    with forked("tests.chaos.subject", *options, stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin is not None
        call = request("tools/call", {"name": "again", "arguments": {"job": "job"}})
        process.stdin.write(json.dumps(call).encode() + b"\n")
        await eventually(lambda: (tmp_path / "log").exists())
        process.stdin.close()
        await anyio.sleep(0.5)  # sleep: the time in which the drain begins
        process.terminate()
        await eventually(lambda: process.poll() is not None)
    async with opened(store_from_url(url)) as store:
        assert await store.workers(NAME) == {}, "the process signed off"
        [record] = await all_tasks(store, NAME)
    assert (record.status, record.worker, record.attempt, record.lost) == (TaskStatus.WORKING, None, 1, 0)


# A process that dies in the middle of a write


@pytest.fixture(scope="module", params=["sqlite", "postgres", "redis"])
async def mortal(
    request: pytest.FixtureRequest,
    shared_backend: Callable[[BackendName], Backend],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncGenerator[Place]:
    url, folder = shared_backend(request.param).fresh(), tmp_path_factory.mktemp("mortal")
    (folder / "open").touch()
    async with server_on(url, folder) as server, client_of(server) as client:
        yield Place(url, folder, server, client)


@pytest.mark.parametrize(
    ("moment", "tool", "kept", "starts"),
    [
        ("before create", "again", 0, {1}),
        # It may have run before its task was to be written.
        ("before create", "instant", 0, {1, 2}),
        ("after create", "again", 1, {1}),
        ("before end", "again", 1, {2}),
        ("after end", "again", 1, {1}),
    ],
)
async def test_a_call_makes_one_task_also_if_the_server_dies_at_a_write(
    mortal: Place, moment: str, tool: str, kept: int, starts: set[int]
) -> None:
    job = f"{tool} {moment}"
    before = len(await mortal.stored())
    async with our_client_of(mortal.server) as client, asyncio.TaskGroup() as group:
        (mortal.folder / "die").write_text(moment)
        calling = group.create_task(start_task(client, tool, {"job": job}))
        process = mortal.server.process
        await eventually(lambda: process.poll() is not None)
        assert process.poll() == -signal.SIGKILL
        assert len(await mortal.stored()) == before + kept
        await mortal.server.started()
        handle = await calling
        assert isinstance(handle, TaskHandle)
        assert len(await mortal.stored()) == before + 1
        if moment == "after create" and not mortal.url.startswith("sqlite"):
            # No message was sent for it: a sweep finds it after a while.
            return
        assert (await handle.result(PATIENCE)).structured_content == {"result": f"{job} end"}
        assert mortal.of(job).count("start") in starts


@asynccontextmanager
async def our_client_of(server: ServerProcess) -> AsyncGenerator[Client]:
    patience = Patience(first_pause=timedelta(seconds=0.1), max_pause=timedelta(seconds=0.5))
    async with Client(reconnecting_http(server.url), extensions=[TasksClient(patience=patience)]) as client:
        await client.list_tools()
        yield client


# Thousands of tasks that a process has left waiting


WAITING = 4_000
KEY = "elicitation-1"
SCHEMA = Name.model_json_schema()


async def leave(store: SqliteStore, number: int) -> None:
    """Leave a task as a process does that asked, waited, and let the run leave memory."""
    params = {"mode": "form", "message": "What is your name?", "requestedSchema": SCHEMA}
    question = InputRequest(method="elicitation/create", params=params)
    now = datetime.now(UTC)
    record = make_record(id=f"task-{number}", name="greet", namespace=NAME, owner=None, created_at=now, updated_at=now)
    request = TaskRequest(
        name="greet", arguments={}, protocol_version="2026-07-28", client_capabilities={"elicitation": {}}
    )
    parked = apply(record, RunStarted(worker="an earlier process"), now)
    parked = apply(parked, InputRequested(attempt=1, requests={KEY: question}), now)
    parked = apply(parked, RunParked(attempt=1, keys={KEY}), now)
    await store.create(replace(parked, version=1), request)
    asked = JournalEntry(kind="ask", key=KEY, value={"method": question.method, "params": params})
    await store.save(parked, expected=1, entries=[asked])


def memory(server: ServerProcess) -> int:
    """Bytes that the server has for itself: what it shares with the file cache is not its own."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


async def test_thousands_of_waiting_tasks_cost_less_than_a_kilobyte_each_and_one_answer_wakes_one(
    tmp_path: Path,
) -> None:
    def server_in(folder: Path) -> ServerProcess:
        return server_on(f"sqlite:///{folder / 'tasks.db'}", folder)

    for folder in ("empty", "full"):
        (tmp_path / folder).mkdir()
    async with opened(SqliteStore(tmp_path / "full" / "tasks.db")) as store:
        for start in range(0, WAITING, 1000):
            await asyncio.gather(*(leave(store, number) for number in range(start, start + 1000)))
    async with http_client() as http, server_in(tmp_path / "empty") as empty, server_in(tmp_path / "full") as full:
        for server in (empty, full):
            await Tasking(HttpWire(server.url, http), EVERYTHING).call("plain")
        client = Tasking(HttpWire(full.url, http), EVERYTHING)
        assert (await client.get("task-7"))["status"] == "input_required"
        assert (memory(full) - memory(empty)) / WAITING < 1024
        await client.update("task-7", **{KEY: accept(name="Ann")})
        assert text_of((await client.until("task-7", "completed"))["result"]) == "Hello, Ann!"
        assert {(await client.get(f"task-{number}"))["status"] for number in range(0, WAITING, 397)} == {
            "input_required"
        }
