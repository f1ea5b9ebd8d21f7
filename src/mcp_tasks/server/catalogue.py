"""What a server has, and what its author said of each tool, prompt and resource: what calls and runs are treated by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from mcp_tasks.runtime import ToolPolicy
from mcp_tasks.server.marks import Marks, ServedTool
from mcp_tasks.server.options import TaskMode, TaskOptions
from mcp_tasks.server.reads import Reads, ServedRead
from mcp_tasks.tools.host import ToolHost

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
        """Take the tools of a server that is about to start, and warn of marks that belong to none of them.

        Raises:
            InvalidOption: A tool has an option that does not go with what it says of itself.
        """
        self._host = host
        # A low-level server that lists nothing has not said that there is nothing.
        if await self._list_tools(host) or host.publishes_schemas:
            self.marks.warn_of_unused()
        for name, tool in zip(self.marks.names(), self.marks.served(), strict=True):
            if tool.mark is not None:
                tool.mark.options.check_early_start(tool.annotations, name)
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
