"""Writes what programs read: `llms.txt` (the form of llmstxt.org), `llms-full.txt`, and each page as Markdown."""

from __future__ import annotations

import shutil
from itertools import groupby
from pathlib import Path

from docs.site.layout import config, navigation, summary

OPTIONAL = "Contributors"
"""The readers whose pages others can do without: the form has a section of that meaning."""


def write(staged: Path, built: Path, url: str | None = None) -> None:
    """Put everything beside the pages of a built site."""
    for entry in navigation():
        (built / entry.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(staged / entry.path, built / entry.path)
    (built / "llms.txt").write_text(index(url))
    (built / "llms-full.txt").write_text(everything(staged))


def index(url: str | None = None) -> str:
    """Every page with what is in it, by reader."""
    lines = [f"# {config()['project']['site_name']}", "", f"> {config()['project']['site_description']}.", ""]
    lines += [summary("index.md"), ""]
    for section, entries in groupby(navigation(), key=lambda entry: entry.section):
        lines += [f"## {'Optional' if section == OPTIONAL else section}", ""]
        lines += [f"- [{entry.title}]({url or ''}{entry.path}): {summary(entry.path)}" for entry in entries]
        lines.append("")
    return "\n".join(lines)


def everything(staged: Path) -> str:
    """All pages, one after the other, in the order of the navigation."""
    return "\n".join(f"<!-- {entry.path} -->\n\n{(staged / entry.path).read_text()}" for entry in navigation())
