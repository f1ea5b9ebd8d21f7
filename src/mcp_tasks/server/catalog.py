"""What a server has, and what its author said of each tool, prompt and resource: what calls and runs are treated by."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, Final, Literal, TypeAlias

from mcp.server.mcpserver.tools import Tool as ServerTool
from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate
from mcp_types import Prompt, Tool, ToolAnnotations

from mcp_tasks.errors import InvalidMark
from mcp_tasks.fallback.options import Fallback
from mcp_tasks.protocol.schema import Schema, UnusableSchema, not_enforced
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import ToolPolicy
from mcp_tasks.server.creation import ArgumentCheck
from mcp_tasks.server.options import TaskMode, TaskOptions
from mcp_tasks.server.sdk import Offer
from mcp_tasks.server.tool_host import ToolHost

# ---- marks
# Which tools are marked, and which mark belongs to which tool of a server.


logger: Final = get_logger(__name__)

NAMES_SHOWN = 20
"""Tools that a warning names before it only counts: enough to spot a typing error, short enough to be read."""

MOST_RULES: Final = 2_000
"""Rules of a schema that are applied to the arguments of one call: a few milliseconds of work."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What an author said of one tool.

    Attributes:
        name: The tool's name if the author said it, else the function's.
        is_named: Whether the author said it.
        function: The function behind the tool; None for a tool that was marked by its name alone.
        resolves: Whether the SDK asks for parameters of the tool before it enters the body.
        declares_asking: Whether the function declares that it may ask by returning.
        schema: What the tool's arguments look like, where the SDK made that of a function which is not known here.
        is_default: Whether nobody said it of this tool, but of all that nothing is said of.
    """

    name: str
    options: TaskOptions
    is_named: bool = True
    function: Callable[..., Any] | None = None
    resolves: bool = False
    declares_asking: bool = False
    schema: Mapping[str, Any] | None = None
    is_default: bool = False

    @property
    def asks_first(self) -> bool:
        """Whether the tool may begin by asking on the call: as the author said, or else as the function declares."""
        said = self.options.asks_first
        return self.declares_asking if said is None else said

    def takes(self, arguments: Mapping[str, Any]) -> bool:
        """Whether the SDK will let the tool have these arguments, as far as can be known without its function."""
        return self.problem_with(arguments) is None if arguments else self._takes_none

    def problem_with(self, arguments: Mapping[str, Any]) -> Exception | None:
        """Why the SDK will not let the tool have these arguments, as far as can be known; None if it will."""
        return None if self._check is None else self._check.problem_with(arguments)

    def may_refuse(self, arguments: Mapping[str, Any]) -> bool:
        """Whether the SDK may refuse what `takes` lets pass. It is more lenient than a schema: "7" may be a number."""
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

    def tools_among(self, tools: Sequence[Tool]) -> list[Tool]:
        """The tools that this mark belongs to: one as a rule, none if there is none yet."""
        if self.is_named or self._as_tool is None:
            return [tool for tool in tools if self.is_named and tool.name == self.name]
        found = [tool for tool in tools if tool.input_schema == self._as_tool.parameters]
        # Another function may have the same name and signature. Then what it says of itself decides, and then the
        # name it is registered under.
        described = [tool for tool in found if tool.description == self._as_tool.description]
        called = [tool for tool in described or found if tool.name == self.name]
        return called or described or found

    def for_tool(self, tool: Tool) -> Mark:
        """The mark as it holds for `tool`: its function counts only if it is the one behind the tool."""
        is_behind = self._as_tool is not None and self._as_tool.parameters == tool.input_schema
        return self if is_behind else replace(self, function=None, schema=tool.input_schema)

    @cached_property
    def _checked(self) -> Schema | None:
        """What the arguments are checked against; None if they cannot be, or not for all of it."""
        try:
            return None if not_enforced(self.schema) else Schema(self.schema)
        except (UnusableSchema, RecursionError):
            return None

    @cached_property
    def _takes_none(self) -> bool:
        return self.problem_with({}) is None

    @cached_property
    def _check(self) -> ArgumentCheck | None:
        return None if self._as_tool is None else ArgumentCheck(self._as_tool)

    @cached_property
    def _as_tool(self) -> ServerTool | None:
        """The function as the SDK registers it; None if it would not."""
        if self.function is None:
            return None
        try:
            return ServerTool.from_function(self.function, name="marked", structured_output=False)
        except Exception:
            # For the SDK to report, when the tool is registered.
            return None


@dataclass(frozen=True, slots=True)
class ServedTool:
    """A tool that the server has: what it says of itself, and what its author said of it."""

    annotations: ToolAnnotations | None = None
    mark: Mark | None = None
    schema: Mapping[str, Any] | None = None

    def policy(self, usual: TaskOptions) -> ToolPolicy:
        """How runs of the tool are treated, by what was said of it or else of all tools."""
        if self.mark is None:
            return TaskOptions().policy(self.annotations, usual)
        function = self.mark.function
        in_thread = function is not None and not inspect.iscoroutinefunction(function)
        return replace(self.mark.options.policy(self.annotations, usual), in_thread=in_thread)


class Marks:
    """The marks of one `Tasks` object, and the tools of its server that they were found to belong to.

    Args:
        default: What holds for tools that nobody marked; None if they are no tasks.
    """

    def __init__(self, default: TaskOptions | None = None) -> None:
        self._default = default
        self._marks: dict[str, Mark] = {}
        self._served: dict[str, ServedTool] = {}

    def add(self, mark: Mark) -> None:
        """Mark a function.

        Raises:
            InvalidMark: Another one is marked under that name.
        """
        if mark.name in self._marks:
            raise InvalidMark(
                f"two functions are marked as {mark.name!r}, and only one of them can be the tool of that name: rename "
                "one, or register them under two names and say @tasks.task(name=...) as in @server.tool(name=...)"
            )
        self._put(mark)

    def set(self, name: str, options: TaskOptions) -> None:
        """Mark the tool of that name, in place of what was said of it before."""
        known = self._marks.get(name, Mark(name=name, options=options))
        self._put(replace(known, options=options, is_named=True))

    def named(self, name: str) -> ServedTool:
        """The tool of that name, listed or not, with the mark of that name: for a server of which no more is known."""
        mark = self._marks.get(name) or self._default_for(name)
        # The function says nothing of the tool's arguments: a handler of the author's own makes what it likes of them.
        return replace(self._served.get(name, ServedTool()), mark=mark and replace(mark, function=None))

    def find(self, name: str) -> ServedTool | None:
        """The tool of that name; None if it was not listed, or was marked since: then list the tools again."""
        return self._served.get(name)

    def knows(self, name: str) -> bool:
        """Whether the server lists a tool of that name, or its author named one: a low-level server may list none."""
        return name in self._served or name in self._marks

    def served(self) -> Sequence[ServedTool]:
        """The tools that were listed last."""
        return list(self._served.values())

    def names(self) -> Sequence[str]:
        """Their names."""
        return list(self._served)

    def unlisted(self) -> Sequence[ServedTool]:
        """What was said of tools that were not listed, and of all that nothing was said of."""
        marks = [mark for name, mark in self._marks.items() if name not in self._served]
        default = self._default_for("")
        return [ServedTool(mark=mark) for mark in (*marks, default) if mark is not None]

    def serve(self, tools: Sequence[Tool]) -> None:
        """Find the marks of these tools of an `MCPServer`, and forget what was found before."""
        # A mark that names its tool stands above one that was found by its function.
        marks = sorted(self._marks.values(), key=lambda mark: mark.is_named)
        owners = {tool.name: mark.for_tool(tool) for mark in marks for tool in mark.tools_among(tools)}
        self._served = {
            tool.name: ServedTool(
                tool.annotations,
                owners.get(tool.name) or self._default_for(tool.name, tool.input_schema),
                tool.input_schema,
            )
            for tool in tools
        }

    def serve_by_name(self, tools: Sequence[Tool]) -> None:
        """The same for a low-level server: its schemas are its author's own, so names are all there is."""
        self._served = {
            tool.name: ServedTool(tool.annotations, self._marks.get(tool.name) or self._default_for(tool.name))
            for tool in tools
        }

    def warn_of_unused(self) -> None:
        """Log which marks belong to no tool of those listed. No error: a tool may be added later."""
        marks = [tool.mark for tool in self._served.values()]
        used = {mark.name for mark in marks if mark is not None and not mark.is_default}
        if unused := sorted(self._marks.keys() - used):
            logger.warning(
                "marked as tasks, but the server has no such tool: %s. It has %s. Put @server.tool() above "
                "@tasks.task(), and check the names; a tool that is added later gets its mark then.",
                quoted(unused),
                quoted(sorted(self._served)) or "no tools",
            )

    def _default_for(self, name: str, schema: Mapping[str, Any] | None = None) -> Mark | None:
        if self._default is None:
            return None
        return Mark(name=name, options=self._default, schema=schema, is_default=True)

    def _put(self, mark: Mark) -> None:
        self._marks[mark.name] = mark
        # Marked while the server runs: whatever was found before may be wrong now.
        self._served = {}


