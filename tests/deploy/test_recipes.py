"""The recipes of docs/deploy.md: one process, mounted apps, browsers, the old transport, reloads, several workers."""

import asyncio
import re
import signal
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest
from mcp import Client, MCPError
from mcp.client.sse import sse_client

from harness.http import http_client
from harness.installing import Offline
from harness.processes import ROOT
from harness.rpc import hello, legacy_request, text_of
from mcp_tasks.client import TasksClient, resume_task, with_tasks
from tests.deploy.recipes import LIMIT, Site, connected, site, started, wire
from tests.interop.install import Environment, install_python
from tests.push.listening import listening


@pytest.fixture
def place(tmp_path: Path) -> Generator[Site]:
    with site(tmp_path) as made:
        yield made


async def test_the_first_recipe_serves_the_server_of_get_started(place: Site) -> None:
    page = (ROOT / "docs" / "get-started.md").read_text()
    [first] = re.findall(r"\A.*?^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    (place.folder / "slow_things.py").write_text(first)
    await place.start("uvicorn app:app")
    async with connected(f"{place.url}/mcp") as client:
        result = await (await started(client, "count", to=1)).result()
    assert result.structured_content == {"result": "counted to 1"}


async def assert_runs_a_task(place: Site) -> None:
    async with connected(f"{place.url}/tools/mcp") as client:
        task = await started(client, "again", job="a")
        place.let_go("a")
        result = await task.result()
    assert result.structured_content == {"result": place.runs("a")[0]}


async def test_a_mounted_app_runs_tasks_beside_the_routes_of_the_outer_one(place: Site) -> None:
    await place.start("uvicorn mounted:app")
    async with http_client() as http:
        assert (await http.get(f"{place.url}/")).text == "home"
    await assert_runs_a_task(place)


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


BROWSER_PAGE = "https://app.example.com"
HANDSHAKE = legacy_request("initialize", hello())


async def test_a_browser_is_let_in_from_the_page_that_is_named(place: Site) -> None:
    await place.start("uvicorn browser:app")
    accepted = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    async with http_client() as http:
        url = f"{place.url}/mcp"
        asked = {
            "origin": BROWSER_PAGE,
            "access-control-request-method": "POST",
            "access-control-request-headers": "mcp-name",
        }
        assert (await http.options(url, headers=asked)).headers["access-control-allow-origin"] == BROWSER_PAGE
        welcome = await http.post(url, headers={**accepted, "origin": BROWSER_PAGE}, json=HANDSHAKE)
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


async def test_a_reload_keeps_tasks_and_runs_again_what_may_run_again(place: Site) -> None:
    await place.start("uvicorn app:app --reload")
    async with connected(f"{place.url}/mcp") as client:
        again, once = await started(client, "again", job="again"), await started(client, "once", job="once")
        await place.until(lambda: place.runs("again") and place.runs("once"), "both have started")
        async with wire(f"{place.url}/mcp") as raw, listening(raw, [again.id]) as stream:
            # A listener must not keep the old process.
            await stream.acknowledged()
            with (place.folder / "app.py").open("a") as app:
                app.write("\n# changed\n")
            await place.until(lambda: len(place.runs("again")) == 2, "it runs again")
        place.let_go("again", "once")
        assert (await again.result()).structured_content == {"result": place.runs("again")[1]}
        with pytest.raises(MCPError, match="Interrupted"):
            await once.result()
    assert len(place.runs("once")) == 1
    place.stop()


WORKERS = "uvicorn app:app --workers 4"
ENOUGH = 40
"""So many connections do not all come to one of two workers: by chance that is one in 2**39."""


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Site]:
    """The recipe with two workers. Starting them takes longer than all that is done with them, so tests share them."""
    with site(tmp_path_factory.mktemp("workers")) as place:
        (place.folder / "app.py").write_text((place.folder / "many.py").read_text())
        await place.start(WORKERS, workers="2")
        yield place


@pytest.fixture
async def two_workers(served: Site) -> Site:
    """The same, when both answer: an earlier test may have ended one."""
    seen: set[int] = set()
    async with connected(f"{served.url}/mcp") as client:
        with anyio.fail_after(LIMIT):
            while len(seen) < 2:
                seen.add(await _process(client))
    return served


