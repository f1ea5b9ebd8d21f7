"""Types that public signatures name and no module exports."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from docs.api.modules import MODULES
from docs.api.signatures import is_public
from docs.api.source import Definition, Export, decorators, definition, exports, members_of, unnamed_bases


def types_in_signatures() -> list[Export]:
    """Values of ours that public signatures name and no module exports, by name, and those that these name in turn."""
    waiting = [export for module in MODULES for export in exports(module)]
    known = {export.name for export in waiting}
    found: list[Export] = []
    while waiting:
        export = waiting.pop()
        waiting += unnamed_bases(export)
        for name in sorted({name for node in export.nodes for name in _named_in(node)} - known):
            try:
                named = definition(export.home, name)
            except LookupError:  # a builtin, or a name of another module's
                continue
            if named.nodes and _is_value(named.nodes[-1]):
                known.add(name)
                found.append(named)
                waiting.append(named)
    return sorted(found, key=lambda export: export.name)


def _named_in(node: Definition) -> set[str]:
    """The names in what a definition says of types."""
    match node:
        case ast.ClassDef():
            members = [
                found for name, found in members_of(node).items() if is_public(name, found) or name == "__init__"
            ]
            fields = [statement.annotation for statement in node.body if isinstance(statement, ast.AnnAssign)]
            return _names_in(fields).union(*(_named_in(function) for found in members for function in found))
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            rules = node.args
            given = [*rules.posonlyargs, *rules.args, *rules.kwonlyargs, rules.vararg, rules.kwarg]
            return _names_in([node.returns, *(argument.annotation for argument in given if argument is not None)])
        case _:
            return _names_in([node.value])


def _names_in(expressions: Sequence[ast.expr | None]) -> set[str]:
    inner = [part for expression in expressions if expression is not None for part in ast.walk(expression)]
    return {part.id for part in inner if isinstance(part, ast.Name) and not part.id.startswith("_")}


def _is_value(node: Definition) -> bool:
    """Whether a caller may have to do with it itself: a record, a seam, a name for a type; nothing that does work."""
    match node:
        case ast.ClassDef():
            bases = {re.split(r"[.\[]", ast.unparse(base))[0] for base in node.bases}
            is_record = any(text.startswith("dataclass") for text in decorators(node))
            return is_record or bool(bases & {"TypedDict", "Protocol", "StrEnum", "Enum", "NamedTuple"})
        case ast.Assign():
            return isinstance(node.value, ast.Subscript | ast.BinOp)
        case ast.AnnAssign():
            return "TypeAlias" in ast.unparse(node.annotation)
        case _:
            return False
