"""Starting a driver and reading what it reports."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from .install import HERE
from .shared import find_node

DRIVERS = HERE / "drivers"
DRIVER_LIMIT = 60.0  # a driver bounds each of its scenarios to a third of this

Outcomes: TypeAlias = dict[str, Any]
"""What a driver reports: an outcome per scenario, and the versions it ran with."""


class DriverError(Exception):
    """A driver did not come to its report; the message has what it printed."""


def command(installed: Path, driver: str) -> list[str]:
    """The command of a driver, without its arguments, with what it needs `installed`."""
    if not driver.endswith(".mjs"):
        return [str(installed), str(DRIVERS / driver)]
    # Node looks packages up from where a module lies.
    return [*find_node()[0], str(shutil.copy(DRIVERS / driver, installed))]


def drive(driver: Sequence[str], urls: Sequence[str]) -> list[Outcomes]:
    """Run a driver against several servers; gives what it reports of each."""
    try:
        done = subprocess.run(
            [*driver, *urls], capture_output=True, text=True, timeout=DRIVER_LIMIT, env=quiet_environment()
        )
    except subprocess.TimeoutExpired as exc:
        raise DriverError(f"no report after {DRIVER_LIMIT:g} s: {exc.stdout!r} {exc.stderr!r}") from exc
    if done.returncode != 0:
        raise DriverError(f"exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def quiet_environment() -> dict[str, str]:
    """Ours without what would make another implementation behave in another way than it does for everybody."""
    ours = ("MCP_", "FASTMCP_", "PYTHON", "NODE_")
    kept = {key: value for key, value in os.environ.items() if not key.upper().startswith(ours)}
    return {**kept, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
