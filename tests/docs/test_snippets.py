"""The blocks of code on the pages and in docstrings, and what each kind of them is held to."""

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
import yaml
from click import BadOptionUsage, ClickException
from yaml import YAMLError

from harness.processes import ROOT
from mcp_tasks.cli.app import app

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", flags=re.DOTALL | re.MULTILINE)
OUTSIDE = {
    *("case", "cd", "echo", "esac", "export"),
    *("cp", "curl", "git", "install", "mkdir", "systemctl", "tail", "useradd"),
    # Run or read by tests/deploy; the last stands for a program of the reader's.
    *("docker", "gunicorn", "uvicorn", "generate-arguments"),
}
"""Programs that are not ours, and that a page may name."""
OF_THE_READER = {"server.py", "client.py", "slow_things.py"}
"""Scripts that a page has the reader save first."""


@dataclass(frozen=True)
class Block:
    path: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def blocks() -> Iterator[Block]:
    for path in PAGES:
        yield from _blocks_in(path.read_text(), path, 1)
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "```" in text else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "```" in node.value:
                yield from _blocks_in(node.value, path, node.lineno)


def _blocks_in(text: str, path: Path, start: int) -> Iterator[Block]:
    for found in FENCE.finditer(text):
        yield Block(path, start + text.count("\n", 0, found.start()), found[2], found[3])


def check(block: Block) -> None:
    """Hold a block to what its language asks for. A language that is not here is refused."""
    is_typed = re.findall(r"^\$ (.*)", block.text, flags=re.MULTILINE)
    match block.language:
        case "python":
            # On a page it is run from top to bottom by test_docs.py; in a docstring nobody would run it.
            assert block.path in PAGES, "python in a docstring is run by nobody: show it on a page"
        case "py":
            # What cannot be run by itself: signatures in the reference, and files that recipes put together.
            assert ROOT / "docs" / "reference" in block.path.parents or ast.parse(block.text)
        case "console":
            # Lines with a prompt are commands, the others what came of them.
            assert is_typed, "a console without a command: say `text`"
            for line in is_typed:
                check_line(line)
        case "bash":
            for line in block.text.replace("\\\n", " ").splitlines():
                check_line(line)
        case "json":
            json.loads(block.text)
        case "yaml":
            assert yaml.safe_load(block.text)
        case "toml":
            tomllib.loads(block.text)
        case "text":
            assert not is_typed, "a command in a block of words: say `console`"
        case "mermaid":
            assert block.path == ROOT / "docs" / "lifecycle.md", (
                "drawn from the machine's table: the site has a picture"
            )
        case _:
            raise AssertionError(f"nobody checks {block.language!r}")


def check_line(line: str) -> None:
    line = re.sub(r"^\s*\d+\) | > \S+", "", line.partition(" #")[0])
    # What stands in $(...) is a command as well.
    for inner in re.findall(r"\$\(([^()]*)\)", line):
        check_line(inner)
    for part in re.split(r"\s(?:\||&&|;;|&)(?:\s|$)", re.sub(r"\$\((?:[^()]|\([^()]*\))*\)", "X", line)):
        words = shlex.split(part)
        while words and re.match(r"[A-Z_a-z]+=", words[0]):
            words.pop(0)
        if words:
            check_command([Path(words[0]).name, *words[1:]])


def check_command(words: list[str]) -> None:
    match words:
        case ["mcp-tasks", *arguments]:
            check_ours(arguments)
        case ["make", *targets]:
            unknown = {target for target in targets if "=" not in target} - make_targets()
            assert not unknown, f"the Makefile has no {unknown}"
        case ["pip", "install", *wanted] | ["python" | "python3", "-m", "pip", "install", *wanted]:
            for extra in re.findall(r"mcp-tasks\[([\w,]*)\]", " ".join(wanted)):
                assert set(extra.split(",")) <= extras(), f"there is no extra {extra}"
        case ["python" | "python3", "-m", module, *_]:
            parts = module.split(".")
            ours = [ROOT.joinpath(*parts), ROOT / "src" / parts[0], ROOT.joinpath(*parts).with_suffix(".py")]
            assert parts[0] in {"http", "venv", "pytest", "build"} or any(path.exists() for path in ours), module
        case ["python" | "python3", "-c", *_] | ["pytest", *_]:
            pass
        case ["python" | "python3", script, *_]:
            assert script in OF_THE_READER or (ROOT / script).exists(), f"there is no {script}"
        case [program, *_]:
            assert program in OUTSIDE, f"nobody checks {program!r}: add it to OUTSIDE if a page may name it"
        case _:
            pass


def check_ours(arguments: list[str]) -> None:
    """Check a command of ours against the real command line: it is there, and so is each option that it is given."""
    group = click.Context(app)
    if not arguments or arguments[0].startswith("-"):
        app.make_parser(group).parse_args(list(arguments))
        return
    name, command, rest = app.resolve_command(group, arguments)
    assert command is not None, f"there is no command {name!r}"
    with suppress(click.MissingParameter):
        command.make_parser(click.Context(command, parent=group, info_name=name)).parse_args(rest)


@cache
def make_targets() -> set[str]:
    return set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


@cache
def extras() -> set[str]:
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def test_every_block_is_what_its_language_says() -> None:
    for block in blocks():
        try:
            check(block)
        except (AssertionError, ClickException, ValueError, SyntaxError, YAMLError) as problem:
            raise AssertionError(f"{block}: {problem!r}\n{block.text}") from problem


def test_commands_in_running_text_are_there() -> None:
    found = [
        (path.name, " ".join(code.split()))
        for path in PAGES
        for code in re.findall(r"`(mcp-tasks [a-z][^`]*)`", FENCE.sub("", path.read_text()))
        # Without those that leave something open.
        if not re.search(r"[…\[\]|<>]|\.\.\.", code)
    ]
    assert len(found) > 20
    for page, line in found:
        try:
            # Prose names an option without its value; that it is there is all that is asked.
            with suppress(BadOptionUsage):
                check_line(line)
        except (AssertionError, ClickException, ValueError) as problem:
            raise AssertionError(f"{page}: {line}: {problem!r}") from problem
