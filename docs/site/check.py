"""Looks at a built site: links and anchors lead somewhere, and nothing is loaded from another host."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "object": "data"}
"""Elements for which a browser fetches something."""
FETCHED_LINKS = {"stylesheet", "preload", "icon", "preconnect", "dns-prefetch", "modulepreload"}


class Page(HTMLParser):
    """What a page has, loads and links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.images_without_text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag says."""
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.anchors.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "img" and not given.get("alt"):
            self.images_without_text.append(given.get("src", ""))
        is_fetched = tag != "link" or FETCHED_LINKS & set(given.get("rel", "").split())
        if tag in LOADS and LOADS[tag] in given and is_fetched:
            self.loads.append(given[LOADS[tag]])


def problems(site: Path) -> list[str]:
    """Everything that is not right, a line for each."""

    @cache
    def read(path: Path) -> Page:
        return Page(path.read_text())

    found: list[str] = []
    for path in sorted(site.rglob("*.html")):
        # Addresses on the page for unknown addresses are from the top of a host, which nobody knows here.
        if path.name == "404.html":
            continue
        name, page = path.relative_to(site), read(path)
        found += [f"{name} loads {address} from another host" for address in page.loads if _host(address)]
        found += [f"{name} has a picture without words: {source}" for source in page.images_without_text]
        for address in (*page.links, *page.loads):
            if not _host(address) and (reason := _leads_nowhere(address, path, site, read)):
                found.append(f"{name} links to {address}: {reason}")
    found += [f"{path.relative_to(site)} loads {url}" for path in site.rglob("*.css") for url in _of_styles(path)]
    found += [f"{path.relative_to(site)} loads {url}" for path in site.rglob("*.svg") for url in _of_styles(path)]
    return sorted(set(found))


def _host(address: str) -> str:
    return urlsplit(address).netloc or urlsplit(address).scheme


def _leads_nowhere(address: str, path: Path, site: Path, read: Callable[[Path], Page]) -> str | None:
    parts = urlsplit(address)
    if parts.path.startswith("/"):
        return "it is from the top of the host, and a version is in a folder"
    aim = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
    if aim.is_dir():
        aim /= "index.html"
    if not aim.is_relative_to(site.resolve()) and aim != path:
        return "it is outside of the site"
    if not aim.exists():
        return "there is no such file"
    if parts.fragment and aim.suffix == ".html" and unquote(parts.fragment) not in read(aim).anchors:
        return "there is no such anchor"
    return None


def _of_styles(path: Path) -> list[str]:
    """What a stylesheet, or one within a picture, fetches from other hosts."""
    return re.findall(r"(?:url\(|@import )\s*[\"']?((?:https?:)?//[^\"')\s]+)", path.read_text())
