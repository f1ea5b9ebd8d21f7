"""Redis that stops, restarts, loses answers, refuses or forgets: what the store says, and that it goes on by itself."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import anyio
import pytest
from redis import exceptions as driver
from redis.asyncio import Redis

from harness.databases import Valkey, valkey
from harness.processes import PIPE, start_async
from harness.proxy import ANY, Proxy, proxy_to
from harness.stored import changed, opened
from mcp_tasks.errors import StoreCorrupt, StoreUnavailable, VersionConflict
from mcp_tasks.model import JournalEntry, TaskRecord
from mcp_tasks.stores.base import Handing, Hint, Share
from mcp_tasks.stores.codec import new_write_id
from mcp_tasks.stores.redis import RedisStore
from mcp_tasks.stores.redis.connection import NotConnected, is_unanswered
from mcp_tasks.testing import make_record, make_request

pytestmark = pytest.mark.anyio

REQUEST = make_request()
STEP = JournalEntry(kind="step", key="done", value={"value": 1})
SECRET = "p4ssw0rd"
WAIT = 20


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    """A server that is restarted now and then. It writes everything to its disk before it answers."""
    with valkey("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.fixture
async def store(server: Valkey) -> AsyncIterator[RedisStore]:
    async with opened(RedisStore(server.url, prefix=uuid4().hex)) as store:
        yield store


@pytest.fixture
async def redis(server: Valkey) -> AsyncIterator[Any]:
    client: Any = Redis.from_url(server.url)
    yield client
    await client.aclose()


async def until(happens: Callable[[], bool]) -> None:
    """Wait for something that others do."""
    while not happens():  # noqa: ASYNC110 - nothing tells
        await anyio.sleep(0.01)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
async def test_a_restart_in_the_middle_loses_nothing_that_was_acknowledged(
    server: Valkey, store: RedisStore, how: signal.Signals
) -> None:
    acknowledged: dict[str, int] = {}
    refused = 0
    over = anyio.Event()

    async def write() -> None:
        nonlocal refused
        while not over.is_set():
            record = changed(make_record())
            try:
                await store.create(record, REQUEST)
                acknowledged[record.id] = 1
                await store.save(changed(record, version=2), expected=1, entries=[STEP])
                acknowledged[record.id] = 2
            except StoreUnavailable:
                refused += 1
                await anyio.sleep(0.01)

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(write)
            await until(lambda: len(acknowledged) >= 50)
            await anyio.to_thread.run_sync(server.restart, how)
            there = len(acknowledged)
            await until(lambda: len(acknowledged) >= there + 50)
            over.set()
    found = await store.versions(list(acknowledged))
    # One that was refused after its creation may have been written: then nothing is said against it.
    assert {task_id for task_id, version in acknowledged.items() if found.get(task_id, 0) < version} == set()
    for task_id in list(acknowledged)[:20]:
        assert len(await store.journal(task_id)) == found[task_id] - 1


async def test_while_the_server_is_away_every_verb_says_so_and_after_that_works_again(server: Valkey) -> None:
    url = server.url.replace("//", f"//default:{SECRET}@")
    async with opened(RedisStore(url, prefix=uuid4().hex)) as store:
        record = changed(make_record())
        await store.create(record, REQUEST)
        server.stop()
        try:
            verbs: list[Any] = [
                store.get(record.id),
                store.create(changed(make_record()), REQUEST),
                store.save(changed(record, version=2), expected=1),
                store.delete(record.id, expected=1),
                store.heartbeat("worker", namespace=""),
                store.hand_out("", Share(owner=1), limit=1),
                store.set_note("", "note", b"1", expected=None),
            ]
            raised = await asyncio.gather(*verbs, return_exceptions=True)
            assert {type(exc) for exc in raised} == {StoreUnavailable}
            for exc in raised:
                assert f"redis://127.0.0.1:{server.port}/0 cannot be reached" in str(exc)
                assert SECRET not in f"{exc!r} {exc.__cause__!r}"
        finally:
            server.start()
        assert await store.get(record.id) == record
        await store.save(changed(record, version=2), expected=1)


async def test_a_server_that_is_not_there_is_said_to_be_so_at_the_start() -> None:
    store = RedisStore(f"redis://:{SECRET}@127.0.0.1:1/0")
    with pytest.raises(
        StoreUnavailable, match=r"redis://127\.0\.0\.1:1/0 cannot be reached. Start the server"
    ) as raised:
        await store.open()
    assert SECRET not in f"{raised.value!r} {raised.value.__cause__!r}"
    await store.close()


async def test_a_server_that_hangs_is_waited_for_and_no_longer(server: Valkey, redis: Any) -> None:
    async with opened(RedisStore(server.url, timeout=timedelta(milliseconds=200))) as store:
        await redis.execute_command("CLIENT", "PAUSE", "1000", "ALL")
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            await store.get("task")
        with anyio.fail_after(WAIT):
            while True:
                try:
                    assert await store.get("task") is None
                    break
                except StoreUnavailable:
                    continue


@pytest.fixture
async def proxy(server: Valkey) -> AsyncIterator[Proxy]:
    async with proxy_to(server.url) as proxy:
        yield proxy


async def test_a_write_whose_answer_was_lost_is_done_once(proxy: Proxy) -> None:
    async with opened(RedisStore(proxy.url, prefix=uuid4().hex)) as store:
        record = changed(make_record())
        # Each is known to the server, so that the answer that is lost is that of the write.
        warm = make_record(namespace="warm")
        await store.create(warm, REQUEST)
        await store.save(changed(warm, version=2), expected=1, entries=[STEP])
        await store.delete(warm.id, expected=2)
        await store.set_note("", "warm", b"1", expected=None)

        proxy.lose()
        assert await store.create(record, REQUEST, key="key") == record
        proxy.lose(2)
        saved = await store.save(changed(record, version=2), expected=1, entries=[STEP])
        assert await store.get(record.id) == saved
        assert len(await store.journal(record.id)) == 1
        proxy.lose()
        await store.delete(record.id, expected=2)
        assert await store.get(record.id) is None
        # The note is looked at first, and then written.
        await store.note("", "note")
        proxy.lose()
        assert await store.set_note("", "note", b"1", expected=None) is True
        assert proxy.lost == 5
        assert await store.note("", "note") == b"1"


def writes(store: RedisStore, record: TaskRecord) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Every verb that writes, by the script that it runs."""
    return {
        "create": lambda: store.create(changed(make_record()), REQUEST),
        "save": lambda: store.save(changed(record, version=2), expected=1),
        "delete": lambda: store.delete(record.id, expected=1),
        "set_note": lambda: store.set_note("", "note", b"1", expected=None),
        "hand_out": lambda: store.hand_out("", Share(owner=1), limit=1),
        "hand_back": lambda: store.hand_back(record.id),
        "forget_expired": lambda: store.forget_expired(record.created_at, limit=1),
        "heartbeat": lambda: store.heartbeat("worker", namespace=""),
        "retire": lambda: store.retire("worker"),
    }


