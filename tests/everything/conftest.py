"""The process that serves everything, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.everything.site import site_process


@pytest.fixture(scope="session")
def site() -> Generator[str]:
    """The base URL of the servers; they end with the test run."""
    with site_process() as url:
        yield url
