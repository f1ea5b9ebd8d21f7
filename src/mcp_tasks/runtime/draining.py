"""Which workers an operator wants to take nothing more, as a note in the store, and the worker that finds itself there.

A worker that drains claims nothing and finishes what it has; then it idles, for as long as the note says so. It goes on
serving clients and keeping house, and its lease goes on. Whoever wants the process gone as well ends it like any other.
Each worker looks at the note in the rhythm of its heartbeat, so that a word takes some seconds to arrive.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from mcp_tasks.errors import StoreError
from mcp_tasks.quiet import get_logger, quietly
from mcp_tasks.runtime.lease import HEARTBEATS_PER_LEASE
from mcp_tasks.stores.base import Store

if TYPE_CHECKING:
    from mcp_tasks.runtime.runtime import TaskRuntime

logger: Final = get_logger(__name__)

NOTE: Final = "draining workers"


async def draining_workers(store: Store, namespace: str) -> Mapping[str, str]:
    """The workers that are to drain, and who said so.

    Raises:
        StoreError: The note cannot be read.
    """
    return _read(await store.note(namespace, NOTE))


async def set_draining(
    store: Store, namespace: str, *, add: Mapping[str, str] | None = None, remove: Collection[str] = ()
) -> None:
    """Have workers drain, named with who says so, or not any more. Those that are gone are forgotten with it.

    Raises:
        StoreError: The note cannot be read or written.
    """
    while True:
        before = await store.note(namespace, NOTE)
        there = await store.workers(namespace)
        wanted = {**_read(before), **(add or {})}
        kept = {worker: by for worker, by in wanted.items() if worker in there and worker not in remove}
        if await store.set_note(namespace, NOTE, json.dumps(kept).encode(), expected=before):
            return


def _read(note: bytes | None) -> dict[str, str]:
    # A release that says more of a worker than who said so is not to stop this one from reading its name.
    with suppress(ValueError):
        value: Any = json.loads(note or b"{}")
        if isinstance(value, dict):
            return {worker: str(by) for worker, by in cast("dict[str, Any]", value).items()}
    return {}


class Draining:
    """Whether this process is to take nothing more, as it was last seen."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self._pause = runtime.settings.lease_duration.total_seconds() / HEARTBEATS_PER_LEASE
        self.is_on: bool = False

    async def keep_looking(self) -> None:
        """Look, and do as it says, for as long as this process runs tools."""
        while True:
            await asyncio.sleep(self._pause)
            try:
                await self.look()
            except StoreError as exc:
                logger.debug("whether this worker is to drain could not be looked up: %s", exc)
            except Exception:
                logger.error("whether this worker is to drain could not be looked up", exc_info=quietly())

    async def look(self) -> None:
        """Look once, and do as it says.

        Raises:
            StoreError: The note cannot be read.
        """
        runtime = self._runtime
        by = (await draining_workers(runtime.store, runtime.namespace)).get(runtime.worker)
        if by is not None:
            await self._drain(by)
        elif self.is_on:
            await self._go_on()

    async def _drain(self, by: str) -> None:
        if not self.is_on:
            self.is_on = True
            logger.warning(
                "this worker drains, as %s asked: it takes nothing more (tasks at work: %d)",
                by,
                len(self._runtime.runs()),
            )
            await self._runtime.engine.drain(timedelta(0))
        # What only waits, and may be started elsewhere, need not wait here.
        await self._runtime.parking.park_all()

    async def _go_on(self) -> None:
        runtime = self._runtime
        logger.warning("this worker takes tasks again")
        self.is_on = False
        tools = await runtime.dispatch.learn_tools()
        await runtime.engine.start(runtime.execute, await runtime.dispatch.served(tools))
        await runtime.janitor.start_waiting()
