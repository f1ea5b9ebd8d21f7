"""The docs are kept true: their code runs, their generated parts are current, their links lead somewhere."""

from __future__ import annotations

import json
import re
import sys
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from docs.api.links import headings, slug
from docs.generate import LIFECYCLE, left_over, pages
from harness.processes import ENVIRONMENT, python, run
from mcp_tasks.client import TasksClient
from mcp_tasks.testing import TaskTester

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def _python_of(page: Path) -> str:
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("page", [page for page in PAGES if _python_of(page)], ids=lambda page: page.name)
def test_the_code_of_a_page_runs_from_top_to_bottom(page: Path) -> None:
    names: dict[str, Any] = {"__name__": f"docs.{page.stem}"}
    exec(compile(_python_of(page), page, "exec"), names)
    assert len(names) > 2


def test_the_test_on_the_testing_page_passes_under_pytest_as_it_stands_there(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(_python_of(ROOT / "docs" / "testing.md"))
    # In a folder of its own: what is configured here must not help it.
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = python("pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "test_orders.py")
    done = run(command, cwd=tmp_path, env=ENVIRONMENT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.anyio
async def test_the_sync_tool_on_the_tools_page_asks_steps_and_sleeps_from_its_thread() -> None:
    names: dict[str, Any] = {"__name__": "docs.tools"}
    exec(compile(_python_of(ROOT / "docs" / "tools.md"), "tools.md", "exec"), names)
    built: list[str] = []

    def build(version: str) -> str:
        built.append(version)
        return f"release-{version}"

    names["build"] = build
    async with TaskTester(names["server"], names["tasks"]) as tester:
        task = await tester.call("release", {"version": "1.0"})
        await tester.until_asked(task)
        await tester.crash()
        await tester.until_asked(task)
        await tester.answer(task, {"approved": True})
        await tester.settle()
        await tester.advance(timedelta(hours=1))
        assert (await tester.result(task)).structured_content == {"result": "release-1.0: accept"}
        assert built == ["1.0"]
        ignored = await tester.call("release", {"version": "2.0"})
        await tester.until_asked(ignored)
        await tester.advance(timedelta(days=2))
        assert (await tester.result(ignored)).structured_content == {"result": "nobody answered in two days"}


@pytest.mark.anyio
async def test_the_server_and_the_client_of_the_readme_work_together() -> None:
    names: dict[str, Any] = {"__name__": "docs.readme"}
    exec(compile(_python_of(ROOT / "README.md").replace("Tasks()", 'Tasks("memory://")'), "README.md", "exec"), names)
    client = Client(names["server"], extensions=[TasksClient()], elicitation_callback=names["ask_the_person"])
    async with client:
        result = await client.call_tool("render", {"frames": 3})
    assert result.structured_content == {"result": "published"}


@pytest.mark.anyio
async def test_a_host_can_start_the_server_of_the_first_page_as_it_is_told_to_there(tmp_path: Path) -> None:
    page = ROOT / "docs" / "get-started.md"
    server, as_host_starts_it = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)[
        :3:2
    ]
    [told] = re.findall(r"^```json\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    [start] = json.loads(told)["mcpServers"].values()
    program = tmp_path / Path(start["args"][0]).name
    program.write_text(server.partition("if __name__")[0] + as_host_starts_it)
    assert Path(start["command"]).name == "python"
    parameters = StdioServerParameters(command=sys.executable, args=[str(program)], env=dict(ENVIRONMENT), cwd=tmp_path)
    async with Client(stdio_client(parameters)) as client:
        result = await client.call_tool("count", {"to": 1})
    assert result.structured_content == {"result": "counted to 1"}


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_generated_parts_are_current(path: Path) -> None:
    assert path.read_text() == pages()[path], "run `make docs`"


def test_no_page_of_the_reference_is_left_over() -> None:
    assert left_over() == set()


def test_the_lifecycle_page_draws_the_machine() -> None:
    assert "working --> completed: RunCompleted" in LIFECYCLE.read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?://)([^)#]*)#?([^)]*)\)", page.read_text()):
        aim = page.parent / target if target else page
        assert aim.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in _anchors(aim), f"{page.name} links to {target}#{anchor}"


@cache
def _anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in headings(page.read_text())}


def test_the_readme_shows_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme
