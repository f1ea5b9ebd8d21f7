"""Starting a driver and reading what it reports."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from .install import HERE
from .shared import CHECKOUT, find_node

DRIVERS = HERE / "drivers"
DRIVER_LIMIT = 120.0  # a driver bounds each of its scenarios to 20 s; the rest is for machines with other things to do

Outcomes: TypeAlias = dict[str, Any]
"""What a driver reports: an outcome per scenario, and the versions it ran with."""


class DriverError(Exception):
    """A driver did not come to its report; the message has what it printed."""


def command(installed: Path, driver: str) -> list[str]:
    """The command of a driver, without its arguments, with what it needs `installed`."""
    if not driver.endswith(".mjs"):
        return [str(installed), str(DRIVERS / driver)]
    # Node looks packages up from where a module lies.
    for module in DRIVERS.glob("*.mjs"):
        _put(module, installed)
    return [*find_node()[0], str(installed / driver)]


def _put(module: Path, installed: Path) -> None:
    """Copy it, and in one step: another driver may be reading it."""
    with tempfile.NamedTemporaryFile(dir=installed, delete=False) as file:
        file.write(module.read_bytes())
    Path(file.name).replace(installed / module.name)


def drive(
    driver: Sequence[str], arguments: Sequence[str], *, limit: float = DRIVER_LIMIT, with_ours: bool = False
) -> Any:
    """Run a driver, mostly against several servers; gives what it reports.

    Args:
        with_ours: Whether it imports this package.
    """
    environment = environment_with_ours() if with_ours else quiet_environment()
    try:
        done = subprocess.run([*driver, *arguments], capture_output=True, text=True, timeout=limit, env=environment)
    except subprocess.TimeoutExpired as exc:
        raise DriverError(f"no report after {limit:g} s: {exc.stdout!r} {exc.stderr!r}") from exc
    if done.returncode != 0 or not done.stdout:
        raise DriverError(f"exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def environment_with_ours() -> dict[str, str]:
    """That of a program that has this package beside another implementation, as if both were installed."""
    return {**quiet_environment(), "PYTHONPATH": str(CHECKOUT / "src"), "PYTHONUNBUFFERED": "1"}


def quiet_environment() -> dict[str, str]:
    """Ours without what would make another implementation behave in another way than it does for everybody."""
    ours = ("MCP_", "FASTMCP_", "PYTHON", "NODE_")
    kept = {key: value for key, value in os.environ.items() if not key.upper().startswith(ours)}
    return {**kept, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
