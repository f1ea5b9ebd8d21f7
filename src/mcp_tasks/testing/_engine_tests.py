"""What the parts of the engine suite have in common: the hook."""

from __future__ import annotations

import pytest

from mcp_tasks.engines.base import Engine


@pytest.mark.anyio
class EngineTests:
    """A test class with engines of its own for each test."""

    grace: float = 0.05
    """Seconds after which what has not happened is taken not to happen."""

    def make_engine(self) -> Engine:
        """An engine that has not been started, with at least two slots.

        If it is remote, another one made in the same test belongs to another process and carries ids to the same
        workers. Nothing is carried over from one test to the next.
        """
        raise NotImplementedError("an engine suite needs `make_engine`")

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
