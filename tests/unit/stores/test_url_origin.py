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


def write(path: Path, text: str = SERVER) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def run(*arguments: str | Path, cwd: Path, path: Sequence[Path] = ()) -> str:
    """The origin that a program prints."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *map(str, arguments)]
    printed = processes.run(command, cwd=cwd, env=environment, check=True)
    return json.loads(printed.stdout)


@pytest.mark.slow
def test_a_script_is_known_by_its_path(tmp_path: Path) -> None:
    script = write(tmp_path / "project" / "server.py")
    assert run(script, cwd=tmp_path) == str(script)
    assert run("server.py", cwd=script.parent) == str(script)


@pytest.mark.slow
def test_a_folder_that_is_run_is_known_by_its_path(tmp_path: Path) -> None:
    main = write(tmp_path / "project" / "__main__.py")
    assert run("project", cwd=tmp_path) == str(main)


@pytest.mark.slow
def test_a_program_without_a_file_is_known_by_where_it_runs(tmp_path: Path) -> None:
    assert run("-c", SERVER, cwd=tmp_path) == f"{tmp_path}/__main__"


@pytest.mark.slow
def test_a_module_is_the_same_run_by_name_and_imported(tmp_path: Path) -> None:
    write(tmp_path / "acme" / "server.py")
    write(tmp_path / "acme" / "__init__.py", "")
    expected = str(tmp_path / "acme" / "server.py")
    assert run("acme/server.py", cwd=tmp_path) == expected
    assert run("-m", "acme.server", cwd=tmp_path) == expected
    assert run("-c", "import acme.server", cwd=tmp_path) == expected
    assert run("-c", "import acme.server", cwd=tmp_path.parent, path=[tmp_path]) == expected
    assert run("-c", "import server", cwd=tmp_path / "acme") == expected


@pytest.mark.slow
def test_a_package_is_known_by_its_path(tmp_path: Path) -> None:
    file = write(tmp_path / "acme" / "__init__.py")
    assert run("-c", "import acme", cwd=tmp_path) == str(file)


@pytest.mark.slow
def test_a_package_that_is_run_is_known_by_its_main_module(tmp_path: Path) -> None:
    write(tmp_path / "acme" / "__init__.py", "")
    file = write(tmp_path / "acme" / "__main__.py")
    assert run("-m", "acme", cwd=tmp_path) == str(file)
    assert run("acme", cwd=tmp_path) == str(file)


@pytest.mark.slow
def test_two_checkouts_with_a_module_of_one_name_are_two_programs(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name / "server.py")
    one, two = (run("-c", "import server", cwd=tmp_path / name) for name in ("one", "two"))
    assert one != two


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
@pytest.mark.slow
def test_an_installed_module_is_the_same_wherever_its_environment_lies(tmp_path: Path, folder: str) -> None:
    for venv in ("venv-1", "venv-2"):
        place = tmp_path / venv / "lib" / "python3" / folder
        write(place / "acme" / "tasks" / "server.py")
        write(place / "acme" / "whole" / "__init__.py")
        file = place / "acme" / "tasks" / "server.py"
        for how in (("-c", "import acme.tasks.server"), ("-m", "acme.tasks.server"), (file,)):
            assert run(*how, cwd=tmp_path, path=[place]) == "acme.tasks.server"
        assert run("-c", "import acme.whole", cwd=tmp_path, path=[place]) == "acme.whole"


@pytest.mark.parametrize("known", [(), ("--known",)], ids=["unknown", "in sys.modules"])
@pytest.mark.slow
def test_a_file_that_is_loaded_under_another_name_is_known_by_its_path(tmp_path: Path, known: Sequence[str]) -> None:
    script = write(tmp_path / "project" / "server.py")
    assert run("-c", LOADER, script, *known, cwd=tmp_path) == str(script)


@pytest.mark.slow
def test_a_file_that_is_loaded_under_the_name_of_an_installed_module_is_not_that_module(tmp_path: Path) -> None:
    place = tmp_path / "site-packages"
    write(place / "server_module.py", "")
    script = write(tmp_path / "project" / "server_module.py")
    program = f"import server_module\n{LOADER}"
    assert run("-c", program, script, cwd=tmp_path, path=[place]) == str(script)


@pytest.mark.slow
def test_a_process_that_a_script_spawns_is_the_same_program(tmp_path: Path) -> None:
    script = write(
        tmp_path / "server.py",
        "import json, multiprocessing\n"
        "from mcp_tasks.stores.url import origin_of\n"
        "ORIGIN = origin_of(globals())\n"
        "def child(queue):\n"
        "    queue.put(ORIGIN)\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    queue = context.Queue()\n"
        "    process = context.Process(target=child, args=(queue,))\n"
        "    process.start()\n"
        "    print(json.dumps([ORIGIN, queue.get()]))\n"
        "    process.join()\n",
    )
    assert run(script, cwd=tmp_path) == [str(script), str(script)]


@pytest.mark.slow
def test_a_program_that_is_reached_by_a_link_is_the_same_as_without_it(tmp_path: Path) -> None:
    script = write(tmp_path / "project" / "server.py")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "project")
    assert run(link / "server.py", cwd=tmp_path) == str(script)
    # Here Python sees the folder without the link.
    assert run("server.py", cwd=link) == str(script)
    assert run("-c", "import server", cwd=tmp_path, path=[link]) == str(script)


def test_a_frozen_program_is_known_by_its_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    module: Mapping[str, Any] = {"__name__": "acme", "__file__": "/tmp/_MEI1234/acme.py"}
    assert origin_of(module) == sys.executable


def test_the_module_of_this_test_is_found() -> None:
    assert origin_of(globals()) == os.path.realpath(__file__)


WAYS = {
    "python x.py": (sys.executable, "x.py"),
    "uvicorn x:app": processes.python("uvicorn", "x:app", "--port", "0"),
    "mcp-tasks worker x:server": processes.python("mcp_tasks", "worker", "x:server"),
}


@pytest.mark.slow
def test_a_server_has_one_default_file_however_it_is_started(tmp_path: Path) -> None:
    write(
        tmp_path / "x.py",
        "from mcp.server import MCPServer\n"
        "from mcp_tasks import Tasks\n"
        "tasks = Tasks()\n"
        "server = MCPServer('demo', **tasks.wiring())\n"
        "app = server.streamable_http_app()\n"
        "if __name__ == '__main__':\n"
        "    server.run()\n",
    )
    files = {way: file_of(way, tmp_path) for way in WAYS}
    assert len(set(files.values())) == 1, files


def file_of(way: str, folder: Path) -> str:
    """The default file of the server in `folder`, started in this way with a state folder of its own."""
    state = folder / way.partition(" ")[0]
    environment = processes.environment(XDG_STATE_HOME=str(state))
    with processes.running(WAYS[way], cwd=folder, env=environment, stdin=processes.PIPE) as process:
        processes.until_ready(process, lambda: any(state.glob("**/*.db")), what=way)
    (file,) = state.glob("**/*.db")
    return file.name
