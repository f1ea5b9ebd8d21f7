"""Links to names of the reference. Which page a name is on is filled in when all pages are written."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Mapping

UNRESOLVED = re.compile(r"\]\(name:([^)]*)\)")


def link(name: str) -> str:
    """A link to the entry of a name or a module, without its page."""
    return f"[`{name}`](name:{slug(name)})"


def links(names: Collection[str]) -> str:
    """Links to several, one after the other."""
    listed = ", ".join(link(name) for name in sorted(names, key=str.lower))
    return textwrap.fill(listed, 120, break_long_words=False, break_on_hyphens=False)


def slug(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def headings(text: str) -> list[str]:
    """The headings of a page, without what only looks like one in a block of code."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"^#+ (.*)$", prose, flags=re.MULTILINE)


def resolved(text: str, own: str, pages: Mapping[str, str]) -> str:
    """The text with its links filled in: `pages` says where each anchor is, `own` where the text itself stands."""
    return UNRESOLVED.sub(lambda found: f"]({'' if pages[found[1]] == own else pages[found[1]]}#{found[1]})", text)
