"""A running server, for code in its own process."""

from collections.abc import AsyncGenerator

import pytest

from tests.local.serving import Office, open_office


@pytest.fixture
async def office() -> AsyncGenerator[Office]:
    """A server with tools, prompts and resources, and its tasks."""
    async with open_office() as running:
        yield running
