"""What the short way remembers is bounded, and never older than the store; the event loop writes no large result."""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from mcp.server import MCPServer

from harness.http import HttpWire, http_client, initialize, modern_headers, serving_app
from harness.rpc import NOTHING, request
from harness.server import QUICK
from mcp_tasks import Tasks
from mcp_tasks.model.json import encode_json
from mcp_tasks.model.limits import is_expired
from mcp_tasks.model.record import InputBook, InputRequest, Outcome, Progress, TaskRecord, TaskStatus
from mcp_tasks.protocol.cache import LARGEST, ResponseCache
from mcp_tasks.protocol.shapes import Message, render_moving, render_outcome, render_task
from mcp_tasks.server.fast_path.admission import LARGEST_KEY, MOST_VERDICTS
from mcp_tasks.server.fast_path.requests import LARGEST as LARGEST_BODY
from mcp_tasks.stores import MemoryStore
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import FakeClock
from mcp_tasks.testing.clock import NOON
from mcp_tasks.testing.records import make_record, make_request
from tests.conformance.everything_server import MemoryEvents
from tests.short.raw import Answer, exchange
from tests.short.requests import Flaw, Step
from tests.short.servers import STILL, Way, build
from tests.unit.watching import Threads

NAME = "twins"
HOUR = timedelta(hours=1)


def _grown(before: int) -> int:
    return tracemalloc.get_traced_memory()[0] - before


@pytest.fixture
def traced_memory() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


# Cached responses


def add(texts: ResponseCache, record: TaskRecord, outcome: Outcome | None = None) -> int:
    fields = render_task(record, record.updated_at)
    return texts.add(record, Message(fields=fields, large=render_outcome(record, outcome))).size


def test_texts_are_kept_for_their_owner_and_those_not_asked_for_go_first() -> None:
    size = add(ResponseCache({}), make_record(id="task-1", owner="ada"))
    texts = ResponseCache({}, most_bytes=10 * size)
    for number in range(100):
        add(texts, make_record(id=f"task-{number}", owner="ada"))
        # Asked for all the time.
        assert texts.find("task-0", "ada") is not None
    kept = [number for number in range(100) if texts.find(f"task-{number}", "ada") is not None]
    assert (kept[0], kept[-1], len(kept) in (9, 10)) == (0, 99, True)
    assert texts.find("task-99", "bob") is texts.find("task-99", None) is None
    large = make_record(status=TaskStatus.COMPLETED, finished_at=NOON)
    assert add(texts, large, Outcome(body=json.dumps({"content": "x" * LARGEST}).encode())) > LARGEST
    assert texts.find(large.id, large.owner) is None


@pytest.mark.usefixtures("traced_memory")
def test_texts_take_no_more_memory_than_is_counted_and_say_the_same_of_their_time() -> None:
    texts, most = ResponseCache({}, most_bytes=1_000_000), 1_000_000
    questions = {f"{n:032d}": InputRequest(method="elicitation/create", params={"message": f"{n}"}) for n in range(100)}
    shapes: list[dict[str, Any]] = [
        *({}, {"inputs": InputBook(used=frozenset(questions))}, {"inputs": InputBook().ask(questions)}),
        {"status_message": "\u1234" * 4_000, "progress": Progress(progress=1, message="y" * 4_000)},
        {"unknown": {f"{n}": [n] * 100 for n in range(100)}, "finished_at": NOON + HOUR, "retention": HOUR},
    ]
    record, before = make_record(), tracemalloc.get_traced_memory()[0]
    for number in range(1_000):
        # Each made anew, as a store makes them: nothing of it is shared.
        new = {"owner": f"{uuid4()}" * (1 + number % 50), "namespace": f"{uuid4()}", "id": f"{uuid4()}"}
        record = make_record(**(new | shapes[number % len(shapes)]))
        add(texts, record)
    assert _grown(before) < 1.1 * most
    kept = texts.find(record.id, record.owner)
    assert kept is not None
    for seconds in (0, 1, 100, 4_000, 10_000):
        now = NOON + timedelta(seconds=seconds)
        assert render_moving(kept.record, now) == render_moving(record, now)
        assert is_expired(kept.record, now) == is_expired(record, now)


# Polls


class CountingStore(SqliteStore):
    reads = 0

    async def _read(self, task_id: str, *part: Any, **options: Any) -> Any:
        self.reads += 1
        return await super()._read(task_id, *part, **options)


