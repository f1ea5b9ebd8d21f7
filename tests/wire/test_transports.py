"""The same life of a task over every transport, on both of the SDK's servers, in processes of their own."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from harness.http import HttpWire, http_client
from harness.lowlevel import build_lowlevel
from harness.official import in_memory
from harness.rpc import EVERYTHING, Tasking, Wire, accept, request, text_of
from harness.server import QUICK, build
from harness.stdio import stdio_process
from mcp_tasks import Tasks
from tests.wire.conftest import HttpProcesses

HTTP_WAYS = {
    "http-sse": (),
    "http-json": ("--json",),
    "http-sse-lowlevel": ("--lowlevel",),
    "http-json-lowlevel": ("--json", "--lowlevel"),
}
STDIO_WAYS = {"stdio": (), "stdio-lowlevel": ("--lowlevel",)}
MEMORY_WAYS = ("memory", "memory-lowlevel")


@asynccontextmanager
async def _connected(way: str, processes: HttpProcesses) -> AsyncGenerator[Wire]:
    if way in HTTP_WAYS:
        async with http_client() as http:
            yield HttpWire(processes(*HTTP_WAYS[way]), http)
    elif way in STDIO_WAYS:
        async with stdio_process(*STDIO_WAYS[way]) as wire:
            yield wire
    else:
        tasks = Tasks("memory://", default_ttl=None, settings=QUICK)
        server = build_lowlevel(tasks) if "lowlevel" in way else build(tasks)
        async with in_memory(server, elicitation_callback=_unasked) as wire:
            yield wire


async def _unasked(context: Any, params: Any) -> Any:
    raise AssertionError("a task's questions are answered with tasks/update")


@pytest.mark.slow
@pytest.mark.parametrize("way", [*HTTP_WAYS, *STDIO_WAYS, *MEMORY_WAYS])
async def test_tasks_are_made_answered_cancelled_and_read_on_each_transport(
    http_processes: HttpProcesses, way: str
) -> None:
    async with _connected(way, http_processes) as wire:
        client = Tasking(wire, EVERYTHING)
        created = await client.call("echo", value="over the wire")
        done = await client.until(created["taskId"], "completed")
        assert (text_of(done["result"]), done["result"]["resultType"]) == ("over the wire", "complete")
        # A null arrives as one.
        assert (created["ttlMs"], done["ttlMs"]) == (None, None)
        asking, cancelled = await client.create("ask_name"), await client.create("ask_name")
        [(key, question)] = (await client.until(asking, "input_required"))["inputRequests"].items()
        assert question["params"]["message"] == "What is your name?"
        for ack in (await client.update(asking, **{key: accept(name="Ada")}), await client.cancel(cancelled)):
            assert ack.keys() <= {"resultType", "_meta"}
        assert text_of((await client.until(asking, "completed"))["result"]) == "Hello, Ada!"
        assert (await client.until(cancelled, "cancelled"))["statusMessage"]
        plain = await client.call("greet", name="Ada")
        assert (plain["resultType"], text_of(plain)[:11]) == ("complete", "Hello, Ada!")


@pytest.mark.slow
async def test_over_stdio_nothing_but_json_rpc_is_written_and_cancelling_a_request_does_not_cancel_its_task() -> None:
    async with stdio_process() as wire:
        client = Tasking(wire, EVERYTHING)
        call = request("tools/call", {"name": "ask_name", "arguments": {}}, capabilities=EVERYTHING)
        task_id = (await wire.send(call)).result["taskId"]
        await wire.notify("notifications/cancelled", {"requestId": call["id"]})
        await client.until(task_id, "input_required")
        for tool in ("logs", "crashes", "fails", "grow"):
            await client.finish(tool)
        await client.update(task_id, **{"elicitation-1": accept(name="Ada")})
        assert text_of((await client.until(task_id, "completed"))["result"]) == "Hello, Ada!"
    # Whatever is no JSON would have ended the reader of the pipe; whatever is no answer is here.
    assert wire.others == []