def quoted(names: Sequence[str]) -> str:
    """Names for a warning: the first of them, and how many there are beside."""
    shown = ", ".join(map(repr, names[:NAMES_SHOWN]))
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more"


# ---- reads
# Prompts and resources of a server as tasks: which of them may be, and what their author said of each.


ReadKind: TypeAlias = Literal["prompt", "resource"]
Kind: TypeAlias = Literal["tool", "prompt", "resource"]
"""What a mark is about. A tool, a prompt and a resource may have the same name."""

METHODS: Final[Mapping[Kind, str]] = {"tool": "tools/call", "prompt": "prompts/get", "resource": "resources/read"}
KINDS: Final[Mapping[str, Kind]] = {method: kind for kind, method in METHODS.items()}

_ONLY_READS: Final = ToolAnnotations(read_only_hint=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedRead:
    """A prompt or a resource that the server has.

    Attributes:
        options: What was said of it; None if it is no task.
        required: The arguments that a prompt cannot do without.
    """

    options: TaskOptions | None
    required: frozenset[str] = frozenset()

    def policy(self, usual: TaskOptions) -> ToolPolicy:
        """How runs of it are treated."""
        return (self.options or TaskOptions()).policy(_ONLY_READS, usual)

    def problem_with(self, arguments: Mapping[str, Any]) -> str | None:
        """Why these arguments will be refused; None if they will not."""
        if missing := sorted(self.required - arguments.keys()):
            return f"it needs {quoted(missing)}"
        wrong = sorted(name for name, value in arguments.items() if not isinstance(value, str))
        return f"its arguments are texts, and {quoted(wrong)} is not" if wrong else None


class Reads:
    """The marks of prompts and resources of one `Tasks` object.

    Args:
        default: What holds for those that nobody marked; None if they are no tasks.
    """

    def __init__(self, default: TaskOptions | None = None) -> None:
        self._default = default
        self._marks: dict[tuple[ReadKind, str], TaskOptions] = {}

    def add(self, kind: ReadKind, name: str, options: TaskOptions) -> None:
        """Mark a function.

        Raises:
            InvalidMark: Another one is marked under that name.
        """
        if (kind, name) in self._marks:
            raise InvalidMark(
                f"two functions are marked as the {kind} {name!r}: rename one, or say @tasks.task(kind={kind!r}, "
                f"name=...) with the name that it is registered under"
            )
        self._marks[kind, name] = options

    def set(self, kind: ReadKind, name: str, options: TaskOptions) -> None:
        """Mark the prompt or resource of that name, in place of what was said of it before."""
        self._marks[kind, name] = options

    def methods(self) -> frozenset[str]:
        """The methods of which some calls may be tasks."""
        if self._default is not None and self._default.mode != "forbidden":
            return frozenset({"prompts/get", "resources/read"})
        return frozenset(METHODS[kind] for (kind, _), options in self._marks.items() if options.mode != "forbidden")

    async def find(self, host: ToolHost, method: str, name: str) -> ServedRead | None:
        """The prompt of that name, or the resource of that URI; None if the server is known to have none."""
        if KINDS[method] == "prompt":
            return await self._prompt(host, name)
        return await self._resource(host, name)

    async def warn_of_unused(self, host: ToolHost) -> None:
        """Log which marks belong to nothing that the server lists. No error: it may be added later."""
        if not self._marks:
            return
        there = {("prompt", name) for name in await _prompt_names(host)}
        there |= {("resource", name) for name in await _resource_names(host)}
        unused = sorted(f"{kind} {name}" for kind, name in self._marks if (kind, name) not in there)
        if unused:
            logger.warning(
                "marked as tasks, but the server has no such prompt or resource: %s. Put @server.prompt() or "
                "@server.resource(...) above @tasks.task(kind=...), and give the mark the name= that it is registered "
                "under, or the URI.",
                quoted(unused),
            )

    async def _prompt(self, host: ToolHost, name: str) -> ServedRead | None:
        options = self._options("prompt", [name])
        for prompt in await host.prompts():
            if prompt.name == name:
                return ServedRead(options=options, required=_required(prompt))
        # A low-level server need not list what it has.
        return None if host.publishes_schemas else ServedRead(options=options)

    async def _resource(self, host: ToolHost, uri: str) -> ServedRead | None:
        for resource in await host.resources():
            if str(resource.uri) == uri:
                return ServedRead(options=self._options("resource", [uri, resource.name]))
        for template in await host.resource_templates():
            if _matches(template.uri_template, uri):
                names = [uri, template.uri_template, template.name]
                return ServedRead(options=self._options("resource", names))
        return None if host.publishes_schemas else ServedRead(options=self._options("resource", [uri]))

    def _options(self, kind: ReadKind, names: Sequence[str]) -> TaskOptions | None:
        """What was said under one of these names, the first of which says most."""
        said = (self._marks[kind, name] for name in names if (kind, name) in self._marks)
        return next(said, self._default)


def _required(prompt: Prompt) -> frozenset[str]:
    return frozenset(argument.name for argument in prompt.arguments or () if argument.required)


async def _prompt_names(host: ToolHost) -> list[str]:
    return [prompt.name for prompt in await host.prompts()]


async def _resource_names(host: ToolHost) -> list[str]:
    def names() -> Iterator[str]:
        for resource in resources:
            yield from (resource.name, str(resource.uri))
        for template in templates:
            yield from (template.name, template.uri_template)

    resources, templates = await host.resources(), await host.resource_templates()
    return list(names())


def _matches(template: str, uri: str) -> bool:
    try:
        return UriTemplate.parse(template).match(uri) is not None
    except InvalidUriTemplate:
        # A low-level server may publish what it likes.
        return False


READ_METHODS: Final = frozenset({"prompts/get", "resources/read"})


class Catalogue:
    """The tools, prompts and resources of one server.

    Args:
        usual: What holds for tools of which nothing else was said.
        default_mode: The mode of whatever is not marked; None if only what is marked becomes a task.
        max_ttl: The longest time for which the task of a call is kept, whatever its tool says; None for no limit.
    """

    def __init__(
        self, usual: TaskOptions, default_mode: TaskMode | None = None, max_ttl: timedelta | None = None
    ) -> None:
        default = None if default_mode is None else TaskOptions(mode=default_mode)
        self.usual: TaskOptions = usual
        self.max_ttl = max_ttl
        self.marks: Marks = Marks(default)
        self.reads: Reads = Reads(default)
        self._host: ToolHost | None = None
        self._policies: dict[str, tuple[ServedTool, ToolPolicy]] = {}

    async def open(self, host: ToolHost) -> None:
        """Take the tools of a server that is about to start, and warn of marks that belong to none of them."""
        self._host = host
        # A low-level server that lists nothing has not said that there is nothing.
        if await self._list_tools(host) or host.publishes_schemas:
            self.marks.warn_of_unused()
        if host.publishes_schemas:
            await self.reads.warn_of_unused(host)

    def retention(self, options: TaskOptions) -> timedelta | None:
        """How long the task of a call is kept after it ended; None for as long as the store lives."""
        kept, longest = options.retention(self.usual), self.max_ttl
        if longest is None:
            return kept
        return longest if kept is None else min(kept, longest)

    def is_plain(self, name: str) -> bool:
        """Whether the tool of that name is known not to be marked. A look-up and no more: it is asked on every call."""
        tool = self.marks.find(name)
        return tool is not None and tool.mark is None

    def known_tool(self, name: str) -> ServedTool | None:
        """The tool that clients call by this name; None if it has not been listed since it was added or marked."""
        if self._host is None or not self._host.publishes_schemas:
            # Names are all there is, so there is no need to ask the author's own listing on every call.
            return self.marks.named(name)
        return self.marks.find(name)

    async def tool(self, name: str) -> ServedTool | None:
        """The tool that clients call by this name; None if the server is known to have none."""
        known = self.known_tool(name)
        if known is None and self._host is not None:
            # Added or marked while the server runs.
            await self._list_tools(self._host)
            return self.known_tool(name)
        return known

    async def tools(self) -> Sequence[ServedTool]:
        """Every tool that is known, with what was said of it; of a server that may not list all, also what was said of
        others."""
        if self._host is None or not self._host.publishes_schemas:
            return [*self.marks.served(), *self.marks.unlisted()]
        if not self.marks.served():
            # Marked while the server runs.
            await self._list_tools(self._host)
        return self.marks.served()

    async def policies(self) -> Mapping[str, ToolPolicy]:
        """How runs of the tools are treated that are listed and marked: what a worker says that it can run."""
        if self._host is not None and not self.marks.served():
            await self._list_tools(self._host)
        served = zip(self.marks.names(), self.marks.served(), strict=True)
        return {name: tool.policy(self.usual) for name, tool in served if tool.mark is not None}

    async def policy(self, method: str, name: str) -> ToolPolicy | None:
        """How runs of a tool, a prompt or a resource are treated; None for one that this server does not have."""
        if method != "tools/call":
            read = await self.read(method, name)
            return None if read is None else read.policy(self.usual)
        listed = self.marks.find(name)
        known = self._policies.get(name)
        if known is not None and known[0] is listed:
            return known[1]
        if listed is None and self._host is not None:
            await self._list_tools(self._host)
        tool = await self.tool(name)
        if tool is None:
            return None
        policy = tool.policy(self.usual)
        if (listed := self.marks.find(name)) is not None:
            # Made once for as long as the tools are what they are: it is asked for on every call.
            self._policies[name] = listed, policy
        return policy

    async def read(self, method: str, name: str) -> ServedRead | None:
        """The prompt of that name, or the resource of that URI; None if the server is known to have none."""
        if self._host is None or method not in READ_METHODS:
            return None
        return await self.reads.find(self._host, method, name)

    async def _list_tools(self, host: ToolHost) -> bool:
        """Look at the tools anew; whether there are any."""
        tools = await host.tools()
        self._policies.clear()
        if host.publishes_schemas:
            self.marks.serve(tools)
        else:
            self.marks.serve_by_name(tools)
        return bool(tools)


# ---- offers
# What of a server may be called as a task, where the caller is the one who asks for it.


class ServedOffers:
    """The offers of one server, by what its author said of its tools, prompts and resources.

    Args:
        longest: The longest that a caller may have a task kept for, unless its tool keeps tasks for longer anyway; None
            for as long as it likes. The `max_ttl` of the catalogue stands above it.
    """

    def __init__(self, catalogue: Catalogue, longest: timedelta | None = None) -> None:
        self._catalogue = catalogue
        self._longest = longest

    def methods(self) -> frozenset[str]:
        """The methods whose calls may be tasks."""
        return self._catalogue.reads.methods() | {"tools/call"}

    async def find(self, method: str, name: str) -> Offer | None:
        """The offer for the tool or prompt of that name, or the resource of that URI; None if there is none."""
        if method != "tools/call":
            return await self._read(method, name)
        tool = await self._catalogue.tool(name)
        if tool is None:
            return None
        mark = tool.mark
        if mark is None:
            return Offer(support="forbidden")
        offer = self._offer(mark.options)
        return replace(
            offer,
            problem_with=partial(_problem, mark),
            may_refuse=mark.may_refuse,
            is_refusal=partial(mark.is_refusal, name),
        )

    async def _read(self, method: str, name: str) -> Offer | None:
        read = await self._catalogue.read(method, name)
        if read is None:
            return None
        if read.options is None:
            return Offer(support="forbidden")
        return replace(self._offer(read.options), problem_with=read.problem_with)

    def _offer(self, options: TaskOptions) -> Offer:
        retention, longest = self._catalogue.retention(options), self._longest
        if self._catalogue.max_ttl is not None:
            most = self._catalogue.max_ttl
        else:
            most = None if retention is None or longest is None else max(retention, longest)
        return Offer(
            support=options.mode,
            retention=retention,
            max_retention=most,
            poll_interval=options.poll_interval,
            immediate_response=options.immediate_response,
        )


def _problem(mark: Mark, arguments: Mapping[str, Any]) -> str | None:
    # Parameters that are asked for are not there yet, and nobody can say what is wrong with them.
    problem = None if mark.resolves else mark.problem_with(arguments)
    return None if problem is None else str(problem)


# ---- called tools
# How calls of a server's tools are answered whose callers speak no tasks, by what its author said of each.


class CalledTools:
    """The tools of one server.

    Args:
        augments: Whether a rule of the author's makes tasks of calls of tools that are not marked, too.
    """

    def __init__(self, catalogue: Catalogue, *, augments: bool) -> None:
        self._catalogue = catalogue
        self._augments = augments

    async def of(self, tool: str) -> Fallback | None:
        """How calls of one tool are answered; None if they are plain calls or refused, or there is no such tool."""
        found = await self._catalogue.tool(tool)
        return None if found is None else self._ways(found.mark)

    async def all(self) -> Sequence[Fallback]:
        """How calls of every tool are that may become tasks."""
        every = (self._ways(tool.mark) for tool in await self._catalogue.tools())
        return [ways for ways in every if ways is not None]

    def names(self) -> Sequence[str]:
        """The names of all tools that are known."""
        return self._catalogue.marks.names()

    def _ways(self, mark: Mark | None) -> Fallback | None:
        if mark is None and not self._augments:
            return None
        options = TaskOptions() if mark is None else mark.options
        ways = options.ways(self._catalogue.usual)
        return ways if options.mode == "optional" and (ways.modern or ways.older) else None