async def failure_of(act: Callable[[], Awaitable[Any]]) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as failed:
        await act()
    return failed.value


@pytest.mark.parametrize("verb", writes(cast(Any, None), changed(make_record())))
async def test_a_write_that_was_sent_and_not_answered_may_have_happened(proxy: Proxy, verb: str) -> None:
    async with opened(RedisStore(proxy.url, prefix=uuid4().hex)) as store:
        record = changed(make_record())
        await store.create(record, REQUEST)
        act = writes(store, record)[verb]
        # The attempts after the first are refused, which says nothing of the first.
        proxy.lose(of=f"^{verb}$", then_cut=True)
        assert (await failure_of(act)).may_have_happened
        assert not (await failure_of(act)).may_have_happened
        proxy.restore()


async def test_a_read_that_was_not_answered_changed_nothing(proxy: Proxy) -> None:
    async with opened(RedisStore(proxy.url, prefix=uuid4().hex)) as store:
        for read in (lambda: store.get("task"), lambda: store.journal("task"), lambda: store.versions(["task"])):
            proxy.lose(of=ANY, then_cut=True)
            assert not (await failure_of(read)).may_have_happened
            proxy.restore()


async def test_a_heartbeat_waits_for_no_other_call(proxy: Proxy) -> None:
    async with opened(RedisStore(proxy.url, prefix=uuid4().hex, max_connections=1)) as store:
        await store.heartbeat("worker", namespace="")
        proxy.delay = 0.5
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(store.journal, f"task {number}")
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(5):
                await store.heartbeat("worker", namespace="")
            proxy.delay = 0
            group.cancel_scope.cancel()


