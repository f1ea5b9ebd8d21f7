"""What an author says of tools, prompts and resources: that their calls may become tasks, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Never, TypeVar, Unpack, cast, get_args

from mcp_tasks.core.values import check_choice, check_text
from mcp_tasks.errors import InvalidMark
from mcp_tasks.server.catalogue import Catalogue
from mcp_tasks.server.marks import Mark
from mcp_tasks.server.options import ToolOptions, options_from
from mcp_tasks.server.reads import Kind
from mcp_tasks.tools.before_body import asks_by_returning, resolves_parameters, stop_at_body

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class Marking:
    """What a `Tasks` object does to mark what a server has."""

    _catalogue: Catalogue

    def task(
        self, *misplaced: Never, name: str | None = None, kind: Kind = "tool", **options: Unpack[ToolOptions]
    ) -> Callable[[FunctionT], FunctionT]:
        """Mark a tool: its calls may become tasks. Goes under `@server.tool()`; the tool stays as it is.

        With `kind=`, mark a prompt or a resource in the same way, under `@server.prompt()` or `@server.resource(...)`.

        Args:
            name: The tool that is marked, by its name. Needed only where the function does not tell: for two functions
                of the same name, or for a tool that is a wrapper with a signature of its own. For a prompt or a
                resource, the name that it is registered under, if that is not the function's.
            kind: What the function is registered as.
            options: See `ToolOptions`.

        Raises:
            InvalidMark: The parentheses are missing, the name is not a keyword, or another function is marked under
                the same name.
            InvalidOption: There is no such option, or it has a value that it cannot have.
        """
        for wrong in misplaced:
            if isinstance(wrong, str):
                raise InvalidMark(f"the name is a keyword: @tasks.task(name={wrong!r})")
            raise InvalidMark("@tasks.task is called before it decorates: write @tasks.task(), with parentheses")
        if name is not None:
            check_text("name", name)
        check_choice("kind", kind, get_args(Kind))
        chosen = options_from("@tasks.task", options, also=["name", "kind"])

        def mark(function: FunctionT) -> FunctionT:
            if kind != "tool":
                self._catalogue.reads.add(kind, name or function.__name__, chosen)
                return function
            resolves = resolves_parameters(function)
            self._catalogue.marks.add(
                Mark(
                    name=name or function.__name__,
                    is_named=name is not None,
                    options=chosen,
                    function=function,
                    resolves=resolves,
                    declares_asking=asks_by_returning(function),
                )
            )
            return cast(FunctionT, stop_at_body(function)) if resolves else function

        return mark

    def mark(self, name: str, *, kind: Kind = "tool", **options: Unpack[ToolOptions]) -> None:
        """Mark a tool by its name, for tools that are not functions. Replaces what was said of the tool before.

        With `kind=`, mark a prompt by its name, or a resource by its name, its URI, or the template of its URI.

        Raises:
            InvalidOption: There is no such option, or it has a value that it cannot have.
        """
        check_text("the name that tasks.mark takes", name)
        check_choice("kind", kind, get_args(Kind))
        chosen = options_from("tasks.mark", options, also=["kind"])
        if kind == "tool":
            self._catalogue.marks.set(name, chosen)
        else:
            self._catalogue.reads.set(kind, name, chosen)
