"""Other implementations as drivers: how they are started and reach our servers, and what they report."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from harness.installing import find_node
from harness.processes import ROOT, ProcessError, run
from harness.serving import serving_command

from .install import HERE

DRIVERS = HERE / "drivers"
DRIVER_LIMIT = 300.0  # a driver bounds each of its scenarios to 20 s; the rest is for machines with other things to do

Outcomes: TypeAlias = dict[str, Any]
"""What a driver reports: an outcome per scenario, and the versions it ran with."""

Expected: TypeAlias = Mapping[str, Callable[[Any], object] | str | int | list[Any] | dict[str, Any] | None]
"""What must be in an outcome; a function says whether a value will do."""


def command(installed: Path, driver: str) -> list[str]:
    """The command of a driver, without its arguments, with what it needs `installed`."""
    if not driver.endswith(".mjs"):
        return [str(installed), str(DRIVERS / driver)]
    # Node looks packages up from where a module lies.
    for module in DRIVERS.glob("*.mjs"):
        # In one step: another driver may be reading it.
        with tempfile.NamedTemporaryFile(dir=installed, delete=False) as file:
            file.write(module.read_bytes())
        Path(file.name).replace(installed / module.name)
    return [*find_node()[0], str(installed / driver)]


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


@contextmanager
def reached(directory: Path, way: str, kind: str, *options: str) -> Generator[dict[str, Any]]:
    """A server of ours as a plan for a driver: where it is, or how to start it. Its files are in `directory`."""
    files = ["--db", str(directory / "tasks.db"), "--log", str(directory / "started.log")]
    # Clients that start a server hand it little of their environment.
    ours = ["env", f"PYTHONPATH={ROOT / 'src'}:{ROOT}", sys.executable, "-m", "tests.interop.servers", kind]
    if way == "stdio":
        yield {"command": [*ours, *files, *options], "cwd": str(ROOT)}
        return
    told = [] if way == "http" else [f"--{way}"]
    with serving_command([*ours, *files, *options, "--port", "{port}", *told]) as url:
        yield {"url": url}


def visit_hosted(driver: Sequence[str], way: str) -> tuple[Outcomes, Mapping[str, int]]:
    """Have a host without tasks visit a server of its own: what it reports, and how often each tool was started."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        with reached(directory, way, "hosted") as plan:
            (outcomes,) = drive(driver, [json.dumps(plan)], limit=DRIVER_LIMIT)
        return outcomes, Counter((directory / "started.log").read_text().split())


def visit_older(driver: Sequence[str], way: str) -> Outcomes:
    """Both visits of an older client: at the end of the first it kills the server, the second finds it again."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        directory = Path(place)
        pid = str(directory / "pid")
        with reached(directory, way, "fixture", "--pid", pid) as server:
            first = drive(driver, [json.dumps({**server, "pid": pid})], limit=DRIVER_LIMIT)
        left = first.get("left")
        if left is None or "running" not in left:
            return first
        with reached(directory, way, "fixture") as server:
            second = drive(driver, [json.dumps({**server, "left": left})], limit=DRIVER_LIMIT)
    return {**first, "resume": second["resume"], "wire_again": second.get("wire")}


def assert_fits(outcome: Mapping[str, Any], expected: Expected) -> None:
    for key, wanted in expected.items():
        found = outcome.get(key, "it is not there")
        assert wanted(found) if callable(wanted) else found == wanted, (key, outcome)
