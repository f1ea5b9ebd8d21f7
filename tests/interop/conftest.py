"""The other implementations, installed and driven beside each other: they mostly wait."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness.installing import Offline
from harness.serving import serving_command

from .driving import command, drive, visit_hosted, visit_older
from .inspector import Inspector, inspecting
from .install import ENVIRONMENTS, install_npm, install_python

HERE = Path(__file__).resolve().parent
OURS = (sys.executable, "-m", "mcp_tasks.testing.fixture_server", "--port", "{port}", "--db", "{db}")
INSTALL_AND_RUN = 900.0
AT_A_TIME = 3
CLIENTS = {
    "ext_tasks": ("npm", "ext_tasks.mjs"),
    "fastmcp_client": ("fastmcp", "fastmcp_client.py"),
    "strands": ("strands", "strands_client.py"),
    "pydantic_ai": ("pydantic_ai", "pydantic_ai_toolset.py"),
}
"""For each client what it needs installed, and its driver."""
OLDER_CLIENTS = {
    "typescript": ("npm", "older_sdk.mjs"),
    "python": ("python_sdk", "older_sdk.py"),
    "ext_tasks_v1": ("npm", "older_ext_tasks.mjs"),
    "strands_older": ("older_strands", "older_strands.py"),
}
HOSTS = {
    "typescript_v1": ("npm", "host_sdk_v1.mjs"),
    "typescript_v2": ("npm", "host_client_v2.mjs"),
    "python_v1": ("python_sdk", "host_python_sdk.py"),
    "fastmcp_plain": ("fastmcp", "host_fastmcp.py"),
    "langchain_adapter": ("langchain_adapter", "host_langchain.py"),
}
"""Hosts that speak no tasks."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.interop)
            item.add_marker(pytest.mark.timeout(INSTALL_AND_RUN))


class Begun:
    """What was begun in threads, by name. What cannot be had because somebody said to be offline skips a test."""

    def __init__(self, futures: Mapping[Any, Future[Any]]) -> None:
        self.futures = futures

    def __getitem__(self, name: Any) -> Any:
        try:
            return self.futures[name].result()
        except Offline as exc:
            pytest.skip(str(exc))


@pytest.fixture(scope="session")
def installs() -> Generator[Begun]:
    """Interpreters of virtualenvs, and the folder `npm`, begun together: registries answer slowly."""
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        begun: dict[str, Future[Path]] = {each.name: pool.submit(install_python, each) for each in ENVIRONMENTS}
        yield Begun({**begun, "npm": pool.submit(install_npm)})


def wanted(request: pytest.FixtureRequest, name: str) -> set[Any]:
    """The values that a parameter has in the tests that were selected."""
    specs = [getattr(item, "callspec", None) for item in request.session.items]
    return {spec.params[name] for spec in specs if spec is not None and name in spec.params}


def begun(
    request: pytest.FixtureRequest,
    installs: Begun,
    parameter: str,
    drivers: Mapping[str, tuple[str, str]],
    work: Callable[..., Any],
) -> Generator[Begun]:
    """Have all drivers that are wanted work, some at a time. A value is a name of one, with more arguments if any."""

    def one(name: str, *more: Any) -> Any:
        needs, driver = drivers[name]
        return work(command(installs.futures[needs].result(), driver), *more)

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        values = sorted(wanted(request, parameter))
        yield Begun({value: pool.submit(one, *((value,) if isinstance(value, str) else value)) for value in values})


@pytest.fixture(scope="session")
def reports(request: pytest.FixtureRequest, installs: Begun, streaming_url: str, json_url: str) -> Generator[Begun]:
    """What clients report of our server, with SSE streams and with JSON bodies."""

    def both(driver: Sequence[str]) -> Any:
        return drive(driver, [streaming_url, json_url])

    yield from begun(request, installs, "client", CLIENTS, both)


@pytest.fixture(scope="session")
def older_reports(request: pytest.FixtureRequest, installs: Begun) -> Generator[Begun]:
    """What clients of the older era report, each of a server of its own."""
    yield from begun(request, installs, "older", OLDER_CLIENTS, visit_older)


@pytest.fixture(scope="session")
def host_reports(request: pytest.FixtureRequest, installs: Begun) -> Generator[Begun]:
    """What hosts without tasks report, each of a server of its own."""
    yield from begun(request, installs, "row", HOSTS, visit_hosted)


@pytest.fixture(scope="session")
def streaming_url() -> Generator[str]:
    with serving_command(OURS) as url:
        yield url


@pytest.fixture(scope="session")
def json_url() -> Generator[str]:
    with serving_command((*OURS, "--json")) as url:
        yield url


@pytest.fixture(scope="session")
def inspector(installs: Begun) -> Generator[Inspector]:
    with inspecting(installs["npm"]) as inspector:
        yield inspector
