"""Encryption that is turned on, keys that change, and stores and ledgers that are opened with the wrong one or none."""

import asyncio
import json
import logging
import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from harness.databases import Valkey
from harness.postgres_store import new_store_url
from mcp_tasks.client import Ledger, TasksClient
from mcp_tasks.encryption import Cipher, Keyring, new_key
from mcp_tasks.errors import EncryptionMismatch, InvalidOption, StoreUnavailable, TaskUnreadable
from mcp_tasks.legacy.hosting_file import HostedFile
from mcp_tasks.model import JournalEntry, Outcome, Progress, TaskRecord, TaskStatus
from mcp_tasks.protocol.shapes import TaskSnapshot
from mcp_tasks.runtime.launch import NOTE, READ_AGAIN, SURE_AFTER, HiddenKeys
from mcp_tasks.stores import MemoryStore, Store
from mcp_tasks.stores.codec import Codec
from mcp_tasks.stores.encryption import encrypt_store
from mcp_tasks.stores.url import store_from_url
from mcp_tasks.testing import make_record, make_request
from mcp_tasks.testing.clock import NOON
from tests.trust import keyed

SECRET = "the-secret-of-the-task"
REQUEST = make_request(arguments={"a": SECRET + "x" * 5_000})
ENTRIES = [
    JournalEntry(kind="answer", key="q", value={"content": SECRET}),
    JournalEntry(kind="step", key=f"charge {SECRET} \udcff", value=SECRET),
]
OUTCOME = Outcome(body=f'{{"text":"{SECRET}"}}'.encode(), meta=f'{{"text":"{SECRET}"}}'.encode())


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tasks.db"
    if request.param == "postgres":
        return new_store_url(request.getfixturevalue("shared_postgres"))
    server: Valkey = request.getfixturevalue("shared_valkey")
    return server.new_database()


async def opened(url: str, cipher: Cipher | None = None) -> Store:
    store = store_from_url(url, cipher)
    await store.open()
    return store


async def fill(url: str, cipher: Cipher | None = None) -> None:
    store = await opened(url, cipher)
    for task_id in ("one", "two"):
        record = make_record(
            id=task_id, namespace="demo", status_message=SECRET, progress=Progress(progress=1, message=SECRET)
        )
        await store.create(record, REQUEST)
        ended = replace(record, version=2, status=TaskStatus.COMPLETED, finished_at=NOON)
        await store.save(ended, expected=1, entries=ENTRIES, outcome=OUTCOME)
    await store.set_note("demo", "note", SECRET.encode(), expected=None)
    await store.close()


async def check(url: str, cipher: Cipher | None) -> None:
    store = await opened(url, cipher)
    for task_id in ("one", "two"):
        record = await store.get(task_id)
        assert record is not None
        assert record.status_message == SECRET
        assert await store.request(task_id) == REQUEST
        assert await store.outcome(task_id) == OUTCOME
        entries = [replace(entry, number=0) for entry in await store.journal(task_id)]
        assert entries == [replace(entry, number=0) for entry in ENTRIES]
    assert await store.note("demo", "note") == SECRET.encode()
    await store.close()


def kept(url: str) -> bytes:
    if url.startswith("sqlite"):
        return b"".join(file.read_bytes() for file in Path(url.removeprefix("sqlite:///")).parent.iterdir())
    found = b""
    if url.startswith("postgres"):
        with psycopg.connect(url) as connection:
            tables = connection.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'mcp_tasks_%'").fetchall()
            for (table,) in tables:
                with connection.cursor().copy(f"COPY {table} TO STDOUT (FORMAT binary)".encode()) as rows:
                    found += b"".join(bytes(part) for part in rows)
        return found
    reads: dict[bytes, Sequence[Any]] = {
        b"hash": ["HGETALL"],
        b"string": ["GET"],
        b"list": ["LRANGE", 0, -1],
        b"zset": ["ZRANGE", 0, -1],
        b"set": ["SMEMBERS"],
    }
    client: Any = redis.Redis.from_url(url)
    with closing(client):
        for key in client.keys("*"):
            verb, *places = reads[client.type(key)]
            value = client.execute_command(verb, key, *places)
            found += key + (value if isinstance(value, bytes) else repr(value).encode())
    return found


