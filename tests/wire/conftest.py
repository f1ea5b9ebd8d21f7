"""Server processes that the tests of this folder share."""

from collections.abc import Callable, Generator
from contextlib import ExitStack
from functools import cache
from typing import TypeAlias

import pytest

from harness.furnished import http_process

HttpProcesses: TypeAlias = Callable[..., str]
"""The address of the server process with these arguments, started when first asked for."""


@pytest.fixture(scope="session")
def http_processes() -> Generator[HttpProcesses]:
    """All of them end with the test run."""
    with ExitStack() as stack:
        yield cache(lambda *arguments: stack.enter_context(http_process(*arguments)))
