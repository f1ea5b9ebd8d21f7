"""The recipes of the page for agents, as they stand there: each file of it, run by what it is for."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.processes import PIPE, ROOT, kill, running
from harness.serving import serving_command

from .conftest import Begun
from .driving import DRIVERS, environment_with_ours

PAGE = ROOT / "docs" / "agents.md"
SCALED = {"SECONDS_PER_FRAME = 10\n": "SECONDS_PER_FRAME = 0.1\n", "LIMIT = 60  ": "LIMIT = 1  "}
"""What is changed in the page's files: a film takes two and a half seconds, and clients wait one for an answer."""

JOINED: dict[str, str] = {"@tasks.task()\n": "@tasks.task(join_running=True)\n"}
"""What the page says that a tool needs for an agent without tasks that is started again."""

HURRIED = {
    "from mcp_tasks import Tasks\n": "from datetime import timedelta\nfrom mcp_tasks import Fallback, Host, Tasks\n",
    'Tasks("sqlite:///film.db")': 'Tasks("sqlite:///film.db", fallback=Fallback(wait=timedelta(seconds=0.5)), '
    'hosts={"*": Host(limit=timedelta(seconds=1.5))})',
}
"""What is changed in the server where limits are scaled: hosts that nobody knows give up after a second and a half."""

LIMIT = 60.0
ADAPTER = "langchain_adapter"
FILM = (sys.executable, "-m", "uvicorn", "film:app", "--port", "{port}", "--log-level", "warning")
LANGCHAIN = DRIVERS / "recipe_langchain.py"
RECIPES: dict[str, tuple[str | None, str | Path] | tuple[str, Path, str]] = {
    "sdk": (None, "sdk_agent.py"),
    "fastmcp": ("fastmcp", "fastmcp_agent.py"),
    "pydantic_ai": ("pydantic_ai", DRIVERS / "recipe_pydantic_ai.py"),
    "langchain": ("langchain", LANGCHAIN, "langchain_agent"),
    ADAPTER: ("langchain_adapter", LANGCHAIN, "adapter_agent"),
    "langchain_adapter_tasks": ("langchain_adapter", LANGCHAIN, "adapter_tasks_agent"),
}
"""For each recipe what it needs installed besides us, and what is run in the folder with the page's files."""

WITH_A_MODEL = {"pydantic_ai", "langchain", ADAPTER, "langchain_adapter_tasks"}


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A recipe, and the server that it talks to."""

    name: str
    command: list[str]
    folder: Path

    def run(self) -> list[str]:
        with self._process() as process:
            printed, _ = process.communicate(timeout=LIMIT)
            assert process.returncode == 0, self._troubles()
            return printed.splitlines()

    def run_until_killed(self) -> list[str]:
        """What it has printed when the tool is at work, and the agent is killed."""
        printed: list[str] = []
        with self._process() as process:
            assert process.stdout is not None
            for line in process.stdout:
                printed.append(line.rstrip())
                if line.startswith("progress: "):
                    kill(process)
                    break
            else:
                pytest.fail(f"it ended without progress: {printed} {self._troubles()}")
            return printed + process.stdout.read().splitlines()

    def wait_until_asked(self) -> None:
        """Return when the tool waits for an answer."""
        deadline = time.monotonic() + LIMIT
        while "waits:" not in (self.folder / "film.log").read_text():
            assert time.monotonic() < deadline, "the tool never asked"
            time.sleep(0.05)

    def starts(self) -> int:
        return (self.folder / "film.log").read_text().count("rendering 24 frames")

    @contextmanager
    def _process(self) -> Generator[subprocess.Popen[str]]:
        with (
            (self.folder / "agent.log").open("w") as errors,
            running(
                self.command, cwd=self.folder, env=environment_with_ours(), stdout=PIPE, stderr=errors, text=True
            ) as process,
        ):
            yield process

    def _troubles(self) -> str:
        return (self.folder / "agent.log").read_text()[-4000:]


def _write_the_page(folder: Path) -> None:
    files = re.findall(r"^```py\n(# (\w+\.py)\n.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    for text, name in files:
        (folder / name).write_text(text)
        _change(folder / name, SCALED)


def _change(file: Path, changes: dict[str, str]) -> None:
    text = file.read_text()
    for old, new in changes.items():
        text = text.replace(old, new)
    file.write_text(text)


@pytest.fixture(params=list(RECIPES))
def agent(request: pytest.FixtureRequest, installs: Begun, tmp_path: Path) -> Generator[Agent]:
    """A recipe, in a folder of its own, with a server of its own."""
    changes = JOINED if request.param == ADAPTER else {}
    with _agent(request.param, installs, tmp_path, changes) as agent:
        yield agent


@contextmanager
def _agent(name: str, installs: Begun, folder: Path, changes: dict[str, str], *more: str) -> Generator[Agent]:
    """A recipe, and its server with changes in it."""
    _write_the_page(folder)
    _change(folder / "film.py", changes)
    needs, *program = RECIPES[name]
    python = sys.executable if needs is None else str(installs[needs])
    with serving_command(("sh", "-c", f'exec "$@" >{folder / "film.log"} 2>&1', "film", *FILM), cwd=folder) as url:
        yield Agent(name=name, command=[python, *map(str, program), url, *more], folder=folder)


def test_what_is_scaled_is_on_the_page() -> None:
    page = PAGE.read_text()
    assert [
        real for real in (*SCALED, *HURRIED, *JOINED, *(new.strip() for new in JOINED.values())) if real not in page
    ] == []


def test_a_tool_longer_than_the_limit_asks_reports_and_ends(agent: Agent) -> None:
    printed = agent.run()
    assert len([line for line in printed if line.startswith("progress: ")]) >= 3, printed
    assert printed.count("question: Publish 24 frames?") == 1
    assert "24 frames, published" in printed[-1]
    assert printed[-1].startswith("result: ")
    assert agent.starts() == 1


@pytest.mark.parametrize("agent", ["pydantic_ai", "langchain_adapter_tasks"], indirect=True)
def test_an_agent_that_was_away_finds_a_task_that_has_asked_meanwhile(agent: Agent) -> None:
    before = agent.run_until_killed()
    agent.wait_until_asked()
    after = agent.run()
    assert (before + after).count("question: Publish 24 frames?") == 1
    assert "24 frames, published" in after[-1]
    assert agent.starts() == 1


def test_an_agent_that_was_killed_takes_its_task_up_again(agent: Agent) -> None:
    before = agent.run_until_killed()
    assert not any(line.startswith("result: ") for line in before)
    after = agent.run()
    assert "24 frames, published" in after[-1]
    assert (before + after).count("question: Publish 24 frames?") == 1
    assert agent.starts() == 1
    # The model has called the tool in the first life, and is told its result in the second.
    assert sum(line.startswith("model: ") for line in before) == (agent.name in WITH_A_MODEL)
    assert sum(line.startswith("model: ") for line in after) == (agent.name in WITH_A_MODEL)


def test_a_model_that_does_what_it_reads_gets_the_result_from_an_agent_with_a_limit(
    installs: Begun, tmp_path: Path
) -> None:
    with _agent(ADAPTER, installs, tmp_path, HURRIED, "1.5") as agent:
        printed = agent.run()
    assert "told: task_status" in printed
    assert printed.count("question: Publish 24 frames?") == 1
    assert printed[-1] == "result: The tool says: 24 frames, published"
    assert agent.starts() == 1
