"""Servers on the SDK's low-level `Server`: the same answers for those who speak no tasks."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from harness.http import serving
from harness.lowlevel import build_lowlevel
from harness.older import http_session
from harness.rpc import TASKS, accept, text_of
from harness.server import QUICK
from mcp_tasks import Tasks
from mcp_tasks.fallback.options import Fallback
from tests.fallback.matrix.legs import ASKABLE, Call, legs

pytestmark = pytest.mark.anyio

SHORT = Fallback(wait=timedelta(seconds=0.1), legs=2)


async def test_a_lowlevel_server_answers_every_client() -> None:
    gate = asyncio.Event()
    server = build_lowlevel(Tasks("memory://", settings=QUICK, fallback=SHORT), gate)
    async with serving(server) as wire, legs(wire.url, ASKABLE) as client, http_session(wire) as older:
        assert text_of(await client.call("echo", value="now")) == "now"
        asking = Call("ask_name", {})
        [key] = (await asking.begin(client))["inputRequests"]
        assert text_of(await asking.end(client, {key: accept(name="Ada")})) == "Hello, Ada!"
        handles = [await Call("gated", {}).end(client), (await older.call("gated")).result]
        gate.set()
        for handle in handles:
            assert "It has not finished, and this is not its result." in text_of(handle)
            told = (await older.call("task_status", {"task_id": handle["structuredContent"]["taskId"]})).result
            assert text_of(told) == "through"


async def test_its_listing_has_the_companions_for_those_who_need_them() -> None:
    server = build_lowlevel(Tasks("memory://", settings=QUICK), asyncio.Event())
    async with serving(server) as wire, legs(wire.url) as client, http_session(wire) as older:
        for shown in ((await client.ask("tools/list")).result, (await older.ask("tools/list")).result):
            assert {"task_status", "task_cancel"} < {tool["name"] for tool in shown["tools"]}
        declared = (await client.declaring(TASKS).ask("tools/list")).result
        assert {tool["name"] for tool in declared["tools"]} == {"greet", "echo", "ask_name", "gated", "crashes"}
