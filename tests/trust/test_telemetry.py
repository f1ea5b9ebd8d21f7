"""Metrics: what a real server tells Prometheus, the contract that it keeps, and patterns that are suspicious."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.auth import owner_of
from harness.http import serving
from harness.processes import ROOT, python, run
from harness.rpc import EVERYTHING, Tasking, accept
from harness.server import QUICK, Desk, build
from mcp_tasks import Tasks
from mcp_tasks._utils import short_id
from mcp_tasks.errors import StoreUnavailable
from mcp_tasks.runtime.observers import Refusal, TaskAccess
from mcp_tasks.stores.memory import MemoryStore
from mcp_tasks.telemetry.audit import AuditLog
from mcp_tasks.telemetry.metrics import (
    CREATED,
    METRICS,
    MINUTE,
    MOST_CALLERS,
    MOST_SERIES,
    SUSPICIOUS,
    THRESHOLDS,
    Numbers,
    Suspicion,
)
from tests.trust.traced import TRACE
from tests.trust.watched import guarded, until_scraped, user


@pytest.mark.requirement("older/monitoring")
@pytest.mark.parametrize("short_way", [True, False], ids=["short way", "SDK"])
async def test_the_page_counts_what_happened(short_way: bool) -> None:
    desk = Desk()
    async with guarded(Tasks("memory://", settings=QUICK, short_way=short_way), desk, page=True) as wire:
        alice, bob = user(wire, "alice"), user(wire, "bob")
        echo = (await alice.finish("echo", value=1))["taskId"]
        asking = await alice.create("ask_name")
        await alice.until(asking, "input_required")
        await alice.update(asking, **{"elicitation-1": accept(name="Ada")})
        await alice.until(asking, "completed")
        await alice.create("gated")
        await alice.cancel(await alice.create("gated"))
        await bob.ask("tasks/get", {"taskId": echo})
        late = {
            'mcp_tasks_refused_total{method="tasks/get",reason="unknown"}': 1,
            'mcp_tasks_ended_total{status="cancelled",tool="gated"}': 1,
        }
        found = await until_scraped(wire, late)
    expected = {
        # A counter that begins with its first event would look as if nothing had happened.
        'suspicious_total{pattern="failed_lookups"}': 0,
        'store_failures_total{verb="create"}': 0,
        'runs_lost_total{tool="gated"}': 0,
        'limited_total{limit="owner_open_tasks"}': 0,
        'ended_total{status="tool_error",tool="echo"}': 0,
        'queue_ready{queue="default"}': 0,
        'created_total{tool="gated"}': 2,
        'ended_total{status="completed",tool="echo"}': 1,
        'questions_total{tool="ask_name",what="asked"}': 1,
        'questions_total{tool="ask_name",what="answered"}': 1,
        'wait_seconds_count{tool="echo"}': 1,
        'run_seconds_count{end="completed",tool="echo"}': 1,
        'run_seconds_count{end="cancelled",tool="gated"}': 1,
        'store_seconds_count{verb="create"}': 4,
        "open": 1,
        "running": 1,
        "lease_valid": 1,
        'limit{limit="owner_open_tasks"}': 1000,
    }
    assert {name: found[f"mcp_tasks_{name}"] for name in expected} == expected
    assert found['mcp_tasks_reads_total{method="tasks/get"}'] >= 3
    answered = found.get('mcp_tasks_short_way_answered_total{method="tasks/get"}', 0)
    assert (answered > 0) is short_way
    if short_way:
        assert found['mcp_tasks_short_way_handed_over_total{reason="refused"}'] == 1


async def test_the_page_has_every_metric_of_the_contract_and_no_other() -> None:
    tasks = Tasks("memory://", settings=QUICK)
    text = await tasks.metrics.text()
    told = {tuple(line.split(" ")[2:4]) for line in text.splitlines() if line.startswith("# TYPE")}
    assert told == {(metric.prometheus, metric.kind) for metric in METRICS}
    async with serving(build(tasks)) as wire:
        await Tasking(wire, EVERYTHING).finish("echo", value=1)
        text = await tasks.metrics.text()
    for line in (line for line in text.splitlines() if not line.startswith("#")):
        name, labels = re.match(r"(\w+)(?:\{(.*)\})? ", line).groups()  # pyright: ignore[reportOptionalMemberAccess]
        [metric] = [each for each in METRICS if re.fullmatch(rf"{each.prometheus}(_bucket|_count|_sum)?", name)]
        used = set(re.findall(r'(\w+)="', labels or "")) - {"le"}
        assert used == set(metric.labels), line


def test_the_contract_is_what_is_documented() -> None:
    page = (ROOT / "docs" / "telemetry.md").read_text()
    rows = re.findall(r"^\| `(mcp_tasks[\w.]+)` \| `(\w+)` \| (\w+) \| `([^`]+)` \| (.*?) \| .* \|$", page, re.M)
    documented = {row[0]: (row[1], row[2], row[3], tuple(re.findall(r"`(\w+)`", row[4]))) for row in rows}
    assert documented == {
        metric.name: (metric.prometheus, metric.kind, metric.unit, metric.labels) for metric in METRICS
    }
    for pattern, threshold in THRESHOLDS.items():
        assert re.search(rf"^\| `{pattern}` \| .*\b{threshold}\b", page, re.M), pattern


@pytest.mark.requirement("older/monitoring")
def test_the_alert_rules_name_metrics_that_exist() -> None:
    rules = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text())
    known = {metric.prometheus: metric for metric in METRICS}
    named: set[str] = set()
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        assert {"alert", "expr", "labels", "annotations"} <= rule.keys()
        for name, labels in re.findall(r"(mcp_tasks_\w+)(?:\{([^}]*)\})?", rule["expr"]):
            metric = known[re.sub(r"_(bucket|count|sum)$", "", name)]
            assert set(re.findall(r'(\w+)\s*[=!]~?"', labels)) <= set(metric.labels), rule["expr"]
            named.add(metric.prometheus)
    assert {"mcp_tasks_suspicious_total", "mcp_tasks_runs_lost_total", "mcp_tasks_queue_oldest_age_seconds"} <= named


async def test_a_store_that_is_away_is_counted() -> None:
    class Away(MemoryStore):
        async def list(self, *args: Any, **options: Any) -> Any:
            raise StoreUnavailable("away")

    tasks = Tasks(Away(), settings=QUICK)
    page = tasks.metrics
    async with serving(build(tasks)):
        with pytest.raises(StoreUnavailable):
            await tasks.list(everybody=True)
        text = await page.text()
    assert 'mcp_tasks_store_failures_total{verb="list"} 1.0' in text
    assert 'mcp_tasks_store_seconds_count{verb="list"} 1.0' in text
    assert 'mcp_tasks_store_failures_total{verb="create"} 0.0' in text


@pytest.mark.requirement("older/audit-patterns")
async def test_many_failed_look_ups_are_told_with_the_principal(caplog: pytest.LogCaptureFixture) -> None:
    """Also of a server where nobody asked for metrics or an audit."""
    times = THRESHOLDS["failed_lookups"]
    with caplog.at_level(logging.WARNING, logger="mcp_tasks.telemetry.metrics"):
        async with guarded(Tasks("memory://", settings=QUICK)) as wire:
            alice, bob = user(wire, "alice"), user(wire, "bob")
            task_id = await alice.create("gated")
            for _ in range(times - 1):
                await alice.ask("tasks/get", {"taskId": "task_nobody"})
            for _ in range(times + 5):
                await bob.ask("tasks/get", {"taskId": task_id})
    told = [record.getMessage() for record in caplog.records if "suspicious" in record.message]
    # Once for bob, however many there were, and alice is one short.
    assert len(told) == 1
    assert repr(owner_of("bob")) in told[0]
    assert "failed_lookups" in told[0]
    assert task_id not in told[0]


@pytest.mark.requirement("older/audit-patterns")
def test_excessive_polling_is_counted_for_each_task_and_minute(tmp_path: Path) -> None:
    now, numbers = [0.0], Numbers()
    suspicion = Suspicion(numbers, AuditLog(tmp_path / "audit.jsonl"), clock=lambda: now[0])
    look = TaskAccess("read", "tasks/get", "alice", 0.0, "task_1", "echo")
    for minute in range(3):
        now[0] = minute * MINUTE
        for number in range(THRESHOLDS["excessive_polling"] + 10):
            suspicion.consider(look)
            suspicion.consider(look._replace(task_id=f"task_other{number % 5}"))
    assert numbers.counts(SUSPICIOUS)["excessive_polling",] == 3
    # Who polls many tasks hides nobody who guesses ids.
    for number in range(MOST_CALLERS + 1):
        suspicion.consider(look._replace(task_id=f"task_{number}"))
    guess = look._replace(task_id=None, refused=Refusal.UNKNOWN, times=THRESHOLDS["failed_lookups"])
    suspicion.consider(guess._replace(owner="eve"))
    assert numbers.counts(SUSPICIOUS)["failed_lookups",] == 1


def test_who_is_watched_and_what_is_counted_has_a_bound(tmp_path: Path) -> None:
    numbers = Numbers()
    suspicion = Suspicion(numbers, AuditLog(tmp_path / "audit.jsonl"), clock=lambda: 0.0)
    refused = TaskAccess("read", "tasks/get", None, 0.0, refused=Refusal.UNKNOWN, times=THRESHOLDS["failed_lookups"])
    for number in range(MOST_CALLERS + 100):
        suspicion.consider(refused._replace(owner=f"user {number}"))
    assert numbers.counts(SUSPICIOUS)["failed_lookups",] == MOST_CALLERS
    for number in range(MOST_SERIES + 50):
        numbers.add(CREATED, f"tool-{number}")
    series = numbers.counts(CREATED)
    assert (len(series), series["other",]) == (MOST_SERIES + 1, 50)


# Traces


def _traced(what: str) -> dict[str, Any]:
    return json.loads(run(python("tests.trust.traced", what), check=True).stdout)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["short", "long"])
def test_one_trace_has_the_call_the_runs_and_the_question(way: str) -> None:
    found = _traced(way)
    task_id: str = found["task"]
    spans: dict[str, list[dict[str, Any]]] = {}
    for span in found["spans"]:
        spans.setdefault(span["name"], []).append(span)
    [call], [question], runs, [work] = (
        spans[name] for name in ("tools/call ask", "tasks.question", "tasks.run", "author.work")
    )
    assert call["trace"] == TRACE
    # In another half of the server, and yet of the same trace, by name of the call that made the task.
    assert {(span["trace"], span["parent"]) for span in (*runs, question)} == {(TRACE, call["id"])}
    assert runs[-1]["links"] == [TRACE]
    assert runs[-1]["attributes"]["mcp_tasks.run.end"] == "completed"
    assert (work["trace"], work["parent"]) == (TRACE, runs[-1]["id"])
    assert question["attributes"]["mcp_tasks.question.end"] == "answered"
    # Polls and the answer are in traces of their own, which lead here.
    others = [*spans["tasks/get"], *spans["tasks/update"]]
    assert {(span["trace"] == TRACE, *span["links"]) for span in others} == {(False, TRACE)}
    about = {span["attributes"]["mcp_tasks.task"] for span in (call, runs[-1], *others)}
    assert about == {short_id(task_id)}
    assert task_id not in json.dumps(found["spans"])
    # What OpenTelemetry exports of metrics.
    measured = {
        metric["name"]: metric
        for resource in found["metrics"]["resource_metrics"]
        for scope in resource["scope_metrics"]
        for metric in scope["metrics"]
    }
    [made] = measured["mcp_tasks.created"]["data"]["data_points"]
    assert (made["value"], made["attributes"]) == (1, {"server": "traced", "tool": "ask"})
    assert [measured[name]["unit"] for name in ("mcp_tasks.created", "mcp_tasks.store")] == ["{task}", "s"]
    assert "create" in {point["attributes"]["verb"] for point in measured["mcp_tasks.store"]["data"]["data_points"]}
    assert measured["mcp_tasks.reads"]["data"]["data_points"][0]["value"] >= 2


@pytest.mark.slow
def test_invented_names_of_tools_do_not_fill_spans() -> None:
    spans = [span for span in _traced("forged")["spans"] if span["scope"] == "mcp-tasks"]
    assert {span["name"].partition(" ")[0] for span in spans} == {"tools/call", "tasks/get", "tasks.run"}
    for span in spans:
        assert len(span["name"]) <= 200
        assert all(len(str(value)) <= 200 for value in span["attributes"].values())
