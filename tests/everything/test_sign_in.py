"""A server that is protected by OAuth: signing in, in both eras, and whose the tasks are."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager

import pytest
from mcp import Client

from harness.http import HttpWire, http_client, initialize
from harness.rpc import LEGACY, legacy_request
from mcp_tasks.client import TaskHandle, TasksClient, reconnecting_http, resume_task, start_task
from mcp_tasks.errors import UnknownTask
from tests.everything.connecting import ERAS
from tests.everything.oauth import SCOPE, Keys, signing_in
from tests.everything.site import site_process

pytestmark = pytest.mark.anyio

BASE = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module", params=["tasks", "plain"])
def protected(request: pytest.FixtureRequest) -> Generator[str]:
    """The address of a server that lets nobody in who has not signed in: with tasks, and its twin without."""
    with site_process("oauth", "--kind", request.param) as base:
        yield f"{base}/mcp"


@pytest.fixture(scope="module")
def served() -> Generator[str]:
    """The one with tasks."""
    with site_process("oauth") as base:
        yield f"{base}/mcp"


@asynccontextmanager
async def _signed_in(url: str, user: str, keys: Keys, era: str) -> AsyncGenerator[Client]:
    async with http_client() as browser:
        transport = reconnecting_http(url, auth=signing_in(url, user, browser, keys))
        async with Client(transport, extensions=[TasksClient()], mode=ERAS[era]) as client:
            yield client


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_signs_in_and_is_served(protected: str, era: str) -> None:
    keys = Keys()
    async with _signed_in(protected, "ada", keys, era) as client:
        answer = await client.call_tool("weather", {"city": "Paris"})
    assert answer.structured_content == {"city": "Paris", "degrees": 21.5, "wind": None}
    assert keys.tokens is not None
    assert keys.tokens.scope == SCOPE


async def test_who_has_not_signed_in_is_told_where_to(protected: str) -> None:
    async with http_client() as http:
        call = legacy_request("tools/call", {"name": "weather", "arguments": {"city": "Paris"}})
        for token in (None, "forged"):
            shown = {} if token is None else {"authorization": f"Bearer {token}"}
            refused = await http.post(protected, headers={**BASE, **shown}, json=call)
            assert refused.status_code == 401
            where = protected.replace("/mcp", "/.well-known/oauth-protected-resource/mcp")
            assert where in refused.headers["www-authenticate"]
        metadata = (await http.get(where)).json()
    assert metadata["resource"] == protected
    assert metadata["authorization_servers"] == [protected.removesuffix("mcp")]


async def test_a_session_belongs_to_who_opened_it(protected: str) -> None:
    tokens: list[str] = []
    for user in ("ada", "bob"):
        keys = Keys()
        async with _signed_in(protected, user, keys, "older"):
            assert keys.tokens is not None
            tokens.append(keys.tokens.access_token)
    async with http_client() as http:
        session, _ = await initialize(HttpWire(protected, http, token=tokens[0]), {})
        headers = {**BASE, **dict(session.headers), "mcp-protocol-version": LEGACY}
        for token, status in zip(tokens, (200, 404), strict=True):
            shown = {**headers, "authorization": f"Bearer {token}"}
            assert (await http.post(protected, headers=shown, json=legacy_request("ping"))).status_code == status


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("later_era", ERAS)
async def test_a_task_belongs_to_who_signed_in_also_with_another_token(served: str, era: str, later_era: str) -> None:
    keys = Keys()
    async with _signed_in(served, "ada", keys, era) as ada, _signed_in(served, "bob", Keys(), later_era) as bob:
        handle = await start_task(ada, "weather", {"city": "Paris"})
        assert isinstance(handle, TaskHandle)
        with pytest.raises(UnknownTask):
            await resume_task(bob, handle.id).status()
    # The token is no longer good, so the client gets another one.
    assert keys.tokens is not None
    keys.tokens = keys.tokens.model_copy(update={"access_token": "expired"})
    async with _signed_in(served, "ada", keys, later_era) as later:
        answer = await resume_task(later, handle.id).result()
    assert keys.tokens.access_token != "expired"
    assert answer.structured_content == {"city": "Paris", "degrees": 21.5, "wind": None}
