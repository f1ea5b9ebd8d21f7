"""Finds what is public in the source, and where it is written.

It reads the code and does not import it. So a signature shows what the author wrote (`ttl=DEFAULT_TTL`, and not the
address of a function), and the pages are the same on every machine and Python version.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from docs.api.modules import MODULES

SOURCE = Path(__file__).parents[2] / "src"
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.ClassDef | Function | ast.Assign | ast.AnnAssign


@dataclass(frozen=True)
class Export:
    """A public name, and what stands behind it in its own module."""

    name: str
    home: str
    nodes: Sequence[Definition]
    doc: str


def exports(module: str) -> list[Export]:
    """What a module exports, in the order of its `__all__`; without one, every public class that it defines."""
    parsed = tree(module)
    names = _all_of(parsed)
    if names is None:
        names = [node.name for node in parsed.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    return [definition(module, name) for name in names]


def exporters(export: Export) -> list[str]:
    """The modules that export a name; it is described in the first of them."""
    return [module for module in MODULES if (export.name, export.home) in _exported(module)]


@cache
def _exported(module: str) -> frozenset[tuple[str, str]]:
    return frozenset((export.name, export.home) for export in exports(module))


def unnamed_bases(export: Export) -> list[Export]:
    """The classes of ours that a public one is put together from, and no module exports.

    Nobody can look them up, so what they define is described as their heir's own.
    """
    last = export.nodes[-1] if export.nodes else None
    found: list[Export] = []
    for base in last.bases if isinstance(last, ast.ClassDef) else ():
        if not isinstance(base, ast.Name | ast.Subscript):
            continue
        try:
            named = definition(export.home, ast.unparse(base).partition("[")[0])
        except LookupError:  # a builtin
            continue
        if named.nodes and not exporters(named):
            found += [named, *unnamed_bases(named)]
    return found


def _all_of(parsed: ast.Module) -> list[str] | None:
    for node in parsed.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return list(ast.literal_eval(node.value))
    return None


def definition(module: str, name: str) -> Export:
    """What defines a name, followed through imports; several nodes for overloads, none for what is not ours."""
    parsed = tree(module)
    # Also those under `if TYPE_CHECKING`: a lazy module says there what its names are.
    blocks = [parsed.body, *(node.body for node in parsed.body if isinstance(node, ast.If))]
    statements = [(node, block) for block in blocks for node in block]
    found = [(node, block) for node, block in statements if isinstance(node, Definition) and name in names_of(node)]
    if found:
        last, block = found[-1]
        doc = doc_after(block, last) if isinstance(last, ast.Assign | ast.AnnAssign) else ast.get_docstring(last)
        return Export(name, module, [node for node, _ in found], doc or "")
    for node in ast.walk(parsed):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        for alias in node.names:
            if name == (alias.asname or alias.name):
                if node.module.partition(".")[0] == "mcp_tasks":
                    return definition(node.module, alias.name)
                return Export(name, node.module, [], f"`{node.module}.{alias.name}`.")
    raise LookupError(f"{module} has no {name!r}: no definition of it was found in the source")


def names_of(node: Definition) -> list[str]:
    match node:
        case ast.Assign():
            return [ast.unparse(target) for target in node.targets]
        case ast.AnnAssign():
            return [ast.unparse(node.target)]
        case _:
            return [node.name]


def doc_after(body: Sequence[ast.stmt], node: ast.stmt) -> str | None:
    """The string that stands under an assignment and documents it."""
    below = body[body.index(node) + 1 : body.index(node) + 2]
    for statement in below:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            text = statement.value.value
            return textwrap.dedent(text).strip() if isinstance(text, str) else None
    return None


@cache
def tree(module: str) -> ast.Module:
    path = SOURCE.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text())


def members_of(node: ast.ClassDef) -> dict[str, list[Function]]:
    members: dict[str, list[Function]] = {}
    for statement in node.body:
        if isinstance(statement, Function) and not _is_setter(statement):
            members.setdefault(statement.name, []).append(statement)
    return members


def _is_setter(node: Function) -> bool:
    return any(decorator.endswith((".setter", ".deleter")) for decorator in decorators(node))


def decorators(node: ast.ClassDef | Function) -> list[str]:
    return [ast.unparse(decorator) for decorator in node.decorator_list]