async def test_a_server_that_hangs_may_have_written(server: Valkey, redis: Any) -> None:
    async with opened(RedisStore(server.url, timeout=timedelta(milliseconds=200))) as store:
        await redis.execute_command("CLIENT", "PAUSE", "2000", "ALL")
        assert (await failure_of(lambda: store.create(changed(make_record()), REQUEST))).may_have_happened
        await redis.ping()


async def test_a_server_that_refuses_has_not_written(server: Valkey, redis: Any) -> None:
    async with opened(RedisStore(server.url, prefix=uuid4().hex)) as store:
        act = writes(store, changed(make_record()))["create"]
        async with setting(redis, "maxmemory", "1"):
            refused = await failure_of(act)
        assert (refused.may_have_happened, "has no memory left" in str(refused)) == (False, True)
        await redis.replicaof("127.0.0.1", 1)
        refused = await failure_of(act)
        assert (refused.may_have_happened, "is a replica" in str(refused)) == (False, True)
        await redis.replicaof("NO", "ONE")


@pytest.mark.parametrize(
    ("exc", "may_have_happened"),
    [
        (driver.ConnectionError("broken"), True),
        (driver.TimeoutError("too late"), True),
        (ConnectionResetError(), True),
        (driver.InvalidResponse("no answer at all"), True),
        (NotConnected("refused"), False),
        (driver.BusyLoadingError("LOADING"), False),
        (driver.AuthenticationError("WRONGPASS"), False),
        (driver.MovedError("1 127.0.0.1:1"), False),
        (driver.ReadOnlyError("READONLY"), False),
        (driver.OutOfMemoryError("OOM"), False),
    ],
    ids=repr,
)
def test_only_a_request_without_an_answer_may_have_happened(exc: Exception, may_have_happened: bool) -> None:
    assert is_unanswered(exc) is may_have_happened


async def test_a_write_that_came_second_is_told_so_when_its_answer_was_lost(proxy: Proxy) -> None:
    async with opened(RedisStore(proxy.url, prefix=uuid4().hex)) as store:
        record = changed(make_record())
        await store.create(record, REQUEST)
        await store.save(changed(record, version=2, status_message="first"), expected=1)
        proxy.lose()
        with pytest.raises(VersionConflict):
            await store.save(changed(record, version=2, status_message="late"), expected=1)
        found = await store.get(record.id)
        assert found is not None
        assert found.status_message == "first"


async def test_a_write_finds_itself_also_when_others_have_written_since(server: Valkey, proxy: Proxy) -> None:
    prefix = uuid4().hex
    record = changed(make_record())
    async with (
        opened(RedisStore(proxy.url, prefix=prefix)) as here,
        opened(RedisStore(server.url, prefix=prefix)) as there,
    ):
        await here.create(record, REQUEST)
        claimed = record.but(version=2).written(new_write_id(run=True))
        # All answers are lost until the other has gone on from what was written here.
        proxy.lose(1_000, of=ANY)
        saving = asyncio.ensure_future(here.save(claimed, expected=1, entries=[STEP]))
        with anyio.fail_after(WAIT):
            last = record
            for version in range(3, 8):
                while (before := await there.get(record.id)) is None or before.version != version - 1:
                    continue
                last = await there.save(changed(before, version=version), expected=version - 1)
            proxy.lose(0)
            assert await saving == last
        assert len(await there.journal(record.id)) == 1


