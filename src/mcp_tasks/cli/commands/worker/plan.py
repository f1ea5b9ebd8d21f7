"""What a worker runs, and of what: said when it starts, and in full by `--check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from mcp_tasks.cli.terminal.text import clean
from mcp_tasks.cli.terminal.views import stdout
from mcp_tasks.engines import LocalEngine
from mcp_tasks.runtime import TaskRuntime
from mcp_tasks.runtime.policy import ToolPolicy
from mcp_tasks.server import Worker

NAMES_SHOWN: Final = 8
"""Tools that the line at the start names: `--check` lists all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a worker runs.

    Attributes:
        queues: Of which queues; None for all.
        concurrency: How many at a time; None if the engine does not say.
        drain: For how many seconds what runs may go on when it is told to stop.
        tools: Every tool that can be a task, by name. Empty for a server that does not list them.
    """

    server: str
    namespace: str
    store: str
    engine: str
    queues: Sequence[str] | None
    concurrency: int | None
    drain: float
    tools: Mapping[str, ToolPolicy]

    def is_served(self, policy: ToolPolicy) -> bool:
        """Whether tools of this policy are run here."""
        return self.queues is None or policy.queue in self.queues


async def plan_of(worker: Worker, runtime: TaskRuntime) -> Plan:
    """What a worker runs with this runtime."""
    return Plan(
        server=worker.server.name,
        namespace=runtime.namespace,
        store=repr(runtime.store),
        engine="local: processes of this machine" if isinstance(runtime.engine, LocalEngine) else repr(runtime.engine),
        queues=None if runtime.queues is None else sorted(runtime.queues),
        concurrency=getattr(runtime.engine, "concurrency", None),
        drain=runtime.settings.drains_for.total_seconds(),
        tools=await runtime.tools(),
    )


async def unknown_queues(runtime: TaskRuntime) -> Sequence[str]:
    """Queues that the worker was told to serve, and that no tool of the server is in."""
    tools = await runtime.tools()
    known = {policy.queue for policy in tools.values()}
    # A server that does not list its tools may have any.
    return sorted((runtime.queues or frozenset()) - known) if tools else ()


def start_line(plan: Plan) -> str:
    """What is run here, in one line."""
    served = [name for name, policy in plan.tools.items() if plan.is_served(policy)]
    shown = ", ".join(served[:NAMES_SHOWN]) or ("nothing" if plan.tools else "whatever it has")
    more = f" and {len(served) - NAMES_SHOWN} more" if len(served) > NAMES_SHOWN else ""
    queues = "all queues" if plan.queues is None else f"queue{'s'[: len(plan.queues) > 1]} {', '.join(plan.queues)}"
    limit = "" if plan.concurrency is None else f", at most {plan.concurrency} at a time"
    return clean(f"{plan.server}: running {shown}{more} ({queues}){limit}. Tasks are kept in {plan.store}.")


def print_plan(plan: Plan) -> None:
    """All of it, on stdout."""
    facts = Table.grid(padding=(0, 2))
    for what, value in (
        ("server", plan.server),
        ("namespace", plan.namespace),
        ("store", plan.store),
        ("engine", plan.engine),
        ("queues", "all" if plan.queues is None else ", ".join(plan.queues)),
        ("at a time", "as many as the engine runs" if plan.concurrency is None else str(plan.concurrency)),
        ("drain", f"{plan.drain:g} s"),
    ):
        facts.add_row(Text(what, style="bright_black"), Text(clean(value)))
    stdout().print(facts)
    if not plan.tools:
        stdout().print("The server does not list its tools: tasks of any tool are taken.")
        return
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for title in ("tool", "queue", "priority", "version", "at work in all", "here"):
        table.add_column(title, no_wrap=True)
    for name, policy in sorted(plan.tools.items()):
        at_most = "any number" if policy.max_at_work is None else f"at most {policy.max_at_work}"
        here = "yes" if plan.is_served(policy) else "no"
        values = (name, policy.queue, str(policy.priority), policy.version or "", at_most, here)
        table.add_row(*(Text(clean(value)) for value in values))
    stdout().print()
    stdout().print(table)


def plan_json(plan: Plan) -> dict[str, Any]:
    """The same for scripts."""
    return {
        "server": plan.server,
        "namespace": plan.namespace,
        "store": plan.store,
        "engine": plan.engine,
        "queues": plan.queues,
        "concurrency": plan.concurrency,
        "drainSeconds": plan.drain,
        "tools": {
            name: {
                "queue": policy.queue,
                "priority": policy.priority,
                "version": policy.version,
                "maxAtWork": policy.max_at_work,
                "served": plan.is_served(policy),
            }
            for name, policy in plan.tools.items()
        },
    }