class Polled:
    """A task that is polled both ways, and changed by another process."""

    def __init__(self, clock: FakeClock, store: CountingStore, short: Way, long: Way, other: SqliteStore) -> None:
        self.clock = clock
        self.store = store
        self.other = other
        self.short = short
        self._ways = (short, long)
        self._counts = short.tasks.short_way
        self.record = make_record(owner=None, namespace=NAME, id="polled", retention=timedelta(minutes=10))

    async def poll(self) -> Answer:
        sent = Step("tasks/get", {"taskId": "polled"}, "polled").draft(auth=False).sent("a", 0)
        answers = [await exchange(way.app, sent) for way in self._ways]
        assert answers[0].told() == answers[1].told()
        return answers[0]

    async def state(self) -> dict[str, Any]:
        before = self._counts.answered.total()
        answer = await self.poll()
        assert self._counts.answered.total() == before + 1
        return answer.message["result"]

    async def change(self, outcome: Outcome | None = None, **fields: Any) -> None:
        changed = replace(self.record, version=self.record.version + 1, updated_at=self.clock(), **fields)
        await self.other.save(changed, expected=self.record.version, outcome=outcome)
        self.record = changed


@pytest.fixture
async def polled(tmp_path: Path) -> AsyncGenerator[Polled]:
    """A task in a file that three have open: the two servers, and whoever changes it."""
    clock, file = FakeClock(), tmp_path / "tasks.db"
    other, store = SqliteStore(file), CountingStore(file)
    async with AsyncExitStack() as stack:
        short = await stack.enter_async_context(_way(store, clock, short=True))
        long = await stack.enter_async_context(_way(SqliteStore(file), clock, short=False))
        await other.open()
        stack.push_async_callback(other.close)
        polled = Polled(clock, store, short, long, other)
        await other.create(polled.record, make_request())
        yield polled


@asynccontextmanager
async def _way(store: SqliteStore, clock: FakeClock, *, short: bool) -> AsyncGenerator[Way]:
    tasks = Tasks(store, clock=clock, settings=STILL, runs_tools=False, short_way=short)
    server = build(tasks)
    app = server.streamable_http_app(host="0.0.0.0")
    async with app.router.lifespan_context(app):
        yield Way(tasks, server, app)


async def test_a_poll_of_an_unchanged_task_reads_no_more_than_its_version(polled: Polled) -> None:
    first = await polled.state()
    reads = polled.store.reads
    assert [await polled.state() for _ in range(5)] == [first] * 5
    assert polled.store.reads == reads


async def test_what_another_process_changed_is_told_at_the_next_poll(polled: Polled) -> None:
    assert (await polled.state())["status"] == "working"
    await polled.change(progress=Progress(progress=1, total=2), worker="elsewhere")
    assert (await polled.state())["statusMessage"] == "1 of 2"
    result = {"content": [{"type": "text", "text": "done"}]}
    await polled.change(
        Outcome(body=encode_json(result)),
        status=TaskStatus.COMPLETED,
        finished_at=polled.clock(),
        worker=None,
        progress=None,
    )
    assert (await polled.state())["result"]["content"] == result["content"]
    await polled.other.delete("polled", expected=polled.record.version)
    assert (await polled.poll()).status == 400


async def test_what_depends_on_the_time_goes_with_it(polled: Polled) -> None:
    told: list[tuple[int, int]] = []
    reads = -1
    for seconds in (0, 1, 30, 120, 600, 3_600):
        polled.clock.advance(timedelta(seconds=seconds))
        state = await polled.state()
        told.append((state["ttlMs"], state["pollIntervalMs"]))
        reads = polled.store.reads if reads < 0 else reads
    # Of one text: the task was read once.
    assert polled.store.reads == reads
    assert len({ttl for ttl, _ in told}) > 1
    assert len({interval for _, interval in told}) > 1


async def test_a_task_that_expires_between_two_polls_is_gone(polled: Polled) -> None:
    outcome = Outcome(body=b"{}")
    await polled.change(outcome, status=TaskStatus.COMPLETED, finished_at=polled.clock())
    await polled.state()
    polled.clock.advance(timedelta(minutes=10) - timedelta(milliseconds=1))
    await polled.state()
    polled.clock.advance(timedelta(milliseconds=1))
    assert (await polled.poll()).status == 400


