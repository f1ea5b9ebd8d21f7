"""SQL scripts that bring a store to the schema of this release, and with which older releases they leave it usable.

Script number n takes a store from schema n - 1 to n. One that begins with the line `-- compatible from: m` only adds
what releases of schema m and up need not know: a column that has a default, a table, an index. They go on using the
store while newer ones do, so a fleet is rolled without being stopped. A script without that line is for new releases
alone, and those before it refuse the store from then on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Final

from mcp_tasks.stores.base import Standing

_COMPATIBLE_FROM: Final = re.compile(r"-- compatible from: (\d+)\s")


def scripts_of(package: str) -> tuple[str, ...]:
    """The scripts in the folder `migrations` of a package, in their order."""
    folder = files(package) / "migrations"
    scripts = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=lambda e: e.name)
    return tuple(script.read_text(encoding="utf-8") for script in scripts)


def compatible_from(scripts: Sequence[str]) -> int:
    """The first schema whose releases may use a store to which all of these were applied."""
    return max(
        (int(said[1]) if (said := _COMPATIBLE_FROM.match(script)) else number)
        for number, script in enumerate(scripts, start=1)
    )


def standing_of(schema: int, scripts: Sequence[str]) -> Standing:
    """How a store of this schema stands; 0 is none."""
    return "absent" if schema == 0 else "current" if schema >= len(scripts) else "older"


def this_release() -> str:
    """The release that runs, for what it leaves in a store."""
    try:
        return version("mcp-tasks")
    except PackageNotFoundError:  # run from a source tree
        return "(unknown)"
