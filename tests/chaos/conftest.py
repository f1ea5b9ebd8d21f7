"""Scenarios here are mostly waiting, so they wait together.

The first one that is run starts all that were selected, a few at a time on threads; each test then waits for its own.
They take no fixtures: what they need they make, in a folder of their own.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

AT_A_TIME = 3
"""Scenarios that run together. A server takes a second of processor time to start, and two processors are common."""

_HERE = Path(__file__).parent
_started: dict[pytest.Item, Future[None]] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Processes are killed here in a way that only POSIX knows."""
    for item in items:
        if _is_ours(item) and os.name == "nt":
            item.add_marker(pytest.mark.skip(reason="there is no SIGKILL here"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Wait for the scenario, after starting those that were not yet."""
    if not _is_ours(pyfuncitem):
        return None
    if pyfuncitem not in _started:
        # Not as a context manager: a scenario that hangs must not hold the others' results back.
        pool = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="scenario")
        for item in pyfuncitem.session.items:
            if isinstance(item, pytest.Function) and _is_ours(item) and item not in _started:
                _started[item] = pool.submit(item.obj)
        pool.shutdown(wait=False)
    _started[pyfuncitem].result()
    return True


def _is_ours(item: pytest.Item) -> bool:
    return item.path.parent == _HERE
