"""Pages of tasks, for code in the server's own process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anyio.lowlevel import checkpoint

from mcp_tasks.core.record import TaskRecord
from mcp_tasks.core.status import TaskStatus
from mcp_tasks.core.values import check_choice, check_number
from mcp_tasks.errors import InvalidOption, UsageError
from mcp_tasks.protocol.telling import tell_listing
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.server.local_handle import LocalSnapshot, snapshot_of, status_of
from mcp_tasks.server.options import UNSET, Unset
from mcp_tasks.stores.base import EVERYBODY, ChildrenOf, InSession, Whose, owned_by


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskPage:
    """Some tasks of a listing, and where the next ones start (None when there are no more)."""

    tasks: Sequence[LocalSnapshot]
    next_cursor: str | None


async def page_of(
    runtime: TaskRuntime,
    whose: Whose,
    *,
    owner: str | Unset | None = UNSET,
    status: TaskStatus | str | None,
    page_size: int,
    cursor: str | None,
) -> TaskPage:
    """One page of a listing, of one owner's tasks alone if that is said.

    Raises:
        InvalidOption: An argument has a value that it cannot have.
    """
    check_number("page_size", page_size, 1)
    if status is not None:
        check_choice("status", status, [each.value for each in TaskStatus])
    wanted = None if status is None else TaskStatus(status)
    # In the record, an `isError` result is a completed task.
    kept = None if wanted is TaskStatus.FAILED else wanted
    found: list[TaskRecord] = []
    while True:
        try:
            page = await runtime.list(whose, status=kept, cursor=cursor, limit=page_size - len(found))
        except ValueError as exc:
            raise InvalidOption(f"cursor must be the next_cursor of an earlier page, got {cursor!r}") from exc
        found += [
            record
            for record in page.records
            if (wanted is None or status_of(record) is wanted) and (isinstance(owner, Unset) or record.owner == owner)
        ]
        cursor = page.cursor
        if cursor is None or len(found) >= page_size:
            tell_listing(runtime, None, "local", len(found))
            now = runtime.now()
            return TaskPage(tasks=[snapshot_of(record, now) for record in found], next_cursor=cursor)
        # A store that never waits would have the event loop for itself.
        await checkpoint()


def whose_tasks(owner: str | Unset | None, session: str | None, parent: str | None, *, everybody: bool) -> Whose:
    """Whose tasks to list, which must be said in exactly one way.

    Raises:
        UsageError: It is not said, or in more than one way.
        InvalidOption: It is not said with a name.
    """
    for name, given in (("owner", owner), ("session", session), ("parent", parent)):
        if not isinstance(given, str | Unset | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(f"{name} must be a string, got {given!r}")
    said: list[Whose] = []
    if not isinstance(owner, Unset):
        said.append(owned_by(owner))
    if session is not None:
        said.append(InSession(session))
    if parent is not None:
        said.append(ChildrenOf(parent))
    if everybody:
        said.append(EVERYBODY)
    if len(said) != 1:
        raise UsageError(
            "say whose tasks to list, in one way: owner= (None for nobody's), session=, parent=, or everybody=True"
        )
    return said[0]
