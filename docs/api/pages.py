"""The pages of the reference, written from the source: what `__all__` names, with signatures and docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from docs.api.entries import entries, prose
from docs.api.links import headings, link, links, resolved, slug
from docs.api.modules import AUDIENCES, MODULES, PAGES, TYPES_PAGE
from docs.api.source import Export, exporters, exports, tree
from docs.api.types import types_in_signatures

OPENING = """# Reference

For everybody who writes against the library: the public API, which is everything that these modules export. It is
written from the code by `make docs`. What is not here may change without notice. Each name is described once, in the
first module that exports it.
"""
TYPES = """# Types in signatures

What the functions of the [reference](../reference.md) take and give, and none of its modules exports. Import them for
annotations from where they are said to be.
"""


@cache
def reference_pages() -> dict[str, str]:
    """Every page, by its path from the folder of the docs."""
    texts = {f"reference/{name}.md": _page(name) for name in PAGES}
    texts[f"reference/{TYPES_PAGE}.md"] = "\n".join([TYPES, *entries(types_in_signatures(), say_where=True)])
    where = {slug(heading): path for path, text in texts.items() for heading in headings(text)}
    beside = {anchor: path.removeprefix("reference/") for anchor, path in where.items()}
    resolved_pages = {path: resolved(text, path.removeprefix("reference/"), beside) for path, text in texts.items()}
    return {
        path: re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"
        for path, text in {"reference.md": resolved("\n".join(_index()), "", where), **resolved_pages}.items()
    }


def _page(name: str) -> str:
    opening = f"# Reference: {name}\n\nA page of the [reference](../reference.md), which has an index of all names.\n"
    return "\n".join([opening, *(part for module in PAGES[name] for part in ("", *_module(module)))])


def _index() -> Iterator[str]:
    """The modules, and every name by who needs it."""
    yield OPENING
    for name, modules in PAGES.items():
        yield f"- [{name}](reference/{name}.md): {', '.join(link(module) for module in modules)}"
    yield f"- [types in signatures](reference/{TYPES_PAGE}.md)"
    for audience, modules in AUDIENCES.items():
        names = {export.name for module in modules for export in exports(module)}
        yield f"\n**{audience}:**\n{links(names)}"
    yield f"\n**Types in signatures:**\n{links({export.name for export in types_in_signatures()})}"


def _module(module: str) -> Iterator[str]:
    yield f"## {module}"
    yield prose(ast.get_docstring(tree(module)) or "")
    public = exports(module)
    elsewhere: dict[str, list[str]] = {}
    for export in public:
        first = exporters(export)[0]
        if first != module:
            elsewhere.setdefault(first, []).append(export.name)
    for first, names in elsewhere.items():
        yield f"\nAlso here, see {link(first)}:\n{links(names)}"
    seams = [*public, *_seams_above(module)]
    yield from entries(public, seams=seams, hidden={name for names in elsewhere.values() for name in names})


def _seams_above(module: str) -> list[Export]:
    """What the package of a module exports: its backends, each in a module of its own, have the methods of that."""
    package = module.rpartition(".")[0]
    return exports(package) if package in MODULES else []
