"""Prompts and resources of a server as tasks: which of them may be, and what their author said of each.

They are found by what clients call them: a prompt by its name, a resource by its URI. A mark may name a resource by its
name, its URI, or the template of its URI. Both only read, so they may run again unless their author says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate
from mcp_types import Prompt, ToolAnnotations

from mcp_tasks.errors import InvalidMark
from mcp_tasks.quiet import get_logger
from mcp_tasks.runtime import ToolPolicy
from mcp_tasks.server.marks import quoted
from mcp_tasks.server.options import TaskOptions
from mcp_tasks.tools.host import ToolHost

logger: Final = get_logger(__name__)

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
