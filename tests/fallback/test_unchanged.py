"""What stays as it was: listings for clients with tasks, tools that must be tasks, and plain calls by choice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from tests.fallback.matrix.legs import ASKABLE, Call, legs
from tests.fallback.matrix.serving import HttpServers, Place, place
from tests.fallback.moods import client_of, quick_tasks, server_of

from harness.http import HttpWire, http_client, modern_headers
from harness.older import http_session
from harness.rpc import (
    EVERYTHING,
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    NOTHING,
    TASKS,
    accept,
    request,
    text_of,
)

pytestmark = pytest.mark.anyio

PLAIN = {"fallback": "inline", "companions": "never"}
SHORT = {"wait": 0.1, "legs": 1}


@dataclass
class Scene:
    """Servers of which different things are said."""

    place: Place
    servers: HttpServers


@pytest.fixture(scope="module")
async def scene() -> AsyncGenerator[Scene]:
    with place() as here:
        variants = {
            "plain": {"tasks": PLAIN},
            "always": {"tasks": {"companions": "always", "companion_prefix": "my_"}},
            "never": {"tasks": {"companions": "never", "fallback": SHORT}},
            "modern-only": {"tasks": {"fallback": {**SHORT, "older": False}}},
            "no-word": {"tasks": {"fallback": {**SHORT, "handle": False}}},
            "older-only": {"tasks": {"fallback": {**SHORT, "modern": False}}},
        }
        yield Scene(here, here.serve("sse", variants=variants))


async def listed(url: str, capabilities: Mapping[str, Any]) -> str:
    """The bytes of a listing."""
    message = {**request("tools/list", capabilities=capabilities), "id": 1}
    async with http_client() as client:
        response = await HttpWire(url, client).raw_post(json.dumps(message), modern_headers(message))
    return response.text


def names(listing: str) -> set[str]:
    """The tools of a listing."""
    return {tool["name"] for tool in json.loads(listing)["result"]["tools"]}


@pytest.mark.parametrize("capabilities", [TASKS, EVERYTHING], ids=["tasks", "everything"])
async def test_a_client_that_declares_tasks_is_listed_what_it_was(
    scene: Scene, capabilities: Mapping[str, Any]
) -> None:
    ours = await listed(scene.servers.url, capabilities)
    assert ours == await listed(scene.servers.door("plain"), capabilities)
    assert "task_status" not in ours
    assert "taskId" not in ours


async def test_companions_are_shown_to_those_who_may_need_them(scene: Scene) -> None:
    companions = {"task_status", "task_cancel"}
    assert companions <= names(await listed(scene.servers.url, NOTHING))
    assert names(await listed(scene.servers.door("plain"), NOTHING)) == names(await listed(scene.servers.url, TASKS))
    prefixed = {f"my_{name}" for name in companions}
    for capabilities in (NOTHING, TASKS):
        shown = names(await listed(scene.servers.door("always"), capabilities))
        assert prefixed <= shown
        assert not companions & shown
    assert not companions & names(await listed(scene.servers.door("never"), NOTHING))


async def test_a_listing_that_varies_by_caller_is_private(scene: Scene) -> None:
    assert '"cacheScope":"private"' in (await listed(scene.servers.url, NOTHING)).replace(" ", "")


async def test_without_companions_a_model_is_not_told_to_call_one(scene: Scene) -> None:
    async with legs(scene.servers.door("never")) as client:
        result = await Call("gated", {"job": "never"}).end(client)
        assert "It has not finished, and this is not its result." in text_of(result)
        assert "task_status" not in text_of(result)
        refused = await client.ask("tools/call", {"name": "task_status", "arguments": {"task_id": "x"}})
        assert "error" in refused.message or refused.result["isError"]


async def test_a_tool_that_must_be_a_task_is_refused_to_those_without(scene: Scene) -> None:
    url = scene.servers.url
    async with legs(url) as client, http_client() as http, http_session(HttpWire(url, http)) as older:
        assert (await Call("required", {"job": "must"}).leg(client)).code == MISSING_CAPABILITY
        assert (await older.call("required", {"job": "must"})).code == METHOD_NOT_FOUND
    assert scene.place.count("start", "must") == 0


async def count_tasks(url: str) -> int:
    """How many tasks a server has."""
    async with legs(url) as client:
        return (await client.call("operator_count"))["structuredContent"]["result"]


async def modern_call(url: str, job: str, tool: str = "gated") -> dict[str, Any]:
    async with legs(url) as client:
        return (await Call(tool, {"job": job}).leg(client)).result


async def older_call(url: str, job: str, tool: str = "gated") -> dict[str, Any]:
    async with http_client() as http, http_session(HttpWire(url, http)) as older:
        return (await older.call(tool, {"job": job})).result


ERAS = {"modern": modern_call, "older": older_call}


@pytest.mark.parametrize("era", ERAS)
async def test_inline_for_a_server_is_a_plain_call_and_no_task(scene: Scene, era: str) -> None:
    url, job = scene.servers.door("plain"), f"plain-{era}"
    calling = asyncio.create_task(ERAS[era](url, job))
    await scene.place.until("start", job)
    assert await count_tasks(url) == 0
    scene.place.open(job)
    assert text_of(await calling) == f"{job} is done"
    assert (scene.place.count("start", job), scene.place.count("request", job)) == (1, 1)


@pytest.mark.parametrize("era", ERAS)
async def test_inline_for_a_tool_is_a_plain_call_and_no_task(scene: Scene, era: str) -> None:
    url, job = scene.servers.url, f"inline-{era}"
    before = await count_tasks(url)
    calling = asyncio.create_task(ERAS[era](url, job, "inline"))
    await scene.place.until("start", job)
    assert await count_tasks(url) == before
    assert text_of(await calling) == f"{job} is done"
    assert scene.place.count("request", job) == 1


async def test_a_plain_call_that_asks_by_returning_has_a_state_of_the_sdks_own(scene: Scene) -> None:
    async with legs(scene.servers.door("plain"), ASKABLE) as client:
        call = Call("asks_by_returning", {"job": "own-state"})
        [key] = (await call.begin(client))["inputRequests"]
        assert call.state is not None
        assert not call.state.startswith("mcp-tasks.")
        assert text_of(await call.end(client, {key: accept(name="Ada")})) == "Hello, Ada of own-state!"
    async with legs(scene.servers.url, ASKABLE) as client:
        # And the same of ours is sealed, and not only passed on.
        call = Call("asks_by_returning", {"job": "own-state"})
        await call.begin(client)
        assert call.state is not None
        assert call.state.startswith("mcp-tasks.")
        assert "own-state" not in call.state


@pytest.mark.parametrize(
    ("door", "plain", "handed"), [("modern-only", "older", "modern"), ("older-only", "modern", "older")]
)
async def test_each_way_can_be_switched_off_by_itself(scene: Scene, door: str, plain: str, handed: str) -> None:
    url, job = scene.servers.door(door), f"switched-{door}"
    told = await ERAS[handed](url, job)
    assert told.get("resultType") == "input_required" or "taskId" in told["structuredContent"]
    calling = asyncio.create_task(ERAS[plain](url, f"{job}-plain"))
    await scene.place.until("start", f"{job}-plain")
    await asyncio.sleep(0.3)  # sleep: longer than a call waits that is told of its task
    assert not calling.done()
    scene.place.open(f"{job}-plain")
    assert text_of(await calling) == f"{job}-plain is done"


@pytest.mark.parametrize("era", ERAS)
async def test_where_no_word_is_to_be_given_the_call_waits_for_the_end(scene: Scene, era: str) -> None:
    url, job = scene.servers.door("no-word"), f"no-word-{era}"
    calling = asyncio.create_task(ERAS[era](url, job))
    await scene.place.until("start", job)
    await asyncio.sleep(0.5)  # sleep: longer than a call waits that is told of its task
    scene.place.open(job)
    result = await calling
    if era == "modern":
        # Told to come back once, and then kept.
        assert result["resultType"] == "input_required"
        async with legs(url) as client:
            result = await Call("gated", {"job": job}, result["requestState"]).end(client)
    assert text_of(result) == f"{job} is done"
    assert scene.place.count("start", job) == 1


@pytest.mark.parametrize("arguments", [{"job": "same"}, {}, {"job": 5}, {"job": "same", "late": False}], ids=str)
@pytest.mark.parametrize("tool", ["quick", "fails", "breaks", "errs", "shape", "numbers", "no_such_tool"])
async def test_a_quick_answer_is_that_of_a_plain_call(scene: Scene, tool: str, arguments: dict[str, Any]) -> None:
    params = {"name": tool, "arguments": arguments}
    newest: list[Any] = []
    oldest: list[Any] = []
    for url in (scene.servers.url, scene.servers.door("plain")):
        async with legs(url) as client, http_client() as http, http_session(HttpWire(url, http)) as older:
            newest.append((await client.ask("tools/call", params)).message | {"id": 0})
            oldest.append((await older.ask("tools/call", params)).message | {"id": 0})
    assert newest[0] == newest[1]
    assert oldest[0] == oldest[1]


@pytest.mark.parametrize("data", [{"reason": "quota"}, {"reason": ["quota"]}, {"reason": None}, ["reason"], "reason"])
async def test_an_internal_error_of_the_tools_own_is_that_of_a_plain_call(data: Any) -> None:
    tasks = quick_tasks()
    server = server_of(tasks)

    @server.tool()
    @tasks.task()
    def breaks() -> str:
        """Fail with a code that we use as well."""
        raise MCPError(code=INTERNAL_ERROR, message="No more today", data=data)

    async with client_of(server) as client:
        error = (await Call("breaks", {}).leg(client)).error
    assert error == {"code": INTERNAL_ERROR, "message": "No more today", "data": data}
