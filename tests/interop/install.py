"""Other implementations, installed on first use at the versions pinned here, each where it disturbs nobody.

Python ones get a virtualenv of their own, since they may want another `mcp` than we do; npm ones share one folder.
All of it lies under `.cache/interop` of the checkout, named by what was asked for, so a changed pin installs anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .shared import CHECKOUT, find_node

HERE = Path(__file__).resolve().parent
CACHE = CHECKOUT / ".cache" / "interop"
INSTALL_LIMIT = 150.0
NPM_FILES = ("package.json", "package-lock.json")


class InstallError(Exception):
    """A registry could not be reached, or does not have what is pinned."""


class Offline(Exception):
    """Something is not installed yet, and `MCP_TASKS_OFFLINE=1` says not to ask a registry for it."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A virtualenv: what it is for, and under `pins/` the versions of all that comes with that."""

    name: str
    packages: tuple[str, ...]

    @property
    def pins(self) -> Path:
        return HERE / "pins" / f"{self.name}.txt"


FASTMCP = Environment(name="fastmcp", packages=("fastmcp==4.1.2", "fastmcp-tasks==4.1.2"))
STRANDS = Environment(name="strands", packages=("strands-agents==1.62.0",))
PYDANTIC_AI = Environment(
    name="pydantic_ai", packages=("pydantic-ai-slim[mcp,mcp-tasks]==2.66.0", "fastmcp-tasks==4.1.2")
)
LANGCHAIN = Environment(
    name="langchain", packages=("langchain==1.4.7", "langgraph-checkpoint-sqlite==3.1.2", "fastmcp==4.1.2")
)
LANGCHAIN_ADAPTER = Environment(
    name="langchain_adapter",
    packages=("langchain-mcp-adapters==0.3.2", "langchain==1.4.7", "langgraph-checkpoint-sqlite==3.1.2"),
)
PYTHON_SDK = Environment(name="python_sdk", packages=("mcp==1.30.0",))
OLDER_STRANDS = Environment(name="older_strands", packages=("strands-agents==1.62.0", "mcp==1.30.0"))


def install_python(environment: Environment) -> Path:
    """The interpreter of a virtualenv that has the environment's packages."""
    wanted = "\n".join((sys.version, *environment.packages, environment.pins.read_text()))

    def fill(directory: Path) -> None:
        # The pip of our own virtualenv does it: another copy of it would take longer than some of the packages.
        venv.create(directory, with_pip=False)
        pip = [sys.executable, "-m", "pip", "--python", str(_python(directory)), "--disable-pip-version-check"]
        # Only what a driver imports is compiled, when it does.
        options = ["--quiet", "--no-compile", "--constraint", str(environment.pins)]
        _install([*pip, "install", *options, *environment.packages])

    return _python(_cached(environment.name, wanted, fill))


def install_npm() -> Path:
    """The folder that has `node_modules` with the packages of `package.json`."""
    wanted = "\n".join((HERE / name).read_text() for name in NPM_FILES)

    def fill(directory: Path) -> None:
        for name in NPM_FILES:
            shutil.copy(HERE / name, directory / name)
        # Not `npm ci`: it wants the lock file to have the builds of one dependency for every platform there is.
        # `install` takes from the lock file what is in it. The Inspector's page needs those of this platform.
        options = ["--no-save", "--no-audit", "--no-fund", "--ignore-scripts"]
        _install([*find_node()[1], "install", *options], cwd=directory)

    return _cached("npm", wanted, fill)


def _python(home: Path) -> Path:
    return home / "bin" / "python"


def _cached(name: str, wanted: str, fill: Callable[[Path], None]) -> Path:
    home = CACHE / f"{name}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    if home.exists():
        return home
    if os.environ.get("MCP_TASKS_OFFLINE") == "1":
        raise Offline(f"{name} is not installed in {CACHE}, and MCP_TASKS_OFFLINE=1")
    CACHE.mkdir(parents=True, exist_ok=True)
    # The cache ignores itself, so that no checkout can commit it by mistake.
    (CACHE / ".gitignore").write_text("*\n")
    with tempfile.TemporaryDirectory(prefix="staging-", dir=CACHE, ignore_cleanup_errors=True) as staging:
        fill(Path(staging))
        # Two processes may install at once; the copy of the one that was first is the same.
        with suppress(OSError):
            Path(staging).rename(home)
    return home


def _install(command: Sequence[str], *, cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_LIMIT)
    except subprocess.TimeoutExpired as exc:
        raise InstallError(f"not installed after {INSTALL_LIMIT:g} s: {' '.join(command)}") from exc
    if done.returncode != 0:
        raise InstallError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
