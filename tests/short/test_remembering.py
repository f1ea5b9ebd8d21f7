"""What the short way remembers is bounded, and never older than the store."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from mcp.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from mcp_tasks import Tasks
from mcp_tasks.model.json import encode_json
from mcp_tasks.model.limits import is_expired
from mcp_tasks.model.record import InputBook, InputRequest, Outcome, Progress, TaskRecord, TaskStatus
from mcp_tasks.protocol.cache import Texts
from mcp_tasks.protocol.dialect import Message, ModernDialect
from mcp_tasks.server.fast_path.admission import Admitted, EnvelopeCheck, HeaderCheck, Remembered, sift
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import FakeClock
from mcp_tasks.testing.clock import NOON
from mcp_tasks.testing.records import make_record, make_request
from tests.short.drafts import CAPABILITIES_KEY, VERSION, VERSION_KEY, WITH_TASKS, Step
from tests.short.raw import Answer, exchange
from tests.short.servers import STILL, Way, build

NAME = "twins"
MANY = 2_000
HOUR = timedelta(hours=1)


def test_verdicts_are_forgotten_when_there_are_too_many() -> None:
    verdicts: Remembered[bool] = Remembered()
    for number in range(MANY):
        verdicts.keep(number, True, 10)
    assert sum(verdicts.find(number) is not None for number in range(MANY)) <= Remembered.MOST
    assert verdicts.find(MANY - 1) is True


def test_a_verdict_on_something_large_is_not_kept() -> None:
    verdicts: Remembered[bool] = Remembered()
    assert verdicts.keep("large", True, Remembered.LARGEST + 1) is True
    assert verdicts.find("large") is None


def _grown(before: int) -> int:
    return tracemalloc.get_traced_memory()[0] - before


@pytest.fixture
def traced_memory() -> Any:
    """Counts memory while a test lasts."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced_memory")
def test_a_flood_of_different_envelopes_takes_no_more_memory_than_its_bound() -> None:
    check = EnvelopeCheck()
    admitted = Admitted("tasks/get", VERSION, takes_streams=True)
    before = tracemalloc.get_traced_memory()[0]
    for number in range(MANY):
        meta = {VERSION_KEY: VERSION, CAPABILITIES_KEY: WITH_TASKS, "x": f"{number:04d}" * 750}
        assert check.passes(admitted, meta)
    # Six megabytes, were they all kept.
    assert _grown(before) < Remembered.MOST * Remembered.LARGEST * 1.5


@pytest.mark.anyio
@pytest.mark.usefixtures("traced_memory")
async def test_a_flood_of_different_headers_takes_no_more_memory_than_its_bound() -> None:
    check = HeaderCheck(StreamableHTTPSessionManager(Server("flooded")))
    before = tracemalloc.get_traced_memory()[0]
    for number in range(MANY):
        headers = [
            (b"host", b"%04d" % number * 750),
            (b"content-type", b"application/json"),
            (b"accept", b"application/json, text/event-stream"),
            (b"mcp-protocol-version", VERSION.encode()),
            (b"mcp-method", b"tasks/get"),
        ]
        scope = {"type": "http", "method": "POST", "headers": headers}
        assert isinstance(await check.judge(scope, sift(headers, 1_000).judged), Admitted)
    assert _grown(before) < Remembered.MOST * Remembered.LARGEST * 1.5


def test_texts_are_forgotten_when_there_are_too_many() -> None:
    texts, dialect = Texts({}, most_bytes=100_000), ModernDialect()
    records = [make_record() for _ in range(MANY)]
    for record in records:
        texts.add(dialect, record, dialect.task(record, None, record.updated_at))
    kept = [text for record in records if (text := texts.find(record.id, record.owner)) is not None]
    assert 0 < sum(text.size for text in kept) <= 100_000
    assert texts.find(records[-1].id, records[-1].owner) is not None


def test_a_large_text_is_not_kept() -> None:
    texts, dialect, record = Texts({}), ModernDialect(), make_record(status=TaskStatus.COMPLETED)
    texts.add(dialect, record, Message(fields={"a": 1}, large=("result", b'"' + b"x" * 100_000 + b'"')))
    assert texts.find(record.id, record.owner) is None


QUESTION = InputRequest(method="elicitation/create", params={"message": "Sure?", "requestedSchema": {}})

