"""Docket as an engine, on a real Valkey."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from mcp_tasks.engines import Engine, RemoteEngine
from mcp_tasks.engines.docket import DocketCarrier
from mcp_tasks.testing.engine_suite import EngineSuite
from tests.helpers.databases import Valkey, valkey

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as server:
        yield server


class TestDocketEngine(EngineSuite):
    grace = 0.2

    @pytest.fixture(autouse=True)
    def streams_of_its_own(self, server: Valkey) -> None:
        self.url, self.prefix = server.url, f"test-{uuid4().hex}"

    def make_engine(self) -> Engine:
        return RemoteEngine(DocketCarrier(self.url, prefix=self.prefix), concurrency=4)
