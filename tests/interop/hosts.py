"""Hosts that speak no tasks: how they reach our server, and what they report of it."""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.processes import ROOT
from harness.serving import serving_command

from .driving import Outcomes, command, drive

HOSTS = {
    "typescript_v1": ("npm", "host_sdk_v1.mjs"),
    "typescript_v2": ("npm", "host_client_v2.mjs"),
    "python_v1": ("python_sdk", "host_python_sdk.py"),
    "fastmcp_plain": ("fastmcp", "host_fastmcp.py"),
    "langchain_adapter": ("langchain_adapter", "host_langchain.py"),
}
"""For each host what it needs installed, and its driver."""

ROWS = (
    ("typescript_v1", "http"),
    ("typescript_v1", "stdio"),
    ("typescript_v1", "stateless"),
    ("typescript_v2", "http"),
    ("python_v1", "http"),
    ("python_v1", "stdio"),
    ("python_v1", "stateless"),
    ("fastmcp_plain", "http"),
    ("fastmcp_plain", "stdio"),
    ("langchain_adapter", "http"),
)
"""Which of them are tried, and how they reach our server."""

VISIT_LIMIT = 90.0


@dataclass(frozen=True, kw_only=True)
class Visit:
    """What one host reports, and how often each tool was started, by its label."""

    outcomes: Outcomes
    starts: Counter[str]


def visit(installed: Path, driver: str, way: str) -> Visit:
    """Have a host visit a server of its own."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, "started.log")
        log.touch()
        with hosted(Path(directory), way) as plan:
            (outcomes,) = drive(command(installed, driver), [json.dumps(plan)], limit=VISIT_LIMIT)
        return Visit(outcomes=outcomes, starts=Counter(log.read_text().split()))


@contextmanager
def hosted(directory: Path, way: str) -> Generator[dict[str, object]]:
    """Our server as a plan for a driver: where it is, or how to start it."""
    files = ["--db", str(directory / "tasks.db"), "--log", str(directory / "started.log")]
    # Clients that start a server hand it little of their environment.
    ours = ["env", f"PYTHONPATH={ROOT / 'src'}:{ROOT}", sys.executable, "-m", "tests.interop.host_server"]
    if way == "stdio":
        yield {"command": [*ours, *files], "cwd": str(ROOT)}
        return
    options = ["--stateless"] if way == "stateless" else []
    with serving_command([*ours, *files, "--port", "{port}", *options]) as url:
        yield {"url": url}
