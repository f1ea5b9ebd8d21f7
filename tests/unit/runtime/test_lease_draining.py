"""A worker that is told to take nothing more, and the note that says so."""

from __future__ import annotations

import anyio
import pytest

from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.model import TaskStatus
from mcp_tasks.runtime import Ending, Run
from mcp_tasks.runtime.lease import NOTE, Draining, draining_workers, set_draining
from mcp_tasks.stores import MemoryStore
from tests.unit.running import LIMIT, launch, make_runtime, ok, running, settle, until_final
from tests.unit.virtual_time import SIMULATED, time_passes

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """No test here waits for the time between two looks."""
    return SIMULATED


async def body(run: Run) -> Ending:
    return ok()


class Noted(MemoryStore):
    """A store whose note can be out of reach, and changed by another between a look and a write."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: list[Exception] = []
        self.written_by_another: bytes | None = None
        self.looks = 0

    async def note(self, namespace: str, name: str) -> bytes | None:
        self.looks += 1
        if self.fails:
            raise self.fails.pop(0)
        return await super().note(namespace, name)

    async def set_note(self, namespace: str, name: str, value: bytes, *, expected: bytes | None) -> bool:
        if self.written_by_another is not None:
            other, self.written_by_another = self.written_by_another, None
            assert await super().set_note(namespace, name, other, expected=expected)
        return await super().set_note(namespace, name, value, expected=expected)


async def opened(*workers: str) -> Noted:
    store = Noted()
    await store.open()
    for worker in workers:
        await store.heartbeat(worker, namespace="")
    return store


@pytest.mark.parametrize("note", [b"{", b"[]", b"7", b"\xff", b""])
async def test_a_damaged_note_drains_nobody_and_is_written_anew(note: bytes) -> None:
    store = await opened("a")
    await store.set_note("", NOTE, note, expected=None)
    assert await draining_workers(store, "") == {}
    await set_draining(store, "", add={"a": "ops"})
    assert await draining_workers(store, "") == {"a": "ops"}


async def test_what_a_newer_release_says_of_a_worker_does_not_hide_its_name() -> None:
    store = await opened("a")
    await store.set_note("", NOTE, b'{"a": {"by": "ops", "until": 7}}', expected=None)
    assert list(await draining_workers(store, "")) == ["a"]


async def test_two_operators_at_once_are_both_heard() -> None:
    store = await opened("a", "b")
    store.written_by_another = b'{"b": "another"}'
    await set_draining(store, "", add={"a": "ops"})
    assert await draining_workers(store, "") == {"a": "ops", "b": "another"}
    await set_draining(store, "", remove=["b"])
    assert await draining_workers(store, "") == {"a": "ops"}


async def test_a_worker_that_drains_takes_nothing_until_it_is_told_to_go_on() -> None:
    async with running(body) as runtime:
        draining = Draining(runtime)
        await draining.look()
        assert not draining.is_on
        await set_draining(runtime.store, "", add={runtime.worker: "ops"})
        for _ in range(2):
            await draining.look()
            assert draining.is_on
        task = await launch(runtime)
        await settle()
        waiting = await runtime.store.get(task.id)
        assert waiting is not None
        assert (waiting.status, waiting.worker) == (TaskStatus.WORKING, None)
        await set_draining(runtime.store, "", remove=[runtime.worker])
        await draining.look()
        assert not draining.is_on
        assert (await until_final(runtime, task)).result == {"value": "ok"}


async def test_a_worker_that_cannot_look_says_so_and_looks_again(caplog: pytest.LogCaptureFixture) -> None:
    store = Noted()
    runtime = make_runtime(body, store=store)
    await store.open()
    store.fails = [StoreUnavailable("the disk is full"), RuntimeError("a fault")]
    async with anyio.create_task_group() as group:
        group.start_soon(Draining(runtime).keep_looking)
        with anyio.fail_after(1_000 * LIMIT * 60):
            while store.looks < 4:
                await time_passes(60)
        group.cancel_scope.cancel()
    # A store that is away is reported by whoever needs it; a fault is not.
    assert [entry.levelname for entry in caplog.records if "to drain could not be looked up" in entry.message] == [
        "ERROR"
    ]
