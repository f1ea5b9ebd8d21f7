"""Servers for the other implementations to talk to, and those implementations themselves."""

from __future__ import annotations

import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .driving import Outcomes, drive, node_command, python_command
from .install import FASTMCP, PYDANTIC_AI, STRANDS, Offline, install_npm, install_python
from .shared import CHECKOUT, serving

HERE = Path(__file__).resolve().parent
OURS = (sys.executable, "-m", "mcp_tasks.testing.fixture_server", "--port", "{port}", "--db", "{db}")
INSTALL_AND_RUN = 300.0


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
        pythons = (FASTMCP, STRANDS, PYDANTIC_AI)
        self._begun = {environment.name: pool.submit(install_python, environment) for environment in pythons}
        self._begun["npm"] = pool.submit(install_npm)

    def __getitem__(self, name: str) -> Path:
        """Where it is. Not to get it is a failure, unless somebody said to be offline."""
        try:
            return self._begun[name].result()
        except Offline as exc:
            pytest.skip(str(exc))


@pytest.fixture(scope="session")
def installs() -> Generator[Installs]:
    """What the other implementations need."""
    with ThreadPoolExecutor() as pool:
        yield Installs(pool)


@pytest.fixture(scope="session")
def streaming_url() -> Generator[str]:
    """Our server, answering with SSE streams as it does by default."""
    with serving(OURS, cwd=CHECKOUT) as url:
        yield url


@pytest.fixture(scope="session")
def json_url() -> Generator[str]:
    """Our server, answering with JSON bodies."""
    with serving((*OURS, "--json"), cwd=CHECKOUT) as url:
        yield url


@pytest.fixture(scope="session")
def urls(streaming_url: str, json_url: str) -> list[str]:
    """Our server in both ways."""
    return [streaming_url, json_url]


@pytest.fixture(scope="session")
def ext_tasks(urls: list[str], installs: Installs) -> list[Outcomes]:
    """What the TypeScript client with ext-tasks reports of each of `urls`."""
    return drive(node_command(installs["npm"], "ext_tasks.mjs"), urls)


@pytest.fixture(scope="session")
def fastmcp_client(urls: list[str], installs: Installs) -> list[Outcomes]:
    """What FastMCP's client reports of each of `urls`."""
    return drive(python_command(installs["fastmcp"], "fastmcp_client.py"), urls)


@pytest.fixture(scope="session")
def strands(urls: list[str], installs: Installs) -> list[Outcomes]:
    """What the client of Strands reports of each of `urls`."""
    return drive(python_command(installs["strands"], "strands_client.py"), urls)


@pytest.fixture(scope="session")
def pydantic_ai(urls: list[str], installs: Installs) -> list[Outcomes]:
    """What Pydantic AI reports of each of `urls`."""
    return drive(python_command(installs["pydantic_ai"], "pydantic_ai_toolset.py"), urls)


@pytest.fixture(scope="session")
def fastmcp_url(installs: Installs) -> Generator[str]:
    """A server of FastMCP's."""
    command = python_command(installs["fastmcp"], "fastmcp_server.py")
    with serving((*command, "--port", "{port}"), cwd=CHECKOUT) as url:
        yield url