async def test_encrypting_a_store_hides_and_keeps_all_its_data(url: str) -> None:
    await fill(url)
    assert SECRET.encode() in kept(url)
    ring = Keyring(new_key())
    with pytest.raises(EncryptionMismatch, match=r"has tasks that are not encrypted.*mcp-tasks encrypt --store URL"):
        await opened(url, ring)
    await check(url, None)
    done = await encrypt_store(url, ring, watch=0.1)
    assert (done.changed, done.plain, done.unreadable) == (13, 13, 0)
    assert SECRET.encode() not in kept(url)
    await check(url, ring)
    again = await encrypt_store(url, ring, watch=0.1)
    assert (again.changed, again.kept) == (0, 13)


async def test_a_part_of_a_task_is_not_taken_for_another_part_of_it(tmp_path: Path) -> None:
    # As an attacker can move them who writes to the store without a key.
    url, ring = f"sqlite:///{tmp_path}/tasks.db", Keyring(new_key())
    await fill(url, ring)
    with closing(sqlite3.connect(tmp_path / "tasks.db", isolation_level=None)) as connection:
        # The body is put in the place of the row, the row in that of the request, and the request in that of the body.
        parts = {"tasks": ("key", "state"), "outcomes": ("task", "body"), "requests": ("task", "request")}
        rows = {
            table: connection.execute(f"SELECT {part}, {key} FROM {table}").fetchall()
            for table, (key, part) in parts.items()
        }
        for (table, (key, part)), moved in zip(parts.items(), [*list(rows.values())[1:], rows["tasks"]], strict=True):
            connection.executemany(f"UPDATE {table} SET {part} = ? WHERE {key} = ?", moved)
        connection.execute("UPDATE journal SET kind = 'step' WHERE kind = 'answer'")
    store = await opened(url, ring)
    for read in (store.get, store.request, store.outcome, store.journal):
        with pytest.raises(TaskUnreadable, match="it was changed, or was encrypted for something else"):
            await read("one")
    await store.close()


async def test_no_key_and_a_wrong_key_are_refused_at_the_start(url: str) -> None:
    ring = Keyring(new_key())
    await (await opened(url, ring)).close()
    with pytest.raises(EncryptionMismatch, match=r"is encrypted, and there is no key. Set MCP_TASKS_KEYS"):
        await opened(url)
    with pytest.raises(EncryptionMismatch, match=f"it needs the key {ring.key_ids[0]}"):
        await opened(url, Keyring(new_key()))
    with pytest.raises(EncryptionMismatch, match="it needs the key"):
        await encrypt_store(url, Keyring(new_key()), watch=0.1)
    await fill(url, ring)
    assert SECRET.encode() not in kept(url)
    await check(url, ring)


async def test_a_key_is_changed(url: str) -> None:
    old, new = new_key(), new_key()
    await fill(url, Keyring(old))
    await check(url, Keyring([new, old]))
    with pytest.raises(
        EncryptionMismatch, match=r"not there \(it needs the key \w+, and there is \w+\)\. Give it that key as well"
    ):
        await opened(url, Keyring(new))
    done = await encrypt_store(url, Keyring([new, old]), watch=0.1)
    assert (done.changed, done.plain) == (13, 0)
    await check(url, Keyring(new))


async def test_what_was_interrupted_lets_nobody_in_until_it_is_done(url: str) -> None:
    await fill(url)
    ring = Keyring(new_key())

    class Interrupted(Exception):
        pass

    class Half(Keyring):
        left = 4

        def encrypt(self, bound_to: str, data: bytes) -> bytes:
            self.left -= 1
            if not self.left:
                raise Interrupted
            return ring.encrypt(bound_to, data)

    with pytest.raises(Interrupted):
        await encrypt_store(url, Half(new_key()), watch=0.1)
    for cipher in (None, ring):
        with pytest.raises(EncryptionMismatch, match=r"being encrypted|there is no key"):
            await opened(url, cipher)
    done = await encrypt_store(url, ring, watch=0.1)
    assert done.unreadable == 0
    assert SECRET.encode() not in kept(url)
    await check(url, ring)


