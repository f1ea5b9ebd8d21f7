"""One public name as Markdown: its signature, what was written about it, its members."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence

from docs.api.defaults import option_defaults
from docs.api.links import link
from docs.api.modules import NOT_MADE_BY_CALLERS
from docs.api.signatures import (
    argument_text,
    arguments_text,
    constant_text,
    field_text,
    is_argument,
    is_public,
    signatures,
    with_numbers,
    wrapped,
)
from docs.api.source import (
    Export,
    Function,
    decorators,
    doc_after,
    exporters,
    members_of,
    names_of,
    tree,
    unnamed_bases,
)

SECTIONS = ("Args", "Attributes", "Raises", "Returns", "Yields")


def entries(
    public: Sequence[Export],
    *,
    seams: Sequence[Export] | None = None,
    hidden: Collection[str] = (),
    say_where: bool = False,
) -> Iterator[str]:
    """Names with their headings, as far as they are not described elsewhere."""
    for export in public:
        if export.name in hidden:
            continue
        yield f"\n### {_plain(export.name)}\n"
        if say_where:
            yield f"From `{export.home}`.\n"
        elif len(modules := exporters(export)) > 1:
            yield f"From {' or '.join(f'`{module}`' for module in modules)}.\n"
        last = export.nodes[-1] if export.nodes else None
        if isinstance(last, ast.ClassDef):
            beside = [other for other in (public if seams is None else seams) if other.name != export.name]
            yield from _class(last, export.home, beside, unnamed_bases(export))
        elif isinstance(last, Function):
            yield _block(signatures(export.name, [node for node in export.nodes if isinstance(node, Function)]))
            yield prose(export.doc)
        else:
            if last is not None:
                yield _block([constant_text(last)])
            yield prose(_with_links(export.doc))


def _plain(name: str) -> str:
    """A name in a heading: two underscores before a word would make it bold."""
    return name.replace("__", r"\_\_")


def _with_links(doc: str) -> str:
    """The docstring with links to the pages that it names as a reader of the source finds them."""
    return re.sub(r"docs/([\w-]+\.md)(#[\w-]+)?", r"[\1](../\1\2)", doc)


def _class(node: ast.ClassDef, home: str, beside: Sequence[Export], unnamed: Sequence[Export]) -> Iterator[str]:
    not_shown = ("Protocol", "Generic", *(base.name for base in unnamed))
    bases = [ast.unparse(base) for base in node.bases if not ast.unparse(base).startswith(not_shown)]
    yield _block([f"class {node.name}" + (f"({', '.join(bases)})" if bases else ""), *_constructor(node, home)])
    yield prose(ast.get_docstring(node) or "")
    if fields := [*_documented_fields(node), *_carried(node)]:
        yield "\n" + "\n".join(fields)
    own = members_of(node)
    members = {**own, **{name: found for name, found in _inherited(unnamed).items() if name not in own}}
    attributes = {
        name for statement in node.body if isinstance(statement, ast.AnnAssign) for name in names_of(statement)
    }
    said_there: set[str] = set()
    for seam in beside:
        # A backend says nothing that its seam does not say. What is a property there may be an attribute here.
        shared = _seam_members(seam)
        if shared and shared <= {*members, *attributes}:
            yield f"\nHas the methods of {link(seam.name)}."
            said_there |= shared
    for name, found in members.items():
        if name in said_there or not is_public(name, found):
            continue
        yield f"\n#### {_plain(f'{node.name}.{name}')}\n"
        yield _block(signatures(name, found))
        yield prose(ast.get_docstring(found[-1]) or "")


def _seam_members(seam: Export) -> set[str]:
    for node in seam.nodes:
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).startswith("Protocol") for base in node.bases):
            return {name for name in members_of(node) if not name.startswith("_")}
    return set()


def _inherited(bases: Sequence[Export]) -> dict[str, list[Function]]:
    """What the bases define, as Python finds it: the first of them that has a name."""
    members: dict[str, list[Function]] = {}
    for node in (base.nodes[-1] for base in reversed(bases)):
        if isinstance(node, ast.ClassDef):
            members |= members_of(node)
    return members


def _constructor(node: ast.ClassDef, home: str) -> list[str]:
    if node.name in NOT_MADE_BY_CALLERS or _is_exception(node):
        return []
    made = members_of(node).get("__init__")
    if made is not None:
        return [wrapped(f"{node.name}(", arguments_text(with_numbers(made[-1].args, home)), ")")]
    dataclass_options = next((text for text in decorators(node) if text.startswith("dataclass")), None)
    if dataclass_options is None:
        return []
    fields = [field_text(field) for field in node.body if isinstance(field, ast.AnnAssign) and is_argument(field)]
    return [wrapped(f"{node.name}(", ["*"] * ("kw_only=True" in dataclass_options) + fields, ")")]


def _documented_fields(node: ast.ClassDef) -> Iterator[str]:
    """Attributes that have a docstring of their own."""
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and (doc := doc_after(node.body, statement)):
            default = option_defaults().get(ast.unparse(statement.target)) if node.name == "ToolOptions" else None
            declared = field_text(statement) if default is None else f"{field_text(statement)} = {default}"
            yield f"- `{declared}`: {' '.join(doc.split())}"
        elif isinstance(statement, ast.Assign) and any("Enum" in ast.unparse(base) for base in node.bases):
            yield f"- `{ast.unparse(statement)}`"


def _carried(node: ast.ClassDef) -> Iterator[str]:
    """What an exception keeps of its arguments, as far as its docstring does not say it."""
    made = members_of(node).get("__init__")
    if made is None or not _is_exception(node):
        return
    arguments = {argument.arg: argument for argument in [*made[-1].args.args, *made[-1].args.kwonlyargs]}
    described = ast.get_docstring(node) or ""
    for statement in made[-1].body:
        for target in statement.targets if isinstance(statement, ast.Assign) else ():
            name = ast.unparse(target).removeprefix("self.")
            if name in arguments and f"\n    {name}: " not in described:
                yield f"- `{argument_text(arguments[name], None)}`"


def _is_exception(node: ast.ClassDef) -> bool:
    ours = {statement.name for statement in tree("mcp_tasks.errors").body if isinstance(statement, ast.ClassDef)}
    return any(ast.unparse(base) in {"Exception", *ours} for base in node.bases)


def _block(lines: Sequence[str]) -> str:
    # `py` and not `python`: the code blocks of a page are run by the tests, and a signature is nothing to run.
    return "\n".join(["```py", *lines, "```"])


def prose(doc: str) -> str:
    """A docstring as Markdown: its sections become lists."""
    lines = [""]
    in_section = False
    for line in doc.splitlines():
        if (heading := line.removesuffix(":")) in SECTIONS and line.endswith(":"):
            in_section = True
            lines += [f"**{heading}**", ""]
        elif in_section and (entry := re.match(r"    (\*{0,2}\w[\w. ,*]*): (.*)", line)):
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        elif in_section and line.startswith("    "):
            lines.append(f"  {line.strip()}" if lines[-1] else line.strip())
        else:
            in_section = in_section and not line.strip()
            lines.append(line)
    return "\n".join(lines).rstrip()
