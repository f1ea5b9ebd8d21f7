"""Servers for the other implementations to talk to, and those implementations themselves."""

from __future__ import annotations

import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.installing import Offline
from harness.serving import serving_command

from .driving import Outcomes, command, drive
from .install import (
    FASTMCP,
    LANGCHAIN,
    LANGCHAIN_ADAPTER,
    OLDER_STRANDS,
    PYDANTIC_AI,
    PYTHON_SDK,
    STRANDS,
    install_npm,
    install_python,
)
from .older import OLDER_CLIENTS, WAYS, visit

HERE = Path(__file__).resolve().parent
OURS = (sys.executable, "-m", "mcp_tasks.testing.fixture_server", "--port", "{port}", "--db", "{db}")
INSTALL_AND_RUN = 300.0
CLIENTS = {
    "ext_tasks": ("npm", "ext_tasks.mjs"),
    "fastmcp_client": ("fastmcp", "fastmcp_client.py"),
    "strands": ("strands", "strands_client.py"),
    "pydantic_ai": ("pydantic_ai", "pydantic_ai_toolset.py"),
}
"""For each client what it needs installed, and its driver."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "interop: runs other implementations (needs the PyPI and npm registries on first use)"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.interop)
            item.add_marker(pytest.mark.timeout(INSTALL_AND_RUN))


class Installs:
    """All that is installed here, begun together when the first of it is wanted: registries answer slowly."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        pythons = (FASTMCP, STRANDS, PYDANTIC_AI, LANGCHAIN, LANGCHAIN_ADAPTER, PYTHON_SDK, OLDER_STRANDS)
        self._begun = {environment.name: pool.submit(install_python, environment) for environment in pythons}
        self._begun["npm"] = pool.submit(install_npm)

    def wait_for(self, name: str) -> Path:
        """Where it is: the interpreter of a virtualenv, or the folder with the npm packages."""
        return self._begun[name].result()

    def __getitem__(self, name: str) -> Path:
        """The same. Not to get it is a failure, unless somebody said to be offline."""
        try:
            return self.wait_for(name)
        except Offline as exc:
            pytest.skip(str(exc))


class Reports:
    """What the clients of others report of our servers. They mostly wait for tasks, and do that together."""

    def __init__(self, pool: ThreadPoolExecutor, installs: Installs, urls: list[str], clients: list[str]) -> None:
        self._installs = installs
        self._urls = urls
        self._begun = {client: pool.submit(self._drive, client) for client in clients}

    def __getitem__(self, client: str) -> list[Outcomes]:
        """What a client reports of each of the servers."""
        try:
            return self._begun[client].result()
        except Offline as exc:
            pytest.skip(str(exc))

    def _drive(self, client: str) -> list[Outcomes]:
        needs, driver = CLIENTS[client]
        return drive(command(self._installs.wait_for(needs), driver), self._urls)


class OlderReports:
    """What clients of the older era report of our servers, some at a time: each has servers of its own."""

    def __init__(self, pool: ThreadPoolExecutor, installs: Installs, wanted: set[tuple[str, str]]) -> None:
        self._installs = installs
        self._begun = {key: pool.submit(self._visit, *key) for key in sorted(wanted)}

    def __getitem__(self, key: tuple[str, str]) -> Outcomes:
        """What a client reports in one way of reaching our server."""
        try:
            return self._begun[key].result()
        except Offline as exc:
            pytest.skip(str(exc))

    def _visit(self, client: str, way: str) -> Outcomes:
        needs, driver = OLDER_CLIENTS[client]
        return visit(command(self._installs.wait_for(needs), driver), way)


@pytest.fixture(scope="session")
def installs() -> Generator[Installs]:
    """What the other implementations need."""
    with ThreadPoolExecutor() as pool:
        yield Installs(pool)


@pytest.fixture(scope="session")
def streaming_url() -> Generator[str]:
    """Our server, answering with SSE streams as it does by default."""
    with serving_command(OURS) as url:
        yield url


@pytest.fixture(scope="session")
def json_url() -> Generator[str]:
    """Our server, answering with JSON bodies."""
    with serving_command((*OURS, "--json")) as url:
        yield url


@pytest.fixture(scope="session")
def urls(streaming_url: str, json_url: str) -> list[str]:
    """Our server in both ways."""
    return [streaming_url, json_url]


@pytest.fixture(scope="session")
def reports(request: pytest.FixtureRequest, urls: list[str], installs: Installs) -> Generator[Reports]:
    """What the clients of others report."""
    parameters = [getattr(item, "callspec", None) for item in request.session.items]
    wanted = {spec.params.get("client") for spec in parameters if spec is not None}
    with ThreadPoolExecutor() as pool:
        yield Reports(pool, installs, urls, [client for client in CLIENTS if client in wanted])


@pytest.fixture(scope="session")
def older_reports(request: pytest.FixtureRequest, installs: Installs) -> Generator[OlderReports]:
    """What clients of the older era report."""
    specs = [getattr(item, "callspec", None) for item in request.session.items]
    asked = {(spec.params.get("older"), spec.params.get("way")) for spec in specs if spec is not None}
    wanted = {(client, way) for client, way in asked if client in OLDER_CLIENTS and way in WAYS}
    # A few at a time: they compare nothing with a clock, but give up after a while.
    with ThreadPoolExecutor(max_workers=3) as pool:
        yield OlderReports(pool, installs, wanted)


@pytest.fixture(scope="session")
def fastmcp_url(installs: Installs) -> Generator[str]:
    """A server of FastMCP's."""
    server = command(installs["fastmcp"], "fastmcp_server.py")
    with serving_command((*server, "--port", "{port}")) as url:
        yield url
