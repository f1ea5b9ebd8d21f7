"""What the parts of the engine suite have in common: the hook."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from mcp_tasks.engines.base import Engine


@pytest.mark.anyio
class EngineTests:
    """A test class with engines of its own for each test."""

    grace: float = 0.05
    """Seconds after which what has not happened is taken not to happen."""

    outlasts: float = 0.05
    """Seconds for which a run goes on in the test that long runs are not carried again: more than any time-out of what
    carries the ids."""

    rescues: float | None = None
    """Seconds after which an id is carried to another process that one had taken and not claimed when it was killed;
    None if that is left to the sweeps."""

    def make_engine(self) -> Engine:
        """An engine that has not been started, with at least two slots.

        If it is remote, another one made in the same test belongs to another process and carries ids to the same
        workers. Nothing is carried over from one test to the next.
        """
        raise NotImplementedError("an engine suite needs `make_engine`")

    def elsewhere(self) -> Sequence[str] | None:
        """With which another process makes an engine, as `make_engine` does: `module:function`, and its arguments.

        None leaves out the tests that kill processes.
        """
        return None

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Engines are built for asyncio."""
        return "asyncio"

    @pytest.fixture
    def engine(self) -> Engine:
        """An engine that has not been started."""
        return self.make_engine()

    @pytest.fixture
    def peer(self, engine: Engine) -> Engine:
        """A second engine, as another process would have it."""
        if not engine.abilities.remote:
            pytest.skip("this engine carries nothing to other processes")
        return self.make_engine()

    @pytest.fixture
    def command(self, engine: Engine) -> Sequence[str]:
        """Starts a process with an engine of its own."""
        made_by = self.elsewhere() if engine.abilities.remote else None
        if made_by is None:
            pytest.skip("no engine is made in another process: see `elsewhere`")
        return [sys.executable, "-m", "mcp_tasks.testing.engine_process", *made_by]
