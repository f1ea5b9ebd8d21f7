"""Record docs/session.md: the ten things that people do most at a terminal, done by the real command line.

    make session

Each command runs on a terminal of its own, against the demo's server. What is another each time (ids, times, how long
something took, the port) is written as if it were the same, so that the page changes when the command line does.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from docs.assets.demo import demo_server, environment_in, four_digits
from docs.assets.terminal import Command, DidNotCome

PAGE: Final = Path(__file__).parents[1] / "session.md"

INTRODUCTION: Final = """\
# A session at the terminal

For everybody with a terminal: the ten things that people do most, as they look.

Recorded by `make session` against the server of the demo ([examples/demo_server.py](../examples/demo_server.py)), and
recorded again by a test. [The command line](cli.md) says what there is besides.
"""

TRIES: Final = 5
"""How often something is tried that has to be caught in the act."""

WIDTH: Final = 100
WIDE: Final = 160
"""Columns for a table that is shown as a whole: the width of one column must not decide what of another is seen."""

SHOWN_URL: Final = "http://localhost:8000/mcp"
SHOWN_IDS: Final = ("task_AhLN6miV", "task_Qx3vTz8d", "task_mE5kWc2R", "task_hB7yPf4L")
REST_OF_ID: Final = "0sUeJqGiKaDnXo1twZ9"

SAME_EACH_TIME: Final[Sequence[tuple[str, str]]] = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "2026-07-28 12:00:00"),
    # As wide as the widest: what stands after it in a table stands where it always does.
    (r"started {2,}(?=[a-z])", "started   "),
    (r"\d+ (?:s|min) ago {2,}(?=\S)", "8 s ago   "),
    (r"\d+ (?:s|min) ago", "8 s ago"),
    (r"(?<![\d:])\d:\d\d(?![\d:])", "0:02"),
    (r"(poll every +)[\d.]+ s", r"\g<1>0.4 s"),
    (r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]", "⠋"),
)
"""What is another each time, and what stands for it."""


class Session:
    """Somebody at a terminal, and what they saw."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url
        self._page = [INTRODUCTION]
        self._environment = environment_in(folder)

    def title(self, words: str) -> None:
        """Begin with another thing."""
        self._page.append(f"## {words}\n")

    def say(self, words: str) -> None:
        """Say something between what is seen."""
        self._page.append(f"{words}\n")

    def run(self, line: str, *answers: tuple[str, str], width: int = WIDTH) -> str:
        """Type a command and show what comes, which is given as well.

        Args:
            answers: What is waited for, and what is typed then.
        """
        command = self._start(line, width)
        for question, answer in answers:
            command.wait_for(question)
            command.enter(answer)
        screen = command.end()
        self._show(f"$ {self._typed(line)}\n{screen}")
        return screen

    def run_and_look(self, line: str, moment: str) -> None:
        """Type a command, show what is seen at some moment, and what is seen when it has ended."""
        for attempt in range(TRIES):
            # Tasks of attempts that came too late are not remembered.
            self._environment = {**self._environment, "XDG_STATE_HOME": str(self._folder / f"state-{attempt}")}
            command = self._start(line, WIDTH)
            try:
                seen = command.wait_for(moment)
            except DidNotCome:
                continue
            self._show(f"$ {self._typed(line)}\n{seen}")
            self.say("When it has ended, only this is left of it:")
            self._show(command.end())
            return
        raise SystemExit(f"{moment!r} was never seen in {TRIES} runs of {line}")

    def detach(self, line: str) -> str:
        """Type a command that leaves a task, and show it; gives the task's id in short."""
        return self.run(line).splitlines()[0][: len(SHOWN_IDS[0])]

    def until(self, line: str, wanted: str) -> None:
        """Look again and again, unseen, until something is so."""
        while wanted not in self._start(line, WIDE).end():
            pass

    def page(self) -> str:
        """All that was seen, as it would be seen any other time."""
        return normalised("\n".join(self._page), self._url)

    def _typed(self, line: str) -> str:
        return line.replace("SERVER", self._url)

    def _start(self, line: str, width: int) -> Command:
        return Command(shlex.split(self._typed(line))[1:], width=width, environment=self._environment)

    def _show(self, screen: str) -> None:
        kind = "console" if screen.startswith("$") else "text"
        self._page.append(f"```{kind}\n{screen}\n```\n")


def normalised(page: str, url: str) -> str:
    """A page with the same ids, times and addresses each time."""
    page = page.replace(url, SHOWN_URL)
    shown: dict[str, str] = {}

    def same_id(match: re.Match[str]) -> str:
        short = shown.setdefault(match["short"], SHOWN_IDS[len(shown)])
        return short + REST_OF_ID[: len(match["rest"])]

    page = re.sub(r"(?P<short>task_[\w-]{8})(?P<rest>[\w-]*)", same_id, page)
    for pattern, same in SAME_EACH_TIME:
        page = re.sub(pattern, same, page)
    return page


def ten_things(session: Session) -> None:
    """What people do most, in an order in which one leads to the next."""
    session.title("What a server offers")
    session.run("mcp-tasks tools SERVER")
    session.title("Calling a tool, and waiting")
    session.run_and_look("mcp-tasks call SERVER render frames=8", "frame 4")
    session.title("An argument that does not fit")
    session.run("mcp-tasks call SERVER render frames=many")
    session.title("Leaving a task to itself")
    task = session.detach("mcp-tasks call SERVER release version=1.4.0 --detach")
    session.until(f"mcp-tasks show {task}", "Publish version")
    session.title("What became of your tasks")
    session.run("mcp-tasks ls --refresh", width=WIDE)
    session.title("One task with everything")
    session.run(f"mcp-tasks show {task}")
    session.title("Answering what it asks")
    session.run(f"mcp-tasks answer {task}", ("Publish (", "yes"))
    session.title("Coming back for the result")
    session.run(f"mcp-tasks wait {task}")
    session.title("Cancelling")
    task = session.detach("mcp-tasks call SERVER render frames=2000 --detach")
    session.run(f"mcp-tasks cancel {task}")
    session.title("Whether a server does all this right")
    session.run("mcp-tasks doctor SERVER --tool render frames=12")


def record() -> str:
    """The page, from a session of now."""
    with tempfile.TemporaryDirectory() as name:
        port = four_digits()
        with demo_server(Path(name), port):
            session = Session(Path(name), f"http://localhost:{port}/mcp")
            ten_things(session)
        return session.page()


if __name__ == "__main__":
    PAGE.write_text(record())
