"""The same frames over stdio, in memory, and from a server that answers with JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.extension import ClientExtension, NotificationBinding
from mcp_types import (
    Result,
    SubscriptionFilter,
    SubscriptionsAcknowledgedNotification,
    SubscriptionsListenRequest,
    SubscriptionsListenRequestParams,
)
from pydantic import BaseModel, ConfigDict

from harness.http import serving
from harness.official import ClaimsTasks, ClientWire
from harness.rpc import EVERYTHING, MODERN, PATIENCE, Tasking, notification
from harness.server import QUICK, Desk, build
from harness.stdio import StdioWire, stdio_process
from mcp_tasks import Tasks
from tests.push.listening import SUBSCRIPTION, Stream, as_pushed, check_task_notification, listen, listening, shown

pytestmark = pytest.mark.anyio


async def test_a_server_that_answers_with_json_streams_all_the_same(desk: Desk) -> None:
    async with serving(build(Tasks("memory://", settings=QUICK), desk), json_response=True) as wire:
        client = Tasking(wire, EVERYTHING)
        task_id = await client.create("gated")
        async with listening(wire, [task_id]) as stream:
            assert await stream.acknowledged() == {"taskIds": [task_id]}
            await stream.task()
            desk.gate.set()
            *_, done = await stream.until("completed")
        assert done == as_pushed(await client.get(task_id))


async def test_a_stateless_server_streams_all_the_same(desk: Desk) -> None:
    async with serving(build(Tasks("memory://", settings=QUICK), desk), stateless=True) as wire:
        task_id = await Tasking(wire, EVERYTHING).create("gated")
        async with listening(wire, [task_id]) as stream:
            assert await stream.acknowledged() == {"taskIds": [task_id]}
            desk.gate.set()
            await stream.until("completed")


# Over stdio every stream shares the one channel; its frames are told apart by their subscription id.


async def _frames_of(wire: StdioWire, request_id: Any) -> AsyncGenerator[dict[str, Any]]:
    told = 0
    while True:
        frames = [frame for frame in wire.others if _belongs(frame, request_id)]
        for frame in frames[told:]:
            yield frame
        told = len(frames)
        await wire.wait_for(lambda _, told=told: _count(wire, request_id) > told)


def _count(wire: StdioWire, request_id: Any) -> int:
    return sum(_belongs(frame, request_id) for frame in wire.others)


def _belongs(frame: dict[str, Any], request_id: Any) -> bool:
    return frame.get("params", {}).get("_meta", {}).get(SUBSCRIPTION) == request_id


async def _open(wire: StdioWire, ids: Sequence[str]) -> Stream:
    message = listen(list(ids))
    await wire.write(json.dumps(message))
    return Stream(message["id"], _frames_of(wire, message["id"]))


async def test_over_stdio_streams_share_the_channel_and_end_one_by_one() -> None:
    async with stdio_process() as wire:
        client = Tasking(wire, EVERYTHING)
        first, second = [await client.create("ask_name") for _ in range(2)]
        one, both = await _open(wire, [first]), await _open(wire, [first, second])
        assert await one.acknowledged() == {"taskIds": [first]}
        assert await both.acknowledged() == {"taskIds": [first, second]}
        await one.until("input_required")
        # Ended by the client, in the way of this transport; the other stream goes on.
        await wire.notify("notifications/cancelled", {"requestId": one.id})
        # What the server reads later is answered later: once it answers, it has seen the cancellation.
        await client.get(first)
        before = [frame for frame in wire.others if _belongs(frame, one.id)]
        await client.cancel(first)
        states = [await both.task()]
        while (states[-1]["taskId"], states[-1]["status"]) != (first, "cancelled"):
            states.append(await both.task())
        assert [frame for frame in wire.others if _belongs(frame, one.id)] == before
        # The process must end although a stream is open.


async def test_over_stdio_a_finished_task_is_told_at_once() -> None:
    async with stdio_process() as wire:
        client = Tasking(wire, EVERYTHING)
        done = await client.finish("point", x=1)
        stream = await _open(wire, [done["taskId"]])
        await stream.acknowledged()
        assert await stream.task() == as_pushed(done)


# In memory there is no JSON; the SDK's client shows what it was handed.


class _Params(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Hears(ClientExtension):
    """Hears of tasks."""

    identifier = "com.example/hears"

    def __init__(self) -> None:
        self.send, self.receive = anyio.create_memory_object_stream[dict[str, Any]](100)

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        return [NotificationBinding(method="notifications/tasks", params_type=_Params, handler=self._hear)]

    async def _hear(self, params: _Params) -> None:
        await self.send.send(notification("notifications/tasks", params.model_dump()))

    async def note(self, message: Any) -> None:
        """Take note of an acknowledgement."""
        if isinstance(message, SubscriptionsAcknowledgedNotification):
            await self.send.send(message.model_dump(by_alias=True, mode="json", exclude_none=True))


async def test_in_memory_the_frames_are_the_same(desk: Desk) -> None:
    hears = _Hears()
    server = build(Tasks("memory://", settings=QUICK), desk)
    async with (
        Client(server, mode=MODERN, extensions=[ClaimsTasks(), hears], message_handler=hears.note) as official,
        hears.send,
        hears.receive,
        anyio.create_task_group() as group,
    ):
        task_id = await Tasking(ClientWire(official), EVERYTHING).create("gated")
        group.start_soon(official.session.send_request, _listen_to([task_id, "task_unknown"]), Result, float("inf"))
        with anyio.fail_after(PATIENCE):
            acknowledged = await hears.receive.receive()
            frames = [await hears.receive.receive()]
            desk.gate.set()
            while frames[-1]["params"]["status"] != "completed":
                frames.append(await hears.receive.receive())
        assert acknowledged["params"]["notifications"] == {"taskIds": [task_id]}
        for frame in frames:
            check_task_notification(frame)
            assert frame["params"]["_meta"][SUBSCRIPTION] == acknowledged["params"]["_meta"][SUBSCRIPTION]
        assert shown(frames[-1]["params"])["result"]["content"] == [{"type": "text", "text": "through"}]
        group.cancel_scope.cancel()


def _listen_to(ids: Sequence[str]) -> SubscriptionsListenRequest:
    wanted = SubscriptionFilter.model_validate({"taskIds": list(ids)}, by_name=False)
    return SubscriptionsListenRequest(params=SubscriptionsListenRequestParams(notifications=wanted))


async def test_in_memory_a_stream_ends_when_its_request_is_given_up(desk: Desk) -> None:
    server = build(Tasks("memory://", settings=QUICK), desk)
    async with Client(server, mode=MODERN, extensions=[ClaimsTasks()]) as client:
        with anyio.move_on_after(0.1) as soon:
            await client.session.send_request(_listen_to([]), Result, float("inf"))
    assert soon.cancelled_caught
