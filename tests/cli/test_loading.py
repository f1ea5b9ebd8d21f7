"""MODULE:SERVER: every way to get it wrong is answered in words, and nothing is started."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from tests.cli.running import Cli

MODULES: Mapping[str, str] = {
    "farm": """
        from mcp.server import MCPServer
        from mcp_tasks import Tasks

        tasks = Tasks("sqlite:///farm.db")
        server = MCPServer("farm", **tasks.wiring(), log_level="ERROR")
        bare = MCPServer("bare", log_level="ERROR")
        app = server.streamable_http_app()

        class holder:
            server = server

        def make():
            return server

        async def make_later():
            return server

        def fail():
            raise ValueError("no licence")
        """,
    "memory": """
        from mcp.server import MCPServer
        from mcp_tasks import Tasks

        server = MCPServer("forgetful", **Tasks("memory://").wiring(), log_level="ERROR")
        """,
    "broken": """
        def deep():
            raise RuntimeError("the licence has run out")

        deep()
        """,
    "free": "from farm import bare",
    "lacks": "import no_such_package_anywhere",
    "misused": """
        from mcp_tasks import Tasks

        tasks = Tasks("mysql://db/tasks")
        """,
    "lifespan": """
        from contextlib import asynccontextmanager
        from mcp.server import MCPServer
        from mcp_tasks import Tasks

        @asynccontextmanager
        async def own(server):
            raise ConnectionError("no cache there")
            yield

        server = MCPServer("unlucky", **Tasks("sqlite:///unlucky.db").wiring(own), log_level="ERROR")
        """,
    "unwritable": """
        from mcp.server import MCPServer
        from mcp_tasks import Tasks

        server = MCPServer("nowhere", **Tasks("sqlite:////proc/nowhere/tasks.db").wiring(), log_level="ERROR")
        """,
    "unnamed": """
        from mcp.server import MCPServer
        from mcp_tasks import Tasks

        server = MCPServer("unnamed", **Tasks().wiring(), log_level="ERROR")
        """,
    "composed": """
        from contextlib import asynccontextmanager
        from mcp.server import MCPServer
        from mcp_tasks import Tasks

        tasks = Tasks("sqlite:///composed.db")
        wiring = tasks.wiring()
        within = wiring["lifespan"]

        @asynccontextmanager
        async def around(server):
            async with within(server) as state:
                yield state

        server = MCPServer("composed", extensions=wiring["extensions"], lifespan=around, log_level="ERROR")
        """,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, source in MODULES.items():
        (tmp_path / f"{name}.py").write_text(dedent(source).lstrip())
    return tmp_path


@pytest.mark.parametrize(
    ("spec", "code", "said"),
    [
        ("farm", 2, ["'farm' does not name a server", "MODULE:SERVER, as in farm:server"]),
        ("farm.py:server", 2, ["Name the module and not the file", "farm:server"]),
        ("frm:server", 2, ["there is no module 'frm'", "Modules are looked for in"]),
        ("farm:servr", 2, ["farm has no 'servr'", "There is farm:server and farm:bare."]),
        ("farm:app", 2, ["farm:app is a Starlette, and not a server", "farm:server"]),
        ("farm:make", 2, ["farm:make is the function make, and not a server", "write farm:make()"]),
        ("farm:server()", 2, ["farm:server() is not a function"]),
        ("farm:make_later()", 2, ["farm:make_later() is asynchronous"]),
        ("farm:fail()", 11, ["farm:fail() failed", "ValueError: no licence", "in fail"]),
        ("memory:server", 2, ["kept in memory, where no other process", "sqlite:///tasks.db"]),
        ("broken:server", 11, ["'broken' could not be imported", "in deep", "RuntimeError: the licence has run out"]),
        ("lacks:server", 11, ["'lacks' could not be imported", "No module named 'no_such_package_anywhere'"]),
        ("free:bare", 2, ["server 'bare' has no tasks: make it with MCPServer(..., **tasks.wiring())"]),
        ("misused:server", 2, ["'mysql://db/tasks' names no store", "misused.py, line 3."]),
    ],
)
def test_what_cannot_be_loaded_is_said_in_words(cli: Cli, folder: Path, spec: str, code: int, said: list[str]) -> None:
    done = cli("worker", spec, "--check", cwd=folder)
    assert done.returncode == code, done.stderr
    for words in said:
        assert words in done.stderr
    # Nothing of ours, nor of how Python imports.
    assert "mcp_tasks/" not in done.stderr
    assert "importlib" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("spec", ["farm:holder.server", "farm:make()", "composed:server"])
def test_a_server_is_found_in_the_working_directory(cli: Cli, folder: Path, spec: str) -> None:
    done = cli("worker", spec, "--check", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert f"{spec.partition(':')[0]}.db" in done.stdout


def test_what_the_lifespan_raises_is_shown_and_ends_the_worker(cli: Cli, folder: Path) -> None:
    done = cli("worker", "lifespan:server", cwd=folder)
    assert done.returncode == 11
    assert "ConnectionError: no cache there" in done.stderr
    assert "server 'unlucky' could not be started" in done.stderr


@pytest.mark.parametrize("how", [["worker"], ["worker", "--check"], ["backlog"]], ids=" ".join)
def test_a_store_that_cannot_be_used_has_a_code_of_its_own(cli: Cli, folder: Path, how: list[str]) -> None:
    command, *options = how
    done = cli(command, "unwritable:server", *options, cwd=folder)
    assert done.returncode == (2 if how == ["backlog"] else 10), done.stderr
    assert "/proc/nowhere/tasks.db" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_names_no_store_has_the_file_of_its_module(cli: Cli, folder: Path) -> None:
    done = cli("worker", "unnamed:server", "--check", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "unnamed.py-" in "".join(done.stdout.split())
    cli.environment["MCP_TASKS_URL"] = f"sqlite:///{folder}/named.db"
    assert cli("worker", "unnamed:server", "--check", cwd=folder).stderr == ""


def test_the_options_of_a_worker_are_checked_before_anything_is_loaded(cli: Cli, folder: Path) -> None:
    for option, value, said in (
        ("--health", ":8081", "HOST:PORT"),
        ("--health", "127.0.0.1:99999", "HOST:PORT"),
        ("--queues", "gpu,,default", "commas"),
        ("--concurrency", "0", "x>=1"),
        ("--drain", "-1", "not a duration"),
    ):
        done = cli("worker", "broken:server", option, value, cwd=folder)
        assert done.returncode == 2, (option, value, done.stderr)
        assert option in done.stderr
        assert said in " ".join(done.stderr.split())
