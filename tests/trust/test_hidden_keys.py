"""What tasks stand under says nothing of a call: not its arguments, nor the key that its author gave it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from harness.databases import Valkey
from harness.postgres_store import new_store_url
from mcp_tasks.encryption import Cipher, Keyring, new_key
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.runtime.launch import NOTE, READ_AGAIN, SURE_AFTER, HiddenKeys
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.encryption import encrypt_store
from mcp_tasks.stores.url import store_from_url
from tests.trust.keyed import LONG_KEY, opened, told

pytestmark = pytest.mark.anyio

PIN = 4_711
AUTHORS_KEY = "the key of ada@example.org, PIN 4711"


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tasks.db"
    if request.param == "postgres":
        return new_store_url(request.getfixturevalue("shared_postgres"))
    server: Valkey = request.getfixturevalue("shared_valkey")
    return server.new_database()


def kept(url: str) -> bytes:
    """Every byte that is kept, also of the keys of children and of tasks that are gone."""
    if url.startswith("sqlite"):
        return b"".join(file.read_bytes() for file in Path(url.removeprefix("sqlite:///")).parent.iterdir())
    if url.startswith("postgres"):
        with psycopg.connect(url) as connection:
            rows = connection.execute(
                "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'mcp_tasks_%'"
            ).fetchall()
            return b"".join(
                bytes(part)
                for (table,) in rows
                for part in connection.cursor().copy(f"COPY {table} TO STDOUT (FORMAT binary)".encode()).__enter__()
            )
    with closing(redis.Redis.from_url(url)) as client:
        found: list[Any] = []
        reads: dict[bytes, Sequence[Any]] = {
            b"hash": ["HGETALL"],
            b"string": ["GET"],
            b"list": ["LRANGE", 0, -1],
            b"zset": ["ZRANGE", 0, -1],
            b"set": ["SMEMBERS"],
        }
        keys: Any = client.keys("*")
        for key in keys:
            kind: Any = client.type(key)
            verb, *places = reads[kind]
            found += [key, client.execute_command(verb, key, *places)]
    return b"".join(part if isinstance(part, bytes) else repr(part).encode() for part in found)


def digests(text: str) -> set[bytes]:
    """What a thief who tries all PINs would look for."""
    return {sha256(text.encode()).hexdigest()[:16].encode(), sha256(text.encode()).digest()[:8]}


async def opened_store(url: str, cipher: Cipher | None) -> Store:
    store = store_from_url(url, cipher)
    await store.open()
    return store


async def make_tasks(url: str, cipher: Cipher | None) -> list[str]:
    """The ids of tasks under keys of every kind: those that a second process is to find."""
    async with opened("sdk", store=store_from_url(url, cipher)) as (scene, caller):

        @scene.server.tool()
        @scene.tasks.task()
        async def parent() -> str:
            child = await scene.tasks.start("refund", {"amount": PIN})
            return str(await child.result())

        found = await ids_of(scene, caller)
        # A tool that the store has a key for while it runs, and a child.
        scene.gate.clear()
        running = told(await caller.call("joined", amount=PIN + 1))
        assert told(await caller.call("joined", amount=PIN + 1)) == running
        scene.gate.set()
        told(await caller.call("parent"))
        await scene.until_idle()
        assert scene.runs == {"pay": 2, "joined": 2, "refund": 1}
    return found


async def ids_of(scene: Any, caller: Any) -> list[str]:
    scene.gate.set()
    own = await scene.tasks.start("pay", {"amount": PIN}, key=AUTHORS_KEY)
    found = [
        told(await caller.call("pay", LONG_KEY, amount=PIN)),
        told(await caller.call("joined", "j" * 22, amount=PIN)),
        own.id,
    ]
    await scene.until_idle()
    return found


@pytest.mark.parametrize("encrypted", [False, True], ids=["turned on", "another key"])
async def test_keys_say_nothing_of_calls_and_stay_the_same_when_encryption_is_turned_on_and_keys_change(
    url: str, encrypted: bool
) -> None:
    old, new = new_key(), new_key()
    cipher = Keyring(old) if encrypted else None
    found = await make_tasks(url, cipher)
    before = await opened_store(url, cipher)
    secret = await before.note("keyed", NOTE)
    await before.close()
    await encrypt_store(url, Keyring([new, old]), watch=0.1)
    assert secret is not None
    assert secret not in kept(url), "it is sealed with the rest"
    guesses = {
        *digests(json.dumps(["joined", {"amount": PIN}], sort_keys=True)),
        *digests(json.dumps(["joined", {"amount": PIN + 1}], sort_keys=True)),
        *digests(f"tools/call refund {json.dumps({'amount': PIN})}"),
        *digests(json.dumps([LONG_KEY], separators=(",", ":"))),
        AUTHORS_KEY.encode(),
    }
    assert [guess for guess in guesses if guess in kept(url)] == []
    async with opened("sdk", store=store_from_url(url, Keyring(new))) as (scene, caller):
        assert await ids_of(scene, caller) == found
        assert not scene.runs


async def test_processes_that_open_an_empty_store_at_the_same_moment_agree(url: str) -> None:
    ring = Keyring(new_key())
    stores = [await opened_store(url, ring) for _ in range(4)]
    keys = [HiddenKeys(store, "keyed") for store in stores for _ in range(3)]
    try:
        first, *others = await asyncio.gather(*(each.hide(AUTHORS_KEY) for each in keys))
        assert set(others) == {first}
        assert re.fullmatch(r"key/[0-9a-f]{64}", first)
        assert await HiddenKeys(stores[0], "keyed").hide(AUTHORS_KEY) == first
        # Servers that share a store do not have each other's.
        assert await HiddenKeys(stores[0], "another").hide(AUTHORS_KEY) != first
    finally:
        for store in stores:
            await store.close()


class NoteStore(MemoryStore):
    """Counts how often notes are read and may be out of reach."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.away: set[str] = set()

    async def note(self, namespace: str, name: str) -> bytes | None:
        self.reads += 1
        if "note" in self.away:
            raise StoreUnavailable("away")
        return await super().note(namespace, name)

    async def set_note(self, namespace: str, name: str, value: bytes, *, expected: bytes | None) -> bool:
        if "set_note" in self.away:
            raise StoreUnavailable("away", may_have_happened=True)
        return await super().set_note(namespace, name, value, expected=expected)