async def test_a_task_under_a_key_that_was_dropped_is_one_bad_task(tmp_path: Path) -> None:
    url, old, new = f"sqlite:///{tmp_path}/tasks.db", new_key(), new_key()
    await fill(url, Keyring(old))
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as connection:
        ((state,),) = connection.execute("SELECT state FROM tasks WHERE id = 'one'").fetchall()
    await encrypt_store(url, Keyring([new, old]))
    with closing(sqlite3.connect(tmp_path / "tasks.db", isolation_level=None)) as connection:
        connection.execute("UPDATE tasks SET state = ? WHERE id = 'one'", (state,))
    store = await opened(url, Keyring(new))
    with pytest.raises(
        TaskUnreadable, match=f"its row cannot be decrypted: it needs the key {Keyring(old).key_ids[0]}"
    ):
        await store.get("one")
    assert await store.get("two") is not None
    await store.close()
    done = await encrypt_store(url, Keyring(new))
    assert done.unreadable == 1


async def test_a_store_that_is_in_use_is_not_turned_into_an_encrypted_one(url: str) -> None:
    await fill(url)
    store = await opened(url)

    async def live() -> None:
        for beats in count(2):
            await store.heartbeat("worker", namespace="demo", beats=beats)
            await asyncio.sleep(0.05)  # sleep: a heartbeat is sent now and then

    living = asyncio.create_task(live())
    try:
        await store.heartbeat("worker", namespace="demo", beats=1)
        with pytest.raises(StoreUnavailable, match=r"is in use. Stop the servers"):
            await encrypt_store(url, Keyring(new_key()), watch=0.5)
    finally:
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
    await store.close()
    await check(url, None)


# A file that is in use is not encrypted at all.
@pytest.mark.parametrize("url", ["postgres", "redis"], indirect=True)
@pytest.mark.parametrize("is_empty", [False, True], ids=["filled", "empty"])
async def test_who_opened_it_plain_writes_nothing_plain_any_more(url: str, is_empty: bool) -> None:
    """A server that only serves does not beat, so nobody sees that it is there."""
    if not is_empty:
        await fill(url)
    store, ring = await opened(url), Keyring(new_key())
    if is_empty:
        await (await opened(url, ring)).close()
    else:
        await encrypt_store(url, ring, watch=0.1)
    for write in (
        store.create(make_record(id="three", namespace="demo"), REQUEST),
        store.set_note("demo", "other", SECRET.encode(), expected=None),
    ):
        with pytest.raises(EncryptionMismatch, match="has been encrypted since this process opened it") as refused:
            await write
        assert SECRET not in str(refused.value)
    await store.close()
    assert SECRET.encode() not in kept(url)


class Garbled(Codec):
    def encode_state(self, record: TaskRecord) -> bytes:
        return super().encode_state(record)[:-5]


