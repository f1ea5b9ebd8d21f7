"""Making tasks: written before anybody is told of them, and started at once where there is room."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from mcp_tasks.core.actor import Actor
from mcp_tasks.core.events import RunReleased, RunStarted
from mcp_tasks.core.json_bytes import rough_size
from mcp_tasks.core.pacing import is_expired
from mcp_tasks.core.record import TaskRecord, TaskRequest
from mcp_tasks.engines.base import ReservedSlot, ReservesSlots
from mcp_tasks.errors import KeyTaken, LimitExceeded, OwnerRequired, StoreUnavailable
from mcp_tasks.runtime.patience import until_available
from mcp_tasks.runtime.policy import ToolPolicy
from mcp_tasks.runtime.uncancelled import to_the_end
from mcp_tasks.stores.inspecting import FindsKeys
from mcp_tasks.stores.repeats import new_write_id

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime


def new_task_id() -> str:
    """An id nobody can guess: 160 bits, where SEP-2663 asks for enough that ids cannot be enumerated."""
    return f"task_{secrets.token_urlsafe(20)}"


class Launching:
    """Makes the tasks of one runtime."""

    def __init__(self, runtime: TaskRuntime, new_id: Callable[[], str]) -> None:
        self._runtime = runtime
        self._new_id = new_id
        self._slots = runtime.engine if isinstance(runtime.engine, ReservesSlots) else None

    async def launch(
        self,
        request: TaskRequest,
        *,
        owner: str | None,
        retention: timedelta | None,
        poll_interval: timedelta | None,
        announced: bool,
        key: str | None,
        key_until_end: bool,
        fingerprint: str | None,
        session: str | None,
        parent: str | None,
        task_id: str | None,
    ) -> TaskRecord:
        """A new task, durable on return, that runs or is queued.

        If there is room for it right now, it is written as claimed by this process, which saves a write. A crash before
        the tool began is then a crash of the run: for a tool that may not run twice there is no telling the two apart.
        One that may, and that its author wants to start early, is started before its task is written (`early.py`).

        Args:
            announced: Whether the caller is told of the task in any case. Otherwise its tool may still ask on the
                original call, until `TaskRuntime.announce`.
            key: Under which the task stands. If one stands there already, that one is given, and nothing is made.
            key_until_end: Whether a task that has ended does not count under the key.
            fingerprint: What the call is, as a hash, where the key is one of the client's: it outlives the task, and no
                other call may stand under it.
            task_id: An id of `new_task_id` for the task, if the caller has to know it before there is one.

        Raises:
            OwnerRequired: Nobody owns the task, on a server where every task has to have an owner.
            LimitExceeded: There are as many tasks as may be. Nothing was written, and nothing started.
        """
        runtime = self._runtime
        if not owner and runtime.requires_owner:
            raise OwnerRequired(f"a task of {request.name!r} has to have an owner on this server, and none is named")
        if key is not None:
            key = await runtime.hidden_keys.hide(key)
        try:
            admitted = await until_available(lambda: runtime.quota.admit(owner, inside=parent is not None))
        except LimitExceeded:
            # Who comes for a task that is there already makes none, however many there are.
            standing = None if key is None else await self._standing(key, owner, fingerprint, until_end=key_until_end)
            if standing is None:
                raise
            return standing
        with admitted as admission:
            now = runtime.now()
            policy = await self._policy_of(request)
            treated = policy or ToolPolicy()
            record = TaskRecord(
                id=task_id or self._new_id(),
                owner=owner,
                method=request.method,
                name=request.name,
                created_at=now,
                updated_at=now,
                retention=retention,
                poll_interval=poll_interval,
                announced=announced,
                session=session,
                parent=parent,
                queue=treated.queue,
                priority=treated.priority,
                trace=None if runtime.tracing is None else runtime.tracing.trace_of(request),
                fingerprint=fingerprint,
                namespace=runtime.namespace,
            )
            create = partial(runtime.changes.create, actor=Actor("client", owner), key=key, key_until_end=key_until_end)
            slot = None if policy is None else self._reserve(policy, owner)
            is_early = slot is not None and runtime.early.is_for(record, treated, key=key)
            created = await self._make(record, request, treated, create, slot, is_early=is_early)
            admission.made = created.id == record.id
            if admission.made:
                runtime.quota.grew(owner, rough_size(request.arguments))
        if runtime.tracing is not None and parent is None:
            # What is current in a tool that starts a child is the span of its own run.
            runtime.tracing.touched(created)
        return created

    async def _standing(
        self, key: str, owner: str | None, fingerprint: str | None, *, until_end: bool
    ) -> TaskRecord | None:
        """The task that stands under a key; None if there is none, or the store cannot say."""
        runtime = self._runtime
        if not isinstance(runtime.store, FindsKeys):
            return None
        task_id = await runtime.store.id_under(key, namespace=runtime.namespace, owner=owner)
        found = None if task_id is None else await runtime.store.get(task_id)
        if found is None or is_expired(found, runtime.now()) or (until_end and found.is_final):
            return None
        if found.fingerprint != fingerprint:
            raise KeyTaken
        return found

    async def _make(
        self,
        record: TaskRecord,
        request: TaskRequest,
        policy: ToolPolicy,
        create: Callable[..., Coroutine[Any, Any, TaskRecord]],
        slot: ReservedSlot | None,
        *,
        is_early: bool,
    ) -> TaskRecord:
        runtime = self._runtime
        if slot is not None and not is_early:
            return await self._start_in(slot, record, request, policy, create)
        if slot is not None:
            started = await runtime.early.start(slot, record, request, policy, create)
            if started is not None:
                return started
        handing, write = runtime.dispatch.handing(record), new_write_id()
        created = await until_available(lambda: create(record, request, handing=handing, write=write))
        if created.id == record.id:
            await runtime.dispatch.created(created, handing)
        return created

    async def _policy_of(self, request: TaskRequest) -> ToolPolicy | None:
        """How the tool is treated; None if that could not be looked up."""
        try:
            return await self._runtime.policy(request.method, request.name) or ToolPolicy()
        except Exception:
            # The task is queued. Whoever claims it asks again, and says what is wrong.
            return None

    def _reserve(self, policy: ToolPolicy, owner: str | None) -> ReservedSlot | None:
        runtime = self._runtime
        # Without a lease nothing is claimed; what is only queued may be started by whoever has one. Where there is a
        # limit, a claim of its own keeps it.
        may_run = (
            runtime.runs_tools
            and runtime.lease.is_valid
            and runtime.serves(policy.queue)
            and runtime.dispatch.limits(policy) is None
        )
        return self._slots.reserve(owner) if may_run and self._slots is not None else None

    async def _start_in(
        self,
        slot: ReservedSlot,
        record: TaskRecord,
        request: TaskRequest,
        policy: ToolPolicy,
        create: Callable[..., Coroutine[Any, Any, TaskRecord]],
    ) -> TaskRecord:
        runtime = self._runtime
        started, write = RunStarted(worker=runtime.worker, tool_version=policy.version), new_write_id(run=True)
        created, cancelled, is_unconfirmed = record, None, False

        async def make() -> None:
            nonlocal created, cancelled, is_unconfirmed
            # To its end, however the caller is cancelled: otherwise there may be a task that is ours and does not run.
            making, cancelled = await to_the_end(create(record, request, started, write=write))
            try:
                created = making.result()
            except StoreUnavailable as exc:
                is_unconfirmed = is_unconfirmed or exc.may_have_happened
                if cancelled is not None:
                    raise cancelled from None
                raise

        try:
            with runtime.claims.claiming(record.id):
                await until_available(make)
        except BaseException:
            slot.release()
            if is_unconfirmed:
                runtime.claims.add_unconfirmed(record.id, write)
            raise
        if created.id != record.id or (created.worker, created.attempt) != (runtime.worker, 1):
            slot.release()
        else:
            runtime.claims.add_made(created, request, policy)
            if not slot.start(created.id):
                # The server stops. The tool never began, so the next process may simply start it.
                runtime.claims.forget_made(created.id)
                released = RunReleased(attempt=created.attempt, begun=False)
                # If the store is not available, the caller still gets the task: it was made.
                with suppress(StoreUnavailable):
                    created = await runtime.changes.change(created, released, actor=Actor("worker", runtime.worker))
        if cancelled is not None:
            raise cancelled
        return created
