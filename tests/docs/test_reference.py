"""The reference names everything that is public, with what was written about it."""

from __future__ import annotations

import re
from collections import Counter
from datetime import timedelta
from importlib import import_module
from inspect import getmembers, isclass

import pytest
from mcp.server.extension import Extension

from docs.api.defaults import option_defaults
from docs.api.links import headings, slug
from docs.api.modules import AUDIENCES, MODULES, PAGES
from docs.api.pages import reference_pages
from docs.api.source import exports
from docs.api.types import types_in_signatures
from mcp_tasks import Tasks, errors
from mcp_tasks.server import TaskOptions, ToolOptions


def page() -> str:
    """All pages, one after the other."""
    return "\n".join(reference_pages().values())


@pytest.mark.parametrize("module", MODULES)
def test_everything_that_a_module_exports_is_there_and_documented(module: str) -> None:
    loaded = import_module(module)
    found = {export.name: export.doc for export in exports(module)}
    assert set(getattr(loaded, "__all__", found)) == set(found)
    assert [name for name, doc in found.items() if not doc and name != "__version__"] == []
    assert [name for name in found if not hasattr(loaded, name)] == []


def test_every_exception_is_there() -> None:
    found = {export.name for export in exports("mcp_tasks.errors")}
    ours = getmembers(errors, lambda value: isclass(value) and issubclass(value, errors.TasksError))
    assert {name for name, _ in ours} <= found


def test_types_that_signatures_name_and_nobody_exports_are_explained() -> None:
    exported = {export.name for module in MODULES for export in exports(module)}
    explained = {export.name for export in types_in_signatures()}
    assert {"TaskRecord", "TaskStatus", "JsonObject"} <= explained | exported
    assert not explained & exported


def test_signatures_show_what_the_author_wrote() -> None:
    text = page()
    assert "    clock: Callable[[], datetime] | None = None,\n" in text
    assert "async sleep(\n    duration: timedelta | None = None,\n    *,\n" in text
    assert "def mark(self" not in text


def test_what_a_class_inherits_from_one_that_nobody_exports_is_described_as_its_own() -> None:
    text = page()
    local = (
        "call",
        "get_prompt",
        "read_resource",
        "start",
        "start_prompt",
        "start_resource",
        "handle",
        "list",
        "list_all",
    )
    assert [name for name in local if f"\n#### Tasks.{name}\n" not in text] == []
    assert "LocalCalls" not in text
    assert "async call(name: str, arguments: Mapping[str, Any] | None = None) -> CallToolResult" in text
    explained = {export.name for export in types_in_signatures()} | {e.name for m in MODULES for e in exports(m)}
    assert {"LocalTask", "TaskPage", "LocalSnapshot"} <= explained


def test_every_public_method_of_tasks_is_there() -> None:
    text = page()
    ours = {name for name in dir(Tasks) if not name.startswith("_") and callable(getattr(Tasks, name))}
    assert {name for name in ours - set(dir(Extension)) if f"\n#### Tasks.{name}\n" not in text} == set()


def test_what_a_fleet_is_made_of_is_there_with_its_options() -> None:
    text = page()
    assert "\nProcrastinateCarrier(url: str, *, connections: int = 6, pace: Pace | None = None)\n" in text
    assert "\nRemoteEngine(carrier: Carrier, concurrency: int = 100)\n" in text
    for name, option, methods_of in (
        ("PostgresStore", "patience", "Store"),
        ("RedisStore", "prefix", "Store"),
        ("ProcrastinateEngine", "pace", "WritesJobs"),
        ("ProcrastinateCarrier", "connections", "Carrier"),
        ("DocketCarrier", "idle_check", "Carrier"),
    ):
        entry = text.partition(f"\n### {name}\n")[2].partition("\n## ")[0].partition("\n### ")[0]
        assert f"\n- `{option}`: " in entry
        assert f"Has the methods of [`{methods_of}`]" in entry


def test_sections_of_a_docstring_become_lists() -> None:
    text = page()
    assert "**Raises**\n\n- `QuestionTimedOut`: Nobody answered in time." in text
    assert "\nRaises:\n" not in text


def test_each_name_is_described_once_and_every_link_leads_to_one() -> None:
    anchors = [slug(heading) for text in reference_pages().values() for heading in headings(text)]
    assert [anchor for anchor, times in Counter(anchors).items() if times > 1] == []
    here = {path: {slug(heading) for heading in headings(text)} for path, text in reference_pages().items()}
    for path, text in reference_pages().items():
        assert set(re.findall(r"\]\(#([^)]*)\)", text)) <= here[path]
    assert "](name:" not in page()


def test_every_name_is_in_the_index() -> None:
    index = reference_pages()["reference.md"]
    names = {export.name for module in MODULES for export in exports(module)}
    assert {name for name in names if f"[`{name}`]" not in index} == set()


def test_every_module_is_on_a_page_and_has_readers() -> None:
    assert Counter(module for modules in PAGES.values() for module in modules) == Counter(MODULES)
    assert {module for modules in AUDIENCES.values() for module in modules} == set(MODULES)


def test_what_an_option_is_without_a_word_is_what_the_code_does() -> None:
    told = {name: eval(text, {"timedelta": timedelta}) for name, text in option_defaults().items()}
    assert told.keys() == ToolOptions.__annotations__.keys()
    nothing_said = TaskOptions()
    policy = nothing_said.policy(None)
    assert told["mode"] == nothing_said.mode
    assert told["ttl"] == nothing_said.retention(nothing_said)
    assert told["grace"] == nothing_said.grace_before_task(nothing_said)
    for name in ("max_runtime", "park_after", "max_wait", "max_lost_runs", "queue", "priority", "max_at_work"):
        assert told[name] == getattr(policy, name)
    assert f"- `park_after: timedelta | None = {option_defaults()['park_after']}`: " in page()


def test_the_code_on_the_page_is_not_run() -> None:
    # Blocks that say `python` are run from top to bottom by the tests, and a signature is no statement.
    assert "```python" not in page()


def test_a_long_table_is_not_written_out_but_linked_to() -> None:
    entry = page().partition("\n### HOSTS\n")[2].partition("\n### ")[0]
    assert "HOSTS: Final[Mapping[str, Host]] = {...}\n" in entry
    assert "[hosts.md](../hosts.md#the-hosts-that-are-known)" in entry
