"""Puts the pages of the repository together as the site's builder wants them, with links that lead within the site.

The pages are written to be read in the repository, where they link to each other and to files of the source. On the
site the former are pages, and the latter are copied beside them.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from docs.site.layout import DOCS, ROOT, pages

LINK = re.compile(r"(!?\[[^\]]*\]\()(?!https?://|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"(^```.*?^```$)", flags=re.DOTALL | re.MULTILINE)
MERMAID = re.compile(r"^```mermaid\n.*?^```$", flags=re.DOTALL | re.MULTILINE)
PICTURE = "![The statuses of a task, and what leads from one to another](assets/lifecycle.svg)"
"""What stands for the diagram, which GitHub draws itself and a site with a script from elsewhere."""
NOT_SHOWN = {"__pycache__", ".git"}


def stage(folder: Path) -> None:
    """Write all pages, and the files that they link to, into a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS / "assets", folder / "assets", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for path in pages():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(staged(path, folder))


def staged(path: str, folder: Path | None = None) -> str:
    """A page as it is on the site; files that it links to are copied into the folder."""
    source = pages()[path]
    text = MERMAID.sub(PICTURE, source.read_text())
    parts = FENCE.split(text)
    for index in range(0, len(parts), 2):
        parts[index] = LINK.sub(lambda link: _link(link, path, source, folder), parts[index])
    return "".join(parts)


def _link(link: re.Match[str], path: str, source: Path, folder: Path | None) -> str:
    opening, target, anchor = link[1], link[2], link[3] or ""
    aim = Path(os.path.normpath(source.parent / target))
    page = {file: name for name, file in pages().items()}.get(aim)
    if page is None and DOCS / "assets" not in aim.parents:
        page = _copied(aim, folder)
    elif page is None:
        page = str(aim.relative_to(DOCS))
    return f"{opening}{os.path.relpath(page, Path(path).parent)}{anchor})"


def _copied(aim: Path, folder: Path | None) -> str:
    """Where a file of the source is on the site; a folder is a page that lists what is in it."""
    if not aim.exists():
        raise SystemExit(f"a page links to {aim}, which does not exist")
    name = Path("files") / aim.relative_to(ROOT)
    if aim.is_dir():
        files = [file for file in sorted(aim.rglob("*")) if file.is_file() and not NOT_SHOWN & set(file.parts)]
        listing = [f"- [`{file.relative_to(aim)}`]({Path(aim.name) / file.relative_to(aim)})" for file in files]
        where = name.with_name(f"{name.name}.md")
        if folder is not None:
            for file in files:
                _copied(file, folder)
            (folder / where).parent.mkdir(parents=True, exist_ok=True)
            (folder / where).write_text("\n".join([f"# Files in {aim.relative_to(ROOT)}", "", *listing, ""]))
        return str(where)
    # A page of its own would be made of Markdown.
    where = name.with_name(f"{name.name}.txt") if aim.suffix == ".md" else name
    if folder is not None:
        (folder / where).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(aim, folder / where)
    return str(where)
