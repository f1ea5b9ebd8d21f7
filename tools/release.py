"""Sees whether a release is in order, builds it, and tries what was built: `make release VERSION=x.y.z`.

It publishes nothing. A tag that is pushed does, by .github/workflows/release.yml, which runs this again.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
SMOKE = """
import asyncio
from mcp import Client
from mcp.server import MCPServer
from mcp_tasks import Tasks, __version__
from mcp_tasks.client import TasksClient

tasks = Tasks("memory://")
server = MCPServer("smoke", **tasks.wiring())

@server.tool()
@tasks.task()
async def add(a: int, b: int) -> int:
    return a + b

async def main():
    async with Client(server, extensions=[TasksClient()]) as client:
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}

asyncio.run(main())
print(__version__)
"""


class NotReady(Exception):
    """Why there can be no release yet."""


def project_version(pyproject: str) -> str:
    """The version that a pyproject.toml names."""
    return tomllib.loads(pyproject)["project"]["version"]


def section(changelog: str, version: str) -> str:
    """What the changelog says of a version, without its heading.

    Raises:
        NotReady: it says nothing of it, or has no date for it.
    """
    found = re.search(rf"^## {re.escape(version)} - (\S+)\n(.*?)(?=^## |\Z)", changelog, flags=re.DOTALL | re.MULTILINE)
    if found is None or not re.fullmatch(r"\d{4}-\d{2}-\d{2}", found[1]):
        raise NotReady(f"CHANGELOG.md has no section '## {version} - YYYY-MM-DD': move what is under Unreleased there")
    if not found[2].strip():
        raise NotReady(f"CHANGELOG.md says nothing under {version}")
    return found[2].strip() + "\n"


def check(version: str, *, pyproject: str, changelog: str, changed: str) -> None:
    """Whether a version can be released from here.

    Raises:
        NotReady: it cannot, and what to do about it.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        raise NotReady(f"{version!r} is no version such as 0.2.0 or 0.2.0rc1")
    if project_version(pyproject) != version:
        raise NotReady(f"pyproject.toml has version {project_version(pyproject)}: set it to {version}")
    section(changelog, version)
    if changed.strip():
        raise NotReady(f"commit or undo first what has changed:\n{changed.rstrip()}")


def build(version: str) -> Path:
    """Build sdist and wheel, have their metadata examined, and give back the wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    _run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    _run(sys.executable, "-m", "twine", "check", "--strict", *sorted(DIST.iterdir()))
    built = {path.name for path in DIST.iterdir()}
    wanted = {f"mcp_tasks-{version}.tar.gz", f"mcp_tasks-{version}-py3-none-any.whl"}
    if built != wanted:
        raise NotReady(f"built {sorted(built)} in place of {sorted(wanted)}")
    return DIST / f"mcp_tasks-{version}-py3-none-any.whl"


def smoke(wheel: Path, version: str) -> None:
    """Install a wheel as a user does, run a task with it, and ask its command for help."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder, "venv", "bin", "python")
        _run(sys.executable, "-m", "venv", python.parent.parent)
        _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[cli]")
        # Elsewhere than here, where `import mcp_tasks` might find the checkout.
        said = subprocess.run([python, "-c", SMOKE], cwd=folder, capture_output=True, text=True, check=False)
        if said.returncode or said.stdout.split()[-1:] != [version]:
            raise NotReady(f"the wheel does not work:\n{said.stdout}{said.stderr}")
        _run(python.with_name("mcp-tasks"), "--help", cwd=folder)


def _run(*command: str | Path, cwd: str | Path = ROOT) -> None:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotReady(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")


def _changed() -> str:
    return subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def release(version: str | None, *, notes: bool, build_only: bool, tag: bool) -> None:
    """What the command line asks for."""
    pyproject, changelog = (ROOT / "pyproject.toml").read_text(), (ROOT / "CHANGELOG.md").read_text()
    if build_only:
        version = project_version(pyproject)
    elif version is None:
        raise NotReady("say which: make release VERSION=x.y.z")
    elif notes:
        sys.stdout.write(section(changelog, version))
        return
    else:
        check(version, pyproject=pyproject, changelog=changelog, changed=_changed())
    smoke(build(version), version)
    print(f"{version} is built in dist/, and works when it is installed")
    if tag:
        _run("git", "tag", "--annotate", f"v{version}", "--message", f"mcp-tasks {version}")
        print(f"tagged. To publish it: git push origin v{version}")


def main() -> None:
    """Run as a command."""
    parser = argparse.ArgumentParser(prog="tools.release", description=__doc__)
    parser.add_argument("version", nargs="?")
    parser.add_argument("--notes", action="store_true", help="print what the changelog says of it, and do nothing else")
    parser.add_argument("--build-only", action="store_true", help="build and try whatever version this is")
    parser.add_argument("--tag", action="store_true", help="tag it when all is well")
    options = parser.parse_args()
    try:
        release(options.version, notes=options.notes, build_only=options.build_only, tag=options.tag)
    except NotReady as error:
        sys.exit(f"no release: {error}")


if __name__ == "__main__":
    main()
