"""Builds the site: `python -m docs.site [--version 0.1.0] [--to site] [--url https://…]`."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from docs import generate
from docs.site import check, llms, versions
from docs.site.layout import REDIRECTS, ROOT, config
from docs.site.stage import stage


def build(to: Path, version: str | None = None, url: str | None = None) -> Path:
    """Build one version of the site into a folder that may hold others, and say where it is."""
    name = versions.folder_of(version)
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        stage(work / "docs")
        _run_builder(work, None if url is None else f"{url.rstrip('/')}/{name}/")
        built = work / "site"
        for old, new in REDIRECTS.items():
            (built / f"{old}.html").write_text(versions.redirect(f"{new}.html"))
        llms.write(work / "docs", built, None if url is None else f"{url.rstrip('/')}/{name}/")
        problems = check.problems(built)
        if problems:
            raise SystemExit("\n".join(["the site is not right:", *problems]))
        return versions.publish(built, to, version)


def _run_builder(work: Path, url: str | None) -> None:
    """Run Zensical over what was put together, and take any warning for an error."""
    settings = {**config()["project"], "docs_dir": "docs", "site_dir": "site"}
    if url is not None:
        settings["site_url"] = url
    (work / "mkdocs.yml").write_text(yaml.safe_dump(settings, sort_keys=False))
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(work / "mkdocs.yml")]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode or "warning" in said.lower():
        raise SystemExit(f"zensical did not build the site:\n{said}")


def main() -> None:
    """Write what is generated, then build."""
    parser = argparse.ArgumentParser(description="Build the documentation as a site.")
    parser.add_argument("--version", help="the release that this is, such as 0.1.0; what is being worked on without it")
    parser.add_argument("--to", type=Path, default=ROOT / "site", help="where the versions are")
    parser.add_argument("--url", help="where the site will be: addresses in llms.txt are complete then")
    options = parser.parse_args()
    if shutil.which("zensical", path=str(Path(sys.executable).parent)) is None:
        raise SystemExit("zensical is not installed: run `make docs`, which installs it, or pip install '.[docs]'")
    generate.write()
    where = build(options.to, options.version or None, options.url or None)
    print(f"the site is in {where}; look at it with: python -m http.server --directory {options.to}")


if __name__ == "__main__":
    main()
