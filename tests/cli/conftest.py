"""Servers for all tests here, and a command line with a ledger of its own for each."""

import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.cli.running import Cli, serving, stdio_command


@pytest.fixture(scope="session")
def fixture_url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with serving("mcp_tasks.testing.fixture_server", tmp_path_factory.mktemp("fixture")) as url:
        yield url


@pytest.fixture(scope="session")
def asking_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server that asks keeps its tasks."""
    return tmp_path_factory.mktemp("asking")


@pytest.fixture(scope="session")
def asking_url(asking_folder: Path) -> Generator[str]:
    with serving("tests.cli.asking_server", asking_folder) as url:
        yield url


@pytest.fixture
def asking_store(asking_folder: Path) -> Path:
    return asking_folder / "tasks.db"


@pytest.fixture
def stdio(tmp_path: Path) -> str:
    return stdio_command(tmp_path)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def url(cli: Cli, tmp_path: Path) -> str:
    """An empty store that the commands and workers of a test use too."""
    cli.environment["MCP_TASKS_URL"] = url = f"sqlite:///{tmp_path / 'tasks.db'}"
    return url


@pytest.fixture
def recorder() -> Generator[tuple[str, list[str | None]]]:
    """A server that wants other credentials, whichever are sent; gives its URL, and those that came.

    Paths that are looked at with GET are told too, and `/page` is no server but a page.
    """
    came: list[str | None] = []

    class Recorder(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            came.append(self.path)
            self.send_error(404)

        def do_POST(self) -> None:
            came.append(self.headers["Authorization"])
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.send_response(200 if self.path == "/page" else 401)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as it is overridden
            pass

    with HTTPServer(("127.0.0.1", 0), Recorder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/mcp", came
        server.shutdown()
        thread.join()
