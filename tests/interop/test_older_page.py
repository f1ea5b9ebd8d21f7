"""The MCP Inspector's page in a real browser, against our server on the 2025-11-25 wire.

It cannot be told the id of a task: after a restart it finds again what `tasks/list` shows it. That is everything of its
user where the server knows its users, and what was made or looked at in the session where it does not.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from .conftest import Installs
from .driving import Outcomes, command, drive
from .inspector import page_of
from .older import reached

TOKEN = "secret"
PAGE_LIMIT = 150.0
KNOWN, UNKNOWN, STDIO = "http, users known", "http", "stdio"


@pytest.fixture(scope="module", params=[KNOWN, UNKNOWN, STDIO])
def way(request: pytest.FixtureRequest) -> str:
    """How the page reaches our server."""
    return request.param


@pytest.fixture(scope="module")
def page(way: str, installs: Installs) -> Outcomes:
    """What the page shows, and what it shows after our server was killed and started again."""
    home = installs["npm"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        directory = Path(place)
        first = _visit(home, directory, way, {"pid": str(directory / "pid")})
        return {**first, "again": _visit(home, directory, way, {"left": first["left"]})}


def _visit(home: Path, directory: Path, way: str, plan: dict[str, Any]) -> Outcomes:
    ours = ("--token", TOKEN) if way == KNOWN else ()
    theirs = ("--header", f"Authorization: Bearer {TOKEN}") if way == KNOWN else ()
    with reached(directory, "stdio" if way == STDIO else "sse", *ours) as server:
        target = server.get("command") or [server["url"]]
        with page_of(home, target, *theirs) as url:
            return drive(command(home, "older_page.mjs"), [json.dumps({**plan, "page": url})], limit=PAGE_LIMIT)


def _of(page: Outcomes, step: str) -> Outcomes:
    outcome = page[step]
    assert "error" not in outcome, f"{outcome['error']['message']}{os.linesep}{outcome['error'].get('page')}"
    return outcome


def test_it_speaks_the_older_wire(page: Outcomes) -> None:
    assert page["version"] == "2.12.0"
    assert "MCP 2025-11-25" in page["connected"]


def test_create_and_result(page: Outcomes) -> None:
    outcome = _of(page, "result")
    assert outcome["task"].startswith("task_")
    assert outcome["text"] == "page: done after 2 s"


def test_question(page: Outcomes) -> None:
    outcome = _of(page, "question")
    assert "Delete a.txt?" in outcome["asked"]
    assert outcome["text"] == "deleted a.txt"


def test_question_declined(page: Outcomes) -> None:
    assert _of(page, "question_declined")["text"] == "kept b.txt"


def test_failed_task_shows_what_the_tool_said(page: Outcomes) -> None:
    assert "the job failed, as it always does" in _of(page, "failed")["text"]


def test_cancel(page: Outcomes) -> None:
    assert not _of(page, "cancel")["active"]


def test_list(page: Outcomes) -> None:
    """It asks once, when it connects."""
    outcome = _of(page, "list")
    assert outcome["asked"]
    assert outcome["shown"] == 5


def test_resume_after_a_restart(page: Outcomes, way: str) -> None:
    outcome = _of(page["again"], "resume")
    assert outcome == ({"found": True, "status": "completed"} if way == KNOWN else {"found": False})
