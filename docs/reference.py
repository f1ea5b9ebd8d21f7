"""The reference of the public API, written from the source: what `__all__` names, with signatures and docstrings.

It reads the code and does not import it. So a signature shows what the author wrote (`clock=utc_now`, and not the
address of a function), and the page is the same on every machine and Python version.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
MODULES = (
    "mcp_tasks",
    "mcp_tasks.server",
    "mcp_tasks.legacy.server",
    "mcp_tasks.client",
    "mcp_tasks.testing",
    "mcp_tasks.stores",
    "mcp_tasks.stores.sqlite",
    "mcp_tasks.stores.postgres",
    "mcp_tasks.stores.redis",
    "mcp_tasks.engines",
    "mcp_tasks.engines.procrastinate",
    "mcp_tasks.engines.docket",
    "mcp_tasks.encryption",
    "mcp_tasks.errors",
)
AUDIENCES = {
    "Server authors": ("mcp_tasks", "mcp_tasks.server", "mcp_tasks.legacy.server"),
    "Client authors": ("mcp_tasks.client",),
    "Testers": ("mcp_tasks.testing",),
    "Those who choose stores and engines": (
        "mcp_tasks.stores.sqlite",
        "mcp_tasks.stores.postgres",
        "mcp_tasks.stores.redis",
        "mcp_tasks.engines.procrastinate",
        "mcp_tasks.engines.docket",
        "mcp_tasks.encryption",
    ),
    "Those who write stores and engines": ("mcp_tasks.stores", "mcp_tasks.engines"),
    "Everybody: what may be raised": ("mcp_tasks.errors",),
}
"""Whose names are in which modules, for the index."""

OPENING = """# Reference

The public API: everything that these modules export. It is written from the code by `make docs`. What is not here may
change without notice. Each name is described once, in the first module that exports it.
"""
TYPES = """
## Types in these signatures

What the functions above take and give, and no module above exports. Import them for annotations from where they are
said to be."""
LINE = 100
"""Longer signatures have an argument per line."""

NOT_MADE_BY_CALLERS = frozenset({"ClientTask", "LocalTask", "TaskContext", "TaskHandle"})
"""What is handed out by functions; its constructor is for this package alone."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.ClassDef | Function | ast.Assign | ast.AnnAssign
SECTIONS = ("Args", "Attributes", "Raises", "Returns", "Yields")


@dataclass(frozen=True)
class Export:
    """A public name, and what stands behind it in its own module."""

    name: str
    home: str
    nodes: Sequence[Definition]
    doc: str


def page() -> str:
    """The whole page."""
    contents = [f"- {_link(module)}" for module in MODULES]
    contents.append("- [types in these signatures](#types-in-these-signatures)")
    sections = [part for module in MODULES for part in ("", *_module(module))]
    text = "\n".join(
        [OPENING, *contents, *_index(), *sections, TYPES, *_entries(types_in_signatures(), say_where=True)]
    )
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def _index() -> Iterator[str]:
    """Every name by who needs it."""
    for audience, modules in AUDIENCES.items():
        names = {export.name for module in modules for export in exports(module)}
        yield f"\n**{audience}:**\n{_links(names)}"
    yield f"\n**Types in signatures:**\n{_links({export.name for export in types_in_signatures()})}"


def _links(names: Collection[str]) -> str:
    listed = ", ".join(_link(name) for name in sorted(names, key=str.lower))
    return textwrap.fill(listed, 120, break_long_words=False, break_on_hyphens=False)


def _link(name: str) -> str:
    return f"[`{name}`](#{slug(name)})"


