"""The docs are kept true: their code runs, generated parts are current, links lead somewhere."""

import difflib
import json
import re
import sys
from collections import Counter
from datetime import timedelta
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from docs.api.defaults import option_defaults
from docs.api.links import headings, slug
from docs.api.modules import AUDIENCES, MODULES
from docs.api.modules import PAGES as REFERENCE
from docs.api.pages import reference_pages
from docs.api.source import exports
from docs.assets.session import PAGE, record
from docs.generate import left_over
from docs.generate import pages as generated
from docs.site import versions
from docs.site.layout import REDIRECTS, navigation, pages
from docs.site.stage import LINK, staged
from harness.processes import ENVIRONMENT, python, run
from mcp_tasks.server import TaskOptions, ToolOptions
from mcp_tasks.testing import TaskTester

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def _blocks_of(page: Path, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def _names_of(page: Path) -> dict[str, Any]:
    """What the Python of a page makes when it runs from top to bottom."""
    names: dict[str, Any] = {"__name__": f"docs.{page.stem}"}
    exec(compile("\n\n".join(_blocks_of(page)), page, "exec"), names)
    return names


@pytest.mark.parametrize("page", [page for page in PAGES if _blocks_of(page)], ids=lambda page: page.name)
def test_the_code_of_a_page_runs_from_top_to_bottom(page: Path) -> None:
    assert len(_names_of(page)) > 2


def test_the_test_on_the_testing_page_passes_under_pytest_as_it_stands_there(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text("\n\n".join(_blocks_of(ROOT / "docs" / "testing.md")))
    # In a folder of its own: what is configured here must not help it.
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = python("pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "test_orders.py")
    done = run(command, cwd=tmp_path, env=ENVIRONMENT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert "skipped" not in done.stdout


async def test_the_sync_tool_on_the_tools_page_asks_steps_and_sleeps_from_its_thread() -> None:
    names = _names_of(ROOT / "docs" / "tools.md")
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


async def test_a_host_can_start_the_server_of_the_first_page_as_it_is_told_to_there(tmp_path: Path) -> None:
    page = ROOT / "docs" / "get-started.md"
    server, _, as_host_starts_it, *_ = _blocks_of(page)
    [told] = _blocks_of(page, "json")
    [start] = json.loads(told)["mcpServers"].values()
    program = tmp_path / Path(start["args"][0]).name
    program.write_text(server.partition("if __name__")[0] + as_host_starts_it)
    assert Path(start["command"]).name == "python"
    parameters = StdioServerParameters(command=sys.executable, args=[str(program)], env=dict(ENVIRONMENT), cwd=tmp_path)
    async with Client(stdio_client(parameters)) as client:
        result = await client.call_tool("count", {"to": 1})
    assert result.structured_content == {"result": "counted to 1"}


@pytest.mark.parametrize("path", generated(), ids=lambda path: path.name)
def test_generated_parts_are_current(path: Path) -> None:
    assert path.read_text() == generated()[path], "run `make docs`"
    assert left_over() == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?://)([^)#]*)#?([^)]*)\)", page.read_text()):
        aim = page.parent / target if target else page
        assert aim.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in _anchors(aim), f"{page.name} links to {target}#{anchor}"


@cache
def _anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in headings(page.read_text())}


@pytest.mark.parametrize("module", MODULES)
def test_everything_that_a_module_exports_is_there_and_documented(module: str) -> None:
    loaded = import_module(module)
    found = {export.name: export.doc for export in exports(module)}
    assert set(getattr(loaded, "__all__", found)) == set(found)
    assert [name for name, doc in found.items() if not doc and name != "__version__"] == []
    assert [name for name in found if not hasattr(loaded, name)] == []


def test_each_name_is_described_once_and_every_link_leads_to_one() -> None:
    anchors = [slug(heading) for text in reference_pages().values() for heading in headings(text)]
    assert [anchor for anchor, times in Counter(anchors).items() if times > 1] == []
    here = {path: {slug(heading) for heading in headings(text)} for path, text in reference_pages().items()}
    for path, text in reference_pages().items():
        assert set(re.findall(r"\]\(#([^)]*)\)", text)) <= here[path]
        assert "](name:" not in text


def test_every_module_is_on_a_page_and_has_readers() -> None:
    assert Counter(module for modules in REFERENCE.values() for module in modules) == Counter(MODULES)
    assert {module for modules in AUDIENCES.values() for module in modules} == set(MODULES)


def test_what_an_option_is_without_a_word_is_what_the_code_does() -> None:
    told = {name: eval(text, {"timedelta": timedelta}) for name, text in option_defaults().items()}
    assert told.keys() == ToolOptions.__annotations__.keys()
    nothing_said = TaskOptions()
    for name, default in told.items():
        assert name == "fallback" or default == getattr(nothing_said, name)
    assert (
        f"- `park_after: timedelta | None = {option_defaults()['park_after']}`: "
        in reference_pages()["reference/server.md"]
    )


def test_the_session_is_what_is_seen_today() -> None:
    kept, seen = PAGE.read_text(), record()
    changes = "\n".join(difflib.unified_diff(kept.splitlines(), seen.splitlines(), "kept", "seen", lineterm=""))
    assert kept == seen, f"not what the command line shows; `make session` writes docs/session.md again:\n{changes}"


def test_every_page_is_in_the_navigation_once() -> None:
    listed = [entry.path for entry in navigation()]
    assert sorted(listed) == sorted(pages())


@pytest.mark.parametrize("path", pages())
def test_links_of_a_page_lead_within_the_site(path: str) -> None:
    for _, target, _ in LINK.findall(re.sub(r"^```.*?^```$", "", staged(path), flags=re.DOTALL | re.MULTILINE)):
        aim = (Path("/") / Path(path).parent / target).resolve().relative_to("/")
        assert str(aim) in pages() or aim.parts[0] in {"assets", "files"}, target


def test_pages_that_were_renamed_lead_to_pages_that_are_there() -> None:
    assert {f"{new}.md" for new in REDIRECTS.values()} <= pages().keys()
    assert not {f"{old}.md" for old in REDIRECTS} & pages().keys()


def _built(folder: Path, words: str) -> Path:
    folder.mkdir()
    (folder / "index.html").write_text(words)
    for name in versions.AT_THE_TOP:
        (folder / name).write_text("- [The client](client.md): words\n")
    return folder


def test_versions_stand_side_by_side_and_latest_is_the_newest_release(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for version in (None, "0.9.0", "0.10.0", "0.9.1"):
        versions.publish(_built(tmp_path / str(version), str(version)), site, version)
    known = json.loads((site / "versions.json").read_text())
    assert [(entry["version"], entry["title"], entry["aliases"]) for entry in known] == [
        ("dev", "development", []),
        ("0.10", "0.10.0", ["latest"]),
        ("0.9", "0.9.1", []),
    ]
    assert (site / "latest" / "index.html").read_text() == "0.10.0"
    assert (site / "0.9" / "index.html").read_text() == "0.9.1"
    assert "latest/index.html" in (site / "index.html").read_text()
    assert (site / "llms.txt").read_text() == "- [The client](latest/client.md): words\n"


def test_the_site_is_built_without_a_warning_and_a_second_version_beside_it(tmp_path: Path) -> None:
    pytest.importorskip("zensical", reason="installed by make docs")
    from docs.site.__main__ import build

    where = build(tmp_path / "site", "0.1.0")
    assert where == tmp_path / "site" / "0.1"
    assert {entry.path for entry in navigation()} <= {str(path.relative_to(where)) for path in where.rglob("*.md")}
    assert "cancel" in (where / "search.json").read_text()
    for name in ("llms.txt", "llms-full.txt", "latest/running.html", "0.1/operate.html"):
        assert (tmp_path / "site" / name).stat().st_size
    for target in re.findall(r"\]\(([^)]*)\): ", (tmp_path / "site" / "llms.txt").read_text()):
        assert (tmp_path / "site" / target).exists(), target
