"""Several versions of the site side by side, in the layout that the theme's version switcher reads.

```
site/versions.json   which there are
site/0.1/            a release; its patch releases replace it
site/latest/         a copy of the newest release, for links that should stay
site/dev/            what is being worked on
site/index.html      leads to the newest release, or to dev before the first
```
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TypedDict

DEVELOPMENT = "dev"
LATEST = "latest"
AT_THE_TOP = ("llms.txt", "llms-full.txt")


class Version(TypedDict):
    """An entry of versions.json."""

    version: str
    title: str
    aliases: list[str]


def folder_of(version: str | None) -> str:
    """The folder of a release, by its first two numbers; of what is being worked on without one."""
    if version is None:
        return DEVELOPMENT
    numbers = re.fullmatch(r"v?(\d+)\.(\d+)(\.\d+)?", version)
    if numbers is None:
        raise SystemExit(f"{version!r} is not a version: say it as 0.1.0")
    return f"{numbers[1]}.{numbers[2]}"


def publish(built: Path, to: Path, version: str | None) -> Path:
    """Put a built site beside those that are there, and say where it is."""
    to.mkdir(parents=True, exist_ok=True)
    name = folder_of(version)
    known = [entry for entry in _known(to) if entry["version"] != name]
    known.append(Version(version=name, title=(version or "development").removeprefix("v"), aliases=[]))
    known.sort(key=_age, reverse=True)
    releases = [entry for entry in known if entry["version"] != DEVELOPMENT]
    for entry in known:
        entry["aliases"] = [LATEST] if entry in releases[:1] else []
    _replace(built, to / name)
    if releases and releases[0]["version"] == name:
        _replace(built, to / LATEST)
    (to / "versions.json").write_text(json.dumps(known, indent=2) + "\n")
    _top(to, LATEST if releases else DEVELOPMENT)
    return to / name


def redirect(target: str) -> str:
    """A page that leads to another one."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Moved</title>'
        f'<link rel="canonical" href="{target}"><meta http-equiv="refresh" content="0; url={target}"></head>'
        f'<body><a href="{target}">This page is here now.</a></body></html>\n'
    )


def _known(to: Path) -> list[Version]:
    file = to / "versions.json"
    return json.loads(file.read_text()) if file.exists() else []


def _age(entry: Version) -> tuple[int, ...]:
    # What is being worked on comes first, then the releases, the newest first: by number, so 0.10 after 0.9.
    is_release = entry["version"] != DEVELOPMENT
    return (0, *(int(part) for part in entry["version"].split("."))) if is_release else (1,)


def _replace(built: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(built, folder)


def _top(to: Path, folder: str) -> None:
    """What stands above the versions: where a visitor without one goes, and what programs look for there."""
    (to / "index.html").write_text(redirect(f"{folder}/index.html"))
    (to / ".nojekyll").touch()
    for name in AT_THE_TOP:
        text = (to / folder / name).read_text()
        # Links of a site whose address nobody said are relative, and stand one folder higher here.
        (to / name).write_text(re.sub(r"^(- \[[^\]]*\]\()(?!https?:)", rf"\g<1>{folder}/", text, flags=re.MULTILINE))
