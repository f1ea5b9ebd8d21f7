"""The example with authentication: real tokens, two users, and a task that one of them cannot see."""

import json
import os
import runpy
import secrets
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from mcp import Client

from harness.http import HttpWire, http_client, modern_headers
from harness.ports import free_port, mcp_url
from harness.processes import ENVIRONMENT, ROOT, run, running
from harness.rpc import request
from mcp_tasks.client import TaskHandle, TasksClient, reconnecting_http, resume_task
from mcp_tasks.errors import UnknownTask
from tests.deploy.recipes import answers, started

EXAMPLE = ROOT / "examples" / "authentication.py"
METADATA = "/.well-known/oauth-protected-resource/mcp"


@dataclass(frozen=True)
class Served:
    url: str
    environment: Mapping[str, str]
    token_for: Callable[..., str]

    def client(self, token: str, mode: str = "auto") -> Client:
        transport = reconnecting_http(self.url, headers={"Authorization": f"Bearer {token}"})
        return Client(transport, extensions=[TasksClient()], mode=mode)


@pytest.fixture(scope="module")
async def served() -> AsyncGenerator[Served]:
    port = free_port()
    url = mcp_url(port)
    environment = {**ENVIRONMENT, "TOKEN_SECRET": secrets.token_hex(32), "RESOURCE_URL": url}
    command = [sys.executable, EXAMPLE, "serve", "--port", str(port)]
    with running(command, env=environment, polite=True) as process:

        def is_alive() -> None:
            assert process.poll() is None, "the server ended by itself"

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "environ", environment)
            names = runpy.run_path(str(EXAMPLE), run_name="authentication")
        await answers(url, is_alive)
        yield Served(url, environment, names["token_for"])
        is_alive()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_task_is_there_for_its_owner_and_for_nobody_else(served: Served, mode: str) -> None:
    ann_token, bob_token = served.token_for("ann"), served.token_for("bob")
    async with served.client(ann_token, mode) as ann, served.client(bob_token, mode) as bob:
        task = await started(ann, "report", about="Q3")
        for attempt in (_result, TaskHandle.cancel):
            with pytest.raises(UnknownTask):
                await attempt(resume_task(bob, task.id))
        result = await task.result()
    assert result.structured_content == {"result": 'Q3, for ["example","https://login.example.com","ann"]'}


async def _result(handle: TaskHandle) -> Any:
    return await handle.result()


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"lifetime": -60}, 401),
        ({"secret": "a secret of somebody else, long enough"}, 401),
        ({"scope": "something-else"}, 403),
        ({}, 200),
    ],
    ids=["expired", "forged", "another scope", "valid"],
)
async def test_tokens_are_looked_at_before_anything_else(served: Served, claims: dict[str, Any], status: int) -> None:
    message = request("server/discover")
    async with http_client() as http:
        wire = HttpWire(served.url, http, token=served.token_for("ann", **claims))
        assert (await wire.raw_post(json.dumps(message), modern_headers(message))).status_code == status


async def test_a_client_without_a_token_is_told_where_to_get_one(served: Served) -> None:
    async with http_client() as http:
        refused = await http.post(served.url, json={})
        assert refused.status_code == 401
        metadata = served.url.replace("/mcp", METADATA)
        assert metadata in refused.headers["www-authenticate"]
        assert (await http.get(metadata)).json()["resource"] == served.url


async def test_the_two_users_of_the_example_see_what_the_page_shows(served: Served) -> None:
    command = [sys.executable, str(EXAMPLE), "visit", served.url]
    done = await anyio.to_thread.run_sync(lambda: run(command, env=served.environment, check=True))
    first, second, third = done.stdout.splitlines()
    assert first.startswith("ann has task_")
    task_id = first.removeprefix("ann has ")
    assert task_id in second
    for page in ("deploy.md", "examples.md"):
        text = (ROOT / "docs" / page).read_text()
        assert f"{second.replace(task_id, 'task_4lN6...')}\n{third}\n" in text
