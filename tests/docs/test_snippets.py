"""Every block of code is held to something: a new kind of block fails until somebody says how it is checked."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from click import BadOptionUsage, ClickException
from yaml import YAMLError

from harness.processes import ROOT
from tests.docs.snippets import RUNNERS, Block, blocks, check_line, commands_in_prose


@cache
def _found() -> dict[Path, list[Block]]:
    found: dict[Path, list[Block]] = {}
    for block in blocks():
        found.setdefault(block.path, []).append(block)
    return found


@pytest.mark.parametrize("path", _found(), ids=lambda path: path.name)
def test_every_block_has_a_runner_and_passes_it(path: Path) -> None:
    for block in _found()[path]:
        assert block.language in RUNNERS, f"{block}: nobody checks {block.language!r}"
        try:
            RUNNERS[block.language](block)
        except (AssertionError, ClickException, ValueError, SyntaxError, YAMLError) as problem:
            raise AssertionError(f"{block}: {problem!r}\n{block.text}") from problem


def test_commands_in_running_text_are_there() -> None:
    found = list(commands_in_prose())
    assert len(found) > 20
    for page, line in found:
        try:
            # Prose names an option without its value; that it is there is all that is asked.
            with suppress(BadOptionUsage):
                check_line(line)
        except (AssertionError, ClickException, ValueError) as problem:
            raise AssertionError(f"{page}: {line}: {problem!r}") from problem


@pytest.mark.parametrize(
    "line",
    [
        "mcp-tasks cal http://localhost/mcp render",
        "mcp-tasks call http://localhost/mcp render --no-such-option",
        "id=$(mcp-tasks call --no-such-option http://localhost/mcp render)",
        "make no-such-target",
        "pip install 'mcp-tasks[nothing]'",
        "python examples/nothing.py",
        "python -m bench.nothing",
        "a-program-that-nobody-knows",
    ],
)
def test_a_command_that_is_not_there_is_noticed(line: str) -> None:
    with pytest.raises((AssertionError, ClickException)):
        check_line(line)


@pytest.mark.parametrize(
    ("language", "text"),
    [("json", "{"), ("yaml", "a: ["), ("toml", "a ="), ("console", "no prompt"), ("py", "def"), ("text", "$ ls\n")],
)
def test_a_block_that_is_wrong_is_noticed(language: str, text: str) -> None:
    with pytest.raises((AssertionError, ValueError, SyntaxError, YAMLError)):
        RUNNERS[language](Block(ROOT / "README.md", 1, language, text))
