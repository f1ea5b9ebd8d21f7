"""Why a URL cannot be used, as far as HTTP can tell."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import httpx2
import pytest

from mcp_tasks.client import servers as unreachable
from mcp_tasks.client.servers import check_url
from mcp_tasks.errors import ServerUnreachable

pytestmark = pytest.mark.anyio

URL = "http://farm.example/mcp"
Answer = Callable[[httpx2.Request], httpx2.Response]


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], None]:
    """Has every request answered by a function."""

    def answer_with(answer: Answer) -> None:
        def new_client(**options: object) -> httpx2.AsyncClient:
            return client(transport=httpx2.MockTransport(answer))

        monkeypatch.setattr(unreachable.httpx2, "AsyncClient", new_client)

    client = httpx2.AsyncClient
    return answer_with


async def why(answering: Callable[[Answer], None], answer: Answer) -> tuple[str, str, str]:
    answering(answer)
    found = await check_url(URL)
    assert isinstance(found, ServerUnreachable)
    return found.what.removeprefix(f"{URL} "), found.hint, found.reason


async def test_a_body_that_is_not_what_it_says_breaks_the_connection(answering: Callable[[Answer], None]) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        return httpx2.Response(200, headers=headers, stream=httpx2.ByteStream(gzip.compress(b"{}")[::-1]))

    what, _, reason = await why(answering, answer)
    assert what.startswith("breaks the connection: Error")
    assert reason == "connection"


@pytest.mark.parametrize(
    ("kind", "hint"), [(httpx2.ReadTimeout, "Look at the server's log."), (httpx2.ConnectTimeout, "Is the host name")]
)
async def test_a_server_that_takes_too_long_does_not_answer(
    answering: Callable[[Answer], None], kind: type[httpx2.TimeoutException], hint: str
) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        raise kind("")

    what, said, reason = await why(answering, answer)
    assert (what, reason) == ("does not answer", "timeout")
    assert said.startswith(hint)


@pytest.mark.parametrize(
    ("status", "asks", "hint"),
    [
        (401, "Basic realm=x", "It asks for Basic authorization: send an Authorization header."),
        (401, "", "Send an Authorization header."),
        (403, "", "Send an Authorization header, or another."),
    ],
)
async def test_refused_credentials_are_asked_for_as_the_server_does(
    answering: Callable[[Answer], None], status: int, asks: str, hint: str
) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, headers={"www-authenticate": asks} if asks else {})

    _, said, reason = await why(answering, answer)
    assert (said, reason) == (hint, "credentials")
