"""The recipes of the page for agents, as they stand there: each file of it, run by what it is for."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from .conftest import Installs
from .driving import DRIVERS, environment_with_ours
from .shared import CHECKOUT, serving

PAGE = CHECKOUT / "docs" / "agents.md"
SCALED = {"SECONDS_PER_FRAME = 10\n": "SECONDS_PER_FRAME = 0.1\n", "LIMIT = 60  ": "LIMIT = 1  "}
"""What is changed in the page's files: a film takes two and a half seconds, and clients wait one for an answer."""

JOINED = ("@tasks.task()\n", "@tasks.task(join_running=True)\n")
"""What the page says that a tool needs for an agent without tasks that is started again."""

LIMIT = 60.0
ADAPTER = "langchain_adapter"
FILM = (sys.executable, "-m", "uvicorn", "film:app", "--port", "{port}", "--log-level", "warning")
RECIPES = {
    "sdk": (None, "sdk_agent.py"),
    "fastmcp": ("fastmcp", "fastmcp_agent.py"),
    "pydantic_ai": ("pydantic_ai", DRIVERS / "recipe_pydantic_ai.py"),
    "langchain": ("langchain", DRIVERS / "recipe_langchain.py"),
    ADAPTER: ("langchain_adapter", DRIVERS / "recipe_adapter.py"),
}
"""For each recipe what it needs installed besides us, and what is run in the folder with the page's files."""

WITH_A_MODEL = {"pydantic_ai", "langchain", ADAPTER}


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A recipe, and the server that it talks to."""

    name: str
    command: list[str]
    folder: Path

    def run(self) -> list[str]:
        """What it prints, from its beginning to its end."""
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
                    os.kill(process.pid, signal.SIGKILL)
                    break
            else:
                pytest.fail(f"it ended without progress: {printed} {self._troubles()}")
            return printed + process.stdout.read().splitlines()

    def starts(self) -> int:
        """How often the tool was started."""
        return (self.folder / "film.log").read_text().count("rendering 24 frames")

    @contextmanager
    def _process(self) -> Generator[subprocess.Popen[str]]:
        environment = environment_with_ours()
        with (self.folder / "agent.log").open("w") as errors:
            process = subprocess.Popen(
                self.command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        with process:
            try:
                yield process
            finally:
                process.kill()

    def _troubles(self) -> str:
        return (self.folder / "agent.log").read_text()[-4000:]


def _write_the_page(folder: Path) -> None:
    files = re.findall(r"^```py\n(# (\w+\.py)\n.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    for text, name in files:
        for real, scaled in SCALED.items():
            text = text.replace(real, scaled)
        (folder / name).write_text(text)


@pytest.fixture(params=list(RECIPES))
def agent(request: pytest.FixtureRequest, installs: Installs, tmp_path: Path) -> Generator[Agent]:
    """A recipe, in a folder of its own, with a server of its own."""
    _write_the_page(tmp_path)
    if request.param == ADAPTER:
        film = tmp_path / "film.py"
        film.write_text(film.read_text().replace(*JOINED))
    needs, program = RECIPES[request.param]
    python = sys.executable if needs is None else str(installs[needs])
    log = tmp_path / "film.log"
    with serving(("sh", "-c", f'exec "$@" >{log} 2>&1', "film", *FILM), cwd=tmp_path) as url:
        yield Agent(name=request.param, command=[python, str(program), url], folder=tmp_path)


def test_what_is_scaled_is_on_the_page() -> None:
    page = PAGE.read_text()
    assert [real for real in (*SCALED, JOINED[0], JOINED[1].strip()) if real not in page] == []


def test_a_tool_longer_than_the_limit_asks_reports_and_ends(agent: Agent) -> None:
    printed = agent.run()
    assert len([line for line in printed if line.startswith("progress: ")]) >= 3, printed
    assert printed.count("question: Publish 24 frames?") == 1
    assert "24 frames, published" in printed[-1]
    assert printed[-1].startswith("result: ")
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
