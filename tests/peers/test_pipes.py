"""Spoilt messages of both eras through the pipes of a real process: it goes on answering, and logs no traceback."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.rpc import EVERYTHING, Tasking, accept, legacy_request, notification, request, response
from harness.stdio import StdioWire, stdio_process
from harness.thoroughness import examples
from tests.peers.nasty import spoilt
from tests.peers.stage import OLDER, older_call

pytestmark = pytest.mark.anyio


def has_traceback(log: str) -> bool:
    return "Traceback" in Path(log).read_text(errors="replace")


async def fire(wire: StdioWire, good: Sequence[dict[str, Any]], seed: int) -> None:
    """Send spoilt messages, a line each."""
    chance = random.Random(seed)
    for _ in range(examples(150)):
        body = spoilt(chance, chance.choice(good))
        if len(body) < 100_000:
            await wire.write(body.replace(b"\n", b" ").replace(b"\r", b" "))


async def test_a_server_of_the_newest_wire_goes_on_answering() -> None:
    with tempfile.NamedTemporaryFile() as log:
        async with stdio_process(stderr=log.file) as wire:
            client = Tasking(wire, EVERYTHING)
            asking = await client.create("ask_name")
            answers = {"inputResponses": {"q": {"action": "accept", "content": {"name": "a"}}}}
            good = [
                request("tools/call", {"name": "echo", "arguments": {"value": [1]}}),
                request("tools/call", {"name": "echo", "arguments": {"value": [1]}}, capabilities={}),
                request("tasks/get", {"taskId": asking}),
                request("tasks/update", {"taskId": asking, **answers}),
                request("tasks/cancel", {"taskId": "x"}),
                request("subscriptions/listen", {"notifications": {"taskIds": [asking, "x"]}}),
                request("server/discover"),
            ]
            await fire(wire, good, 1)
            assert "completed" in str(await client.finish("echo", value="fine"))
        assert not has_traceback(log.name)


async def test_a_server_of_the_older_wire_goes_on_answering() -> None:
    with tempfile.NamedTemporaryFile() as log:
        async with stdio_process(stderr=log.file) as wire:
            await wire.send(legacy_request("initialize", OLDER))
            await wire.notify("notifications/initialized")
            made = (await wire.send(older_call("ask_name", {}))).result["task"]["taskId"]
            named = {"taskId": made}
            good = [
                older_call("echo", {"value": [1]}),
                legacy_request("tasks/get", named),
                legacy_request("tasks/result", named),
                legacy_request("tasks/list", {"cursor": "x"}),
                legacy_request("tasks/cancel", {"taskId": "x"}),
                notification("notifications/cancelled", {"requestId": 1}),
                notification("notifications/tasks/status", named),
                response(1, accept(name="a")),
            ]
            await fire(wire, good, 2)
            assert "task" in (await wire.send(older_call("echo", {"value": "fine"}))).result
        assert not has_traceback(log.name)
