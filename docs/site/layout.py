"""Where each page of the repository is on the site, and in which order it is read."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONFIG = Path(__file__).with_name("zensical.toml")
RENAMED = {"SECURITY.md": "threat-model.md"}
"""Pages at the top of the repository that are on the site under a name that is not their own in small letters."""
FORMS = {DOCS / "decisions" / "template.md"}
"""What is copied to write a page, and is none itself."""
REDIRECTS = {"operate": "running", "operator": "store-commands"}
"""Pages that had another name, which links from outside may still use."""


@dataclass(frozen=True)
class Entry:
    """A page in the navigation."""

    title: str
    path: str
    section: str


@cache
def pages() -> dict[str, Path]:
    """Every page of the site, and the file that it is written in."""
    inside = {str(path.relative_to(DOCS)): path for path in sorted(DOCS.rglob("*.md")) if path not in FORMS}
    top = {RENAMED.get(path.name, path.name.lower()): path for path in sorted(ROOT.glob("*.md"))}
    return {**top, **inside}


@cache
def config() -> dict[str, Any]:
    """The configuration, with folders in its navigation written out."""
    read = tomllib.loads(CONFIG.read_text())
    read["project"]["nav"] = _written_out(read["project"]["nav"])
    return read


def _written_out(entries: list[Any]) -> list[Any]:
    found: list[Any] = []
    for entry in entries:
        if isinstance(entry, str):
            found += [{title(path): path} for path in pages() if path.startswith(entry)]
            continue
        for name, inner in cast("dict[str, str | list[Any]]", entry).items():
            found.append({name: _written_out(inner) if isinstance(inner, list) else inner})
    return [entry for entry in found if all(entry.values())]


def navigation() -> Iterator[Entry]:
    """Every page in the order of the navigation."""
    for section in config()["project"]["nav"]:
        [(name, inner)] = section.items()
        yield from _flat(name, inner)


def _flat(section: str, entries: list[dict[str, Any]]) -> Iterator[Entry]:
    for entry in entries:
        [(name, inner)] = entry.items()
        if isinstance(inner, str):
            yield Entry(name, inner, section)
        else:
            yield from _flat(section, inner)


def title(path: str) -> str:
    """The heading of a page, without marks."""
    heading = re.search(r"^# (.*)$", pages()[path].read_text(), flags=re.MULTILINE)
    return path if heading is None else heading[1].replace("`", "")


def summary(path: str) -> str:
    """The first sentence of a page, without links and marks: for whom it is, and what is in it."""
    # What is passed over: code, pictures, and the status of a decision.
    other = r"^```.*?^```|^!\[.*?$|^## Status\n.*?(?=^## )"
    text = re.sub(other, "", pages()[path].read_text(), flags=re.DOTALL | re.MULTILINE)
    paragraphs = [part.strip() for part in text.split("\n\n") if part.strip() and not part.lstrip().startswith("#")]
    first = " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraphs[0]).split()) if paragraphs else ""
    return re.split(r"(?<=[.!?]) (?=[A-Z`])", first)[0]