def slug(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# What is public, and where it is written


def exports(module: str) -> list[Export]:
    """What a module exports, in the order of its `__all__`; without one, every public class that it defines."""
    tree = _tree(module)
    names = _all_of(tree)
    if names is None:
        names = [node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    return [_definition(module, name) for name in names]


def _exporters(export: Export) -> list[str]:
    """The modules that export a name; it is described in the first of them."""
    return [module for module in MODULES if (export.name, export.home) in _exported(module)]


@cache
def _exported(module: str) -> frozenset[tuple[str, str]]:
    return frozenset((export.name, export.home) for export in exports(module))


def types_in_signatures() -> list[Export]:
    """Values of ours that public signatures name and no module exports, by name, and those that these name in turn."""
    waiting = [export for module in MODULES for export in exports(module)]
    known = {export.name for export in waiting}
    found: list[Export] = []
    while waiting:
        export = waiting.pop()
        waiting += _unnamed_bases(export)
        for name in sorted({name for node in export.nodes for name in _named_in(node)} - known):
            try:
                named = _definition(export.home, name)
            except LookupError:  # a builtin, or a name of another module's
                continue
            if named.nodes and _is_value(named.nodes[-1]):
                known.add(name)
                found.append(named)
                waiting.append(named)
    return sorted(found, key=lambda export: export.name)


def _unnamed_bases(export: Export) -> list[Export]:
    """The classes of ours that a public one is put together from, and no module exports.

    Nobody can look them up, so what they define is described as their heir's own.
    """
    last = export.nodes[-1] if export.nodes else None
    found: list[Export] = []
    for base in last.bases if isinstance(last, ast.ClassDef) else ():
        if not isinstance(base, ast.Name | ast.Subscript):
            continue
        try:
            named = _definition(export.home, ast.unparse(base).partition("[")[0])
        except LookupError:  # a builtin
            continue
        if named.nodes and not _exporters(named):
            found += [named, *_unnamed_bases(named)]
    return found


def _named_in(node: Definition) -> set[str]:
    """The names in what a definition says of types."""
    match node:
        case ast.ClassDef():
            members = [found for name, found in _members(node).items() if _is_public(name, found) or name == "__init__"]
            fields = [statement.annotation for statement in node.body if isinstance(statement, ast.AnnAssign)]
            return _names_of(fields).union(*(_named_in(function) for found in members for function in found))
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            rules = node.args
            given = [*rules.posonlyargs, *rules.args, *rules.kwonlyargs, rules.vararg, rules.kwarg]
            return _names_of([node.returns, *(argument.annotation for argument in given if argument is not None)])
        case _:
            return _names_of([node.value])


def _names_of(expressions: Sequence[ast.expr | None]) -> set[str]:
    inner = [part for expression in expressions if expression is not None for part in ast.walk(expression)]
    return {part.id for part in inner if isinstance(part, ast.Name) and not part.id.startswith("_")}


def _is_value(node: Definition) -> bool:
    """Whether a caller may have to do with it itself: a record, a seam, a name for a type; nothing that does work."""
    match node:
        case ast.ClassDef():
            bases = {re.split(r"[.\[]", ast.unparse(base))[0] for base in node.bases}
            is_record = any(text.startswith("dataclass") for text in _decorators(node))
            return is_record or bool(bases & {"TypedDict", "Protocol", "StrEnum", "Enum", "NamedTuple"})
        case ast.Assign():
            return isinstance(node.value, ast.Subscript | ast.BinOp)
        case ast.AnnAssign():
            return "TypeAlias" in ast.unparse(node.annotation)
        case _:
            return False


def _all_of(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return list(ast.literal_eval(node.value))
    return None


def _definition(module: str, name: str) -> Export:
    """What defines a name, followed through imports; several nodes for overloads, none for what is not ours."""
    tree = _tree(module)
    # Also those under `if TYPE_CHECKING`: a lazy module says there what its names are.
    blocks = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.If))]
    statements = [(node, block) for block in blocks for node in block]
    found = [(node, block) for node, block in statements if isinstance(node, Definition) and name in _names(node)]
    if found:
        last, block = found[-1]
        doc = _doc_after(block, last) if isinstance(last, ast.Assign | ast.AnnAssign) else ast.get_docstring(last)
        return Export(name, module, [node for node, _ in found], doc or "")
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        for alias in node.names:
            if name == (alias.asname or alias.name):
                if node.module.partition(".")[0] == "mcp_tasks":
                    return _definition(node.module, alias.name)
                return Export(name, node.module, [], f"`{node.module}.{alias.name}`.")
    raise LookupError(f"{module} has no {name!r}: no definition of it was found in the source")


def _names(node: Definition) -> list[str]:
    match node:
        case ast.Assign():
            return [ast.unparse(target) for target in node.targets]
        case ast.AnnAssign():
            return [ast.unparse(node.target)]
        case _:
            return [node.name]


