"""Which program a `Tasks` object belongs to: real modules, started and imported in all the ways there are."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import processes
from mcp_tasks.stores.url import origin_of

SERVER = """
from mcp_tasks.stores.url import origin_of
import json
print(json.dumps(origin_of(globals())))
"""

LOADER = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("server_module", sys.argv[1])
module = importlib.util.module_from_spec(spec)
if "--known" in sys.argv:
    sys.modules["server_module"] = module
spec.loader.exec_module(module)
"""

SPAWNER = """
import json, multiprocessing
from mcp_tasks.stores.url import origin_of
ORIGIN = origin_of(globals())
def child(queue):
    queue.put(ORIGIN)
if __name__ == '__main__':
    context = multiprocessing.get_context('spawn')
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    assert queue.get() == ORIGIN
    print(json.dumps(ORIGIN))
    process.join()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a script, a package, two checkouts, an environment with installed packages, and links."""
    files = {
        "script/server.py": SERVER,
        "spawner.py": SPAWNER,
        "folder/__main__.py": SERVER,
        "acme/__init__.py": "",
        "acme/server.py": SERVER,
        "acme/__main__.py": SERVER,
        "whole/__init__.py": SERVER,
        "lib/site-packages/installed/tasks/server.py": SERVER,
        "lib/dist-packages/installed/__init__.py": SERVER,
        "lib/site-packages/server_module.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "link").symlink_to(tmp_path / "script")
    return tmp_path


Case = tuple[Sequence[str], str, str, str]
"""The arguments of Python, the folder it is started in, the folder on its path, and the origin."""

SITE, DIST = "lib/site-packages", "lib/dist-packages"
CASES: dict[str, Case] = {
    "a script": (["script/server.py"], ".", "", "/script/server.py"),
    "a script where it lies": (["server.py"], "script", "", "/script/server.py"),
    "a folder": (["folder"], ".", "", "/folder/__main__.py"),
    "no file": (["-c", SERVER], ".", "", "/__main__"),
    "a module by its path": (["acme/server.py"], ".", "", "/acme/server.py"),
    "a module by its name": (["-m", "acme.server"], ".", "", "/acme/server.py"),
    "a module that is imported": (["-c", "import acme.server"], ".", "", "/acme/server.py"),
    "a module on the path": (["-c", "import acme.server"], "..", ".", "/acme/server.py"),
    "a module of another name": (["-c", "import server"], "acme", "", "/acme/server.py"),
    "a package": (["-c", "import whole"], ".", "", "/whole/__init__.py"),
    "a package that is run": (["-m", "acme"], ".", "", "/acme/__main__.py"),
    "an installed module": (["-c", "import installed.tasks.server"], ".", SITE, "installed.tasks.server"),
    "an installed module that is run": (["-m", "installed.tasks.server"], ".", SITE, "installed.tasks.server"),
    "an installed file": ([f"{SITE}/installed/tasks/server.py"], ".", "", "installed.tasks.server"),
    "an installed package": (["-c", "import installed"], ".", DIST, "installed"),
    "loaded": (["-c", LOADER, "script/server.py"], ".", "", "/script/server.py"),
    "loaded and known": (["-c", LOADER, "script/server.py", "--known"], ".", "", "/script/server.py"),
    "loaded as an installed module": (
        ["-c", f"import server_module\n{LOADER}", "script/server.py"],
        ".",
        SITE,
        "/script/server.py",
    ),
    "spawned": (["spawner.py"], ".", "", "/spawner.py"),
    "by a link": (["link/server.py"], ".", "", "/script/server.py"),
    "in a link": (["server.py"], "link", "", "/script/server.py"),
    "imported by a link": (["-c", "import server"], ".", "link", "/script/server.py"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "folder", "path", "origin"), CASES.values(), ids=CASES)
def test_a_program_is_known_by_its_file_or_by_the_name_of_its_installed_module(
    project: Path, arguments: Sequence[str], folder: str, path: str, origin: str
) -> None:
    environment = os.environ | {"PYTHONPATH": str(project / path) if path else "", "PYTHONDONTWRITEBYTECODE": "1"}
    # A relative file is one that the program opens, so it is started where that is.
    done = processes.run([sys.executable, *arguments], cwd=project / folder, env=environment, check=True)
    assert json.loads(done.stdout) == (f"{project}{origin}" if origin.startswith("/") else origin)


def test_a_frozen_program_is_known_by_its_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    module: Mapping[str, Any] = {"__name__": "acme", "__file__": "/tmp/_MEI1234/acme.py"}
    assert origin_of(module) == sys.executable


WAYS = {
    "python x.py": (sys.executable, "x.py"),
    "uvicorn x:app": processes.python("uvicorn", "x:app", "--port", "0"),
    "mcp-tasks worker x:server": processes.python("mcp_tasks", "worker", "x:server"),
}


@pytest.mark.slow
def test_a_server_has_one_default_file_however_it_is_started(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(
        "from mcp.server import MCPServer\n"
        "from mcp_tasks import Tasks\n"
        "tasks = Tasks()\n"
        "server = MCPServer('demo', **tasks.wiring())\n"
        "app = server.streamable_http_app()\n"
        "if __name__ == '__main__':\n"
        "    server.run()\n",
    )
    names: set[str] = set()
    for way, command in WAYS.items():
        state = tmp_path / way.partition(" ")[0]
        environment = processes.environment(XDG_STATE_HOME=str(state))
        with processes.running(command, cwd=tmp_path, env=environment, stdin=processes.PIPE) as process:
            processes.until_ready(process, lambda state=state: any(state.glob("**/*.db")), what=way)
        names |= {file.name for file in state.glob("**/*.db")}
    assert len(names) == 1, names
