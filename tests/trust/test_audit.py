"""The audit log: who did what to which task, over real HTTP, on both ways in and in both eras."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import stat
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness.auth import owner_of
from harness.http import initialize, serving
from harness.rpc import EVERYTHING, PATIENCE, Tasking, accept, request
from harness.server import QUICK, Desk, build
from mcp_tasks import Limits, Tasks
from mcp_tasks.errors import InvalidOption, TasksError
from mcp_tasks.model.machine import TaskDeleted
from mcp_tasks.model.record import Actor
from mcp_tasks.runtime.observers import Refusal, TaskAccess, TaskChange
from mcp_tasks.telemetry.audit import TOGETHER_FOR, Audit, AuditEntry, AuditLog, digest_of
from mcp_tasks.testing import make_record
from tests.trust.watched import entries, events, guarded, scrape, user

pytestmark = pytest.mark.anyio

SECRET = "hunter2-in-the-arguments"


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


async def test_neither_arguments_nor_answers_nor_whole_ids_are_in_it(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with serving(build(Tasks("memory://", settings=QUICK, audit=path))) as wire:
        client = Tasking(wire, EVERYTHING)
        echo = (await client.finish("echo", value=SECRET))["taskId"]
        asking = await client.create("ask_name")
        await client.until(asking, "input_required")
        await client.update(asking, **{"elicitation-1": accept(name=SECRET)})
        await client.until(asking, "completed")
    text = path.read_text()
    assert SECRET not in text
    assert echo not in text
    assert asking not in text
    assert digest_of(echo) in text
    [created] = [each for each in entries(path, echo) if each["event"] == "created"]
    assert created["task"] == f"{echo[:12]}…"
    assert (created["tool"], created["method"], created["actor"]) == ("echo", "tools/call", "client")
    assert "principal" not in created


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


async def test_polls_are_written_once_and_then_counted(tmp_path: Path) -> None:
    path, desk = tmp_path / "audit.jsonl", Desk()
    async with serving(build(Tasks("memory://", settings=QUICK, audit=path), desk)) as wire:
        client = Tasking(wire, EVERYTHING)
        task_id = await client.create("gated")
        for _ in range(7):
            await client.get(task_id)
    reads = [each for each in entries(path, task_id) if each["event"] == "read"]
    # The first at once, and the others when their minute was over or the server stopped.
    assert [each.get("count", 1) for each in reads] == [1, 6]


async def test_streams_are_written_with_the_ids_that_were_none(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with guarded(Tasks("memory://", settings=QUICK, audit=path)) as wire:
        alice = user(wire, "alice")
        task_id = await alice.create("gated")
        message = request(
            "subscriptions/listen",
            {"notifications": {"taskIds": [task_id, "task_a", "task_b"]}},
            capabilities=EVERYTHING,
        )
        async with wire.as_user("alice").stream(message) as messages:
            await anext(messages)
    assert "listened" in events(path, task_id)
    [refused] = [each for each in entries(path) if each["event"] == "refused"]
    assert (refused["reason"], refused["count"], refused["method"]) == ("unknown", 2, "subscriptions/listen")


def test_looks_of_one_minute_are_one_entry(tmp_path: Path) -> None:
    now = [0.0]
    audit = Audit(AuditLog(tmp_path / "audit.jsonl"), clock=lambda: now[0])
    look = TaskAccess("read", "tasks/get", "alice", 1_700_000_000.0, "task_1", "echo")
    for second in (0.0, 1.0, 2.0, TOGETHER_FOR + 1, TOGETHER_FOR + 2):
        now[0] = second
        audit.access(look)
    audit.access(look._replace(owner="bob"))
    audit.tick()
    written = [(each["principal"], each.get("count", 1)) for each in entries(tmp_path / "audit.jsonl")]
    assert written == [("alice", 1), ("alice", 2), ("alice", 1), ("bob", 1)]
    audit.close()
    assert [each.get("count", 1) for each in entries(tmp_path / "audit.jsonl")][4:] == [1]


async def test_a_flood_that_is_refused_writes_few_lines(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with guarded(Tasks("memory://", settings=QUICK, limits=Limits(owner_requests=None), audit=path)) as wire:
        alice, bob = user(wire, "alice"), user(wire, "bob")
        for number in range(100):
            await alice.ask("tasks/get", {"taskId": f"task_{number}"})
            await alice.ask("tasks/cancel", {"taskId": "task_same"})
        await bob.ask("tasks/get", {"taskId": "task_0"})
    refused = [each for each in entries(path) if each["event"] == "refused"]
    counts = Counter[tuple[str, str]]()
    for each in refused:
        counts[each["principal"], each["method"]] += each.get("count", 1)
    assert counts == {
        (owner_of("alice"), "tasks/get"): 100,
        (owner_of("alice"), "tasks/cancel"): 100,
        (owner_of("bob"), "tasks/get"): 1,
    }
    assert len(refused) == 5
    named = [each.get("taskDigest") for each in refused if each["method"] == "tasks/cancel"]
    assert named == [digest_of("task_same")] * 2
    [together] = [each for each in refused if each["method"] == "tasks/get" and "count" in each]
    assert "task" not in together, "they were about many"


def test_refusals_of_one_minute_and_reason_are_one_entry(tmp_path: Path) -> None:
    now = [0.0]
    audit = Audit(AuditLog(tmp_path / "audit.jsonl"), clock=lambda: now[0])
    refusal = TaskAccess("read", "tasks/get", None, 1_700_000_000.0, "task_1", refused=Refusal.UNKNOWN)
    for second in (0.0, 1.0, 2.0, TOGETHER_FOR + 1, TOGETHER_FOR + 2):
        now[0] = second
        audit.access(refusal._replace(task_id=f"task_{second}"))
    audit.access(refusal._replace(refused=Refusal.LIMIT, detail="unknown"))
    audit.access(refusal._replace(refused=Refusal.LIMIT, detail="connection_unknown"))
    written = [(each["reason"], each.get("count", 1)) for each in entries(tmp_path / "audit.jsonl")]
    assert written == [
        ("unknown", 1),
        ("unknown", 2),
        ("unknown", 1),
        ("limit: unknown", 1),
        ("limit: connection_unknown", 1),
    ]
    audit.close()


def test_what_could_not_be_told_is_an_entry(tmp_path: Path) -> None:
    audit = Audit(AuditLog(tmp_path / "audit.jsonl"))
    audit.lost(17)
    [entry] = entries(tmp_path / "audit.jsonl")
    assert (entry["event"], entry["count"]) == ("lost", 17)
    assert "entries lost: 17" in entry["reason"]


def test_the_file_is_private_and_opened_again_after_it_was_moved(tmp_path: Path) -> None:
    path, moved = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    log = AuditLog(path, server="farm")
    log.write(AuditEntry(event="created", actor=Actor("client", "alice"), task_id="task_1"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.rename(moved)
    log.write(AuditEntry(event="deleted", actor=Actor("operator", "root"), task_id="task_1"))
    log.close()
    assert events(moved) == ["created"]
    [entry] = entries(path)
    assert (entry["actor"], entry["principal"], entry["server"]) == ("operator", "root", "farm")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_entries_that_cannot_be_written_are_counted_in_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = AuditLog(folder / "audit.jsonl")
    entry = AuditEntry(event="created", actor=Actor("client", "alice"), at=datetime.now(UTC))
    log.write(entry)
    # A planted link in its place: never followed, whatever it leads to.
    (folder / "audit.jsonl").unlink()
    (folder / "audit.jsonl").symlink_to(tmp_path / "elsewhere")
    log.write(entry)
    log.write(entry)
    (folder / "audit.jsonl").unlink()
    log.write(entry)
    log.close()
    assert not (tmp_path / "elsewhere").exists()
    lost, created = entries(folder / "audit.jsonl")
    assert (lost["event"], lost["count"], created["event"]) == ("lost", 2, "created")
    assert len([record for record in caplog.records if "cannot be written" in record.message]) == 1


def test_a_file_that_others_can_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.touch()
    os.chmod(path, 0o666)
    with pytest.raises(TasksError, match="others can write"):
        AuditLog(path)
    with pytest.raises(TasksError, match="cannot be written"):
        AuditLog(tmp_path)


async def test_it_goes_to_the_logger_as_one_line_of_json(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="mcp_tasks.audit"):
        async with serving(build(Tasks("memory://", settings=QUICK, principal=lambda caller: "eve\nforged"))) as wire:
            await Tasking(wire, EVERYTHING).create("echo", value=SECRET)
    records = [record for record in caplog.records if record.name == "mcp_tasks.audit"]
    assert records
    assert all("\n" not in record.getMessage() and SECRET not in record.getMessage() for record in records)
    said: dict[str, Any] = getattr(records[0], "audit", {})
    assert (said["event"], said["principal"]) == ("created", "eve\nforged")


async def test_what_expires_is_written_as_expired_by_nobody(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    settings = replace(QUICK, sweep_interval=timedelta(milliseconds=50))
    tasks = Tasks("memory://", settings=settings, default_ttl=timedelta(milliseconds=50), audit=path)
    async with serving(build(tasks)) as wire:
        task_id = await Tasking(wire, EVERYTHING).create("echo", value=1)
        with anyio.fail_after(PATIENCE):
            while "expired" not in events(path, task_id):  # noqa: ASYNC110 - another thread writes it
                await anyio.sleep(0.02)
    [entry] = [each for each in entries(path, task_id) if each["event"] == "expired"]
    assert entry["actor"] == "sweep"


def test_what_an_operator_deletes_is_written_as_deleted(tmp_path: Path) -> None:
    audit = Audit(AuditLog(tmp_path / "audit.jsonl"))
    record = make_record()
    audit(TaskChange(before=record, event=TaskDeleted(), after=None, actor=Actor("operator", "root")))
    [entry] = entries(tmp_path / "audit.jsonl")
    assert (entry["event"], entry["actor"], entry["principal"]) == ("deleted", "operator", "root")


@pytest.mark.parametrize("short_way", [True, False], ids=["short way", "SDK"])
async def test_what_is_over_a_limit_is_written_once_with_which(tmp_path: Path, short_way: bool) -> None:
    path = tmp_path / "audit.jsonl"
    limits = Limits(owner_open_tasks=1, argument_bytes=100)
    async with guarded(
        Tasks("memory://", settings=QUICK, audit=path, short_way=short_way, limits=limits), page=True
    ) as wire:
        alice = user(wire, "alice")
        await alice.create("gated")
        assert "error" in (await alice.ask("tools/call", {"name": "gated", "arguments": {}})).message
        big = {"name": "echo", "arguments": {"value": "x" * 200}}
        assert "error" in (await alice.ask("tools/call", big)).message
        with anyio.fail_after(PATIENCE):
            while (found := await scrape(wire)).get('mcp_tasks_limited_total{limit="argument_bytes"}', 0) < 1:  # noqa: ASYNC110
                await anyio.sleep(0.02)
    refused = [each for each in entries(path) if each["event"] == "refused"]
    assert [each["reason"] for each in refused] == ["limit: owner_open_tasks", "limit: argument_bytes"]
    assert {each["outcome"] for each in refused} == {"create"}
    assert {each["principal"] for each in refused} == {owner_of("alice")}
    assert found['mcp_tasks_limited_total{limit="owner_open_tasks"}'] == 1


async def test_what_is_over_a_limit_is_written_whoever_is_told_of_it_in_words(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    limits = Limits(argument_bytes=100, owner_streams=1)
    async with guarded(Tasks("memory://", settings=QUICK, audit=path, limits=limits), page=True) as wire:
        alice = user(wire, "alice")
        big = {"name": "echo", "arguments": {"value": "x" * 200}}
        assert (await alice.declaring({}).ask("tools/call", big)).result["isError"]
        named = {"notifications": {"taskIds": [await alice.create("gated")]}}
        listening = request("subscriptions/listen", named, capabilities=EVERYTHING)
        async with wire.as_user("alice").stream(listening) as stream:
            assert "error" not in await anext(stream)
            assert "error" in (await alice.ask("subscriptions/listen", named)).message
        with anyio.fail_after(PATIENCE):
            while (found := await scrape(wire)).get('mcp_tasks_limited_total{limit="owner_streams"}', 0) < 1:  # noqa: ASYNC110
                await anyio.sleep(0.02)
    assert found['mcp_tasks_limited_total{limit="argument_bytes"}'] == 1
    refused = [each["reason"] for each in entries(path) if each["event"] == "refused"]
    assert refused == ["limit: argument_bytes", "limit: owner_streams"]
    assert events(path).count("listened") == 1, "a stream that was refused shows nothing"


async def test_a_request_without_an_owner_is_refused_by_that_name(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with serving(build(Tasks("memory://", settings=QUICK, audit=path, require_owner=True))) as wire:
        client = Tasking(wire, EVERYTHING)
        assert "error" in (await client.ask("tasks/get", {"taskId": "task_1"})).message
    [refused] = [each for each in entries(path) if each["event"] == "refused"]
    assert refused["reason"] == "owner_required"
    assert "principal" not in refused


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
    with pytest.raises(InvalidOption, match="audit must be the path"):
        Tasks("memory://", audit="")
    with pytest.raises(InvalidOption, match="audit must be the path"):
        Tasks("memory://", audit=5)  # pyright: ignore[reportArgumentType]
    tasks = Tasks("memory://", settings=QUICK, audit=tmp_path)
    with pytest.raises(TasksError, match="audit log"):
        async with tasks.running(build(tasks)):
            pass


async def test_a_console_at_info_has_none_of_it_unless_its_logger_was_set_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert logging.getLogger("mcp_tasks.audit").level == logging.NOTSET
    with caplog.at_level(logging.INFO):
        async with serving(build(Tasks("memory://", settings=QUICK))) as wire:
            await Tasking(wire, EVERYTHING).create("echo", value=1)
    assert {record.name for record in caplog.records} >= {"mcp_tasks.runtime.observers"}
    assert "mcp_tasks.audit" not in {record.name for record in caplog.records}


@pytest.mark.parametrize(
    ("level", "has_handler", "logged"),
    [
        (logging.NOTSET, False, False),
        (logging.NOTSET, True, True),
        (logging.INFO, False, True),
        (logging.WARNING, True, False),
    ],
)
def test_a_level_or_a_handler_of_its_own_is_what_asks_for_it(
    caplog: pytest.LogCaptureFixture, level: int, has_handler: bool, logged: bool
) -> None:
    logger, handler = logging.getLogger("mcp_tasks.audit"), logging.NullHandler()
    assert logging.getLogger().level == logging.WARNING, "as where nobody has set anything up"
    logger.setLevel(level)
    if has_handler:
        logger.addHandler(handler)
    try:
        log = AuditLog()
        log.write(AuditEntry(event="created", actor=Actor("client", "ann")))
    finally:
        logger.setLevel(logging.NOTSET)
        logger.removeHandler(handler)
    assert log.is_read() is False
    assert [record.name for record in caplog.records] == ["mcp_tasks.audit"] * logged


def test_an_entry_is_in_one_place_unless_somebody_asks_for_both(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit, path = logging.getLogger("mcp_tasks.audit"), tmp_path / "audit.jsonl"
    entry = AuditEntry(event="created", actor=Actor("client", "zoë"), task_id="task_1234567890")
    # Whatever others have done to it in this process.
    monkeypatch.setattr(audit, "handlers", [])
    monkeypatch.setattr(audit, "propagate", True)
    handler = logging.NullHandler()
    with caplog.at_level(logging.INFO):
        log = AuditLog(path)
        log.write(entry)
        assert not caplog.records
        audit.addHandler(handler)
        try:
            log.write(entry)
        finally:
            audit.removeHandler(handler)
    assert [record.name for record in caplog.records] == ["mcp_tasks.audit"]
    assert [each["principal"] for each in entries(path)] == ["zoë", "zoë"]
    # As all logs write it, and not as an escape.
    assert '"task_1234567…"' in path.read_text()


def test_nothing_that_a_terminal_obeys_is_in_the_file(tmp_path: Path) -> None:
    path, name = tmp_path / "audit.jsonl", "eve\x9b2J\u2028\u202eforged"
    AuditLog(path).write(AuditEntry(event="created", actor=Actor("client", name)))
    assert path.read_text().rstrip("\n").isascii()
    assert entries(path)[0]["principal"] == name


def test_after_a_full_disk_every_entry_has_a_line_of_its_own(tmp_path: Path) -> None:
    path, entry = tmp_path / "audit.jsonl", AuditEntry(event="created", actor=Actor("client", "alice"))
    log = AuditLog(path)
    log.write(entry)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        # In the middle of the next entry.
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 30, most))
        log.write(entry)
        log.write(entry)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        signal.signal(signal.SIGXFSZ, before)
    log.write(entry)
    log.close()
    _, half, *rest = path.read_text().splitlines()
    assert len(half) == 30
    assert [json.loads(line)["event"] for line in rest] == ["lost", "created"]
    assert json.loads(rest[0])["count"] == 2


def test_what_was_lost_last_is_said_at_the_end(tmp_path: Path) -> None:
    path, entry = tmp_path / "audit.jsonl", AuditEntry(event="created", actor=Actor("client", "alice"))
    log = AuditLog(path)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    log.write(entry)
    path.unlink()
    log.close()
    assert [(each["event"], each["count"]) for each in entries(path)] == [("lost", 1)]
