"""Starting a driver and reading what it reports."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from harness.installing import find_node
from harness.processes import ROOT, ProcessError, run

from .install import HERE

DRIVERS = HERE / "drivers"
DRIVER_LIMIT = 120.0  # a driver bounds each of its scenarios to 20 s; the rest is for machines with other things to do

Outcomes: TypeAlias = dict[str, Any]
"""What a driver reports: an outcome per scenario, and the versions it ran with."""


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

    Raises:
        ProcessError: It did not come to its report; with what it printed.
    """
    environment = environment_with_ours() if with_ours else quiet_environment()
    done = run([*driver, *arguments], limit=limit, env=environment, check=True)
    if not done.stdout:
        raise ProcessError(f"{driver} reported nothing:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def environment_with_ours() -> dict[str, str]:
    """That of a program that has this package beside another implementation, as if both were installed."""
    return {**quiet_environment(), "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}


def quiet_environment() -> dict[str, str]:
    """Ours without what would make another implementation behave in another way than it does for everybody."""
    ours = ("MCP_", "FASTMCP_", "PYTHON", "NODE_")
    kept = {key: value for key, value in os.environ.items() if not key.upper().startswith(ours)}
    return {**kept, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
