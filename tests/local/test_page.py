"""The page about the server's own process does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "local.md"


@pytest.mark.anyio
async def test_the_program_on_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "docs.local"}
    code = "\n\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE))
    exec(compile(code, PAGE, "exec"), names)
    assert await names["main"]() == "release 42 is ready, accept"
    printed = capsys.readouterr().out
    assert "input_required" in printed
    assert "('release', <TaskStatus.COMPLETED: 'completed'>, None), ('report'," in printed
