"""Server processes that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack

import pytest

from harness.furnished import http_process


class HttpProcesses:
    """Server processes by their arguments, started when first asked for."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._urls: dict[tuple[str, ...], str] = {}

    def url(self, *arguments: str) -> str:
        """The address of the server with these arguments."""
        if arguments not in self._urls:
            self._urls[arguments] = self._stack.enter_context(http_process(*arguments))
        return self._urls[arguments]


@pytest.fixture(scope="session")
def http_processes() -> Generator[HttpProcesses]:
    """All of them end with the test run."""
    with ExitStack() as stack:
        yield HttpProcesses(stack)