def _doc_after(body: Sequence[ast.stmt], node: ast.stmt) -> str | None:
    """The string that stands under an assignment and documents it."""
    below = body[body.index(node) + 1 : body.index(node) + 2]
    for statement in below:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            text = statement.value.value
            return textwrap.dedent(text).strip() if isinstance(text, str) else None
    return None


@cache
def _tree(module: str) -> ast.Module:
    path = SOURCE.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text())


# How it is written down


def _module(module: str) -> Iterator[str]:
    yield f"## {module}"
    yield _prose(ast.get_docstring(_tree(module)) or "")
    public = exports(module)
    elsewhere: dict[str, list[str]] = {}
    for export in public:
        first = _exporters(export)[0]
        if first != module:
            elsewhere.setdefault(first, []).append(export.name)
    for first, names in elsewhere.items():
        yield f"\nAlso here, see {_link(first)}:\n{_links(names)}"
    seams = [*public, *_seams_above(module)]
    yield from _entries(public, seams=seams, hidden={name for names in elsewhere.values() for name in names})


def _seams_above(module: str) -> list[Export]:
    """What the package of a module exports: its backends, each in a module of its own, have the methods of that."""
    package = module.rpartition(".")[0]
    return exports(package) if package in MODULES else []


def _entries(
    public: Sequence[Export],
    *,
    seams: Sequence[Export] | None = None,
    hidden: Collection[str] = (),
    say_where: bool = False,
) -> Iterator[str]:
    for export in public:
        if export.name in hidden:
            continue
        yield f"\n### {export.name}\n"
        if say_where:
            yield f"From `{export.home}`.\n"
        elif len(modules := _exporters(export)) > 1:
            yield f"From {' or '.join(f'`{module}`' for module in modules)}.\n"
        last = export.nodes[-1] if export.nodes else None
        if isinstance(last, ast.ClassDef):
            beside = [other for other in (public if seams is None else seams) if other.name != export.name]
            yield from _class(last, export.home, beside, _unnamed_bases(export))
        elif isinstance(last, Function):
            yield _block(_signatures(export.name, [node for node in export.nodes if isinstance(node, Function)]))
            yield _prose(export.doc)
        else:
            if last is not None:
                yield _block([_constant(last)])
            yield _prose(_with_links(export.doc))