async def test_whose_a_task_is_is_known_before_anything_of_it_is_read(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = await opened(url)
    owners = ("ada", "", "=", "\\-", "nul\0", "\ud800", '["app","https://issuer.example","ada"]', None)
    for number, owner in enumerate(owners):
        await store.create(make_record(id=f"task-{number}", namespace="demo", owner=owner), REQUEST)
        found = [await store.get_owned(f"task-{number}", other) is not None for other in owners]
        assert found == [other == owner for other in owners]
    assert await store.get_owned("task_of_nobody \0", "ada") is None
    # Of what cannot be read only the owner hears.
    of_this_kind: Any = type(store)
    path = Path(url.removeprefix("sqlite:///"))
    garbling: Store = of_this_kind(path if url.startswith("sqlite") else url, codec=Garbled())
    await garbling.open()
    await garbling.create(make_record(id="garbled", namespace="demo", owner="ada"), REQUEST)
    await garbling.close()
    with caplog.at_level(logging.DEBUG, "mcp_tasks"):
        assert await store.get_owned("garbled", "bob") is await store.get_owned("garbled", None) is None
    assert caplog.records == []
    with pytest.raises(TaskUnreadable):
        await store.get_owned("garbled", "ada")
    await store.close()


# What tasks stand under says nothing of a call: not its arguments, nor the key that its author gave it

PIN = 4_711
AUTHORS_KEY = "the key of ada@example.org, PIN 4711"


def digests(text: str) -> set[bytes]:
    """What a thief who tries all PINs would look for."""
    return {sha256(text.encode()).hexdigest()[:16].encode(), sha256(text.encode()).digest()[:8]}


async def make_tasks(url: str, cipher: Cipher | None) -> list[str]:
    """The ids of tasks under keys of every kind: those that a second process is to find."""
    async with keyed.opened("sdk", store=store_from_url(url, cipher)) as (scene, caller):

        @scene.server.tool()
        @scene.tasks.task()
        async def parent() -> str:
            child = await scene.tasks.start("refund", {"amount": PIN})
            return str(await child.result())

        found = await ids_of(scene, caller)
        # A tool that the store has a key for while it runs, and a child.
        scene.gate.clear()
        running = keyed.told(await caller.call("joined", amount=PIN + 1))
        assert keyed.told(await caller.call("joined", amount=PIN + 1)) == running
        scene.gate.set()
        keyed.told(await caller.call("parent"))
        await scene.until_idle()
        assert scene.runs == {"pay": 2, "joined": 2, "refund": 1}
    return found


async def ids_of(scene: Any, caller: Any) -> list[str]:
    scene.gate.set()
    own = await scene.tasks.start("pay", {"amount": PIN}, key=AUTHORS_KEY)
    found = [
        keyed.told(await caller.call("pay", keyed.LONG_KEY, amount=PIN)),
        keyed.told(await caller.call("joined", "j" * 22, amount=PIN)),
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
    before = await opened(url, cipher)
    secret = await before.note("keyed", NOTE)
    await before.close()
    await encrypt_store(url, Keyring([new, old]), watch=0.1)
    assert secret is not None
    assert secret not in kept(url), "it is sealed with the rest"
    guesses = {
        *digests(json.dumps(["joined", {"amount": PIN}], sort_keys=True)),
        *digests(json.dumps(["joined", {"amount": PIN + 1}], sort_keys=True)),
        *digests(f"tools/call refund {json.dumps({'amount': PIN})}"),
        *digests(json.dumps([keyed.LONG_KEY], separators=(",", ":"))),
        AUTHORS_KEY.encode(),
    }
    assert [guess for guess in guesses if guess in kept(url)] == []
    async with keyed.opened("sdk", store=store_from_url(url, Keyring(new))) as (scene, caller):
        assert await ids_of(scene, caller) == found
        assert not scene.runs


async def test_processes_that_open_an_empty_store_at_the_same_moment_agree(url: str) -> None:
    ring = Keyring(new_key())
    stores = [await opened(url, ring) for _ in range(4)]
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
    """A store whose notes may be out of reach, or those of a replica."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.away: set[str] = set()
        self.replica: MemoryStore | None = None

    async def note(self, namespace: str, name: str) -> bytes | None:
        self.reads += 1
        if "note" in self.away:
            raise StoreUnavailable("away")
        return await (super() if self.replica is None else self.replica).note(namespace, name)

    async def set_note(self, namespace: str, name: str, value: bytes, *, expected: bytes | None) -> bool:
        if "set_note" in self.away:
            raise StoreUnavailable("away", may_have_happened=True)
        return await (super() if self.replica is None else self.replica).set_note(
            namespace, name, value, expected=expected
        )


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
    store.replica, store.away = MemoryStore(), set()
    now += READ_AGAIN.total_seconds() + 1
    assert await keys.hide("a") == hidden
    assert await HiddenKeys(store.replica, "").hide("a") == hidden


@pytest.mark.parametrize("pause", [0.0, SURE_AFTER.total_seconds() + 1])
async def test_a_secret_that_a_failover_lost_is_not_used_without_being_kept_again(pause: float) -> None:
    """Otherwise a process that takes over makes another, and the calls of this one come to nothing there."""
    store, now = NoteStore(), 0.0
    keys = HiddenKeys(store, "", monotonic=lambda: now)
    hidden = await keys.hide("a")
    store.replica, store.away = MemoryStore(), {"note"}
    now += pause
    with pytest.raises(StoreUnavailable):
        await keys.hide("a")
    store.away = set()
    assert await keys.hide("a") == hidden
    assert await HiddenKeys(store.replica, "").hide("a") == hidden


@pytest.mark.parametrize("verb", ["note", "set_note"])
async def test_while_the_secret_cannot_be_had_nothing_is_done(verb: str) -> None:
    store = NoteStore()
    store.away = {verb}
    async with keyed.opened("sdk", store=store) as (scene, caller):
        error = (await caller.call("pay", keyed.LONG_KEY, amount=7)).error
        assert error["data"]["reason"] == "unavailable"
        store.away = set()
        assert await scene.all_tasks() == []
        assert keyed.told(await caller.call("pay", keyed.LONG_KEY, amount=7))


# What a client keeps: the ledger, and the file of hosted tasks

QUESTION = {"method": "elicitation/create", "params": {"message": SECRET}}
ANSWER = {"action": "accept", "content": {"pin": SECRET}}


def seen(status: TaskStatus) -> TaskSnapshot:
    return TaskSnapshot(
        id="task \udcff",
        status=status,
        created_at=NOON,
        updated_at=NOON,
        message=SECRET,
        result={"text": SECRET} if status is TaskStatus.COMPLETED else None,
    )


def fill_ledger(path: Path, cipher: Cipher | None) -> None:
    with closing(Ledger(path, keep_results=True, cipher=cipher)) as ledger:
        ledger.add("task \udcff", server="s", tool="render")
        ledger.saw("s", seen(TaskStatus.COMPLETED))
        ledger.record_answer("s", "task \udcff", "q", ANSWER, question=QUESTION)


def check_ledger(path: Path, cipher: Cipher | None) -> None:
    with closing(Ledger(path, keep_results=True, cipher=cipher)) as ledger:
        (entry,) = ledger.entries()
        assert (entry.message, entry.result) == (SECRET, {"text": SECRET})
        assert ledger.recorded_answer("s", "task \udcff", "q", question=QUESTION) == ANSWER
        assert ledger.recorded_answer("s", "task \udcff", "q", question={"method": "other"}) is None
        assert ledger.answers("s", "task \udcff") == {"q": (ANSWER, False)}


RECORD = TaskRecord(
    id="hosted",
    owner="s",
    name="elicitation/create",
    method="elicitation/create",
    created_at=NOON,
    updated_at=NOON,
    status_message=SECRET,
)


def fill_hosted(path: Path, cipher: Cipher | None) -> None:
    with closing(HostedFile(path, cipher)) as file:
        file.add(RECORD, {"message": SECRET})
        file.save(RECORD, {"content": SECRET})


def check_hosted(path: Path, cipher: Cipher | None) -> None:
    with closing(HostedFile(path, cipher)) as file:
        record = file.get("s", "hosted")
        assert record is not None
        assert record.status_message == SECRET
        assert (file.request("hosted"), file.outcome("hosted")) == ({"message": SECRET}, {"content": SECRET})


Act = Callable[[Path, Cipher | None], None]
BOTH = pytest.mark.parametrize(("fill", "check"), [(fill_ledger, check_ledger), (fill_hosted, check_hosted)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger" / "kept.db"


def is_found(path: Path) -> bool:
    return any(SECRET.encode() in file.read_bytes() for file in path.parent.iterdir())


@BOTH
def test_nothing_is_readable_without_the_key_which_is_changed_when_the_file_is_opened(
    fill: Act, check: Act, path: Path
) -> None:
    old, new = new_key(), new_key()
    fill(path, Keyring(old))
    assert not is_found(path)
    with pytest.raises(EncryptionMismatch, match="is encrypted, and there is no key"):
        check(path, None)
    with pytest.raises(EncryptionMismatch, match=f"with a key that is not there .*{Keyring(old).key_ids[0]}"):
        check(path, Keyring(new))
    check(path, Keyring([new, old]))
    check(path, Keyring(new))
    with pytest.raises(EncryptionMismatch, match="it needs the key"):
        check(path, Keyring(old))


@BOTH
def test_turned_on_nothing_readable_is_left_before_it_is_said_to_be(fill: Act, check: Act, path: Path) -> None:
    clean: list[bool] = []

    class Looking(Keyring):
        def encrypt(self, bound_to: str, data: bytes) -> bytes:
            if (bound_to, data) == ("ledger:mark", b"on"):
                clean.append(not is_found(path))
            return super().encrypt(bound_to, data)

    fill(path, None)
    assert is_found(path)
    ring = Looking(new_key())
    with (
        closing(Ledger(path) if fill is fill_ledger else HostedFile(path)),
        pytest.raises(StoreUnavailable, match="another process has it open"),
    ):
        check(path, ring)
    check(path, None)
    check(path, ring)
    assert (clean, is_found(path)) == ([True], False)
    check(path, ring)


def test_a_client_gives_its_cipher_to_the_ledger_that_a_path_names(path: Path) -> None:
    ring = Keyring(new_key())
    client = TasksClient(ledger=path, cipher=ring)
    assert client.ledger is not None
    client.ledger.close()
    with pytest.raises(EncryptionMismatch):
        TasksClient(ledger=path)
    with pytest.raises(InvalidOption, match=r"Ledger\(path, cipher=...\)"):
        TasksClient(cipher=ring)
