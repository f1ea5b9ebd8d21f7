"""`mcp-tasks show`: everything about one task."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import click
from rich.text import Text

from mcp_tasks.cli.commands.completion.completing import task_ids
from mcp_tasks.cli.forms.arguments import how_to_answer
from mcp_tasks.cli.options import Access, takes_save
from mcp_tasks.cli.remembered import Chosen, takes_tasks
from mcp_tasks.cli.terminal.exits import Exit, problem_of
from mcp_tasks.cli.terminal.outcomes import HOW_TO_SAVE, as_json, problem_in, with_files
from mcp_tasks.cli.terminal.text import clean, one_line
from mcp_tasks.cli.terminal.views import Line, badge, card, print_json, say, stdout
from mcp_tasks.client import Followed, LedgerEntry, TaskHandle, TaskSnapshot, result_texts
from mcp_tasks.core.durations import ago, clock


@click.command()
@click.argument("ids", metavar="ID", shell_complete=task_ids)
@click.option("--offline", is_flag=True, help="Do not ask the server; show what was last seen.")
@takes_save
@takes_tasks
async def command(*, chosen: Chosen, offline: bool, save: Path | None) -> int:
    """Show everything about one task: its state, what it asks, and its result.

    The server is asked; if it cannot be, what was last seen of the task is shown.

    Examples:
      mcp-tasks show task_AhLN
      mcp-tasks show task_AhLN --json
      mcp-tasks show task_AhLN --offline
      mcp-tasks show --store URL --help      (for operators: any task of a store)
    """
    [entry] = chosen.entries
    snapshot = None if offline else await _look(chosen, entry)
    if snapshot is not None and entry not in chosen.ledger:
        entry = replace(entry, started_at=snapshot.created_at)
    followed = with_files(Followed(entry=entry, snapshot=snapshot), save)
    if chosen.options.output == "json":
        print_json({**entry.to_json(), **(snapshot.to_json() if snapshot else {}), **as_json(followed)})
    else:
        stdout().print(card(_lines(followed)))
        if followed.input_requests:
            _print_questions(followed, chosen.options.access)
        if followed.result is not None:
            stdout().print("\nresult" + (" (the tool failed)" if followed.is_error else ""), style="bright_black")
            stdout().print(Text(clean("\n".join(result_texts(followed.result, followed.saved, unsaved=HOW_TO_SAVE)))))
    problem = problem_in(followed)
    return Exit.OK if problem is None else problem.code


async def _look(chosen: Chosen, entry: LedgerEntry) -> TaskSnapshot | None:
    """How the task stands; None if its server cannot tell, and the ledger can."""
    found = (await chosen.at_each(TaskHandle.status))[entry.key]
    if isinstance(found, TaskSnapshot):
        return found
    problem = problem_of(found)
    if entry not in chosen.ledger:
        raise problem
    say(f"As last seen, because {problem.message}.", "yellow")
    return None


def _lines(followed: Followed) -> list[Line]:
    entry = followed.entry
    return [
        ("id", entry.task_id),
        ("status", badge(followed.state)),
        ("tool", one_line(entry.tool) or "unknown"),
        ("arguments", entry.arguments),
        ("server", entry.server_label),
        ("identity", entry.identity),
        ("started", f"{_local(entry.started_at)} ({ago(entry.age)})"),
        ("took" if followed.is_final else "running for", clock(followed.elapsed)),
        ("message", followed.message),
        *([] if followed.snapshot is None else _seen(followed, followed.snapshot)),
    ]


def _seen(followed: Followed, snapshot: TaskSnapshot) -> list[Line]:
    """What only the server knows."""
    done, pace, end = followed.progress, snapshot.poll_interval, snapshot.expires_at
    # Until it has ended the time is only what the server promises at least, and grows.
    expires = "never" if end is None else _local(end) if followed.is_final else "not before it has ended"
    share = "" if done is None or not done.total else f" of {done.total:g} ({followed.percent}%)"
    return [
        ("progress", done and f"{done.progress:g}{share}"),
        ("created", f"{_local(snapshot.created_at)} by the server's clock"),
        ("last updated", _local(snapshot.updated_at)),
        ("expires", expires),
        ("poll every", None if pace is None or followed.is_final else f"{pace.total_seconds():g} s"),
        ("error", Text(one_line(followed.failure), style="red")),
    ]


def _print_questions(followed: Followed, access: Access) -> None:
    for question in followed.questions:
        stdout().print("\nasks", Text(f"({one_line(question.key)})"), style="yellow")
        stdout().print(Text(clean("\n".join(f"  {line}" for line in question.describe()))))
    stdout().print("\nanswer with", style="bright_black")
    for line in how_to_answer(followed.entry.task_id, followed.questions, access.repeated):
        stdout().print(Text(f"  {line}"), soft_wrap=True)


def _local(instant: datetime) -> str:
    try:
        return instant.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except OverflowError:
        # A server's clock may say anything; at the ends of the calendar there is no other time zone.
        return instant.isoformat(" ")
