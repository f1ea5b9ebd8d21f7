"""The tools, prompts and resources of a server, and how calls and runs of each are treated."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, Final, Literal, TypeAlias, cast

from mcp.server.mcpserver.tools import Tool as ServerTool
from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate
from mcp_types import Tool, ToolAnnotations
from pydantic import ValidationError
from pydantic_core import CoreSchema, ErrorDetails, SchemaValidator

from mcp_tasks.errors import InvalidOption
from mcp_tasks.model.json import rough_size, valid_text
from mcp_tasks.model.options import Fallback, TaskMode, TaskOptions
from mcp_tasks.protocol.schema import Schema, UnusableSchema, not_enforced
from mcp_tasks.quiet import get_logger
from mcp_tasks.server.tool_host import ToolHost

logger: Final = get_logger(__name__)


# ---- arguments
# Whether the SDK will let a function have the arguments of a call, and why not: with bounded work, in few words.


SMALL: Final = 4 * 1024
"""Bytes of JSON, roughly, in which every problem is looked for."""

MOST_PROBLEMS: Final = 10
"""Problems that are told of one call."""

MOST_COUNTED: Final = 10_000
"""Problems among which the first are found: Pydantic gives all of them or none. A model in a list of its own may have
more."""

LONGEST_PROBLEM: Final = 4 * 1024
"""Characters of what is told: the names in it are the caller's."""

_NOT_ALL: Final = "Large arguments are looked at up to the first problem of each list: there may be more"

_COLLECTIONS: Final = frozenset({"list", "tuple", "set", "frozenset", "dict"})
_NO_SCHEMAS: Final = frozenset({"cls", "config", "default", "metadata", "serialization"})
_AS_IT_IS: Final = frozenset({"function-wrap", "function-plain", "chain", "dataclass", "call", "arguments"})
"""What in a schema of Pydantic's works with an instance of a model, or is compiled already."""

_PLAIN_CONFIG: Final = frozenset({"title", "extra_fields_behavior"})


class ArgumentsRefused(ValueError):
    """Arguments do not fit; the text says why, as the SDK says it, but in bounded words."""


class ArgumentCheck:
    """What the SDK makes of arguments for one function, before it enters it.

    Args:
        tool: The function, as the SDK registers it.
    """

    def __init__(self, tool: ServerTool) -> None:
        self._tool = tool

    def problem_with(self, arguments: Mapping[str, Any]) -> Exception | None:
        """Why the SDK will not let the function have these arguments; None if it will. Anything but `ArgumentsRefused`
        is a defect in what validates them."""
        given = dict(arguments)
        if rough_size(given) > SMALL and (found := self._first_problem(given)) is not None:
            return self._refused(found, _NOT_ALL)
        try:
            self._tool.fn_metadata.validate_arguments(given)
        except ValidationError as exc:
            return self._refused(exc)
        except Exception as exc:
            # Whatever it is: the SDK would run into it too.
            return exc
        return None

    def _first_problem(self, arguments: dict[str, Any]) -> ValidationError | None:
        if self._fast is None:
            return None
        try:
            self._fast.validate_python(self._tool.fn_metadata.pre_parse_json(arguments))
        except ValidationError as exc:
            return exc
        except Exception:
            # It is more lenient than the whole, so a function of the author's may meet what it does not expect.
            return None
        return None

    @cached_property
    def _fast(self) -> SchemaValidator | None:
        try:
            return SchemaValidator(_failing_fast(self._tool.fn_metadata.arg_model.__pydantic_core_schema__))
        except Exception:
            # A model that is not what it seems to be.
            return None

    def _refused(self, problem: ValidationError, *more: str) -> ArgumentsRefused:
        count = problem.error_count()
        lines = [f"{count} validation error{'s'[: count > 1]} for {self._tool.fn_metadata.arg_model.__name__}"]
        if count <= MOST_PROBLEMS:
            # As Pydantic words it, which names what validates.
            lines += str(problem).partition("\n")[2:]
        elif count <= MOST_COUNTED:
            details = problem.errors(include_url=False, include_input=False)[:MOST_PROBLEMS]
            lines += [*map(_line, details), f"and {count - MOST_PROBLEMS:,} more"]
        text = "\n".join([*lines, *more])
        return ArgumentsRefused(valid_text(text if len(text) <= LONGEST_PROBLEM else text[: LONGEST_PROBLEM - 1] + "…"))


