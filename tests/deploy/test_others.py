"""The recipes that need something installed that nothing else here needs: FastAPI and gunicorn."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from harness.http import http_client
from harness.installing import Offline
from tests.deploy.recipes import Site, connected, site, started
from tests.interop.install import Environment, install_python

pytestmark = [pytest.mark.anyio, pytest.mark.interop, pytest.mark.timeout(300)]

GUNICORN = "gunicorn app:app --workers 4 --worker-class uvicorn_worker.UvicornWorker"


class _Pinned(Environment):
    @property
    def pins(self) -> Path:
        return Path(__file__).with_name("pins.txt")


PACKAGES = ("mcp==2.3.0", "fastapi==0.162.4", "gunicorn==27.0.0", "uvicorn-worker==0.4.0")


@pytest.fixture
def place(tmp_path: Path) -> Generator[Site]:
    """A folder with the files of the page, for an interpreter that has what they import."""
    try:
        python = install_python(_Pinned(name="deploy", packages=PACKAGES))
    except Offline as exc:
        pytest.skip(str(exc))
    with site(tmp_path, python) as made:
        yield made


async def test_fastapi_serves_tasks_beside_its_own_routes(place: Site) -> None:
    await place.start("uvicorn api:app")
    async with http_client() as http:
        assert (await http.get(f"{place.url}/health")).json() == {"status": "ok"}
    async with connected(f"{place.url}/tools/mcp") as client:
        task = await started(client, "again", job="a")
        place.let_go("a")
        result = await task.result()
    assert result.structured_content == {"result": place.runs("a")[0]}


async def test_gunicorn_hands_over_when_it_restarts_its_workers_and_when_it_is_stopped(place: Site) -> None:
    await place.start(GUNICORN, "--preload", workers="2")
    async with connected(f"{place.url}/mcp") as client:
        task = await started(client, "again", job="a")
        await place.until(lambda: len(place.runs("a")) == 1, "it has started")
        place.tell(signal.SIGHUP)
        await place.until(lambda: len(place.runs("a")) == 2, "a new worker runs it")
        await asyncio.to_thread(place.stop)
        await place.start(GUNICORN, "--preload", workers="2")
        await place.until(lambda: len(place.runs("a")) == 3, "the next one runs it")
        place.let_go("a")
        result = await task.result()
    assert len(set(place.runs("a"))) == 3
    assert result.structured_content == {"result": place.runs("a")[2]}
