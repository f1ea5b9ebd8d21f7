"""What all tests here have in common."""

import logging
import signal
from types import TracebackType
from typing import NoReturn

import pytest

from harness import places, thoroughness

# An `assert` in a module that is not a test says nothing unless rewritten; this comes before they are imported.
pytest.register_assert_rewrite("harness.rpc", "harness.schema", "harness.http", "harness.stdio", "harness.serving")

# Before anybody asks where temporary files go.
places.keep_in_memory()

pytest_plugins = ["harness.fixtures"]


def pytest_configure() -> None:
    """Told to end, leave in order: fixtures have processes to end. And try as many examples as is said."""
    signal.signal(signal.SIGTERM, _leave)
    thoroughness.for_all_tests()


def _leave(number: int, frame: object) -> NoReturn:
    pytest.exit(f"ended by signal {number}", 128 + number)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> None:
    """Show the beginning of an endless recursion alone.

    pytest would look for where it repeats by comparing the locals of all frames. That may take longer than a test may,
    and then its whole process ends without a word.
    """
    if call.excinfo is not None and call.excinfo.errisinstance(RecursionError):
        last: TracebackType | None = call.excinfo.tb
        for _ in range(100):
            last = last and last.tb_next
        if last is not None:
            last.tb_next = None


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The runtime is written for asyncio, as the SDK's servers are run."""
    return "asyncio"


@pytest.fixture(autouse=True)
def _logs_of_a_new_process() -> None:  # pyright: ignore[reportUnusedFunction]
    """Each test logs as a process that has just begun.

    A snippet of the docs sets up the audit log, and an `MCPServer` made while pytest has no handler in place sets
    the root logger to INFO: for good, and later tests would find what they never asked for among what was logged.
    """
    logging.getLogger().setLevel(logging.WARNING)
    for name in [name for name in logging.Logger.manager.loggerDict if name.partition(".")[0] == "mcp_tasks"]:
        logger = logging.getLogger(name)
        logger.setLevel(logging.NOTSET)
        logger.propagate = True
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
