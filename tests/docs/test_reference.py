"""The reference names everything that is public, with what was written about it."""

from __future__ import annotations

from importlib import import_module
from inspect import getmembers, isclass

import pytest

from docs.reference import MODULES, exports, page, types_in_signatures
from mcp_tasks import errors


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
    assert "    clock: Callable[[], datetime] = utc_now,\n" in text
    assert "async sleep(\n    duration: timedelta | None = None,\n    *,\n" in text
    assert "def mark(self" not in text


def test_sections_of_a_docstring_become_lists() -> None:
    text = page()
    assert "**Raises**\n\n- `QuestionTimedOut`: Nobody answered in time." in text
    assert "\nRaises:\n" not in text


def test_the_code_on_the_page_is_not_run() -> None:
    # Blocks that say `python` are run from top to bottom by the tests, and a signature is no statement.
    assert "```python" not in page()
