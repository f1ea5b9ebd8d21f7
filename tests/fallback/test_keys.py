"""Keys that seal the state of calls: the same in all processes of a server, after restarts, and while they change."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import anyio
import pytest

from harness.cipher import AesCipher
from harness.forking import Forked, forked
from harness.processes import PIPE, kill
from mcp_tasks.errors import StoreCorrupt, StoreUnavailable
from mcp_tasks.fallback.request_state import KEPT_FOR, MOST_KEYS, NOTE, READ_AGAIN, InvalidState, StateKeys
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.sqlite import SqliteStore
from mcp_tasks.testing import FakeClock
from tests.fallback.replicas import NoteStore, Replica

pytestmark = pytest.mark.anyio

MICROSECOND = timedelta(microseconds=1)


async def ring(store: Store, namespace: str = "demo") -> list[str]:
    """The ids of the keys that are kept, newest first."""
    kept = await store.note(namespace, NOTE)
    return [] if kept is None else [key["id"] for key in json.loads(kept)["keys"]]


def key_of(token: str) -> str:
    return token.partition(".")[0]


@asynccontextmanager
async def opened(path: Path, codec: Codec | None = None) -> AsyncGenerator[SqliteStore]:
    store = SqliteStore(path, codec=codec)
    await store.open("demo")
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def children(path: Path, count: int) -> Generator[Sequence[Forked]]:
    """Processes that seal when they get a line."""
    child = partial(forked, "tests.fallback.keys_child", path, stdin=PIPE, stdout=PIPE, text=True)
    with ExitStack() as stack:
        started = [stack.enter_context(child()) for _ in range(count)]
        assert [said(child) for child in started] == ["ready"] * count
        yield started


def tell(child: Forked) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")


def said(child: Forked) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


# One set of keys for all


async def test_what_one_process_seals_another_opens() -> None:
    store = NoteStore()
    one, other = Replica(store), Replica(store)
    for payload in (b"", b"state", bytes(range(256)), b"x" * 100_000):
        assert await other.keys.open(await one.keys.seal(payload)) == payload
        assert await one.keys.open(await other.keys.seal(payload)) == payload
    assert len(await ring(store)) == 1


async def test_the_keys_are_read_once_and_not_for_every_call() -> None:
    store = NoteStore()
    replica = Replica(store)
    for _ in range(20):
        await replica.keys.open(await replica.keys.seal(b"state"))
    assert (store.reads, store.writes) == (1, 1)


async def test_of_many_first_uses_at_once_one_makes_the_key() -> None:
    store = NoteStore()
    replicas = [Replica(store) for _ in range(10)]
    tokens: list[str] = []

    async def seal(keys: StateKeys) -> None:
        tokens.append(await keys.seal(b"state"))

    async with anyio.create_task_group() as group:
        for replica in replicas:
            group.start_soon(seal, replica.keys)
            group.start_soon(seal, replica.keys)
    assert len({key_of(token) for token in tokens}) == 1
    assert len(await ring(store)) == 1


async def test_processes_that_begin_at_the_same_moment_have_the_same_key(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    async with opened(path) as store:
        with children(path, 3) as started:
            for child in started:
                tell(child)
            tokens = [said(child) for child in started]
            numbers = [str(child.pid).encode() for child in started]
        keys = Replica(store).keys
        assert [await keys.open(token) for token in tokens] == numbers
        assert await ring(store) == [key_of(tokens[0])]


async def test_the_keys_of_a_killed_process_stay(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    with children(path, 1) as (child,):
        tell(child)
        token = said(child)
        kill(child)
    async with opened(path) as store:
        keys = Replica(store).keys
        assert await keys.open(token) == str(child.pid).encode()
        assert key_of(await keys.seal(b"next")) == key_of(token)


async def test_servers_that_share_a_store_have_keys_of_their_own() -> None:
    store = MemoryStore()
    mine, theirs = Replica(store), Replica(store, namespace="another")
    token = await mine.keys.seal(b"state")
    await theirs.keys.seal(b"state")
    with pytest.raises(InvalidState):
        await theirs.keys.open(token)


async def test_a_server_that_starts_again_with_another_store_has_its_keys() -> None:
    first, second = Replica(MemoryStore()), Replica(MemoryStore())
    now = first
    keys = StateKeys(lambda: now.runtime)
    token = await keys.seal(b"state")
    now = second
    with pytest.raises(InvalidState):
        await keys.open(token)
    assert await second.keys.open(await keys.seal(b"state")) == b"state"


async def test_with_a_cipher_no_key_is_in_the_file(tmp_path: Path) -> None:
    codec = Codec(AesCipher())
    async with opened(tmp_path / "tasks.db", codec) as store:
        token = await Replica(store).keys.seal(b"state")
        (key,) = json.loads(await store.note("demo", NOTE) or b"")["keys"]
    assert key["secret"].encode() not in (tmp_path / "tasks.db").read_bytes()
    async with opened(tmp_path / "tasks.db", codec) as store:
        assert await Replica(store).keys.open(token) == b"state"


# A new key


async def test_after_a_new_key_what_was_sealed_before_still_opens() -> None:
    store = NoteStore()
    one, other = Replica(store), Replica(store)
    before = await one.keys.seal(b"before")
    await other.keys.open(before)
    await one.keys.rotate()
    after = await one.keys.seal(b"after")
    assert await ring(store) == [key_of(after), key_of(before)]
    assert key_of(after) != key_of(before)
    assert [await one.keys.open(token) for token in (before, after)] == [b"before", b"after"]
    # The other process learns of the key when it meets it, by one look.
    reads = store.reads
    assert [await other.keys.open(token) for token in (before, after, after)] == [b"before", b"after", b"after"]
    assert store.reads == reads + 1
    assert key_of(await other.keys.seal(b"next")) == key_of(after)


async def test_a_process_that_meets_no_new_key_looks_for_one_now_and_then() -> None:
    store = NoteStore()
    one, other = Replica(store), Replica(store)
    before = await other.keys.seal(b"before")
    await one.keys.rotate()
    other.monotonic.advance(READ_AGAIN)
    assert key_of(await other.keys.seal(b"still")) == key_of(before)
    other.monotonic.advance(timedelta(seconds=1))
    assert [key_of(await other.keys.seal(b"new"))] == (await ring(store))[:1]


async def test_the_first_key_may_come_of_a_rotation() -> None:
    store = MemoryStore()
    replica = Replica(store)
    await replica.keys.rotate()
    assert await ring(store) == [key_of(await replica.keys.seal(b"state"))]


async def test_a_key_is_dropped_at_the_rotation_after_nothing_under_it_can_be_valid() -> None:
    store, clock = MemoryStore(), FakeClock()
    replica = Replica(store, clock=clock)
    first = await replica.keys.seal(b"first")
    clock.advance(timedelta(days=400))
    # However old the key is: it was in use until now.
    await replica.keys.rotate()
    second = await replica.keys.seal(b"second")
    clock.advance(KEPT_FOR + READ_AGAIN - MICROSECOND)
    await replica.keys.rotate()
    assert (await ring(store))[1:] == [key_of(second), key_of(first)]
    clock.advance(MICROSECOND)
    await replica.keys.rotate()
    assert key_of(first) not in await ring(store)
    assert key_of(second) in await ring(store)
    for keys in (replica.keys, Replica(store, clock=clock).keys):
        assert await keys.open(second) == b"second"
        with pytest.raises(InvalidState, match="its key is not known"):
            await keys.open(first)


async def test_there_are_never_more_than_some_keys(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    replica = Replica(store)
    tokens: list[str] = []
    for _ in range(MOST_KEYS):
        await replica.keys.rotate()
        tokens.append(await replica.keys.seal(b"state"))
    assert not caplog.records
    assert [await replica.keys.open(token) for token in tokens] == [b"state"] * MOST_KEYS
    await replica.keys.rotate()
    assert [(record.levelno, "rotate less often" in record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, True)
    ]
    assert (await ring(store))[1:] == [key_of(token) for token in reversed(tokens[1:])]


async def test_of_many_rotations_at_once_one_makes_a_key(tmp_path: Path) -> None:
    async with opened(tmp_path / "tasks.db") as store, opened(tmp_path / "tasks.db") as peer:
        replicas = [Replica(each) for each in (store, peer) * 3]
        before = await replicas[0].keys.seal(b"before")
        async with anyio.create_task_group() as group:
            for replica in replicas:
                group.start_soon(replica.keys.rotate)
        kept = await ring(store)
        assert kept[-1] == key_of(before)
        # Those who looked before the first had written made none.
        assert len(kept) < 1 + len(replicas)
        assert {key_of(await replica.keys.seal(b"after")) for replica in replicas} <= set(kept[:-1])
        assert await replicas[-1].keys.open(before) == b"before"


# What is no token of ours


async def made_up(keys: StateKeys) -> list[str]:
    """Tokens that are none, some of them close to one."""
    token = await keys.seal(b"state")
    key_id, _, sealed = token.partition(".")
    another = "0" * len(key_id)
    return [
        *("", ".", "..", "v1.", "\0", "🦆", "\ud800", key_id, f"{key_id}.", f"{key_id}.v1.", f".{sealed}", sealed),
        *(f"{another}.{sealed}", f"{key_id}.{sealed}=", f"{key_id}.{sealed}A", token[:-1], f"{token}.{token}"),
        *(f" {token}", f"{token} ", token.upper(), f"{key_id}.\ud800", f"{key_id}.v1.é", f"{key_id}.v1.{'A' * 10_000}"),
    ]


async def test_what_was_made_up_is_refused_with_one_look_at_the_store_at_most() -> None:
    store = NoteStore()
    keys = Replica(store).keys
    for token in await made_up(keys):
        reads = store.reads
        with pytest.raises(InvalidState):
            await keys.open(token)
        assert store.reads <= reads + 1
    assert store.writes == 1


async def test_a_token_with_any_character_changed_is_refused() -> None:
    keys = Replica(MemoryStore()).keys
    token = await keys.seal(b"state")
    for place, character in enumerate(token):
        other = "A" if character != "A" else "B"
        with pytest.raises(InvalidState):
            await keys.open(token[:place] + other + token[place + 1 :])


async def test_opening_makes_no_key() -> None:
    store = NoteStore()
    keys = Replica(store).keys
    with pytest.raises(InvalidState):
        await keys.open("0123456789abcdef.v1.AAAA")
    assert (store.reads, store.writes) == (1, 0)


async def test_a_token_of_one_key_is_not_opened_under_the_name_of_another() -> None:
    keys = Replica(MemoryStore()).keys
    first = await keys.seal(b"first")
    await keys.rotate()
    second = await keys.seal(b"second")
    with pytest.raises(InvalidState):
        await keys.open(f"{key_of(second)}.{first.partition('.')[2]}")


# A store that fails


async def test_a_store_that_is_away_is_said_to_be() -> None:
    store = NoteStore()
    replica = Replica(store)
    store.is_away = True
    for act in (replica.keys.seal(b"state"), replica.keys.open("0.v1.x"), replica.keys.rotate()):
        with pytest.raises(StoreUnavailable, match="the store is away"):
            await act
    store.is_away = False
    token = await replica.keys.seal(b"state")
    store.is_away = True
    # What is known needs no store.
    assert await replica.keys.open(token) == b"state"


SECRET = "c2VjcmV0"
DAMAGED = (
    b"",
    b"{",
    b"[]",
    b"null",
    b"{}",
    b'{"format":1}',
    b'{"format":1,"keys":[{"id":"a"}]}',
    b'{"format":1,"keys":7}',
    b'{"format":1,"keys":[{"id":"a","made":0,"secret":"%s"}]}' % SECRET.encode(),
    b'{"format":1,"keys":[{"id":"a","made":"x","secret":"%s"}]}' % (SECRET * 4).encode(),
    b'{"format":1,"keys":[]}',
)


@pytest.mark.parametrize("kept", DAMAGED, ids=range(len(DAMAGED)))
async def test_damaged_keys_are_an_error_that_shows_none(kept: bytes) -> None:
    store = MemoryStore()
    await store.set_note("demo", NOTE, kept, expected=None)
    keys = Replica(store).keys
    for act in (keys.seal(b"state"), keys.open("a.v1.x"), keys.rotate()):
        with pytest.raises(
            StoreCorrupt, match=r"the keys for requestState of the server 'demo' .*delete the note"
        ) as no:
            await act
        assert SECRET not in str(no.value)
    assert await store.note("demo", NOTE) == kept


async def test_keys_of_a_newer_release_are_left_alone() -> None:
    store, kept = MemoryStore(), b'{"format":2,"something":"else"}'
    await store.set_note("demo", NOTE, kept, expected=None)
    for act in (Replica(store).keys.seal(b"state"), Replica(store).keys.rotate()):
        with pytest.raises(StoreCorrupt, match="newer release"):
            await act
    assert await store.note("demo", NOTE) == kept
