"""Store suite: what processes look for. `queued`, `due` and `claimed` with their cursors, and `versions`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeAlias

import pytest

from mcp_tasks.core.record import ALWAYS, TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.stores.base import Forgotten, IdPage, Store
from mcp_tasks.testing._store_tests import REQUEST, StoreTests, create_all, ids
from mcp_tasks.testing.clock import NOON
from mcp_tasks.testing.records import make_record

SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)
LATER = NOON + timedelta(hours=1)

Sweep: TypeAlias = Callable[..., Awaitable[IdPage]]
"""One of the verbs that give ids, with all but its cursor and limit."""


async def pages(sweep: Sweep, *, limit: int) -> list[Sequence[str]]:
    """All pages of a sweep."""
    page = await sweep(limit=limit)
    found = [page.ids]
    while page.cursor is not None:
        page = await sweep(limit=limit, cursor=page.cursor)
        found.append(page.ids)
    return found


async def swept(sweep: Sweep, *, limit: int = 100) -> list[str]:
    """All that a sweep gives."""
    return [task_id for page in await pages(sweep, limit=limit) for task_id in page]


def parked(**overrides: Any) -> TaskRecord:
    """A task of the server `demo` that sleeps."""
    return make_record(**{"namespace": "demo", "wake_at": NOON, **overrides})


KINDS = ("queued", "due", "claimed")


def sweep_of(store: Store, kind: str) -> Sweep:
    """The sweep of the server `demo`, or of the worker `worker`."""
    sweeps: dict[str, Sweep] = {
        "queued": partial(store.queued, "demo"),
        "due": partial(store.due, "demo", LATER),
        "claimed": partial(store.claimed, "worker"),
    }
    return sweeps[kind]


def found_by(kind: str, number: int) -> TaskRecord:
    """A task that the sweep gives at this place. Pairs share an instant, so that only their ids tell them apart."""
    instant = NOON + SECOND * (number // 2)
    fields: dict[str, dict[str, Any]] = {
        "queued": {"created_at": instant},
        "due": {"wake_at": instant, "created_at": LATER - SECOND * number},
        "claimed": {"created_at": instant, "worker": "worker"},
    }
    return make_record(id=f"t{number:02}", namespace="demo", **fields[kind])


def taken_from(kind: str, record: TaskRecord) -> TaskRecord:
    """The task one version on, where the sweep does not give it any more."""
    worker = "another" if kind == "claimed" else "worker"
    return replace(record, version=2, worker=worker, attempt=1, wake_at=None)


class SweepTests(StoreTests):
    """What processes look for."""

    async def test_queued_are_those_that_could_run_at_any_time_oldest_first(self, store: Store) -> None:
        await create_all(
            store,
            make_record(id="late", namespace="demo", created_at=NOON + SECOND),
            make_record(id="b", namespace="demo"),
            make_record(id="a", namespace="demo"),
            make_record(id="answered in part", namespace="demo", status=TaskStatus.INPUT_REQUIRED, wake_at=ALWAYS),
            make_record(id="claimed", namespace="demo", worker="worker"),
            make_record(id="parked", namespace="demo", status=TaskStatus.INPUT_REQUIRED),
            make_record(id="asleep", namespace="demo", wake_at=NOON - SECOND),
            make_record(id="ended", namespace="demo", status=TaskStatus.CANCELLED),
        )
        assert await swept(partial(store.queued, "demo")) == ["a", "answered in part", "b", "late"]

    async def test_due_are_parked_tasks_whose_time_has_come_longest_overdue_first(self, store: Store) -> None:
        await create_all(
            store,
            parked(id="soon", wake_at=NOON + MICROSECOND, created_at=NOON - SECOND),
            parked(id="now", wake_at=NOON),
            parked(id="b", wake_at=NOON - SECOND),
            parked(id="a", wake_at=NOON - SECOND, created_at=NOON + SECOND),
            parked(id="asking", wake_at=NOON - SECOND * 2, status=TaskStatus.INPUT_REQUIRED),
            parked(id="before 1970", wake_at=datetime.fromisoformat("1969-12-31T23:59:59+00:00")),
            parked(id="queued", wake_at=None),
            parked(id="woken by an answer", wake_at=ALWAYS, status=TaskStatus.INPUT_REQUIRED),
            parked(id="waits for a person", wake_at=None, status=TaskStatus.INPUT_REQUIRED),
            parked(id="claimed", worker="worker"),
            parked(id="ended", status=TaskStatus.FAILED),
        )
        assert await swept(partial(store.due, "demo", NOON)) == ["before 1970", "asking", "a", "b", "now"]
        assert await swept(partial(store.due, "demo", NOON + MICROSECOND), limit=1) == [
            "before 1970",
            "asking",
            "a",
            "b",
            "now",
            "soon",
        ]

    async def test_claimed_are_the_tasks_of_one_worker_oldest_first(self, store: Store) -> None:
        await create_all(
            store,
            make_record(id="late", created_at=NOON + SECOND, worker="worker"),
            make_record(id="b", worker="worker", namespace="demo"),
            make_record(id="a", worker="worker", status=TaskStatus.INPUT_REQUIRED),
            make_record(id="other", worker="worker 2"),
            make_record(id="free"),
        )
        assert await swept(partial(store.claimed, "worker")) == ["a", "b", "late"]
        assert await swept(partial(store.claimed, "nobody")) == []

    async def test_each_server_finds_its_own_tasks(self, store: Store) -> None:
        for namespace in ("", "demo", "Demo", "demo "):
            await store.create(make_record(id=f"queued of {namespace!r}", namespace=namespace), REQUEST)
            await store.create(parked(id=f"due of {namespace!r}", namespace=namespace), REQUEST)
        for namespace in ("", "demo", "Demo", "demo "):
            assert await swept(partial(store.queued, namespace)) == [f"queued of {namespace!r}"]
            assert await swept(partial(store.due, namespace, NOON)) == [f"due of {namespace!r}"]
        assert await swept(partial(store.queued, "another")) == []

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
    @pytest.mark.parametrize("kind", KINDS)
    async def test_pages_of_a_sweep_hold_every_task_once(self, store: Store, kind: str, limit: int) -> None:
        records = [found_by(kind, number) for number in range(7)]
        await create_all(store, *reversed(records))
        found = await pages(sweep_of(store, kind), limit=limit)
        assert [task_id for page in found for task_id in page] == ids(records)
        assert all(len(page) == limit for page in found[:-1])
        assert 0 < len(found[-1]) <= limit

    @pytest.mark.parametrize("kind", KINDS)
    async def test_tasks_that_come_and_go_between_pages_of_a_sweep_do_not_move_the_others(
        self, store: Store, kind: str
    ) -> None:
        records = [found_by(kind, number) for number in range(8)]
        await create_all(store, *(record for record in records if record.id != "t00"))
        first = await sweep_of(store, kind)(limit=3)
        assert list(first.ids) == ["t01", "t02", "t03"]
        # The task that the cursor names is taken, one before it comes, and one that is still to be given is taken.
        await store.create(records[0], REQUEST)
        for number in (3, 5):
            await store.save(taken_from(kind, records[number]), expected=1)
        second = await sweep_of(store, kind)(limit=2, cursor=first.cursor)
        await store.create(found_by(kind, 8), REQUEST)
        last = await sweep_of(store, kind)(limit=9, cursor=second.cursor)
        assert [*second.ids, *last.ids] == ["t04", "t06", "t07", "t08"]
        assert last.cursor is None

    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_sweep_refuses_a_cursor_of_somebody_else(self, store: Store, kind: str) -> None:
        with pytest.raises(ValueError, match="cursor"):
            await sweep_of(store, kind)(limit=1, cursor="nonsense")

    async def test_a_save_moves_a_task_from_one_sweep_to_the_next(self, store: Store) -> None:
        record = make_record(namespace="demo", retention=SECOND)
        claimed = replace(record, version=2, worker="worker", attempt=1)
        asleep = replace(claimed, version=3, worker=None, wake_at=NOON)
        ended = replace(asleep, version=4, wake_at=None, status=TaskStatus.COMPLETED, finished_at=NOON)

        async def seen() -> list[str]:
            sweeps = {kind: await swept(sweep_of(store, kind)) for kind in KINDS}
            assert all(found in ([], [record.id]) for found in sweeps.values())
            return [kind for kind, found in sweeps.items() if found]

        await store.create(record, REQUEST)
        assert await seen() == ["queued"]
        for changed, kind in ((claimed, "claimed"), (asleep, "due")):
            await store.save(changed, expected=changed.version - 1)
            assert await seen() == [kind]
            assert list(await store.forget_expired(LATER, limit=9)) == []
        await store.save(ended, expected=3)
        assert await seen() == []
        assert list(await store.forget_expired(LATER, limit=9)) == [Forgotten(record.id, 4)]

    async def test_versions_are_those_of_the_tasks_that_are_there(self, store: Store) -> None:
        await create_all(store, make_record(id="one"), make_record(id="forty", version=40), make_record(id="gone"))
        await store.delete("gone", expected=1)
        await store.save(make_record(id="one", version=2), expected=1)
        asked = ["one", "forty", "gone", "never there", "nul\0", "lone \ud800"]
        assert await store.versions(asked) == {"one": 2, "forty": 40}
        assert await store.versions(["one", "one"]) == {"one": 2}
        assert await store.versions(frozenset[str]()) == {}

    async def test_versions_of_very_many_tasks_are_found(self, store: Store) -> None:
        await create_all(store, *(make_record(id=f"t{n}", version=n + 1) for n in range(0, 3_000, 100)))
        found = await store.versions([f"t{n}" for n in range(3_000)])
        assert found == {f"t{n}": n + 1 for n in range(0, 3_000, 100)}
