"""The program that has the client."""

import pytest

from tests.hosted.raw_server import Host


@pytest.fixture
async def host() -> Host:
    return Host()
