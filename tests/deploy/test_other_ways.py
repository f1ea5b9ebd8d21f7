"""The recipes for browsers and for the old HTTP+SSE transport."""

from __future__ import annotations

import pytest
from mcp import Client
from mcp.client.sse import sse_client

from harness.http import http_client
from harness.rpc import hello, legacy_request
from mcp_tasks.client import TasksClient, resume_task, with_tasks
from tests.deploy.recipes import LIMIT, Site, started

pytestmark = pytest.mark.anyio

PAGE = "https://app.example.com"
HANDSHAKE = legacy_request("initialize", hello())


async def test_a_browser_is_let_in_from_the_page_that_is_named(place: Site) -> None:
    await place.start("uvicorn browser:app")
    accepted = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    async with http_client() as http:
        url = f"{place.url}/mcp"
        asked = {"origin": PAGE, "access-control-request-method": "POST", "access-control-request-headers": "mcp-name"}
        assert (await http.options(url, headers=asked)).headers["access-control-allow-origin"] == PAGE
        welcome = await http.post(url, headers={**accepted, "origin": PAGE}, json=HANDSHAKE)
        assert welcome.headers["access-control-expose-headers"] == "Mcp-Session-Id"
        assert welcome.headers["mcp-session-id"]
        stranger = await http.post(url, headers={**accepted, "origin": "https://evil.example.com"}, json=HANDSHAKE)
        assert stranger.status_code == 403


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_task_over_the_old_transport_goes_on_without_its_client(place: Site, mode: str) -> None:
    await place.start("uvicorn old:app")
    url = f"{place.url}/sse"
    async with Client(with_tasks(sse_client(url)), extensions=[TasksClient()], mode=mode) as client:
        task = await started(client, "once", job="a")
        await place.until(lambda: len(place.runs("a")) == 1, "it has started")
    place.let_go("a")
    async with Client(with_tasks(sse_client(url)), extensions=[TasksClient()], mode=mode) as client:
        result = await resume_task(client, task.id).result(timeout=LIMIT)
    assert result.structured_content == {"result": place.runs("a")[0]}
