"""Commands on tasks of the ledger: `ls`, `show`, `wait`, `watch`, `cancel`, `forget` and `prune`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import click
from mcp import MCPError
from rich.text import Text

from mcp_tasks.cli.commands.completion import task_ids
from mcp_tasks.cli.connection import Chosen, takes_server, takes_tasks
from mcp_tasks.cli.follow import Followed
from mcp_tasks.cli.interactive import HOW_TO_SAVE, Attending, as_json, problem_in, report, result_texts, with_files
from mcp_tasks.cli.options import (
    Access,
    Duration,
    Options,
    Output,
    Waiting,
    takes_ledger,
    takes_options,
    takes_output,
    takes_save,
    takes_timeout,
    takes_waiting,
)
from mcp_tasks.cli.prompt import how_to_answer
from mcp_tasks.cli.servers import ServerAddress
from mcp_tasks.cli.terminal import (
    Columns,
    Detached,
    Exit,
    JsonBoard,
    Line,
    LineBoard,
    Problem,
    TableBoard,
    badge,
    can_redraw,
    card,
    clean,
    listing,
    new_board,
    one_line,
    print_json,
    problem_of,
    say,
    status_of,
    stdout,
)
from mcp_tasks.client import LedgerEntry, TaskHandle, TaskSnapshot, TaskStatus, WaitTimedOut, user_ledger
from mcp_tasks.client.ledger import UNKNOWN, short_id, short_ids
from mcp_tasks.errors import InvalidInput, UnknownTask
from mcp_tasks.model.values import ago, clock


@click.command()
@click.option("--active", is_flag=True, help="Only tasks that have not ended.")
@click.option("--ended", is_flag=True, help="Only tasks that have ended.")
@click.option(
    "--status",
    type=click.Choice([*(status.value for status in TaskStatus), UNKNOWN]),
    help="Only tasks with this status; unknown for those that their server did not know when it was last asked.",
)
@click.option("--search", metavar="TEXT", help="Only tasks with this in their id, tool, arguments, message or server.")
@takes_server("Only tasks of this server.")
@click.option("--refresh", is_flag=True, help="Ask the servers first; otherwise it is what was last seen.")
@takes_options
async def ls_command(
    *,
    active: bool,
    ended: bool,
    status: str | None,
    search: str | None,
    server: ServerAddress | None,
    refresh: bool,
    options: Options,
) -> int:
    """List the tasks that were started from here, as they were last seen.

    Examples:
      mcp-tasks ls
      mcp-tasks ls --active --refresh
      mcp-tasks ls --status failed --search render
      mcp-tasks ls --json | jq -r '.[].taskId'
      mcp-tasks ls --store URL --help                 (for operators: all of a store)
    """
    if active and ended:
        raise click.UsageError("--active and --ended exclude each other; without them, all tasks are listed")
    is_active = active if active or ended else None
    spec, identity, code = server and server.spec, options.access.identity, Exit.OK
    with user_ledger(options.ledger_path) as ledger:
        if refresh:
            pending = ledger.pending(server=spec, identity=identity)
            code = await _refresh(Chosen(ledger=ledger, entries=pending, options=options, several=True))
        entries = ledger.entries(server=spec, identity=identity, active=is_active, status=status, search=search)
    if options.output == "json":
        print_json([entry.to_json() for entry in entries])
    else:
        _print(entries, "" if refresh else ", as last seen")
    return code


async def _refresh(pending: Chosen) -> Exit:
    """Ask the servers; returns the exit code."""
    seen = await pending.at_each(TaskHandle.status)
    problems = [found for found in seen.values() if isinstance(found, Exception)]
    for message, count in Counter(problem_of(problem).message for problem in problems).items():
        say(f"{count} task{'' if count == 1 else 's'} could not be refreshed: {message}", "yellow")
    # The others have no server that can be asked, or one that does not know them.
    is_open = any(
        not isinstance(problem, UnknownTask) and not (isinstance(problem, InvalidInput) and problem.reason == "address")
        for problem in problems
    )
    return Exit.UNREACHABLE if is_open else Exit.OK


def _print(entries: Sequence[LedgerEntry], how: str) -> None:
    short = short_ids(entry.task_id for entry in entries)
    columns: Columns[Followed] = {
        "id": lambda task: short[task.entry.task_id],
        "status": status_of,
        "started": lambda task: ago(task.entry.age),
        "took": lambda task: clock(task.elapsed),
        "call": lambda task: f"{task.entry.tool} {task.entry.arguments or ''}",
        "message": lambda task: task.message,
        "server": lambda task: Text(one_line(task.entry.server_label), style="bright_black"),
    }
    for title, is_final in (("Active", False), ("Ended", True)):
        group = [Followed(entry=entry) for entry in entries if entry.is_final == is_final]
        if group:
            stdout().print(f"{title} ({len(group)}){'' if is_final else how}", style="bold")
            stdout().print(listing(columns, group, fixed=4, cut=True))
    if not entries:
        say("No tasks.")


# ---- show


@click.command()
@click.argument("ids", metavar="ID", shell_complete=task_ids)
@click.option("--offline", is_flag=True, help="Do not ask the server; show what was last seen.")
@takes_save
@takes_tasks
async def show_command(*, chosen: Chosen, offline: bool, save: Path | None) -> int:
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
    """The present state of the task; None if its server cannot tell, and the ledger can."""
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
    """Facts that only the server knows."""
    done, pace, end = followed.progress, snapshot.poll_interval, snapshot.expires_at
    # Until it has ended, the server moves the time.
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
        # A server's clock may be wrong; at the ends of the calendar there is no other time zone.
        return instant.isoformat(" ")


# ---- wait


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=task_ids)
@takes_waiting("waiting")
@takes_tasks
async def wait_command(*, chosen: Chosen, waiting: Waiting) -> int:
    """Wait for tasks and print their results.

    An ID may be cut short as long as it names one task. Questions are asked at the prompt; Ctrl-C offers to cancel
    or to leave the tasks running. With --output json: one object for one ID, a list for several.

    Examples:
      mcp-tasks wait task_AhLN
      mcp-tasks wait task_AhLN task_9xQz --timeout 10m
      mcp-tasks wait 786512e2-9e0d-44bd-8f29-789f320fe840 --server http://localhost:8000/mcp

    Exit codes are those of `call`; of several tasks, that of the first that is
    not well.
    """
    return await wait_for(chosen, waiting)


async def wait_for(chosen: Chosen, waiting: Waiting) -> int:
    """Wait for tasks to end, and print their outcomes; returns the exit code."""
    board = new_board(with_ids=len(chosen.entries) > 1)
    followed = await Attending(board, chosen.options.access, waiting).follow(chosen)
    return report(followed, chosen.options, save=waiting.save, as_list=chosen.several)


# ---- watch


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...", shell_complete=task_ids)
@takes_timeout("watching")
@takes_tasks
async def watch_command(*, chosen: Chosen, timeout: float | None) -> int:
    """Watch several tasks in one table until they have ended; without IDs, all that have not.

    Nothing is asked and nothing is changed; Ctrl-C leaves. With --output json: one object per line and change.

    Examples:
      mcp-tasks watch
      mcp-tasks watch task_AhLN task_9xQz
      mcp-tasks watch --output json | jq -r 'select(.status == "failed").taskId'
    """
    access = chosen.options.access
    pending = chosen.ledger.pending(identity=access.identity)
    # A task that its server did not know is for `ls`, and does not keep the rest from being watched.
    entries = chosen.entries or [entry for entry in pending if not entry.is_over]
    if not entries:
        say("Nothing to watch: every task has ended.")
        return Exit.OK
    drawn = TableBoard(entries) if can_redraw() else LineBoard(with_ids=True)
    board = JsonBoard() if chosen.options.output == "json" else drawn
    attending = Attending(board, access, Waiting(timeout=timeout), asks=False)
    try:
        seen = await attending.follow(replace(chosen, entries=entries))
    except Detached:
        return Exit.OK
    if any(isinstance(followed.problem, WaitTimedOut) for followed in seen):
        say(f"Not all had ended within {timeout:.15g} s.", "yellow")
        return Exit.TIMEOUT
    code = Exit.OK
    for followed in seen:
        if followed.problem is not None:
            problem = problem_of(followed.problem)
            say(f"{short_id(followed.entry.task_id)}: {one_line(problem.message)}", "red")
            code = code or problem.code
    return code


# ---- cancel


_WORDS = {
    "cancelled": "cancelled",
    "working": "asked to stop; it is still working",
    "input_required": "asked to stop; it still waits for an answer",
    "completed": "had completed already",
    "failed": "had failed already",
}


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=task_ids)
@takes_tasks
async def cancel_command(*, chosen: Chosen) -> int:
    """Cancel tasks.

    A server acknowledges this and then does what it can: a task may still end in another way. What is printed is how
    each stands right after.

    Examples:
      mcp-tasks cancel task_AhLN
      mcp-tasks cancel --store URL --help    (for operators: any task of a store)
      mcp-tasks cancel $(mcp-tasks ls --active --output json | jq -r '.[].taskId')
    """
    seen = await chosen.at_each(_cancel)
    statuses: dict[str, str] = {}
    problems: dict[str, Problem] = {}
    for entry in chosen.entries:
        match seen[entry.key]:
            case str(status):
                statuses[entry.task_id] = status
            case found:
                problem = problem_of(found)
                if isinstance(found, UnknownTask | MCPError):
                    problem.message = f"{short_id(entry.task_id)}: {problem.message}"
                # Several tasks of a server that is not there have one problem.
                problems[problem.message] = problem
    for problem in problems.values():
        problem.show()
    if chosen.options.output == "json":
        print_json([{"taskId": task_id, "status": status} for task_id, status in statuses.items()])
    else:
        for task_id, status in statuses.items():
            say(f"{short_id(task_id)}: {_WORDS.get(status, status)}")
    return next((problem.code for problem in problems.values()), Exit.OK)


async def _cancel(handle: TaskHandle) -> str:
    await handle.cancel()
    return (await handle.status()).status.value


# ---- forget and prune


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=task_ids)
@takes_ledger
@takes_output
def forget(*, ids: Sequence[str], ledger_path: Path | None, output: Output) -> int:
    """Remove tasks from the ledger, with their results.

    Their servers are not told, and a task that runs goes on: write down its id if you may want it back.

    Examples:
      mcp-tasks forget task_AhLN
    """
    with user_ledger(ledger_path) as ledger:
        entries = ledger.find_all(ids)
        for entry in entries:
            ledger.forget(entry.task_id, server=entry.server, identity=entry.identity)
    ends = ["" if entry.is_final else f", which goes on at {entry.server}" for entry in entries]
    gone = [f"Forgotten: {entry.task_id}{end}" for entry, end in zip(entries, ends, strict=True)]
    return _tell(entries, "\n".join(gone), output)


@click.command()
@click.option(
    "--older-than",
    type=Duration(),
    metavar="DURATION",
    default="0s",
    help="Only tasks that were started longer ago: 90s, 30m, 1h30m, 7d, 2w.",
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and keep it.")
@takes_ledger
@takes_output
def prune(*, older_than: timedelta, dry_run: bool, ledger_path: Path | None, output: Output) -> int:
    """Remove tasks from the ledger that have ended, with their results, and those that their server did not know.

    Tasks that have not ended stay.

    Examples:
      mcp-tasks prune
      mcp-tasks prune --older-than 7d --dry-run
    """
    with user_ledger(ledger_path) as ledger:
        entries = ledger.prune(older_than=older_than, dry_run=dry_run)
    count = f"{len(entries)} task{'' if len(entries) == 1 else 's'}"
    lines = [f"  {one_line(entry.task_id)}  {one_line(entry.tool)}  {entry.status}" for entry in entries]
    would = "\n".join([f"Would remove {count}{':' if lines else '.'}", *lines])
    return _tell(entries, would if dry_run else f"Removed {count}.", output)


def _tell(entries: Sequence[LedgerEntry], words: str, output: Output) -> int:
    if output == "json":
        print_json([entry.task_id for entry in entries])
    else:
        say(words)
    return Exit.OK
