"""What all tests here have in common."""

from __future__ import annotations

import logging

import pytest

# An `assert` in a module that is not a test says nothing unless rewritten; this comes before they are imported.
pytest.register_assert_rewrite("tests.helpers.rpc", "tests.helpers.schema", "tests.helpers.http", "tests.helpers.stdio")


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