async def _process(client: Client) -> int:
    content = (await client.call_tool("process", {})).structured_content
    assert content is not None
    return content["result"]


async def test_every_worker_answers_for_every_task_and_pushes_its_changes(two_workers: Site) -> None:
    jobs = [f"job-{number}" for number in range(10)]
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connected(f"{two_workers.url}/mcp"))
        handles = [await started(client, "again", job=job) for job in jobs]
        ids = [handle.id for handle in handles]
        raw = await stack.enter_async_context(wire(f"{two_workers.url}/mcp"))
        streams = [await stack.enter_async_context(listening(raw, ids)) for _ in range(6)]
        for stream in streams:
            assert await stream.acknowledged() == {"taskIds": ids}
        two_workers.let_go(*jobs)
        for stream in streams:
            ended: dict[str, str] = {}
            while len(ended) < len(ids):
                [*_, done] = await stream.until("completed")
                ended[done["taskId"]] = text_of(done["result"])
            assert set(ended) == set(ids)
    assert all(len(two_workers.runs(job)) == 1 for job in jobs)


async def test_clients_of_the_older_wire_are_served_by_any_worker(two_workers: Site) -> None:
    async with connected(f"{two_workers.url}/mcp", mode="legacy") as client:
        assert len({await _process(client) for _ in range(ENOUGH)}) == 2


async def test_workers_that_are_stopped_hand_over_and_are_not_kept_by_listeners(two_workers: Site) -> None:
    async with connected(f"{two_workers.url}/mcp") as client:
        task = await started(client, "again", job="a")
        await two_workers.until(lambda: two_workers.runs("a"), "it has started")
        async with wire(f"{two_workers.url}/mcp") as raw, listening(raw, [task.id]) as stream:
            await stream.acknowledged()
            await asyncio.to_thread(two_workers.stop)
            await two_workers.start(WORKERS, workers="2")
        two_workers.let_go("a")
        result = await task.result()
    first, second = two_workers.runs("a")
    assert first != second
    assert result.structured_content == {"result": second}


# FastAPI and gunicorn, which nothing else here needs to be installed


GUNICORN = "gunicorn app:app --workers 4 --worker-class uvicorn_worker.UvicornWorker"


class _Pinned(Environment):
    @property
    def pins(self) -> Path:
        return Path(__file__).with_name("pins.txt")


PACKAGES = ("mcp==2.3.0", "fastapi==0.162.4", "gunicorn==27.0.0", "uvicorn-worker==0.4.0")


@pytest.fixture
def installed(tmp_path: Path) -> Generator[Site]:
    try:
        python = install_python(_Pinned(name="deploy", packages=PACKAGES))
    except Offline as exc:
        pytest.skip(str(exc))
    with site(tmp_path, python) as made:
        yield made


@pytest.mark.interop
@pytest.mark.timeout(300)
async def test_fastapi_serves_tasks_beside_its_own_routes(installed: Site) -> None:
    await installed.start("uvicorn api:app")
    async with http_client() as http:
        assert (await http.get(f"{installed.url}/health")).json() == {"status": "ok"}
    await assert_runs_a_task(installed)


@pytest.mark.interop
@pytest.mark.timeout(300)
async def test_gunicorn_hands_over_when_it_restarts_its_workers_and_when_it_is_stopped(installed: Site) -> None:
    await installed.start(GUNICORN, "--preload", workers="2")
    async with connected(f"{installed.url}/mcp") as client:
        task = await started(client, "again", job="a")
        await installed.until(lambda: len(installed.runs("a")) == 1, "it has started")
        installed.tell(signal.SIGHUP)
        await installed.until(lambda: len(installed.runs("a")) == 2, "a new worker runs it")
        await asyncio.to_thread(installed.stop)
        await installed.start(GUNICORN, "--preload", workers="2")
        await installed.until(lambda: len(installed.runs("a")) == 3, "the next one runs it")
        installed.let_go("a")
        result = await task.result()
    assert len(set(installed.runs("a"))) == 3
    assert result.structured_content == {"result": installed.runs("a")[2]}
