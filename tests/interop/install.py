"""Other implementations, installed on first use at the versions pinned here, each where it disturbs nobody.

Python ones get a virtualenv of their own, since they may want another `mcp` than we do; npm ones share one folder.
All of it lies under `.cache/interop` of the checkout, named by what was asked for, so a changed pin installs anew.
"""

from __future__ import annotations

import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from harness.installing import install, installed, npm_packages

HERE = Path(__file__).resolve().parent
INSTALL_LIMIT = 600.0
"""Seconds. Registries answer slowly, and a busy machine unpacks slowly: only what cannot be had takes so long."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A virtualenv: what it is for, and under `pins/` the versions of all that comes with that."""

    name: str
    packages: tuple[str, ...]

    @property
    def pins(self) -> Path:
        return HERE / "pins" / f"{self.name}.txt"


LANGCHAIN = ("langchain==1.4.7", "langgraph-checkpoint-sqlite==3.1.2")
PYTHON_SDK = Environment(name="python_sdk", packages=("mcp==1.30.0",))
ENVIRONMENTS = (
    PYTHON_SDK,
    Environment(name="fastmcp", packages=("fastmcp==4.1.2", "fastmcp-tasks==4.1.2")),
    Environment(name="strands", packages=("strands-agents==1.62.0",)),
    Environment(name="older_strands", packages=("strands-agents==1.62.0", "mcp==1.30.0")),
    Environment(name="pydantic_ai", packages=("pydantic-ai-slim[mcp,mcp-tasks]==2.66.0", "fastmcp-tasks==4.1.2")),
    Environment(name="langchain", packages=(*LANGCHAIN, "fastmcp==4.1.2")),
    Environment(name="langchain_adapter", packages=("langchain-mcp-adapters==0.3.2", *LANGCHAIN)),
)


def install_python(environment: Environment) -> Path:
    wanted = "\n".join((sys.version, *environment.packages, environment.pins.read_text()))

    def fill(directory: Path) -> None:
        # The pip of our own virtualenv does it: another copy of it would take longer than some of the packages.
        venv.create(directory, with_pip=False)
        pip = [sys.executable, "-m", "pip", "--python", str(_python(directory)), "--disable-pip-version-check"]
        # Only what a driver imports is compiled, when it does.
        options = ["--quiet", "--no-compile", "--constraint", str(environment.pins)]
        install([*pip, "install", *options, *environment.packages], limit=INSTALL_LIMIT)

    return _python(installed(f"interop/{environment.name}", wanted, fill))


def install_npm() -> Path:
    """The folder that has `node_modules` with the packages of `package.json`."""
    # Not `npm ci`: it wants the lock file to have the builds of one dependency for every platform there is.
    # `install` takes from the lock file what is in it. The Inspector's page needs those of this platform.
    return npm_packages("interop/npm", HERE, "install", "--no-save", limit=INSTALL_LIMIT)


def _python(home: Path) -> Path:
    return home / "bin" / "python"
