"""What all tests here have in common."""

from __future__ import annotations

import pytest

# An `assert` in a module that is not a test says nothing unless rewritten; this comes before they are imported.
pytest.register_assert_rewrite("tests.helpers.rpc", "tests.helpers.schema", "tests.helpers.http", "tests.helpers.stdio")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The runtime is written for asyncio, as the SDK's servers are run."""
    return "asyncio"
