"""The audit log: who did what to which task, over real HTTP, on both ways in and in both eras."""

import json
import logging
import os
import resource
import signal
import stat
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.auth import owner_of
from harness.http import initialize, serving
from harness.rpc import EVERYTHING, Tasking, accept, request
from harness.server import QUICK, Desk, build
from harness.waiting import eventually
from mcp_tasks import Limits, Tasks
from mcp_tasks.errors import InvalidOption, TasksError
from mcp_tasks.model.record import Actor
from mcp_tasks.runtime.observers import Refusal, TaskAccess
from mcp_tasks.telemetry.audit import TOGETHER_FOR, Audit, AuditEntry, AuditLog, digest_of
from tests.trust.watched import entries, events, guarded, until_scraped, user

SECRET = "hunter2-in-the-arguments"


def times(found: list[dict[str, Any]], *names: str) -> Counter[tuple[str, ...]]:
    """How often it happened, by these members of the entries."""
    counts = Counter[tuple[str, ...]]()
    for each in found:
        counts[tuple(each[name] for name in names)] += each.get("count", 1)
    return counts


@pytest.mark.parametrize("short_way", [True, False], ids=["short way", "SDK"])
async def test_each_act_is_written_once_with_who_did_it(tmp_path: Path, short_way: bool) -> None:
    path = tmp_path / "audit.jsonl"
    async with guarded(Tasks("memory://", settings=QUICK, audit=path, short_way=short_way)) as wire:
        alice, bob = user(wire, "alice"), user(wire, "bob")
        asking = await alice.create("ask_name")
        await alice.until(asking, "input_required")
        await alice.update(asking, **{"elicitation-1": accept(name=SECRET)})
        await alice.until(asking, "completed")
        cancelled = await alice.create("gated")
        await alice.cancel(cancelled)
        await bob.ask("tasks/get", {"taskId": cancelled})
        await bob.ask("tasks/cancel", {"taskId": "task_nobody"})
        failed = await bob.create("breaks")
        await bob.until(failed, "failed")
    life = [event for event in events(path, asking) if event != "read"]
    assert life == ["created", "asked", "answered", "completed"]
    [completed] = [each for each in entries(path, asking) if each["event"] == "completed"]
    assert (completed["actor"], completed["owner"]) == ("run", owner_of("alice"))
    of_other = entries(path, cancelled)
    assert all("owner" not in each for each in of_other)
    assert [(each["event"], each["principal"]) for each in of_other if each["event"] != "read"] == [
        ("created", owner_of("alice")),
        ("cancelled", owner_of("alice")),
        ("refused", owner_of("bob")),
    ]
    [refused, unknown] = [each for each in entries(path) if each["event"] == "refused"]
    # A task of another is an unknown one to him, and the log has one word for both.
    assert (refused["reason"], refused["method"], refused["outcome"]) == ("unknown", "tasks/get", "read")
    assert (unknown["reason"], unknown["method"], unknown["outcome"]) == ("unknown", "tasks/cancel", "cancel")
    assert "tool" not in refused
    assert [each["reason"] for each in entries(path, failed) if each["event"] == "failed"] == ["error"]


async def test_arguments_answers_and_whole_ids_are_not_in_it_and_polls_are_counted(tmp_path: Path) -> None:
    path, desk = tmp_path / "audit.jsonl", Desk()
    async with guarded(Tasks("memory://", settings=QUICK, audit=path), desk) as wire:
        alice = user(wire, "alice")
        echo = (await alice.finish("echo", value=SECRET))["taskId"]
        gated = await alice.create("gated")
        for _ in range(7):
            await alice.get(gated)
        named = {"notifications": {"taskIds": [gated, "task_a", "task_b"]}}
        listening = request("subscriptions/listen", named, capabilities=EVERYTHING)
        async with wire.as_user("alice").stream(listening) as messages:
            await anext(messages)
    text = path.read_text()
    assert not [each for each in (SECRET, echo, gated) if each in text]
    [created] = [each for each in entries(path, echo) if each["event"] == "created"]
    assert created["task"] == f"{echo[:12]}…"
    assert (created["tool"], created["method"], created["actor"]) == ("echo", "tools/call", "client")
    reads = [each for each in entries(path, gated) if each["event"] == "read"]
    # The first at once, and the others when their minute was over or the server stopped.
    assert [each.get("count", 1) for each in reads] == [1, 6]
    assert "listened" in events(path, gated)
    [refused] = [each for each in entries(path) if each["event"] == "refused"]
    assert (refused["reason"], refused["count"], refused["method"]) == ("unknown", 2, "subscriptions/listen")


