"""The contract of an engine as tests. An engine that passes them may be handed to `Tasks(engine=...)`.

    class TestMyEngine(EngineSuite):
        def make_engine(self):
            return MyEngine(self.url)      # queues that are empty at the start of each test

The tests run with anyio's pytest plugin on asyncio; nothing else needs to be set up. That an engine may lose an id, or
carry it twice, is part of the contract: the store and the sweeps see to it that every task is run, and by one process.
"""

from __future__ import annotations

import pytest

# Before the imports that follow: an `assert` in a module that is not a test says nothing unless rewritten.
pytest.register_assert_rewrite("mcp_tasks.testing._engine_runs")

from mcp_tasks.testing._engine_runs import ArrivalTests, CarryingTests, RouteTests, RunTests  # noqa: E402

__all__ = ["EngineSuite"]


class EngineSuite(RunTests, CarryingTests, RouteTests, ArrivalTests):
    """Every test of the contract; give it `make_engine`."""