def _constant(node: Definition) -> str:
    """An assignment; a table that is too long for a line without its entries."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict) and len(ast.unparse(node)) > LINE:
        return f"{ast.unparse(node.target)}: {ast.unparse(node.annotation)} = {{...}}"
    return ast.unparse(node)


def _with_links(doc: str) -> str:
    """The docstring with links to the pages that it names as a reader of the source finds them."""
    return re.sub(r"docs/([\w-]+\.md)(#[\w-]+)?", r"[\1](\1\2)", doc)


def _class(node: ast.ClassDef, home: str, beside: Sequence[Export], unnamed: Sequence[Export]) -> Iterator[str]:
    not_shown = ("Protocol", "Generic", *(base.name for base in unnamed))
    bases = [ast.unparse(base) for base in node.bases if not ast.unparse(base).startswith(not_shown)]
    yield _block([f"class {node.name}" + (f"({', '.join(bases)})" if bases else ""), *_constructor(node, home)])
    yield _prose(ast.get_docstring(node) or "")
    if fields := [*_documented_fields(node), *_carried(node)]:
        yield "\n" + "\n".join(fields)
    own = _members(node)
    members = {**own, **{name: found for name, found in _inherited(unnamed).items() if name not in own}}
    attributes = {name for statement in node.body if isinstance(statement, ast.AnnAssign) for name in _names(statement)}
    said_there: set[str] = set()
    for seam in beside:
        # A backend says nothing that its seam does not say. What is a property there may be an attribute here.
        shared = _seam_members(seam)
        if shared and shared <= {*members, *attributes}:
            yield f"\nHas the methods of {_link(seam.name)}."
            said_there |= shared
    for name, found in members.items():
        if name in said_there or not _is_public(name, found):
            continue
        yield f"\n#### {node.name}.{name}\n"
        yield _block(_signatures(name, found))
        yield _prose(ast.get_docstring(found[-1]) or "")


def _seam_members(seam: Export) -> set[str]:
    for node in seam.nodes:
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).startswith("Protocol") for base in node.bases):
            return {name for name in _members(node) if not name.startswith("_")}
    return set()


def _members(node: ast.ClassDef) -> dict[str, list[Function]]:
    members: dict[str, list[Function]] = {}
    for statement in node.body:
        if isinstance(statement, Function) and not _is_setter(statement):
            members.setdefault(statement.name, []).append(statement)
    return members


def _inherited(bases: Sequence[Export]) -> dict[str, list[Function]]:
    """What the bases define, as Python finds it: the first of them that has a name."""
    members: dict[str, list[Function]] = {}
    for node in (base.nodes[-1] for base in reversed(bases)):
        if isinstance(node, ast.ClassDef):
            members |= _members(node)
    return members


def _is_setter(node: Function) -> bool:
    return any(decorator.endswith((".setter", ".deleter")) for decorator in _decorators(node))


def _is_public(name: str, found: Sequence[Function]) -> bool:
    """Whether callers may use a member: one that takes or gives something private is for the module itself."""
    is_private = re.search(r"\b_[A-Za-z]", " ".join(_signatures(name, found)))
    return name == "__call__" or (not name.startswith("_") and not is_private)


def _constructor(node: ast.ClassDef, home: str) -> list[str]:
    if node.name in NOT_MADE_BY_CALLERS or _is_exception(node):
        return []
    made = _members(node).get("__init__")
    if made is not None:
        return [_wrapped(f"{node.name}(", _arguments(_with_numbers(made[-1].args, home)), ")")]
    dataclass_options = next((text for text in _decorators(node) if text.startswith("dataclass")), None)
    if dataclass_options is None:
        return []
    fields = [_field(field) for field in node.body if isinstance(field, ast.AnnAssign) and _is_argument(field)]
    return [_wrapped(f"{node.name}(", ["*"] * ("kw_only=True" in dataclass_options) + fields, ")")]


def _with_numbers(arguments: ast.arguments, home: str) -> ast.arguments:
    """The arguments of a constructor with the number where a default is the name of one: it is what is looked up."""
    told = deepcopy(arguments)
    told.defaults = [_number(default, home) for default in told.defaults]
    told.kw_defaults = [None if default is None else _number(default, home) for default in told.kw_defaults]
    return told


def _number(default: ast.expr, home: str) -> ast.expr:
    if not isinstance(default, ast.Name) or not default.id.isupper():
        return default
    for node in _definition(home, default.id).nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            return node.value
    return default


def _is_argument(field: ast.AnnAssign) -> bool:
    is_plain = not ast.unparse(field.annotation).startswith("ClassVar") and "init=False" not in ast.unparse(field)
    return is_plain and not ast.unparse(field.target).startswith("_")


def _field(statement: ast.AnnAssign) -> str:
    declared = f"{ast.unparse(statement.target)}: {ast.unparse(statement.annotation)}"
    if statement.value is None:
        return declared
    default = ast.unparse(statement.value)
    return f"{declared} = ..." if default.startswith("field(") else f"{declared} = {default}"


def _documented_fields(node: ast.ClassDef) -> Iterator[str]:
    """Attributes that have a docstring of their own."""
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and (doc := _doc_after(node.body, statement)):
            default = option_defaults().get(ast.unparse(statement.target)) if node.name == "ToolOptions" else None
            declared = _field(statement) if default is None else f"{_field(statement)} = {default}"
            yield f"- `{declared}`: {' '.join(doc.split())}"
        elif isinstance(statement, ast.Assign) and any("Enum" in ast.unparse(base) for base in node.bases):
            yield f"- `{ast.unparse(statement)}`"


@cache
def option_defaults() -> dict[str, str]:
    """What holds for an option of a tool that nobody says anything of. A `TypedDict` has no way to tell.

    `TaskOptions` has the defaults. None there means in turn what the runtime's `ToolPolicy` has, and a `ttl` that
    nobody gives is `DEFAULT_TTL`. The queue has a name elsewhere, too.
    """
    usual = _defaults_in("mcp_tasks.server", "TaskOptions")
    policy = _defaults_in("mcp_tasks.runtime.policy", "ToolPolicy")
    chosen = {name: policy.get(name, default) if default == "None" else default for name, default in usual.items()}
    return {
        **chosen,
        "ttl": _value_of("mcp_tasks.server.options", "DEFAULT_TTL"),
        "queue": _value_of("mcp_tasks.core.record", "DEFAULT_QUEUE"),
    }


def _value_of(module: str, name: str) -> str:
    for node in _definition(module, name).nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            return ast.unparse(node.value)
    raise LookupError(f"{module}.{name} is not a constant")


def _defaults_in(module: str, name: str) -> dict[str, str]:
    fields = [
        statement
        for node in _definition(module, name).nodes
        for statement in (node.body if isinstance(node, ast.ClassDef) else ())
        if isinstance(statement, ast.AnnAssign)
    ]
    return {ast.unparse(field.target): ast.unparse(field.value) for field in fields if field.value is not None}


def _carried(node: ast.ClassDef) -> Iterator[str]:
    """What an exception keeps of its arguments, as far as its docstring does not say it."""
    made = _members(node).get("__init__")
    if made is None or not _is_exception(node):
        return
    arguments = {argument.arg: argument for argument in [*made[-1].args.args, *made[-1].args.kwonlyargs]}
    described = ast.get_docstring(node) or ""
    for statement in made[-1].body:
        for target in statement.targets if isinstance(statement, ast.Assign) else ():
            name = ast.unparse(target).removeprefix("self.")
            if name in arguments and f"\n    {name}: " not in described:
                yield f"- `{_argument(arguments[name], None)}`"


def _is_exception(node: ast.ClassDef) -> bool:
    ours = {statement.name for statement in _tree("mcp_tasks.errors").body if isinstance(statement, ast.ClassDef)}
    return any(ast.unparse(base) in {"Exception", *ours} for base in node.bases)


def _signatures(name: str, found: Sequence[Function]) -> list[str]:
    overloads = [node for node in found if "overload" in _decorators(node)]
    return [_signature(name, node) for node in overloads or found[-1:]]


def _signature(name: str, node: Function) -> str:
    returns = "" if node.returns is None else ast.unparse(node.returns)
    decorators = _decorators(node)
    if any(text.endswith("property") for text in decorators):
        return f"{name}: {returns}"
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    if any(text.endswith("contextmanager") for text in decorators):
        prefix = "async with " if prefix else "with "
    return _wrapped(f"{prefix}{name}(", _arguments(node.args), f") -> {returns}" if returns else ")")


def _arguments(arguments: ast.arguments) -> list[str]:
    """The arguments as a caller gives them, so without `self`."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    parts = [_argument(argument, default) for argument, default in zip(positional, defaults, strict=True)]
    if arguments.posonlyargs:
        parts.insert(len(arguments.posonlyargs), "/")
    if parts[:1] in (["self"], ["cls"]):
        parts = parts[2:] if parts[1:2] == ["/"] else parts[1:]
    if arguments.vararg is not None and "Never" not in ast.unparse(arguments.vararg):
        parts.append(f"*{_argument(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [_argument(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return parts if arguments.kwarg is None else [*parts, f"**{_argument(arguments.kwarg, None)}"]


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    typed = argument.arg if argument.annotation is None else f"{argument.arg}: {ast.unparse(argument.annotation)}"
    if default is None:
        return typed
    return f"{typed}{'=' if argument.annotation is None else ' = '}{ast.unparse(default)}"


def _decorators(node: ast.ClassDef | Function) -> list[str]:
    return [ast.unparse(decorator) for decorator in node.decorator_list]


def _wrapped(opening: str, parts: Sequence[str], closing: str) -> str:
    line = f"{opening}{', '.join(parts)}{closing}"
    if len(line) <= LINE or not parts:
        return line
    return "\n".join([opening, *(f"    {part}," for part in parts), closing])


def _block(lines: Sequence[str]) -> str:
    # `py` and not `python`: the code blocks of a page are run by the tests, and a signature is nothing to run.
    return "\n".join(["```py", *lines, "```"])


def _prose(doc: str) -> str:
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