async def test_the_secret_is_read_once_in_minutes_and_an_outage_or_its_loss_does_no_harm() -> None:
    store, now = NoteStore(), 0.0
    keys = HiddenKeys(store, "", monotonic=lambda: now)
    hidden = await keys.hide("a")
    now += SURE_AFTER.total_seconds() + 1
    assert await keys.hide("a") == hidden
    read = store.reads
    assert [await keys.hide("a") for _ in range(5)] == [hidden] * 5
    assert store.reads == read
    now += READ_AGAIN.total_seconds() + 1
    store.away = {"note", "set_note"}
    assert await keys.hide("a") == hidden
    assert store.reads == read + 1
    # A store that lost everything gets the secret of the process that knows it.
    replica = NoteStore()
    store.note, store.set_note = replica.note, replica.set_note
    now += READ_AGAIN.total_seconds() + 1
    assert await keys.hide("a") == hidden
    assert await HiddenKeys(replica, "").hide("a") == hidden


@pytest.mark.parametrize("pause", [0.0, SURE_AFTER.total_seconds() + 1])
async def test_a_secret_that_a_failover_lost_is_not_used_without_being_kept_again(pause: float) -> None:
    """Otherwise a process that takes over makes another, and the calls of this one come to nothing there."""
    now = 0.0
    lost, replica = NoteStore(), NoteStore()
    keys = HiddenKeys(lost, "", monotonic=lambda: now)
    hidden = await keys.hide("a")
    lost.note, lost.set_note = replica.note, replica.set_note
    now += pause
    replica.away = {"note"}
    with pytest.raises(StoreUnavailable):
        await keys.hide("a")
    replica.away = set()
    assert await keys.hide("a") == hidden
    assert await HiddenKeys(replica, "").hide("a") == hidden


@pytest.mark.parametrize("verb", ["note", "set_note"])
async def test_while_the_secret_cannot_be_had_nothing_is_done(verb: str) -> None:
    store = NoteStore()
    store.away = {verb}
    async with opened("sdk", store=store) as (scene, caller):
        error = (await caller.call("pay", LONG_KEY, amount=7)).error
        assert error["data"]["reason"] == "unavailable"
        store.away = set()
        assert await scene.all_tasks() == []
        assert told(await caller.call("pay", LONG_KEY, amount=7))