def _line(error: ErrorDetails) -> str:
    return f"{'.'.join(map(str, error['loc']))}\n  {error['msg']} [type={error['type']}]"


def _failing_fast(schema: CoreSchema) -> CoreSchema:
    """A schema of Pydantic's in which the validation of a collection ends with its first problem. It lets pass whatever
    the given one does, and maybe more.

    Models are replaced by their fields: a validator of each is there already, and would be taken as it is.
    """
    return cast("CoreSchema", _copied(schema))


def _copied(node: Any) -> Any:
    if isinstance(node, list | tuple):
        items = [_copied(item) for item in cast("Sequence[Any]", node)]
        return tuple(items) if isinstance(node, tuple) else items
    if not isinstance(node, dict):
        return node
    part = cast("dict[str, Any]", node)
    kind = part.get("type")
    if kind in _AS_IT_IS:
        return part
    if kind == "model":
        return _fields_of(part)
    if kind == "function-after" and part["schema"].get("type") == "model":
        # It would be called with an instance.
        return _copied(part["schema"])
    copy = {name: value if name in _NO_SCHEMAS else _copied(value) for name, value in part.items()}
    return {**copy, "fail_fast": True} if kind in _COLLECTIONS else copy


def _fields_of(model: dict[str, Any]) -> Any:
    config: dict[str, Any] = model.get("config", {})
    fields = model["schema"]
    if model.get("strict") or model.get("custom_init") or not config.keys() <= _PLAIN_CONFIG:
        return model
    copy = _copied(fields)
    if copy is fields:
        return model
    if "extra_fields_behavior" in config and fields.get("type") == "model-fields":
        copy.setdefault("extra_behavior", config["extra_fields_behavior"])
    return {**copy, "ref": model["ref"]} if "ref" in model else copy


# ---- served
# One tool, prompt or resource of the server.


MOST_RULES: Final = 2_000
"""Rules of a schema that are applied to the arguments of one call: a few milliseconds of work."""

_READ_ONLY: Final = ToolAnnotations(read_only_hint=True)


@dataclass(frozen=True, kw_only=True)
class Served:
    """A tool, a prompt or a resource of the server.

    Attributes:
        options: How its calls and runs are treated, with what its function and its annotations say.
        retention: How long the task of a call is kept after it ended; None for as long as the store lives.
        max_retention: The longest that a caller may ask for; None for no limit.
        is_marked: Whether its author said that calls of it may become tasks.
        is_plain: Whether no call of it becomes a task, whatever a rule of the author's says.
        at_once: Whether a call with small arguments that fit becomes a task at once, whatever the tool does.
        resolves: Whether the SDK asks for parameters of the tool before it enters the body.
        check: Says why the SDK will refuse arguments; None where that is not known.
        schema: The published schema of the arguments, where the function behind it is not known.
    """

    options: TaskOptions
    retention: timedelta | None = None
    max_retention: timedelta | None = None
    is_marked: bool = True
    is_plain: bool = False
    at_once: bool = False
    resolves: bool = False
    check: Callable[[Mapping[str, Any]], Exception | None] | None = None
    schema: Mapping[str, Any] | None = None

    @property
    def support(self) -> TaskMode:
        """Whether a call may, must or must not be a task, where its caller decides."""
        return self.options.mode if self.is_marked else "forbidden"

    @property
    def asks_first(self) -> bool:
        """Whether the tool may begin by asking on the call."""
        return bool(self.options.asks_first)

    def problem_with(self, arguments: Mapping[str, Any]) -> Exception | None:
        """Why these arguments will be refused, as far as can be known before the call; None if they will not."""
        return None if self.check is None else self.check(arguments)

    def takes_at_once(self, arguments: Mapping[str, Any]) -> bool:
        """Whether a call with these arguments becomes a task at once."""
        if not arguments:
            return self.at_once and self._takes_none
        # Large arguments are looked at once the caller may have a task, and that counts once.
        is_small = self.at_once and rough_size(dict(arguments)) <= SMALL
        return is_small and self.problem_with(arguments) is None and not self.may_refuse(arguments)

    def may_refuse(self, arguments: Mapping[str, Any]) -> bool:
        """Whether the SDK may refuse arguments that `problem_with` lets pass. It is more lenient than a schema: "7" may
        be a number."""
        if self.schema is None:
            return False
        try:
            given = dict(arguments)
            return self._checked is None or self._checked.first_problem(given, most=MOST_RULES) is not None
        except UnusableSchema:
            # Too deep, or too much to go through.
            return True

    def is_refusal(self, tool: str, told: str) -> bool:
        """Whether a failure of the tool of that name is the SDK refusing its arguments, before it entered the tool.

        The SDK checks them with a model of its own, which has the title of the schema that it publishes, and names it.
        What the tool itself says of a model is about another.
        """
        title = None if self.schema is None else self.schema.get("title")
        if not isinstance(title, str):
            return False
        said = rf"Error executing tool {re.escape(tool)}: \d+ validation errors? for {re.escape(title)}\s"
        return re.match(said, told) is not None

    @cached_property
    def _takes_none(self) -> bool:
        return self.problem_with({}) is None and not self.may_refuse({})

    @cached_property
    def _checked(self) -> Schema | None:
        """The schema; None if arguments cannot be checked against it, or not against all of it."""
        try:
            return None if not_enforced(self.schema) else Schema(self.schema)
        except (UnusableSchema, RecursionError):
            return None


