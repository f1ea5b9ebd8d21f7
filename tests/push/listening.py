"""Listen streams read by hand: every frame is looked at, and none is skipped unseen."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from harness.http import HttpWire
from harness.rpc import EVERYTHING, PATIENCE, request
from harness.schema import check_notification, check_task_notification

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
TASKS = "notifications/tasks"
TOOLS_CHANGED = "notifications/tools/list_changed"


def listen(
    task_ids: Any = ...,
    *,
    capabilities: Mapping[str, Any] = EVERYTHING,
    meta: Mapping[str, Any] | None = None,
    **also: Any,
) -> dict[str, Any]:
    """A `subscriptions/listen` request; without ids it names no `taskIds` at all."""
    wanted = {**also} if task_ids is ... else {**also, "taskIds": task_ids}
    return request("subscriptions/listen", {"notifications": wanted}, capabilities=capabilities, meta=meta)


class Stream:
    def __init__(self, request_id: Any, frames: AsyncIterator[dict[str, Any]]) -> None:
        self.id = request_id
        self._frames = frames

    async def frame(self) -> dict[str, Any]:
        with anyio.fail_after(PATIENCE):
            frame = await anext(self._frames)
        if "method" in frame:
            assert frame["params"]["_meta"][SUBSCRIPTION] == self.id, frame
        return frame

    async def acknowledged(self) -> dict[str, Any]:
        frame = await self.frame()
        assert frame["method"] == ACKNOWLEDGED, frame
        check_notification("SubscriptionsAcknowledgedNotification", frame)
        return frame["params"]["notifications"]

    async def task(self) -> dict[str, Any]:
        frame = await self.frame()
        assert frame["method"] == TASKS, frame
        check_task_notification(frame)
        return shown(frame["params"])

    async def until(self, *statuses: str) -> list[dict[str, Any]]:
        states = [await self.task()]
        while states[-1]["status"] not in statuses:
            states.append(await self.task())
        return states

    async def rest(self) -> list[dict[str, Any]]:
        """Everything that still comes until the server ends the stream."""
        with anyio.fail_after(PATIENCE):
            return [frame async for frame in self._frames]


@asynccontextmanager
async def listening(wire: HttpWire, task_ids: Sequence[str], **options: Any) -> AsyncGenerator[Stream]:
    message = listen(list(task_ids), **options)
    async with wire.stream(message) as frames:
        yield Stream(message["id"], frames)


def shown(params: Mapping[str, Any]) -> dict[str, Any]:
    """The params of a notification, without what the stream adds."""
    meta = {key: value for key, value in params["_meta"].items() if key != SUBSCRIPTION}
    bare = {key: value for key, value in params.items() if key != "_meta"}
    return {**bare, "_meta": meta} if meta else bare


def as_pushed(got: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of `tasks/get`, without what results have and notifications have not."""
    meta = {key: value for key, value in got.get("_meta", {}).items() if not key.startswith("io.modelcontextprotocol/")}
    bare = {key: value for key, value in got.items() if key not in ("_meta", "resultType")}
    return {**bare, "_meta": meta} if meta else bare


def timeless(task: Mapping[str, Any]) -> dict[str, Any]:
    """A task without what moves on with the clock alone."""
    return {key: value for key, value in task.items() if key not in ("pollIntervalMs", "ttlMs")}
