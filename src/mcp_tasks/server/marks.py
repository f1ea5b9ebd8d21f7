"""Which tools are marked, and which mark belongs to which tool of a server.

An author marks a function; a client calls a tool by its name, and the two names need not be the same. The SDK does not
tell which function is behind a tool. It does publish the schema of the tool's arguments, made from the function's
signature and titled with its name: the tool with the schema that the SDK would make of a function is that function's
tool. A mark that names its tool (`name=`, or `Tasks.mark`) needs none of this.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from mcp.server.mcpserver.tools import Tool as ServerTool
from mcp_types import Tool, ToolAnnotations

from mcp_tasks.errors import InvalidMark
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import ToolPolicy
from mcp_tasks.server.options import TaskOptions
from mcp_tasks.tools.arguments import ArgumentCheck
from mcp_tasks.wire.schemas import Schema, UnusableSchema, not_enforced

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
        options = TaskOptions() if self.mark is None else self.mark.options
        return options.policy(self.annotations, usual)


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
