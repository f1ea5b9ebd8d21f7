"""Tasks for an operator, by what they are: as much by the indexes of the store as can be, the rest by looking at them.

Only so many are looked at for one page, whatever is asked for, and a page says how to go on.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.errors import TaskUnreadable
from mcp_tasks.stores.base import EVERYBODY, UNOWNED, InSession, OwnedBy, Page, Store, Whose

MOST_LOOKED_AT: Final = 10_000
"""Tasks that one page is chosen from: where few fit, it is short."""

LOOKED_AT_ONCE: Final = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Which tasks to list; None for any.

    Attributes:
        owner: Of this owner; an empty one for tasks that nobody owns.
        before: Made before this instant.
        worker: Claimed by this worker now.
        errors: Only those that failed, or whose tool ended with an error.
    """

    status: TaskStatus | None = None
    tool: str | None = None
    owner: str | None = None
    session: str | None = None
    queue: str | None = None
    worker: str | None = None
    before: datetime | None = None
    errors: bool = False

    def fits(self, record: TaskRecord) -> bool:
        """Whether the task is one of them."""
        pairs = (
            (self.status, record.status),
            (self.tool, record.name),
            (self.owner, record.owner or ""),
            (self.session, record.session),
            (self.queue, record.queue),
            (self.worker, record.worker),
        )
        is_error = record.is_error or record.status is TaskStatus.FAILED
        return (
            all(wanted is None or wanted == found for wanted, found in pairs)
            and (self.before is None or record.created_at < self.before)
            and (is_error or not self.errors)
        )

    @property
    def whose(self) -> Whose:
        """The narrowest listing that has them all."""
        if self.session is not None:
            return InSession(self.session)
        if self.owner is not None:
            return OwnedBy(self.owner) if self.owner else UNOWNED
        return EVERYBODY


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Some of the tasks that were asked for, and how to come to the next ones (None when there are no more)."""

    records: Sequence[TaskRecord]
    cursor: str | None


async def listed(
    store: Store, namespaces: Sequence[str], wanted: Wanted, *, now: datetime, cursor: str | None, limit: int
) -> Found:
    """Tasks of these namespaces, one after the other in their order, each in the order of creation.

    Raises:
        ValueError: The cursor is not one of ours.
    """
    listing = _Listing(store, wanted, now)
    records: list[TaskRecord] = []
    start, within = ("", None) if cursor is None else _read_cursor(cursor)
    looks = MOST_LOOKED_AT // LOOKED_AT_ONCE
    for namespace in sorted(name for name in namespaces if name >= start):
        place = within if namespace == start else None
        while True:
            if looks <= 0 or len(records) >= limit:
                return Found(records=records, cursor=_cursor(namespace, place))
            looks -= 1
            page = await listing.page(namespace, place, limit - len(records))
            records += [record for record in page.records if wanted.fits(record)]
            place = page.cursor
            if place is None or listing.is_past(page):
                break
    return Found(records=records, cursor=None)


class _Listing:
    """The pages that a store has, as far as its indexes go by what is wanted."""

    def __init__(self, store: Store, wanted: Wanted, now: datetime) -> None:
        self._store = store
        self._wanted = wanted
        self._now = now

    async def page(self, namespace: str, cursor: str | None, most: int) -> Page:
        """The next page; of those on it, at most so many fit."""
        page = await self._page(namespace, cursor, LOOKED_AT_ONCE)
        fits = [place for place, record in enumerate(page.records, 1) if self._wanted.fits(record)]
        # The next page has to begin behind the last that is shown, and only the store can say where that is.
        return page if len(fits) <= most else await self._page(namespace, cursor, fits[most - 1])

    def is_past(self, page: Page) -> bool:
        """Whether all that comes behind a page is too young."""
        before, records = self._wanted.before, page.records
        return before is not None and bool(records) and records[-1].created_at >= before

    async def _page(self, namespace: str, cursor: str | None, limit: int) -> Page:
        store, wanted = self._store, self._wanted
        if wanted.worker is None:
            return await store.list(
                namespace, wanted.whose, now=self._now, status=wanted.status, cursor=cursor, limit=limit
            )
        ids = await store.claimed(wanted.worker, cursor=cursor, limit=limit)
        records: list[TaskRecord] = []
        for task_id in ids.ids:
            with suppress(TaskUnreadable):
                record = await store.get(task_id)
                if record is not None and record.namespace == namespace:
                    records.append(record)
        return Page(records=records, cursor=ids.cursor)


def _cursor(namespace: str, within: str | None) -> str:
    return urlsafe_b64encode(json.dumps([namespace, within]).encode()).decode().rstrip("=")


def _read_cursor(cursor: str) -> tuple[str, str | None]:
    try:
        value: Any = json.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        namespace, within = cast("list[Any]", value)
    except (ValueError, TypeError) as exc:
        raise ValueError("it is not a cursor of this listing") from exc
    if not isinstance(namespace, str) or not isinstance(within, str | None):
        raise ValueError("it is not a cursor of this listing")
    return namespace, within
