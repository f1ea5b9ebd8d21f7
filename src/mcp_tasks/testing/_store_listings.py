"""Store suite: `list` and its cursor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import anyio
import pytest

from mcp_tasks.errors import ValueNotStorable, VersionConflict
from mcp_tasks.model.record import ALWAYS, JournalEntry, Outcome, TaskRecord, TaskStatus
from mcp_tasks.stores.base import (
    EVERYBODY,
    LARGEST_NOTE,
    UNOWNED,
    ChildrenOf,
    Forgotten,
    Hint,
    IdPage,
    InSession,
    OwnedBy,
    Store,
    Whose,
)
from mcp_tasks.testing._store_records import REQUEST, WAIT, StoreTests, at_once, create_all, ids
from mcp_tasks.testing.clock import NOON
from mcp_tasks.testing.records import make_record

SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)


async def pages(store: Store, whose: Whose = EVERYBODY, *, limit: int, **options: Any) -> list[list[TaskRecord]]:
    """All pages of a listing of the server `demo`."""
    page = await store.list("demo", whose, now=NOON, limit=limit, **options)
    found = [list(page.records)]
    while page.cursor is not None:
        page = await store.list("demo", whose, now=NOON, limit=limit, cursor=page.cursor, **options)
        found.append(list(page.records))
    return found


def task(**fields: Any) -> TaskRecord:
    """A task of the server `demo`."""
    return make_record(**{"namespace": "demo", **fields})


async def listed(
    store: Store, whose: Whose = EVERYBODY, *, status: TaskStatus | None = None, now: datetime = NOON
) -> list[str]:
    """The ids in a listing of the server `demo`."""
    page = await store.list("demo", whose, now=now, status=status)
    assert page.cursor is None
    return ids(page.records)


class ListingTests(StoreTests):
    async def test_tasks_are_listed_by_creation_and_then_by_id(self, store: Store) -> None:
        later = task(id="a", created_at=NOON + MICROSECOND)
        same = [task(id=name, created_at=NOON) for name in ("b", "B", "é", "☃", "𝄞", "b2")]
        early = task(id="z", created_at=datetime(1969, 12, 31, tzinfo=UTC))
        await create_all(store, later, *same, early)
        # By code point, as Python compares strings: no collation of a language.
        assert await listed(store) == ["z", "B", "b", "b2", "é", "☃", "𝄞", "a"]

    async def test_an_empty_store_has_one_empty_page(self, store: Store) -> None:
        page = await store.list("", EVERYBODY, now=NOON)
        assert (list(page.records), page.cursor) == ([], None)

    async def test_a_listing_says_whose_tasks_and_in_which_status(self, store: Store) -> None:
        failed, working = {"status": TaskStatus.FAILED}, {"status": TaskStatus.WORKING}
        await create_all(
            store,
            task(id="1", owner="alice", **working),
            task(id="2", owner="bob", **failed),
            task(id="3", owner="alice", **failed),
            task(id="4", owner=None, **working),
            task(id="5", owner=None, **failed),
            task(id="6", owner="", **failed),
            task(id="7", owner="None", **working),
        )
        assert await listed(store) == ["1", "2", "3", "4", "5", "6", "7"]
        assert await listed(store, OwnedBy("alice")) == ["1", "3"]
        assert await listed(store, OwnedBy("carol")) == []
        assert await listed(store, UNOWNED) == ["4", "5"]
        assert await listed(store, OwnedBy("")) == ["6"]
        assert await listed(store, status=TaskStatus.FAILED) == ["2", "3", "5", "6"]
        assert await listed(store, OwnedBy("alice"), status=TaskStatus.FAILED) == ["3"]
        assert await listed(store, UNOWNED, status=TaskStatus.WORKING) == ["4"]
        assert await listed(store, OwnedBy("bob"), status=TaskStatus.COMPLETED) == []

    async def test_a_listing_is_of_one_session_or_of_one_parent(self, store: Store) -> None:
        failed = {"status": TaskStatus.FAILED}
        await create_all(
            store,
            task(id="1", session="s1", owner="alice"),
            task(id="2", session="s1", owner=None, **failed),
            task(id="3", session="s2", parent="1"),
            task(id="4", session="", parent="1", **failed),
            task(id="5", session="lone \ud800", parent="lone \ud800"),
            task(id="6"),
            task(id="7", session="s1", finished_at=NOON - SECOND, retention=SECOND, **failed),
            make_record(id="8", namespace="another", session="s1", parent="1"),
        )
        assert await listed(store, InSession("s1")) == ["1", "2"]
        assert await listed(store, InSession("s1"), status=TaskStatus.FAILED) == ["2"]
        assert await listed(store, InSession("")) == ["4"]
        assert await listed(store, InSession("lone \ud800")) == ["5"]
        assert await listed(store, InSession("unknown")) == []
        assert await listed(store, ChildrenOf("1")) == ["3", "4"]
        assert await listed(store, ChildrenOf("1"), status=TaskStatus.WORKING) == ["3"]
        assert await listed(store, ChildrenOf("lone \ud800")) == ["5"]
        assert await listed(store, ChildrenOf("2")) == []

    async def test_a_save_moves_a_task_from_one_session_to_the_next(self, store: Store) -> None:
        record = await store.create(task(id="moving", session=None), REQUEST)
        for version, session in enumerate(("s1", "s2", None, "s1"), 2):
            await store.save(replace(record, version=version, session=session), expected=version - 1)
            for each in ("s1", "s2"):
                assert await listed(store, InSession(each)) == (["moving"] if each == session else [])

    async def test_a_listing_is_of_one_server(self, store: Store) -> None:
        for namespace in ("", "demo", "Demo", "demo "):
            for owner in ("alice", None):
                await store.create(make_record(id=f"{namespace}/{owner}", namespace=namespace, owner=owner), REQUEST)
        assert await listed(store) == ["demo/None", "demo/alice"]
        assert await listed(store, OwnedBy("alice"), status=TaskStatus.WORKING) == ["demo/alice"]
        assert await listed(store, UNOWNED) == ["demo/None"]
        page = await store.list("another", EVERYBODY, now=NOON)
        assert list(page.records) == []

    async def test_a_listing_leaves_out_what_has_expired(self, store: Store) -> None:
        ended = {"status": TaskStatus.COMPLETED, "finished_at": NOON}
        await create_all(
            store,
            task(id="running", created_at=NOON - timedelta(days=999), retention=SECOND),
            task(id="ended", retention=SECOND, **ended),
            task(id="for good", retention=None, **ended),
            task(id="unowned", owner=None, retention=SECOND * 2, **ended),
        )
        assert await listed(store, now=NOON + SECOND - MICROSECOND) == ["running", "ended", "for good", "unowned"]
        assert await listed(store, now=NOON + SECOND) == ["running", "for good", "unowned"]
        assert await listed(store, status=TaskStatus.COMPLETED, now=NOON + SECOND) == ["for good", "unowned"]
        assert await listed(store, OwnedBy("alice"), now=NOON + SECOND) == ["running", "for good"]
        assert await listed(store, UNOWNED, status=TaskStatus.COMPLETED, now=NOON + SECOND * 2) == []

    async def test_a_save_moves_a_task_from_one_listing_to_the_next(self, store: Store) -> None:
        record = await store.create(task(id="moving"), REQUEST)
        for version, status in enumerate((TaskStatus.INPUT_REQUIRED, TaskStatus.FAILED), 2):
            await store.save(replace(record, version=version, status=status), expected=version - 1)
            for each in TaskStatus:
                expected = ["moving"] if each is status else []
                assert await listed(store, status=each) == expected
                assert await listed(store, OwnedBy("alice"), status=each) == expected

    @pytest.mark.parametrize("limit", [1, 2, 3, 10, 11])
    async def test_pages_hold_every_task_once(self, store: Store, limit: int) -> None:
        # Four creations share an instant, so a page may end among tasks that only their ids tell apart.
        records = [task(id=f"t{n:02}", created_at=NOON + SECOND * (n // 4)) for n in range(10)]
        expired = task(id="t04b", status=TaskStatus.FAILED, finished_at=NOON - SECOND, retention=SECOND)
        await create_all(store, *reversed(records), task(id="t99", owner="bob"), expired)
        found = await pages(store, OwnedBy("alice"), limit=limit)
        assert [record for page in found for record in page] == records
        assert all(len(page) == limit for page in found[:-1])
        assert 0 < len(found[-1]) <= limit

    @pytest.mark.parametrize("limit", [1, 2, 5, 6])
    async def test_pages_of_a_session_hold_every_task_of_it_once(self, store: Store, limit: int) -> None:
        records = [task(id=f"t{n}", created_at=NOON + SECOND * (n // 4), session=f"s{n % 2}") for n in range(10)]
        await create_all(store, *reversed(records))
        found = await pages(store, InSession("s1"), limit=limit)
        assert [record for page in found for record in page] == records[1::2]
        assert all(len(page) == limit for page in found[:-1])

    @pytest.mark.parametrize("limit", [1, 2, 3, 10, 11])
    @pytest.mark.parametrize("status", [None, TaskStatus.WORKING], ids=["any status", "one status"])
    async def test_the_newest_come_first_if_asked_for(
        self, store: Store, limit: int, status: TaskStatus | None
    ) -> None:
        records = [task(id=f"t{n:02}", created_at=NOON + SECOND * (n // 4), session="s1") for n in range(10)]
        early = task(id="t10", created_at=datetime(1969, 12, 31, tzinfo=UTC), session="s1")
        expired = task(id="t04b", status=TaskStatus.FAILED, finished_at=NOON - SECOND, retention=SECOND, session="s1")
        await create_all(store, *records, early, expired, task(id="t99", owner="bob"))
        for whose in (OwnedBy("alice"), InSession("s1")):
            found = await pages(store, whose, limit=limit, newest_first=True, status=status)
            assert [record for page in found for record in page] == [*reversed(records), early]
            assert all(len(page) == limit for page in found[:-1])
        everybody = await store.list("demo", EVERYBODY, now=NOON, limit=3, newest_first=True, status=status)
        assert ids(everybody.records) == ["t09", "t08", "t07"]

    async def test_tasks_that_come_and_go_between_pages_do_not_move_the_others(self, store: Store) -> None:
        records = [task(id=f"t{n}", created_at=NOON + SECOND * n) for n in range(6)]
        await create_all(store, *records)
        first = await store.list("demo", EVERYBODY, now=NOON, limit=3)
        # The task that the cursor names goes, one before it comes, and one that is still to be listed changes.
        await store.delete("t2", expected=1)
        await store.create(task(id="t1b", created_at=NOON + SECOND), REQUEST)
        await store.save(replace(records[4], version=2), expected=1)
        rest = await store.list("demo", EVERYBODY, now=NOON, limit=10, cursor=first.cursor)
        assert ids(first.records) + ids(rest.records) == ["t0", "t1", "t2", "t3", "t4", "t5"]

    @pytest.mark.parametrize(
        "cursor", ["", "nonsense", "12", ".", "x.y", "9" * 19 + ".x", "9" * 30 + ".x", "\ud800", "1\0.x"]
    )
    async def test_a_cursor_of_somebody_else_is_refused(self, store: Store, cursor: str) -> None:
        with pytest.raises(ValueError, match="cursor"):
            await store.list("demo", EVERYBODY, now=NOON, cursor=cursor)


# ---- sweeps

LATER = NOON + timedelta(hours=1)

Sweep: TypeAlias = Callable[..., Awaitable[IdPage]]
"""One of the verbs that give ids, with all but its cursor and limit."""


async def sweep_pages(sweep: Sweep, *, limit: int) -> list[Sequence[str]]:
    """All pages of a sweep."""
    page = await sweep(limit=limit)
    found = [page.ids]
    while page.cursor is not None:
        page = await sweep(limit=limit, cursor=page.cursor)
        found.append(page.ids)
    return found


async def swept(sweep: Sweep, *, limit: int = 100) -> list[str]:
    """All that a sweep gives."""
    return [task_id for page in await sweep_pages(sweep, limit=limit) for task_id in page]


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
        found = await sweep_pages(sweep_of(store, kind), limit=limit)
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


# ---- expiry

MINUTE = timedelta(minutes=1)


def ended(*, ago: timedelta = MINUTE, retention: timedelta | None = SECOND, **overrides: Any) -> TaskRecord:
    """A completed task; as it is here, one that has expired."""
    fields: dict[str, Any] = {"status": TaskStatus.COMPLETED, "finished_at": NOON - ago, "retention": retention}
    return make_record(**{**fields, **overrides})


async def forget_all(store: Store, *, limit: int, now: datetime = NOON) -> list[str]:
    """Forget until nothing is left."""
    forgotten: list[str] = []
    while some := await store.forget_expired(now, limit=limit):
        assert len(some) <= limit
        forgotten += [task.task_id for task in some]
    return forgotten


class ExpiryTests(StoreTests):
    async def test_ended_tasks_whose_time_is_over_are_forgotten_longest_overdue_first(self, store: Store) -> None:
        due_now = ended(retention=MINUTE, version=7, namespace="demo")
        overdue = ended()
        others = [
            ended(retention=MINUTE + MICROSECOND),
            ended(retention=None),
            make_record(created_at=NOON - timedelta(days=999), retention=SECOND),
        ]
        await create_all(store, due_now, overdue, *others)
        assert list(await store.forget_expired(NOON - MINUTE, limit=10)) == []
        assert list(await store.forget_expired(NOON - MICROSECOND, limit=10)) == [Forgotten(overdue.id, 1)]
        assert list(await store.forget_expired(NOON, limit=10)) == [Forgotten(due_now.id, 7)]
        assert list(await store.forget_expired(NOON, limit=10)) == []
        assert [await store.get(record.id) for record in (due_now, overdue, *others)] == [None, None, *others]

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
    async def test_slices_of_any_size_come_to_the_same(self, store: Store, limit: int) -> None:
        # Some expire at one instant: those come in the order of their creation, and then by id.
        tasks = [
            ended(id=f"t{number}", ago=MINUTE - SECOND * (number // 3), created_at=NOON + SECOND * (number % 3 // 2))
            for number in range(7)
        ]
        await create_all(store, *reversed(tasks))
        assert await forget_all(store, limit=limit) == ids(tasks)

    async def test_no_limit_is_too_small_or_too_large(self, store: Store) -> None:
        await create_all(store, ended(id="a"))
        assert list(await store.forget_expired(NOON, limit=0)) == []
        assert await store.get("a") is not None
        assert await forget_all(store, limit=1_000_000) == ["a"]

    async def test_all_that_is_kept_beside_a_task_goes_with_it(self, store: Store) -> None:
        record = make_record(id="task", namespace="demo", owner="alice", session="s", parent="kept", retention=SECOND)
        kept = await store.create(make_record(id="kept", namespace="demo", owner="alice"), REQUEST)
        await store.create(record, REQUEST, key="key")
        over = replace(record, version=2, status=TaskStatus.COMPLETED, finished_at=NOON - MINUTE, worker="worker")
        entries = [JournalEntry(kind="step", key="done", value=1)]
        await store.save(over, expected=1, entries=entries, outcome=Outcome(body=b'{"x":1}', meta=b"{}"))
        await store.save(replace(kept, version=2), expected=1, entries=entries)
        assert await forget_all(store, limit=9) == ["task"]
        assert await store.request("task") is None
        assert await store.outcome("task") is None
        assert await store.journal("task") == []
        assert await store.workers("demo") == {}
        assert len(await store.journal("kept")) == 1
        early = NOON - timedelta(days=1)
        assert ids((await store.list("demo", EVERYBODY, now=early)).records) == ["kept"]
        # Neither the id nor the key is taken any more, and nothing of the old task is found under them.
        again = replace(record, parent=None)
        assert await store.create(again, REQUEST, key="key") == again
        assert await store.journal("task") == []

    async def test_the_records_are_given_to_who_wants_them(self, store: Store) -> None:
        first = ended(id="first", owner="alice", namespace="demo", ago=MINUTE * 2)
        second = ended(id="second", version=3, status_message="lone \ud800")
        await create_all(store, second, first)
        forgotten = await store.forget_expired(NOON, limit=9, records=True)
        assert list(forgotten) == [Forgotten("first", 1, first), Forgotten("second", 3, second)]

    async def test_a_task_that_is_kept_for_longer_by_now_stays(self, store: Store) -> None:
        record = await store.create(ended(), REQUEST)
        longer = replace(record, version=2, retention=MINUTE * 5)
        await store.save(longer, expected=1)
        assert await forget_all(store, limit=9) == []
        assert await store.get(record.id) == longer
        assert await forget_all(store, limit=9, now=NOON + MINUTE * 4) == [record.id]

    async def test_tasks_with_much_beside_them_all_go(self, store: Store) -> None:
        tasks = [ended(id=f"t{number}", ago=MINUTE - SECOND * number, version=2) for number in range(6)]
        for task in tasks:
            await store.create(replace(task, version=1, status=TaskStatus.WORKING, finished_at=None), REQUEST)
            await store.save(task, expected=1, outcome=Outcome(body=b'"%s"' % (b"x" * 600_000)))
        assert await forget_all(store, limit=100) == ids(tasks)
        assert [await store.outcome(task.id) for task in tasks] == [None] * 6

    async def test_of_many_at_once_each_is_given_other_tasks(self, store: Store, peer: Store) -> None:
        tasks = [ended(id=f"t{number:02}", ago=MINUTE - SECOND * (number % 7)) for number in range(60)]
        await create_all(store, *tasks)
        given = await at_once(*(partial(forget_all, at, limit=7) for at in (store, peer) * 4))
        given.append(await forget_all(store, limit=7))
        assert sorted(chain(*given)) == sorted(ids(tasks))
        assert await store.versions(ids(tasks)) == {}

    async def test_a_task_is_either_forgotten_or_deleted(self, store: Store) -> None:
        tasks = [ended(id=f"t{number:02}") for number in range(20)]
        await create_all(store, *tasks)

        async def delete(task: TaskRecord) -> list[str]:
            try:
                await store.delete(task.id, expected=1)
            except VersionConflict:
                return []
            return [task.id]

        deletions = (partial(delete, task) for task in reversed(tasks))
        gone = await at_once(partial(forget_all, store, limit=3), *deletions)
        gone.append(await forget_all(store, limit=3))
        assert sorted(chain(*gone)) == sorted(ids(tasks))


# ---- heartbeats


class HeartbeatTests(StoreTests):
    async def test_a_heartbeat_is_a_number_that_grows(self, store: Store) -> None:
        for beats in (1, 2, 3):
            await store.heartbeat("worker", namespace="demo", beats=beats)
            assert await store.workers("demo") == {"worker": beats}
        await store.heartbeat("other ☃", namespace="demo", beats=1)
        assert await store.workers("demo") == {"worker": 3, "other ☃": 1}

    async def test_workers_are_known_to_the_server_they_beat_for(self, store: Store) -> None:
        await store.heartbeat("one", namespace="demo", beats=1)
        await store.heartbeat("two", namespace="another", beats=1)
        assert await store.workers("demo") == {"one": 1}
        assert await store.workers("another") == {"two": 1}
        assert await store.workers("") == {}

    async def test_a_worker_beats_for_the_namespace_it_named_last(self, store: Store) -> None:
        await store.heartbeat("worker", namespace="demo", beats=1)
        await store.heartbeat("worker", namespace="another", beats=2)
        assert await store.workers("demo") == {}
        assert await store.workers("another") == {"worker": 2}

    async def test_a_worker_that_never_beat_is_known_by_its_tasks(self, store: Store) -> None:
        await create_all(
            store,
            make_record(worker="silent", namespace="demo"),
            make_record(worker="silent", namespace="demo"),
            make_record(worker="beating", namespace="demo"),
            make_record(worker="elsewhere", namespace="another"),
            make_record(namespace="demo"),
        )
        await store.heartbeat("beating", namespace="demo", beats=1)
        assert await store.workers("demo") == {"silent": 0, "beating": 1}
        assert await store.workers("another") == {"elsewhere": 0}

    async def test_a_worker_that_beats_for_another_server_is_alive_for_its_tasks_here(self, store: Store) -> None:
        await store.create(make_record(worker="worker", namespace="demo"), REQUEST)
        await store.heartbeat("worker", namespace="another", beats=1)
        assert await store.workers("demo") == {"worker": 1}

    async def test_a_retired_worker_is_known_only_while_it_has_a_task(self, store: Store) -> None:
        record = await store.create(make_record(worker="busy", namespace="demo"), REQUEST)
        for worker in ("busy", "idle"):
            await store.heartbeat(worker, namespace="demo", beats=1)
        for worker in ("busy", "idle", "unknown"):
            await store.retire(worker)
        assert await store.workers("demo") == {"busy": 0}
        await store.save(replace(record, version=2, worker=None), expected=1)
        assert await store.workers("demo") == {}

    async def test_a_count_never_becomes_smaller_and_begins_anew_only_for_a_retired_worker(self, store: Store) -> None:
        # An earlier beat may come late, and a repeated one twice.
        before = 0
        for beats, expected in ((2, 2), (2, 2), (7, 7), (6, 7), (8, 8)):
            assert await store.heartbeat("worker", namespace="demo", beats=beats) == before
            assert await store.workers("demo") == {"worker": expected}
            before = expected
        await store.retire("worker")
        assert await store.heartbeat("worker", namespace="demo", beats=1) == 0
        assert await store.workers("demo") == {"worker": 1}

    async def test_of_beats_at_the_same_time_the_highest_counts(self, store: Store) -> None:
        beat = partial(store.heartbeat, "worker", namespace="demo")
        await at_once(*(partial(beat, beats=beats) for beats in (*range(30, 0, -2), *range(1, 30, 2))))
        assert await store.workers("demo") == {"worker": 30}

    async def test_beats_of_one_process_are_seen_to_grow_by_another(self, store: Store, peer: Store) -> None:
        for beats in (1, 2, 3):
            await peer.heartbeat("worker", namespace="demo", beats=beats)
            assert await store.workers("demo") == {"worker": beats}
        await store.heartbeat("worker", namespace="demo", beats=4)
        assert await peer.workers("demo") == {"worker": 4}
        await store.retire("worker")
        assert await peer.workers("demo") == {}


# ---- notes

VALUES = (b"", b"\0", b"\0\0plain", b"=", b'{"a":1}', b"\xff\xfe", bytes(range(256)), b"x" * LARGEST_NOTE)
STRANGE = ("", " ", "note", "Note", "note ", "né", "nul\0inside", "lone \ud800", "🦆", "'; --", "0", '["a","b"]')


class NoteTests(StoreTests):
    async def test_a_note_that_nobody_set_is_not_there(self, store: Store) -> None:
        assert await store.note("", "note") is None

    @pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
    async def test_a_note_comes_back_as_it_was_set(self, store: Store, value: bytes) -> None:
        assert await store.set_note("", "note", value, expected=None) is True
        assert await store.note("", "note") == value
        assert await store.set_note("", "note", b"next", expected=value) is True
        assert await store.note("", "note") == b"next"

    async def test_a_note_is_set_only_if_it_is_as_expected(self, store: Store) -> None:
        assert await store.set_note("", "note", b"1", expected=b"") is False
        assert await store.note("", "note") is None
        assert await store.set_note("", "note", b"1", expected=None) is True
        for expected in (None, b"", b"2", b"1 ", b"\0"):
            assert await store.set_note("", "note", b"2", expected=expected) is False
        assert await store.note("", "note") == b"1"
        # What is there may be set again.
        assert await store.set_note("", "note", b"1", expected=b"1") is True

    async def test_servers_have_notes_of_their_own_by_exact_names(self, store: Store) -> None:
        places = [(namespace, name) for namespace in STRANGE for name in STRANGE]
        for number, place in enumerate(places):
            assert await store.set_note(*place, b"%d" % number, expected=None) is True
        assert [await store.note(*place) for place in places] == [b"%d" % number for number in range(len(places))]

    async def test_a_note_that_is_too_large_is_refused_and_the_one_there_stays(self, store: Store) -> None:
        await store.set_note("", "note", b"small", expected=None)
        with pytest.raises(ValueNotStorable, match=f"{LARGEST_NOTE:,}"):
            await store.set_note("", "note", b"x" * (LARGEST_NOTE + 1), expected=b"small")
        assert await store.note("", "note") == b"small"

    async def test_of_many_that_set_a_note_at_once_exactly_one_does(self, store: Store, peer: Store) -> None:
        expected: bytes | None = None
        for turn in range(5):
            values = [b"%d %d" % (turn, number) for number in range(10)]
            setters = (partial((store, peer)[n % 2].set_note, "", "note", value) for n, value in enumerate(values))
            did = await at_once(*(partial(setter, expected=expected) for setter in setters))
            won = [value for value, kept in zip(values, did, strict=True) if kept]
            assert [await store.note("", "note"), await peer.note("", "note")] == won * 2
            expected = won[0]

    async def test_notes_and_tasks_do_not_meet(self, store: Store) -> None:
        record = make_record(id="note")
        await store.create(record, REQUEST, key="note")
        await store.set_note("", "note", b"1", expected=None)
        assert (await store.list("", EVERYBODY, now=NOON)).records == [record]
        await store.delete("note", expected=1)
        assert await store.note("", "note") == b"1"
        assert await store.get("note") is None


# ---- hints


async def following(hints: AsyncIterator[Hint]) -> Hint:
    """The next hint, within the time that a hint may take."""
    with anyio.fail_after(WAIT):
        return await anext(hints)


async def hint_of(hints: AsyncIterator[Hint], wanted: Hint) -> None:
    """Return when `wanted` comes; a hint may come twice, and older ones may come before it."""
    while (hint := await following(hints)) != wanted:
        assert (hint.task_id, hint.version <= wanted.version) == (wanted.task_id, True)


class HintTests(StoreTests):
    async def test_a_listener_hears_what_is_published(self, store: Store) -> None:
        notifier = store.notifier()
        async with notifier.listen() as hints:
            await notifier.publish(Hint("a", 1))
            await notifier.publish(Hint("b", 7))
            assert [await following(hints), await following(hints)] == [Hint("a", 1), Hint("b", 7)]

    async def test_a_listener_that_waits_is_woken(self, store: Store) -> None:
        notifier = store.notifier()
        heard: list[Hint] = []

        async def listen(*, task_status: anyio.abc.TaskStatus[None]) -> None:
            async with notifier.listen() as hints:
                task_status.started()
                heard.append(await following(hints))

        async with anyio.create_task_group() as group:
            await group.start(listen)
            await anyio.lowlevel.checkpoint()
            await notifier.publish(Hint("a", 1))
        assert heard == [Hint("a", 1)]

    async def test_every_listener_hears(self, store: Store) -> None:
        async with store.notifier().listen() as first, store.notifier().listen() as second:
            await store.notifier().publish(Hint("a", 1))
            assert await following(first) == await following(second) == Hint("a", 1)

    async def test_a_listener_hears_only_what_comes_after_it(self, store: Store) -> None:
        notifier = store.notifier()
        await notifier.publish(Hint("early", 1))
        async with notifier.listen() as hints:
            await notifier.publish(Hint("late", 1))
            assert await following(hints) == Hint("late", 1)

    async def test_a_listener_that_left_disturbs_nobody(self, store: Store) -> None:
        notifier = store.notifier()
        async with notifier.listen() as hints:
            async with notifier.listen():
                pass
            await notifier.publish(Hint("a", 1))
            assert await following(hints) == Hint("a", 1)
        await notifier.publish(Hint("nobody hears", 1))

    async def test_a_slow_reader_gets_the_newest_hint_of_each_task(self, store: Store) -> None:
        notifier = store.notifier()
        async with notifier.listen() as hints:
            for hint in (Hint("a", 1), Hint("b", 1), Hint("a", 3), Hint("a", 2)):
                await notifier.publish(hint)
            assert sorted([await following(hints), await following(hints)], key=str) == [
                Hint("a", 3),
                Hint("b", 1),
            ]

    async def test_a_wait_that_is_given_up_loses_no_hint(self, store: Store) -> None:
        notifier = store.notifier()
        async with notifier.listen() as hints:
            with anyio.move_on_after(0.01):
                await anext(hints)
            await notifier.publish(Hint("a", 1))
            assert await following(hints) == Hint("a", 1)

    async def test_a_change_in_another_process_is_heard_of(self, store: Store, peer: Store) -> None:
        record = make_record()
        async with store.notifier().listen() as hints:
            await peer.create(record, REQUEST)
            await peer.notifier().publish(Hint(record.id, 1))
            await hint_of(hints, Hint(record.id, 1))
            await peer.save(replace(record, version=2), expected=1)
            await peer.notifier().publish(Hint(record.id, 2))
            await hint_of(hints, Hint(record.id, 2))

    async def test_changes_on_both_sides_are_heard_of(self, store: Store, peer: Store) -> None:
        here, there = make_record(), make_record()
        async with store.notifier().listen() as hints:
            for where, record in ((store, here), (peer, there)):
                await where.create(record, REQUEST)
                await where.notifier().publish(Hint(record.id, 1))
            heard = {await following(hints)}
            while len(heard) < 2:
                heard.add(await following(hints))
            assert heard == {Hint(here.id, 1), Hint(there.id, 1)}


# ---- time


class TimeTests(StoreTests):
    async def test_the_time_is_aware_and_in_utc(self, store: Store) -> None:
        assert (await store.now()).utcoffset() == timedelta(0)

    async def test_the_time_goes_on_and_not_back(self, store: Store) -> None:
        times = [await store.now() for _ in range(20)]
        assert times == sorted(times)
        # It is the time of each read, and not that of opening the store, say.
        while (passed := await store.now() - times[0]) == timedelta(0):
            pass
        assert passed < timedelta(seconds=WAIT)

    async def test_processes_that_share_a_store_share_its_time(self, store: Store, peer: Store) -> None:
        times = [await each.now() for each in (store, peer) * 10]
        assert times == sorted(times)