@pytest.mark.requirement("older/audit-log", "older/audit-retrieval", "older/audit-owner")
async def test_looks_of_the_older_era_are_written_with_the_principal(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with guarded(Tasks("memory://", settings=QUICK, audit=path)) as wire:
        session, _ = await initialize(wire.as_user("alice"), {})
        params = {"name": "echo", "arguments": {"value": 1}, "task": {}}
        task_id = (await session.ask("tools/call", params)).result["task"]["taskId"]
        await session.ask("tasks/result", {"taskId": task_id})
        await session.ask("tasks/get", {"taskId": task_id})
        await session.ask("tasks/list")
        await session.ask("tasks/get", {"taskId": "task_nobody"})
    written = entries(path)
    assert {each["principal"] for each in written if each["actor"] == "client"} == {owner_of("alice")}
    assert {"created", "completed"} <= set(events(path, task_id))
    looks = {(each["event"], each["method"]) for each in written if each["event"] in ("read", "listed", "refused")}
    assert looks == {
        ("read", "tasks/result"),
        ("read", "tasks/get"),
        ("listed", "tasks/list"),
        ("refused", "tasks/get"),
    }


async def test_a_flood_that_is_refused_writes_few_lines(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with guarded(Tasks("memory://", settings=QUICK, limits=Limits(owner_requests=None), audit=path)) as wire:
        alice, bob = user(wire, "alice"), user(wire, "bob")
        for number in range(100):
            await alice.ask("tasks/get", {"taskId": f"task_{number}"})
            await alice.ask("tasks/cancel", {"taskId": "task_same"})
        await bob.ask("tasks/get", {"taskId": "task_0"})
    refused = [each for each in entries(path) if each["event"] == "refused"]
    assert times(refused, "principal", "method") == {
        (owner_of("alice"), "tasks/get"): 100,
        (owner_of("alice"), "tasks/cancel"): 100,
        (owner_of("bob"), "tasks/get"): 1,
    }
    assert len(refused) == 5
    named = [each.get("taskDigest") for each in refused if each["method"] == "tasks/cancel"]
    assert named == [digest_of("task_same")] * 2
    [together] = [each for each in refused if each["method"] == "tasks/get" and "count" in each]
    assert "task" not in together, "they were about many"


def test_looks_and_refusals_of_one_minute_are_one_entry_each(tmp_path: Path) -> None:
    now, path = [0.0], tmp_path / "audit.jsonl"
    audit = Audit(AuditLog(path), clock=lambda: now[0])
    look = TaskAccess("read", "tasks/get", "alice", 1_700_000_000.0, "task_1", "echo")
    unknown = look._replace(owner=None, tool=None, refused=Refusal.UNKNOWN)
    for second in (0.0, 1.0, 2.0, TOGETHER_FOR + 1, TOGETHER_FOR + 2):
        now[0] = second
        audit.access(look)
        # Whichever tasks they are about.
        audit.access(unknown._replace(task_id=f"task_{second}"))
    audit.access(look._replace(owner="bob"))
    audit.access(unknown._replace(refused=Refusal.LIMIT, detail="unknown"))
    audit.access(unknown._replace(refused=Refusal.LIMIT, detail="connection_unknown"))
    audit.lost(17)
    audit.close()
    written: dict[str, list[int]] = {}
    for each in entries(path):
        written.setdefault(each.get("principal") or each["reason"], []).append(each.get("count", 1))
    assert written == {
        "alice": [1, 2, 1, 1],
        "unknown": [1, 2, 1, 1],
        "bob": [1],
        "limit: unknown": [1],
        "limit: connection_unknown": [1],
        "entries lost: 17 (too many at once)": [17],
    }


ENTRY = AuditEntry(event="created", actor=Actor("client", "alice"), task_id="task_1")


def test_the_file_is_private_and_opened_again_after_it_was_moved(tmp_path: Path) -> None:
    path, moved = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    log = AuditLog(path, server="farm")
    log.write(ENTRY)
    path.rename(moved)
    log.write(AuditEntry(event="deleted", actor=Actor("operator", "root"), task_id="task_1"))
    log.close()
    assert events(moved) == ["created"]
    [entry] = entries(path)
    assert (entry["actor"], entry["principal"], entry["server"]) == ("operator", "root", "farm")
    assert {stat.S_IMODE(each.stat().st_mode) for each in (path, moved)} == {0o600}
    os.chmod(path, 0o666)
    with pytest.raises(TasksError, match="others can write"):
        AuditLog(path)


def test_entries_that_cannot_be_written_are_counted_in_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, elsewhere = tmp_path / "audit.jsonl", tmp_path / "elsewhere"
    log = AuditLog(path)
    log.write(ENTRY)
    # A planted link in its place: never followed, whatever it leads to.
    path.unlink()
    path.symlink_to(elsewhere)
    log.write(ENTRY)
    log.write(ENTRY)
    path.unlink()
    log.write(ENTRY)
    path.rename(tmp_path / "moved")
    path.symlink_to(elsewhere)
    log.write(ENTRY)
    path.unlink()
    log.close()
    assert not elsewhere.exists()
    told = [(each["event"], each.get("count")) for each in (*entries(tmp_path / "moved"), *entries(path))]
    # What was lost last is said at the end.
    assert told == [("lost", 2), ("created", None), ("lost", 1)]
    assert len([record for record in caplog.records if "cannot be written" in record.message]) == 1


def test_after_a_full_disk_every_entry_has_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    log.write(ENTRY)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        # In the middle of the next entry.
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 30, most))
        log.write(ENTRY)
        log.write(ENTRY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        signal.signal(signal.SIGXFSZ, before)
    log.write(ENTRY)
    log.close()
    _, half, *rest = path.read_text().splitlines()
    assert len(half) == 30
    assert [(json.loads(line)["event"], json.loads(line).get("count")) for line in rest] == [
        ("lost", 2),
        ("created", None),
    ]


async def test_the_logger_has_it_as_one_line_of_json_and_the_file_nothing_that_a_terminal_obeys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, path = "eve\x9b2J\u2028\u202e\nforged", tmp_path / "audit.jsonl"
    for audit in (None, path):
        with caplog.at_level(logging.INFO, logger="mcp_tasks.audit"):
            tasks = Tasks("memory://", settings=QUICK, principal=lambda caller: name, audit=audit)
            async with serving(build(tasks)) as wire:
                await Tasking(wire, EVERYTHING).create("echo", value=SECRET)
    records = [record for record in caplog.records if record.name == "mcp_tasks.audit"]
    assert records
    assert all("\n" not in record.getMessage() and SECRET not in record.getMessage() for record in records)
    said: dict[str, Any] = getattr(records[0], "audit", {})
    assert (said["event"], said["principal"]) == ("created", name)
    assert path.read_text().replace("\n", "").replace("…", "").isascii()
    assert entries(path)[0]["principal"] == name


async def test_what_expires_is_written_as_the_work_of_the_sweep(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    settings = replace(QUICK, sweep_interval=timedelta(milliseconds=50))
    tasks = Tasks("memory://", settings=settings, default_ttl=timedelta(milliseconds=50), audit=path)
    async with serving(build(tasks)) as wire:
        task_id = await Tasking(wire, EVERYTHING).create("echo", value=1)
        # Another thread writes it.
        await eventually(lambda: "expired" in events(path, task_id))
    [entry] = [each for each in entries(path, task_id) if each["event"] == "expired"]
    assert entry["actor"] == "sweep"


@pytest.mark.parametrize("short_way", [True, False], ids=["short way", "SDK"])
async def test_what_is_over_a_limit_is_written_once_with_which(tmp_path: Path, short_way: bool) -> None:
    path = tmp_path / "audit.jsonl"
    limits = Limits(owner_open_tasks=1, argument_bytes=100, owner_streams=1)
    tasks = Tasks("memory://", settings=QUICK, audit=path, short_way=short_way, limits=limits)
    async with guarded(tasks, page=True) as wire:
        alice, big = user(wire, "alice"), {"name": "echo", "arguments": {"value": "x" * 200}}
        named = {"notifications": {"taskIds": [await alice.create("gated")]}}
        assert "error" in (await alice.ask("tools/call", {"name": "gated", "arguments": {}})).message
        # Whether its caller is told with an error or in words.
        assert "error" in (await alice.ask("tools/call", big)).message
        assert (await alice.declaring({}).ask("tools/call", big)).result["isError"]
        async with wire.as_user("alice").stream(request("subscriptions/listen", named)) as stream:
            assert "error" not in await anext(stream)
            assert "error" in (await alice.ask("subscriptions/listen", named)).message

        name = 'mcp_tasks_limited_total{limit="%s"}'
        found = await until_scraped(wire, {name % "owner_streams": 1})
    refused = [each for each in entries(path) if each["event"] == "refused"]
    assert times(refused, "reason") == {
        ("limit: owner_open_tasks",): 1,
        ("limit: argument_bytes",): 2,
        ("limit: owner_streams",): 1,
    }
    assert {each["principal"] for each in refused} == {owner_of("alice")}
    assert found[name % "owner_open_tasks"] == 1
    assert events(path).count("listened") == 1, "a stream that was refused shows nothing"


async def test_looks_of_companions_and_of_the_servers_own_code_are_written(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    tasks = Tasks("memory://", settings=QUICK, audit=path, companions="always")
    async with serving(build(tasks)) as wire:
        client = Tasking(wire, EVERYTHING)
        task_id = (await client.finish("echo", value=1))["taskId"]
        await client.call("task_status", task_id=task_id)
        await client.call("task_status", task_id="task_nobody")
        await tasks.handle(task_id).fetch()
        await tasks.list(everybody=True)
    looks = [(each["event"], each["method"]) for each in entries(path) if each.get("method") in ("companion", "local")]
    assert looks == [("read", "companion"), ("refused", "companion"), ("read", "local"), ("listed", "local")]


async def test_a_server_whose_audit_log_cannot_be_written_does_not_start(tmp_path: Path) -> None:
    wrong: list[Any] = ["", 5]
    for audit in wrong:
        with pytest.raises(InvalidOption, match="audit must be the path"):
            Tasks("memory://", audit=audit)
    tasks = Tasks("memory://", settings=QUICK, audit=tmp_path)
    with pytest.raises(TasksError, match="audit log"):
        async with tasks.running(build(tasks)):
            pass


@pytest.mark.parametrize(
    ("level", "has_handler", "logged"),
    [
        # A console at INFO has none of it.
        (logging.NOTSET, False, False),
        (logging.NOTSET, True, True),
        (logging.INFO, False, True),
        (logging.WARNING, True, False),
    ],
)
async def test_a_level_or_a_handler_of_its_own_is_what_asks_for_it_beside_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, level: int, has_handler: bool, logged: bool
) -> None:
    caplog.set_level(logging.INFO)
    logger = logging.getLogger("mcp_tasks.audit")
    logger.setLevel(level)
    if has_handler:
        logger.addHandler(logging.NullHandler())
    for audit in (None, tmp_path / "audit.jsonl"):
        caplog.clear()
        tasks = Tasks("memory://", settings=QUICK, audit=audit)
        async with tasks.running(build(tasks)):
            await (await tasks.start("echo", {"value": 1})).result()
        assert ("mcp_tasks.audit" in {record.name for record in caplog.records}) is logged
    assert "created" in events(tmp_path / "audit.jsonl")