@pytest.mark.usefixtures("traced_memory")
async def test_a_flood_of_different_headers_and_envelopes_takes_no_more_memory_than_its_bound(polled: Polled) -> None:
    async def flood(first: int, last: int) -> None:
        for number in range(first, last):
            large = f"{number:04d}" * 750
            flaws = [Flaw("set header", (b"host", large.encode())), Flaw("meta", ("x", large))]
            sent = Step("tasks/get", {"taskId": "polled"}, "polled", flaws).draft(auth=False).sent("a", 0)
            await exchange(polled.short.app, sent)

    await flood(0, 20)
    before, answered = tracemalloc.get_traced_memory()[0], polled.short.tasks.short_way.answered.total()
    await flood(20, 1_020)
    assert polled.short.tasks.short_way.answered.total() == answered + 1_000
    # Seven megabytes, were they all kept.
    assert _grown(before) < 2 * MOST_VERDICTS * LARGEST_KEY * 1.5


# Large results


VALUE = {"items": [{"number": number, "text": 'Hello, "you"\n'} for number in range(5_000)]}
KEPT = b'{"content" : [],  "structuredContent" : %b  }' % json.dumps(VALUE).encode()
"""A result as nobody would write it: whoever reads and writes it again writes something else."""


@pytest.mark.parametrize("way", ["JSON", "streams", "streams that are kept", "middleware"])
async def test_a_large_result_is_not_written_by_the_event_loop_whatever_a_request_looks_like(way: str) -> None:
    seen: list[Any] = []
    threads = Threads(2)
    asyncio.get_running_loop().set_default_executor(threads)

    async def see(ctx: Any, call_next: Any) -> Any:
        result = await call_next(ctx)
        if ctx.method.startswith("tasks/"):
            seen.append(result)
        return result

    store = MemoryStore()
    tasks = Tasks(store, settings=QUICK)
    server: MCPServer[Any] = MCPServer("large", **tasks.wiring(), log_level="CRITICAL")
    events = MemoryEvents() if way == "streams that are kept" else None
    if way == "middleware":
        server.middleware.append(see)
    app = server.streamable_http_app(json_response=way == "JSON", event_store=events)
    async with serving_app(app) as base, http_client() as client:
        record = make_record(id="large", namespace="large", owner=None, retention=None)
        await store.create(record, make_request())
        ended = replace(record, version=2, status=TaskStatus.COMPLETED, finished_at=NOON)
        await store.save(ended, expected=1, outcome=Outcome(body=KEPT))
        wire, counts = HttpWire(f"{base}/mcp", client), tasks.short_way
        poll = request("tasks/get", {"taskId": "large"})
        params = poll["params"]
        messages: dict[str, dict[str, Any]] = {
            "the short way": poll,
            "a large body": {**poll, "params": {**params, "more": "x" * LARGEST_BODY}},
            "a member that nobody knows": {**poll, "more": 1},
            "an id that is not the same to all": {**poll, "id": 2**60},
        }
        for what, message in messages.items():
            # Arguments in headers are compared on calls of tools, and on nothing else.
            headers = [*modern_headers(message), ("mcp-param-region", "us"), ("mcp-param-region", "eu")]
            threads.used = 0
            answer = await wire.raw_post(json.dumps(message), headers)
            # It goes out as it is kept. Where it is read and written again, the event loop does not do it.
            is_spliced = way in ("JSON", "streams") or (what == "the short way" and way != "middleware")
            assert (KEPT[1:-1].rstrip() in answer.content) is is_spliced
            assert is_spliced or threads.used >= 1
            assert (await wire.post(json.dumps(message), headers)).result["result"]["structuredContent"] == VALUE
        assert (counts.answered["tasks/get"], counts.handed_over.total()) == ((0, 8) if seen else (2, 6))
        session, _ = await initialize(wire, NOTHING)
        threads.used = 0
        older = (await session.ask("tasks/result", {"taskId": "large"})).result
        assert (older["structuredContent"], threads.used >= 1) == (VALUE, True)
        assert older["_meta"] == {"io.modelcontextprotocol/related-task": {"taskId": "large"}}
        # Middleware of the author sees all of it.
        assert [(each.get("result") or each)["structuredContent"] == VALUE for each in seen] == [True] * len(seen)
        assert len(seen) == (9 if way == "middleware" else 0)
