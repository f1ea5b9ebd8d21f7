"""Servers for all tests here, and a command line with a ledger of its own for each."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.cli.running import Cli, serving, stdio_command


@pytest.fixture(scope="session")
def fixture_url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """The package's own fixture server."""
    with serving("mcp_tasks.testing.fixture_server", tmp_path_factory.mktemp("fixture")) as url:
        yield url


@pytest.fixture(scope="session")
def asking_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server that asks keeps its tasks."""
    return tmp_path_factory.mktemp("asking")


@pytest.fixture(scope="session")
def asking_url(asking_folder: Path) -> Generator[str]:
    """The server that asks every kind of question."""
    with serving("tests.cli.asking_server", asking_folder) as url:
        yield url


@pytest.fixture
def asking_store(asking_folder: Path) -> Path:
    """The file with its tasks."""
    return asking_folder / "tasks.db"


@pytest.fixture
def stdio(tmp_path: Path) -> str:
    """The command of the same server over its pipes."""
    return stdio_command(tmp_path)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The command line."""
    return Cli(tmp_path)
