"""A furnished server behind HTTP, one that says what a test wants it to say, and a ledger."""

from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from harness.http import serving
from harness.server import QUICK, Desk, build
from mcp_tasks import Tasks
from mcp_tasks.client import Ledger
from tests.client.peer import Peer, serving_peer


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
async def url(desk: Desk) -> AsyncGenerator[str]:
    async with serving(build(Tasks("memory://", settings=QUICK), desk)) as wire:
        yield wire.url


@pytest.fixture
async def peer() -> AsyncGenerator[Peer]:
    async with serving_peer() as peer:
        yield peer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Generator[Ledger]:
    book = Ledger(path)
    yield book
    book.close()
