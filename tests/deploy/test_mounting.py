"""An MCP app by itself, and inside another one."""

from __future__ import annotations

import re

import pytest
from mcp.server import MCPServer
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from harness.http import http_client, serving_app
from harness.processes import ROOT
from mcp_tasks import Tasks
from tests.deploy.recipes import PAGE, Site, connected, started

pytestmark = pytest.mark.anyio


async def test_the_first_recipe_serves_the_server_of_get_started(place: Site) -> None:
    page = (ROOT / "docs" / "get-started.md").read_text()
    [first] = re.findall(r"\A.*?^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    (place.folder / "slow_things.py").write_text(first)
    await place.start("uvicorn app:app")
    async with connected(f"{place.url}/mcp") as client:
        result = await (await started(client, "count", to=1)).result()
    assert result.structured_content == {"result": "counted to 1"}


async def test_a_mounted_app_runs_tasks_beside_the_routes_of_the_outer_one(place: Site) -> None:
    await place.start("uvicorn mounted:app")
    async with http_client() as http:
        assert (await http.get(f"{place.url}/")).text == "home"
    async with connected(f"{place.url}/tools/mcp") as client:
        task = await started(client, "again", job="a")
        place.let_go("a")
        result = await task.result()
    assert result.structured_content == {"result": place.runs("a")[0]}


async def test_a_mounted_app_whose_lifespan_nobody_runs_fails_as_the_page_says() -> None:
    tasks = Tasks("memory://")
    server = MCPServer("forgotten", **tasks.wiring())
    app = Starlette(routes=[Mount("/tools", server.streamable_http_app())])
    seen: list[RuntimeError] = []

    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except RuntimeError as exc:
            seen.append(exc)
            raise

    async with serving_app(noting) as base, http_client() as http:
        assert (await http.post(f"{base}/tools/mcp", json={})).status_code == 500
    [error] = seen
    assert f"`RuntimeError: {error}`" in " ".join(PAGE.split())


async def test_other_host_names_are_let_in_when_they_are_named(place: Site) -> None:
    headers = {"host": "tools.example.com"}
    await place.start("uvicorn app:app")
    async with http_client() as http:
        refused = await http.post(f"{place.url}/mcp", headers=headers, json={})
        assert (refused.status_code, refused.text) == (421, "Invalid Host header")
    place.stop()
    (place.folder / "app.py").write_text((place.folder / "public.py").read_text())
    await place.start("uvicorn app:app")
    async with http_client() as http:
        assert (await http.post(f"{place.url}/mcp", headers=headers, json={})).status_code != 421
