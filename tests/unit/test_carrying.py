"""The engine seam, proven by a second kind of engine: ids go to other processes, are repeated, and get lost."""

from __future__ import annotations

import pytest

from mcp_tasks.engines import Engine
from mcp_tasks.testing.engine_suite import EngineSuite
from tests.unit.carrying import Broker, CarryingEngine


class TestCarryingEngine(EngineSuite):
    @pytest.fixture(autouse=True)
    def a_broker_for_each_test(self) -> None:
        self.broker = Broker()

    def make_engine(self) -> Engine:
        return CarryingEngine(self.broker)