def _text_problem(required: frozenset[str], arguments: Mapping[str, Any]) -> Exception | None:
    """Why a prompt or a resource will refuse these arguments."""
    if missing := sorted(required - arguments.keys()):
        return ArgumentsRefused(f"it needs {quoted(missing)}")
    wrong = sorted(name for name, value in arguments.items() if not isinstance(value, str))
    return ArgumentsRefused(f"its arguments are texts, and {quoted(wrong)} is not") if wrong else None


# ---- marks
# What an author said of one tool, and which tool of the server that is.


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What an author said of one tool, prompt or resource.

    Attributes:
        name: Its name if the author said it, else the function's.
        is_named: Whether the author said it.
        function: The function behind it; None for what was marked by its name alone.
        at_once: Whether a call with small arguments that fit becomes a task at once, whatever the tool does.
        resolves: Whether the SDK asks for parameters of the tool before it enters the body.
        declares_asking: Whether the function declares that it may ask by returning.
    """

    name: str
    options: TaskOptions
    is_named: bool = True
    function: Callable[..., Any] | None = None
    resolves: bool = False
    declares_asking: bool = False

    def tools_among(self, tools: Sequence[Tool]) -> list[Tool]:
        """The tools that this mark belongs to: one as a rule, none if there is none yet."""
        if self.is_named or self.as_tool is None:
            return [tool for tool in tools if self.is_named and tool.name == self.name]
        found = [tool for tool in tools if self.is_behind(tool)]
        # Another function may have the same name and signature. Then what it says of itself decides, and then the
        # name it is registered under.
        described = [tool for tool in found if tool.description == self.as_tool.description]
        called = [tool for tool in described or found if tool.name == self.name]
        return called or described or found

    def is_behind(self, tool: Tool) -> bool:
        """Whether the function may be the one behind the tool."""
        return self.as_tool is not None and self.as_tool.parameters == tool.input_schema

    @cached_property
    def as_tool(self) -> ServerTool | None:
        """The function as the SDK registers it; None if it would not."""
        if self.function is None:
            return None
        try:
            return ServerTool.from_function(self.function, name="marked", structured_output=False)
        except Exception:
            # For the SDK to report, when the tool is registered.
            return None


Kind: TypeAlias = Literal["tool", "prompt", "resource"]
"""What a mark is about. A tool, a prompt and a resource may have the same name."""

METHODS: Final[Mapping[Kind, str]] = {"tool": "tools/call", "prompt": "prompts/get", "resource": "resources/read"}
KINDS: Final[Mapping[str, Kind]] = {method: kind for kind, method in METHODS.items()}

NAMES_SHOWN: Final = 20
"""Tools that a warning names before it only counts: enough to spot a typing error, short enough to be read."""


def quoted(names: Sequence[str]) -> str:
    """Names for a warning: the first of them, and how many there are beside."""
    shown = ", ".join(map(repr, names[:NAMES_SHOWN]))
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more"


class Catalogue:
    """The tools, prompts and resources of one server, with the marks of one `Tasks` object.

    Args:
        usual: The options of tools of which nothing else is said.
        default_mode: The mode of what is not marked; None if only what is marked becomes a task.
        max_ttl: The longest time for which the task of a call is kept, whatever its tool says; None for no limit.
        longest: The longest that a caller may have a task kept for, unless its tool keeps tasks for longer anyway;
            None for as long as it likes. `max_ttl` stands above it.
        augments: Whether a rule of the author's makes tasks of calls of tools that are not marked, too.
    """

    def __init__(
        self,
        usual: TaskOptions,
        default_mode: TaskMode | None = None,
        *,
        max_ttl: timedelta | None = None,
        longest: timedelta | None = None,
        augments: bool = False,
    ) -> None:
        self.usual: TaskOptions = usual
        self._default = None if default_mode is None else replace(usual, mode=default_mode)
        self._max_ttl = max_ttl
        self._longest = longest
        self._augments = augments
        self.companions: frozenset[str] = frozenset()
        """The names of the companion tools. Calls of these names are for them."""
        self._marks: dict[tuple[Kind, str], Mark] = {}
        self._host: ToolHost | None = None
        # The tools that were listed last. Empty once something was marked since: what was found may be wrong then.
        self._tools: dict[str, Served] = {}

    def add(self, kind: Kind, mark: Mark) -> None:
        """Mark a function.

        Raises:
            InvalidOption: Another one is marked under that name.
        """
        if (kind, mark.name) in self._marks:
            if kind == "tool":
                raise InvalidOption(
                    f"two functions are marked as {mark.name!r}, and only one of them can be the tool of that name: "
                    "rename one, or register them under two names and say @tasks.task(name=...) as in "
                    "@server.tool(name=...)"
                )
            raise InvalidOption(
                f"two functions are marked as the {kind} {mark.name!r}: rename one, or say @tasks.task(kind={kind!r}, "
                f"name=...) with the name that it is registered under"
            )
        self._marks[kind, mark.name] = mark
        self._tools = {}

    def set(self, kind: Kind, name: str, options: TaskOptions) -> None:
        """Mark what has that name, in place of what was said of it before."""
        known = self._marks.get((kind, name), Mark(name=name, options=options))
        self._marks[kind, name] = replace(known, options=options, is_named=True)
        self._tools = {}

    async def open(self, host: ToolHost) -> None:
        """Take the tools of a server that is about to start, and warn of marks that belong to none of them."""
        self._host = host
        used = await self._list_tools(host)
        marks = {name for kind, name in self._marks if kind == "tool"}
        # A low-level server that lists nothing has not said that there is nothing.
        if (self._tools or host.publishes_schemas) and (unused := sorted(marks - used)):
            logger.warning(
                "marked as tasks, but the server has no such tool: %s. It has %s. Put @server.tool() above "
                "@tasks.task(), and check the names; a tool that is added later gets its mark then.",
                quoted(unused),
                quoted(sorted(self._tools)) or "no tools",
            )
        if host.publishes_schemas and len(marks) < len(self._marks):
            await self._warn_of_unused_reads(host)

    # Tools

    def knows(self, name: str) -> bool:
        """Whether the server lists a tool of that name, or its author named one: a low-level server may list none."""
        return name in self._tools or ("tool", name) in self._marks

    def names(self) -> Sequence[str]:
        """The names of the tools that were listed last."""
        return list(self._tools)

    def known_tool(self, name: str) -> Served | None:
        """The tool that clients call by this name; None if it has not been listed since it was added or marked."""
        tool = self._tools.get(name)
        if tool is None and (self._host is None or not self._host.publishes_schemas):
            # Names are all there is, so there is no need to ask the author's own listing on every call.
            # Its annotations are not known: `options` lists the tools for them.
            return self._by_name(name, is_listed=False)
        return tool

    async def tool(self, name: str) -> Served | None:
        """The tool that clients call by this name; None if the server is known to have none."""
        tool = self.known_tool(name)
        if tool is None and self._host is not None:
            # Added or marked while the server runs.
            await self._list_tools(self._host)
            return self.known_tool(name)
        return tool

    async def options(self, method: str, name: str) -> TaskOptions | None:
        """How runs of a tool, a prompt or a resource are treated; None for one that this server does not have."""
        host = self._host
        if method == "tools/call" and host is not None and not host.publishes_schemas and name not in self._tools:
            # For its annotations.
            await self._list_tools(host)
        served = await self.find(method, name)
        return None if served is None else served.options

    async def marked_tools(self) -> Mapping[str, TaskOptions]:
        """How runs of the tools are treated that are listed and marked: what a worker says that it can run."""
        if not self._tools and self._host is not None:
            await self._list_tools(self._host)
        return {name: tool.options for name, tool in self._tools.items() if tool.is_marked}

    async def fallback(self, name: str) -> Fallback | None:
        """How calls of a tool are answered whose caller speaks no tasks; None for plain calls, and for no such tool."""
        tool = await self.tool(name)
        return None if tool is None else self._fallback_of(tool)

    async def fallbacks(self) -> Sequence[Fallback]:
        """The same for every tool that may become a task."""
        tools = [*self._tools.values()]
        if self._host is not None and self._host.publishes_schemas:
            if not tools:
                # Marked while the server runs.
                await self._list_tools(self._host)
                tools = [*self._tools.values()]
        else:
            # What a server may not list can be called all the same.
            unlisted = [name for kind, name in self._marks if kind == "tool" and name not in self._tools]
            tools += [self._by_name(name) for name in unlisted]
            tools += [] if self._default is None else [self._by_name("")]
        every = map(self._fallback_of, tools)
        return [fallback for fallback in every if fallback is not None]

    def _fallback_of(self, tool: Served) -> Fallback | None:
        if not (tool.is_marked or self._augments):
            return None
        options = tool.options
        is_used = options.mode == "optional" and (options.fallback.modern or options.fallback.older)
        return options.fallback if is_used else None

    # Calls whose caller asks for a task

    def methods(self) -> frozenset[str]:
        """The methods whose calls may be tasks: `tools/call`, and `prompts/get` and `resources/read` where marked."""
        if self._default is not None and self._default.mode != "forbidden":
            return frozenset(KINDS)
        marked = {METHODS[kind] for (kind, _), mark in self._marks.items() if mark.options.mode != "forbidden"}
        return frozenset(marked | {"tools/call"})

    async def find(self, method: str, name: str) -> Served | None:
        """The tool or prompt of that name, or the resource of that URI; None if the server is known to have none."""
        if method == "tools/call":
            return await self.tool(name)
        host, kind = self._host, KINDS.get(method)
        if host is None or kind is None:
            return None
        if kind == "prompt":
            for prompt in await host.prompts():
                if prompt.name == name:
                    needed = [argument.name for argument in prompt.arguments or () if argument.required]
                    return self._read("prompt", [name], frozenset(needed))
        else:
            for resource in await host.resources():
                if str(resource.uri) == name:
                    return self._read("resource", [name, resource.name])
            for template in await host.resource_templates():
                if _matches(template.uri_template, name):
                    return self._read("resource", [name, template.uri_template, template.name])
        # A low-level server need not list what it has.
        return None if host.publishes_schemas else self._read(kind, [name])

    def _read(self, kind: Kind, names: Sequence[str], required: frozenset[str] = frozenset()) -> Served:
        """A prompt or a resource, by what was said under one of these names, the first of which says most."""
        marks = (self._marks[kind, name] for name in names if (kind, name) in self._marks)
        return self._served(next(marks, None), _READ_ONLY, check=partial(_text_problem, required))

    async def _warn_of_unused_reads(self, host: ToolHost) -> None:
        """Log which marks of prompts and resources belong to nothing that the server lists: it may be added later."""
        there = {("prompt", prompt.name) for prompt in await host.prompts()}
        for resource in await host.resources():
            there |= {("resource", resource.name), ("resource", str(resource.uri))}
        for template in await host.resource_templates():
            there |= {("resource", template.name), ("resource", template.uri_template)}
        unused = sorted(f"{kind} {name}" for kind, name in self._marks if kind != "tool" and (kind, name) not in there)
        if unused:
            logger.warning(
                "marked as tasks, but the server has no such prompt or resource: %s. Put @server.prompt() or "
                "@server.resource(...) above @tasks.task(kind=...), and give the mark the name= that it is registered "
                "under, or the URI.",
                quoted(unused),
            )

    # Which mark belongs to which tool

    async def _list_tools(self, host: ToolHost) -> set[str]:
        """List the tools anew. Gives the names of the marks that belong to one of them."""
        tools = await host.tools()
        if not host.publishes_schemas:
            self._tools = {tool.name: self._by_name(tool.name, tool.annotations) for tool in tools}
            return {tool.name for tool in tools}
        # A mark that names its tool stands above one that was found by its function.
        marks = sorted((mark for (kind, _), mark in self._marks.items() if kind == "tool"), key=lambda it: it.is_named)
        owners = {tool.name: mark for mark in marks for tool in mark.tools_among(tools)}
        self._tools = {tool.name: self._tool(tool, owners.get(tool.name)) for tool in tools}
        return {mark.name for mark in owners.values()}

    def _tool(self, tool: Tool, mark: Mark | None) -> Served:
        if mark is None or mark.as_tool is None or not mark.is_behind(tool):
            return self._served(mark, tool.annotations, schema=tool.input_schema)
        in_thread = not inspect.iscoroutinefunction(mark.function)
        return self._served(mark, tool.annotations, check=ArgumentCheck(mark.as_tool).problem_with, in_thread=in_thread)

    def _by_name(self, name: str, annotations: ToolAnnotations | None = None, *, is_listed: bool = True) -> Served:
        """A tool of a server of which no more is known. A function says nothing of the tool's arguments there: a
        handler of the author's own makes what it likes of them."""
        return self._served(self._marks.get(("tool", name)), annotations, is_listed=is_listed)

    def _served(
        self,
        mark: Mark | None,
        annotations: ToolAnnotations | None,
        *,
        check: Callable[[Mapping[str, Any]], Exception | None] | None = None,
        schema: Mapping[str, Any] | None = None,
        in_thread: bool = False,
        is_listed: bool = True,
    ) -> Served:
        said = self._default if mark is None else mark.options
        options = said or self.usual
        retention = options.ttl
        if self._max_ttl is not None:
            retention = self._max_ttl if retention is None else min(retention, self._max_ttl)
            longest = self._max_ttl
        else:
            longest = None if retention is None or self._longest is None else max(retention, self._longest)
        repeatable = annotations is not None and (annotations.read_only_hint or annotations.idempotent_hint)
        declares = mark is not None and mark.declares_asking
        asks_first = declares if options.asks_first is None else options.asks_first
        return Served(
            options=replace(
                options,
                recover=options.recover or ("rerun" if repeatable else "fail" if is_listed else None),
                asks_first=asks_first,
                in_thread=in_thread,
            ),
            retention=retention,
            max_retention=longest,
            is_marked=said is not None,
            is_plain=said is None and not self._augments,
            at_once=not (
                said is None
                or options.mode == "forbidden"
                or asks_first
                or options.grace
                or options.join_running
                or (mark is not None and mark.resolves)
                or self._augments
            ),
            resolves=mark is not None and mark.resolves,
            check=check,
            schema=schema,
        )


def _matches(template: str, uri: str) -> bool:
    try:
        return UriTemplate.parse(template).match(uri) is not None
    except InvalidUriTemplate:
        # A low-level server may publish what it likes.
        return False