SHAPES: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "many questions, all answered": lambda: {"inputs": InputBook(used=frozenset(f"{n:032d}" for n in range(1_000)))},
    "many questions, all open": lambda: {
        "inputs": InputBook().ask({f"{n:032d}": replace(QUESTION, params={"message": f"{n}"}) for n in range(100)})
    },
    "a long message": lambda: {
        "status_message": "\u1234" * 4_000,
        "progress": Progress(progress=1, message="y" * 4_000),
    },
    "fields of a newer release": lambda: {"unknown": {f"{n}": [n] * 100 for n in range(100)}},
    "names that are long": lambda: {"owner": "\u1234" * 5_000, "namespace": "n" * 5_000, "id": f"{uuid4()}" * 7},
    "all times": lambda: {
        "finished_at": NOON + HOUR,
        "poll_interval": HOUR + HOUR,
        "retention": HOUR,
        "version": 10**9,
    },
}


@pytest.mark.usefixtures("traced_memory")
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_text_takes_no_more_memory_than_is_counted(shape: Callable[[], dict[str, Any]]) -> None:
    texts = Texts({})

    def add(**fields: Any) -> int:
        # Each made anew, as a store makes them: nothing of it is shared.
        record = make_record(**{"owner": f"{uuid4()}", "namespace": f"{uuid4()}", "id": f"{uuid4()}", **fields})
        return texts.add(ModernDialect(), record, ModernDialect().task(record, None, record.updated_at)).size

    # What is made once, whatever is kept, is not of the texts.
    add()
    before = tracemalloc.get_traced_memory()[0]
    counted = sum(add(**shape()) for _ in range(50))
    assert _grown(before) <= counted
    assert counted < 50 * 64 * 1024


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_what_is_kept_of_a_task_says_the_same_of_its_time_as_the_task(shape: Callable[[], dict[str, Any]]) -> None:
    dialect, record = ModernDialect(), make_record(**shape())
    kept = Texts({}).add(dialect, record, dialect.task(record, None, record.updated_at)).record
    for seconds in (0, 1, 100, 4_000, 10_000):
        now = NOON + timedelta(seconds=seconds)
        assert dialect.moving(kept, now) == dialect.moving(record, now)
        assert is_expired(kept, now) == is_expired(record, now)
    asked_for = attrgetter("id", "version", "owner", "namespace", "method")
    assert asked_for(kept) == asked_for(record)


class CountingStore(SqliteStore):
    """Counts how often whole tasks are read."""

    reads = 0

    async def get_owned(self, task_id: str, owner: str | None) -> TaskRecord | None:
        self.reads += 1
        return await super().get_owned(task_id, owner)


class Polled:
    """A task that is polled both ways, and changed by another process."""

    def __init__(self, clock: FakeClock, store: CountingStore, short: Way, long: Way, other: SqliteStore) -> None:
        self.clock = clock
        self.store = store
        self.other = other
        self._ways = (short, long)
        self._counts = short.tasks.short_way
        self.record = make_record(owner=None, namespace=NAME, id="polled", retention=timedelta(minutes=10))

    async def poll(self) -> Answer:
        """What both ways say."""
        sent = Step("tasks/get", {"taskId": "polled"}, "polled").draft(auth=False).sent("a", 0)
        answers = [await exchange(way.app, sent) for way in self._ways]
        assert answers[0].told() == answers[1].told()
        return answers[0]

    async def state(self) -> dict[str, Any]:
        """The same, answered the short way."""
        before = self._counts.answered.total()
        answer = await self.poll()
        assert self._counts.answered.total() == before + 1
        return answer.message["result"]

    async def change(self, outcome: Outcome | None = None, **fields: Any) -> None:
        """Change the task from elsewhere."""
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


@pytest.mark.anyio
async def test_a_poll_of_an_unchanged_task_reads_no_more_than_its_version(polled: Polled) -> None:
    first = await polled.state()
    reads = polled.store.reads
    assert [await polled.state() for _ in range(5)] == [first] * 5
    assert polled.store.reads == reads


@pytest.mark.anyio
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


@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_a_task_that_expires_between_two_polls_is_gone(polled: Polled) -> None:
    outcome = Outcome(body=b"{}")
    await polled.change(outcome, status=TaskStatus.COMPLETED, finished_at=polled.clock())
    await polled.state()
    polled.clock.advance(timedelta(minutes=10) - timedelta(milliseconds=1))
    await polled.state()
    polled.clock.advance(timedelta(milliseconds=1))
    assert (await polled.poll()).status == 400