async def test_hints_of_another_process_are_heard_also_after_a_restart(server: Valkey) -> None:
    prefix = uuid4().hex
    program = f"""
import asyncio
from mcp_tasks.stores.redis import RedisStore
from mcp_tasks.testing import make_record, make_request

async def main():
    store = RedisStore({server.url!r}, prefix={prefix!r})
    await store.open()
    while True:
        input()
        record = make_record(id=input())
        await store.create(record, make_request())
        print("done", flush=True)

asyncio.run(main())
"""
    child = await start_async([sys.executable, "-c", program], stdin=PIPE, stdout=PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        async with opened(RedisStore(server.url, prefix=prefix)) as store, store.notifier().listen() as hints:
            with anyio.fail_after(WAIT):
                child.stdin.write(b"\nfirst\n")
                assert await anext(hints) == Hint("first", 1)
                await child.stdout.readline()
                await anyio.to_thread.run_sync(server.restart)
                # What is published before this process listens again is lost.
                heard = asyncio.ensure_future(anext(hints))
                number = 0
                while not heard.done():
                    number += 1
                    child.stdin.write(f"\n{number}\n".encode())
                    await child.stdout.readline()
                    await asyncio.wait([heard], timeout=0.05)
                assert (await heard).version == 1
    finally:
        child.kill()
        await child.wait()


@asynccontextmanager
async def setting(redis: Any, name: str, value: str) -> AsyncGenerator[None]:
    """A setting of the server, while the block runs."""
    found: Any = await redis.config_get(name)
    await redis.config_set(name, value)
    try:
        yield
    finally:
        await redis.config_set(name, found[name])


async def warnings_at_start(url: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="mcp_tasks"):
        async with opened(RedisStore(url)):
            return [f"{each.levelname}: {each.getMessage()}" for each in caplog.records]


async def test_a_server_that_keeps_everything_gives_no_warning(
    server: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    assert await warnings_at_start(server.url, caplog) == []


async def test_a_server_that_may_forget_tasks_is_warned_of(
    server: Valkey, redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with setting(redis, "appendonly", "no"):
        (warning,) = await warnings_at_start(server.url, caplog)
    assert warning.startswith(f"WARNING: redis://127.0.0.1:{server.port}/0 keeps tasks in memory alone (appendonly no)")
    assert "is lost when it stops" in warning
    assert "Set `appendonly yes`" in warning
    async with setting(redis, "maxmemory-policy", "allkeys-lru"):
        (warning,) = await warnings_at_start(server.url, caplog)
    assert "WARNING" in warning
    assert "(maxmemory-policy allkeys-lru): tasks could be lost. Set `maxmemory-policy noeviction`" in warning
    async with setting(redis, "appendfsync", "everysec"):
        (said,) = await warnings_at_start(server.url, caplog)
    assert said.startswith("INFO")
    assert "the last second may be lost" in said


async def test_what_may_not_be_checked_is_said_quietly(
    server: Valkey, redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await redis.execute_command(
        "ACL", "SETUSER", "task", "on", f">{SECRET}", "~*", "&*", "+@all", "-@dangerous", "+info"
    )
    url = server.url.replace("//", f"//task:{SECRET}@")
    (said,) = await warnings_at_start(url, caplog)
    assert said.startswith("DEBUG: how often the server writes to its disk could not be checked")
    await redis.execute_command("ACL", "SETUSER", "task", "-info")
    (said,) = await warnings_at_start(url, caplog)
    assert said.startswith("INFO: whether the server keeps tasks over a restart could not be checked")
    assert SECRET not in said


async def test_a_user_who_may_not_write_is_told_what_a_store_needs(server: Valkey, redis: Any) -> None:
    await redis.execute_command("ACL", "SETUSER", "reader", "on", f">{SECRET}", "~*", "+@read", "-@write")
    store = RedisStore(server.url.replace("//", f"//reader:{SECRET}@"))
    with pytest.raises(StoreUnavailable, match="does not let this user do what a task store needs"):
        await store.open()


@pytest.mark.parametrize("password", ["", f"someone:{SECRET}@"])
async def test_a_wrong_password_is_said_to_be_one(server: Valkey, redis: Any, password: str) -> None:
    await redis.execute_command("CONFIG", "SET", "requirepass", "right")
    try:
        with pytest.raises(StoreUnavailable, match="password") as refused:
            await RedisStore(server.url.replace("//", f"//{password}")).open()
        assert SECRET not in f"{refused.value!r} {refused.value.__cause__!r}"
    finally:
        await redis.execute_command("CONFIG", "SET", "requirepass", "")


async def test_a_database_that_is_not_there_is_said_to_be_missing(server: Valkey) -> None:
    with pytest.raises(StoreUnavailable, match="has no database of that number"):
        await RedisStore(server.url.removesuffix("0") + "99999").open()


async def test_a_server_without_memory_takes_no_write_in_part(store: RedisStore, redis: Any) -> None:
    record, other = changed(make_record()), changed(make_record())
    await store.create(record, REQUEST)
    async with setting(redis, "maxmemory", "1mb"):
        for write in (
            lambda: store.create(other, REQUEST),
            lambda: store.save(changed(record, version=2, worker="worker"), expected=1, entries=[STEP]),
        ):
            with pytest.raises(StoreUnavailable, match="has no memory left"):
                await write()
        # What makes room is taken.
        await store.delete(record.id, expected=1)
    assert await store.get(other.id) is None
    assert list((await store.queued("", limit=9)).ids) == []
    assert list((await store.claimed("worker", limit=9)).ids) == []


async def test_a_replica_takes_no_write_and_says_so(server: Valkey) -> None:
    with (
        valkey("--replicaof", "127.0.0.1", str(server.port)) as replica,
        pytest.raises(StoreUnavailable, match="is a replica, which takes no writes"),
    ):
        await RedisStore(replica.url, prefix=uuid4().hex).open()


async def test_keys_of_somebody_else_are_left_alone(server: Valkey, redis: Any) -> None:
    await redis.set("{theirs}:meta", "something")
    with pytest.raises(StoreCorrupt, match=r"has keys that begin with \{theirs\}: and are not a task store's"):
        await RedisStore(server.url, prefix="theirs").open()
    assert await redis.get("{theirs}:meta") == b"something"


async def test_tasks_of_a_newer_layout_are_refused_unless_it_says_that_they_may_be_used(
    server: Valkey, redis: Any
) -> None:
    prefix = uuid4().hex
    await redis.hset(f"{{{prefix}}}:meta", mapping={"layout": 9, "compatible_from": 9})
    with pytest.raises(StoreCorrupt, match="has tasks in layout 9, and this release knows up to 1"):
        await RedisStore(server.url, prefix=prefix).open()
    await redis.hset(f"{{{prefix}}}:meta", mapping={"compatible_from": 1})
    async with opened(RedisStore(server.url, prefix=prefix)) as store:
        assert await store.get("task") is None


async def test_in_a_cluster_the_server_that_has_the_slot_is_found_and_does_it_all() -> None:
    cluster = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
    with valkey(*cluster) as first, valkey(*cluster) as second:
        clients: list[Any] = [Redis.from_url(server.url) for server in (first, second)]
        await clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", str(second.port))
        await clients[0].execute_command("CLUSTER", "ADDSLOTS", *range(16_384))
        with anyio.fail_after(WAIT):
            for client in clients:
                while b"cluster_state:ok" not in await client.execute_command("CLUSTER", "INFO"):
                    continue
        for client in clients:
            await client.aclose()
        # The one that is asked has nothing, and says where to go.
        async with opened(RedisStore(second.url)) as store, opened(RedisStore(first.url)) as peer:
            record = changed(make_record())
            async with store.notifier().listen() as hints:
                await peer.create(record, REQUEST, key="key", handing=Handing(share=Share(owner=1)))
                with anyio.fail_after(WAIT):
                    assert await anext(hints) == Hint(record.id, 1)
            await store.save(changed(record, version=2, worker="worker", attempt=1), expected=1, entries=[STEP])
            assert await peer.workers("") == {"worker": 0}
            before = store.round_trips
            assert len(await store.journal(record.id)) == 1
            await store.get(record.id)
            assert store.round_trips - before <= 3
            await store.delete(record.id, expected=2)
