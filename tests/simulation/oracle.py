"""What must hold in every world. It sees each write as the store carries it out, and all that tools do."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_tasks.model import JournalEntry, TaskRecord, TaskStatus
from mcp_tasks.model.json import decode_json
from mcp_tasks.model.record import Outcome
from mcp_tasks.runtime import Run, Settings
from mcp_tasks.runtime.journal import GIVEN_UP
from tests.properties.tools.model import allows, may_fail
from tests.properties.tools.tree import Ask, MoveOn, Node, Sleep, Twice, children_of
from tests.simulation.store import EPOCH, brief

if TYPE_CHECKING:
    from tests.simulation.processes import Process
    from tests.simulation.world import World

CLOCK_ERROR = 5.0
"""Seconds by which a process may be wrong about the time of the store."""

LONGEST_WRITE = 200.0
"""Seconds that a write may take, with all of its repeats, and a margin; clocks that are wrong are so by more."""

NOTICED_WITHIN = 2.0
"""Leases after which no limit stays exceeded because of a failover."""

MOST_LOOKS = 2
"""Looks at the store after which a process has heard of a cancellation: a fault may strike the first one."""

MOST_RUNS = 150
"""Runs of one task after which it runs in a circle."""


@dataclass(frozen=True)
class ToolPlan:
    """One task's tool: what it does, how it is treated, and how long its result is kept."""

    tree: Node
    tool: str
    ttl: float
    owner: str | None

    @property
    def once(self) -> bool:
        """Whether it may not run again."""
        return self.tool.startswith("once")

    @property
    def limited(self) -> bool:
        """Whether only so many may be at work."""
        return self.tool.endswith("limited")


@dataclass(eq=False)
class Visit:
    """One time that a tool was entered."""

    process: Process
    task: str
    plan: str
    attempt: int
    began: float
    run: Run
    working: int = 0
    left: bool = False

    @property
    def is_at_work(self) -> bool:
        """Whether it may still do something."""
        going_on = self.run.counts or self.working > 0
        return not self.left and self.process.lives and going_on


class Oracle:
    """Judges one world; the first thing that is wrong ends it.

    Attributes:
        wrong: The first violation: its kind, and what happened.
        changed: When any task was changed last.
        ended: When each task ended, on the clock of the store.
        lost: Tasks that lost a write in a failover.
        cancelled: Tasks that a client has tried to cancel.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.violation: tuple[str, str] | None = None
        self.plans: dict[str, ToolPlan] = {}
        self.plan_of: dict[str, str] = {}
        self.ended: dict[str, float] = {}
        self.lost: set[str] = set()
        self.cancelled: set[str] = set()
        self.expired: set[str] = set()
        self.tasks: dict[str, None] = {}
        self.open: set[str] = set()
        self.changed = 0.0
        self._failed_over_at = float("-inf")
        self._visits: dict[str, list[Visit]] = defaultdict(list)
        self._tasks_of_plan: dict[str, list[str]] = defaultdict(list)
        self._steps: dict[str, set[str]] = defaultdict(set)
        self._answers: dict[str, set[str]] = defaultdict(set)
        self._entries: dict[str, Counter[tuple[Any, ...]]] = defaultdict(Counter)
        self._due: dict[tuple[str, str, str], float] = {}
        self._made_by: dict[str, Process] = {}
        self._worker: dict[str, Process] = {}
        self._freed_by: dict[tuple[str, int], Process] = {}

    @property
    def _now(self) -> float:
        return self._world.clockwork.now

    def wrong(self, kind: str, what: str) -> None:
        """Something is not as it must be."""
        if self._world.tracing:
            self._world.trace("ORACLE", f"{kind}: {what}")
        if self.violation is None:
            self.violation = kind, what

    # What tools do

    def enters(self, process: Process, run: Run, plan_key: str) -> Visit:
        """A tool is entered."""
        task, plan = run.record.id, self.plans[plan_key]
        visit = Visit(process, task, plan_key, run.attempt, self._now, run)
        if task not in self.lost:
            earlier = self._visits[task]
            if plan.once and earlier:
                self.wrong("entered twice", f"{task} may not run again, and {process.name} runs it again")
            for other in earlier:
                if self._freed_by.get((task, other.attempt)) is other.process:
                    # Given up by its own process, which has not heard yet that this is written. It only waits for that.
                    continue
                if other.is_at_work and not other.process.halted_since(self._now - 2 * self._world.plan.lease):
                    self.wrong("overlap", f"{process.name} runs {task} while {other.process.name} still runs it")
            of_plan = self._tasks_of_plan[plan_key]
            if task not in of_plan:
                of_plan.append(task)
            if len(set(of_plan) - self.lost) > 1 and not self._may_repeat(plan_key):
                self.wrong("started twice", f"{plan_key} runs as {' and as '.join(of_plan)}")
        self._visits[task].append(visit)
        return visit

    def _may_repeat(self, plan_key: str) -> bool:
        """Whether the call behind a plan may be made twice: it was made in a task that lost a write."""
        parent = plan_key.rpartition("/")[0]
        return bool(parent) and bool(self.lost & set(self._tasks_of_plan[parent]))

    def begins_work(self, visit: Visit, what: str) -> None:
        """A step begins."""
        task, plan = visit.task, self.plans[visit.plan]
        self._check_limits(plan)
        if task in self.lost:
            return
        newer = next((each for each in self._visits[task] if each.attempt > visit.attempt), None)
        if newer is not None:
            self.wrong(
                "stale run goes on",
                f"{visit.process.name} begins {what} of {task} (run {visit.attempt}); run {newer.attempt} has begun",
            )

    def creates(self, process: Process, record: TaskRecord) -> None:
        """A process is about to create a task: not for a run whose task has begun again."""
        parent = record.parent
        if parent is None or parent in self.lost:
            return
        own = max((each.attempt for each in self._visits[parent] if each.process is process), default=None)
        newest = max((each.attempt for each in self._visits[parent]), default=None)
        if own is not None and newest is not None and own < newest:
            self.wrong(
                "stale run goes on", f"{process.name} starts a child of {parent} (run {own}); run {newest} has begun"
            )

    def promised(self, task: str, plan_key: str) -> None:
        """A client was told the id of its task."""
        if self.plan_of.get(task) != plan_key:
            self.wrong("not stored", f"a client is promised {task} for {plan_key}, and the store never had it")

    def accepted(self, process: Process, task: str, keys: Collection[str]) -> None:
        """A client was told that these questions have their answers."""
        record = self._world.store.peek(task)
        if record is None or task in self.lost or record.is_final:
            return
        # An answer that comes after the deadline is ignored.
        ignored = {
            key for key in keys if self._due.get((task, "question", key), float("inf")) <= self._now + CLOCK_ERROR
        }
        if still_open := sorted(record.inputs.outstanding.keys() & set(keys) - ignored):
            self.wrong("answer lost", f"{process.name} took the answers to {still_open} of {task}, and they are open")

    def _check_limits(self, plan: ToolPlan) -> None:
        # Runs that lost their claim in a failover may go on until they have noticed.
        unsure = self.lost if self._now < self._failed_over_at + NOTICED_WITHIN * self._world.plan.lease else ()
        at_work = [
            self.plans[visits[-1].plan]
            for task, visits in self._visits.items()
            if task not in unsure and visits[-1].working > 0 and visits[-1].is_at_work
            if not visits[-1].process.halted_since(self._now - 2 * self._world.plan.lease)
            if not self._is_unheard(visits[-1])
        ]
        limits = self._world.plan
        of_owner = sum(each.owner == plan.owner for each in at_work)
        if limits.per_owner is not None and of_owner > limits.per_owner:
            self.wrong("limit exceeded", f"{of_owner} tasks of {plan.owner} are at work")
        of_tool = sum(each.tool == plan.tool for each in at_work)
        if plan.limited and limits.per_tool is not None and of_tool > limits.per_tool:
            self.wrong("limit exceeded", f"{of_tool} tasks of {plan.tool} are at work")

    def _is_unheard(self, visit: Visit) -> bool:
        """Whether a client has cancelled the task of a run, and its process may not have heard of it.

        A cancellation ends the task at once and frees its place, and no store can stop a run of another process: where
        hints are lost, the run goes on until its process looks at the store, or stops for want of a lease.
        """
        cancelled_at = self.ended.get(visit.task) if visit.task in self.cancelled else None
        if cancelled_at is None or visit.run.record.is_final:
            return False
        plan = self._world.plan
        looks = MOST_LOOKS * (Settings().look_interval.total_seconds() + plan.call_timeout)
        return self._now < cancelled_at + looks + plan.lease

    def steps_of(self, task: str) -> set[str]:
        """The recorded steps of a task; none is known for one that lost a write."""
        return set() if task in self.lost else self._steps[task]

    def answers_of(self, task: str) -> set[str]:
        """The questions of a task to which an answer was taken."""
        return set() if task in self.lost else self._answers[task]

    def must_live(self, process: Process, task: str, attempt: int) -> bool:
        """Whether nothing may have stopped this run: it is still its process's, as far as the store knows."""
        if not process.lives or process.is_ending or task in self.lost:
            return False
        visit = next((each for each in self._visits[task] if each.attempt == attempt), None)
        if visit is None or process.lost_lease_at >= visit.began:
            return False
        record = self._world.store.peek(task)
        if record is None or record.is_final or record.attempt != attempt:
            return False
        if record.worker is None:
            # Given up by another, or by its own process. Parked is what it must not be.
            return self._freed_by.get((task, attempt)) is process
        return True

    # What is written

    def written(
        self,
        process: Process,
        verb: str,
        args: tuple[Any, ...],
        options: Mapping[str, Any],
        *,
        before: TaskRecord | None,
        result: Any,
    ) -> None:
        if verb in ("create", "save"):
            self.changed = self._now
        match verb:
            case "create":
                record: TaskRecord = args[0]
                if result is record:
                    self._made(process, record, args[1].arguments["tree"])
                    if options.get("outcome") is not None:
                        self._ends(record, record, options["outcome"])
            case "save" if before is not None and result is args[0]:
                # Otherwise it was made by an earlier attempt.
                self._saved(process, before, args[0], options.get("entries", ()), options.get("outcome"))
            case "forget_expired":
                for forgotten in result:
                    self._forgotten(forgotten.task_id)
            case _:
                pass

    def _made(self, process: Process, record: TaskRecord, plan_key: str) -> None:
        self.plan_of[record.id] = plan_key
        self.tasks[record.id] = None
        self.open.add(record.id)
        if record.worker is not None:
            self._worker[record.id] = process

    def _saved(
        self,
        process: Process,
        before: TaskRecord,
        after: TaskRecord,
        entries: Sequence[JournalEntry],
        outcome: Outcome | None,
    ) -> None:
        task = after.id
        if task not in self.lost:
            if before.is_final and (after.status is not before.status or outcome is not None):
                self.wrong("ended twice", f"{process.name} ends {task} again")
            if after.status is TaskStatus.COMPLETED:
                self._check_writer(process, before, "the result")
            for entry in entries:
                if entry.kind != "answer":
                    self._check_writer(process, before, str(entry))
                self._recorded(process, after, entry)
        if after.attempt > MOST_RUNS:
            self.wrong("runs in a circle", f"{task} has been started {after.attempt} times")
        if after.worker is not None and before.worker is None:
            self._worker[task] = process
        elif after.worker is None and before.worker is not None:
            self._freed_by[task, after.attempt] = process
        if after.is_final and not before.is_final:
            self._ends(before, after, outcome)

    def _recorded(self, process: Process, record: TaskRecord, entry: JournalEntry) -> None:
        task, value = record.id, entry.value
        given_up = entry.kind == "done" and value["how"] == GIVEN_UP
        # A step or question that was given up may come again in another run, and be given up again.
        run = record.attempt if given_up else 0
        what = (entry.kind, value["kind"] if entry.kind == "done" else "", entry.key, given_up, run)
        self._entries[task][what] += 1
        if self._entries[task][what] > 1:
            self.wrong("recorded twice", f"{process.name} records {entry} of {task} again")
        match entry.kind:
            case "step":
                self._steps[task].add(entry.key)
            case "answer":
                self._answers[task].add(value["to"])
            case "ask":
                self._check_asked_once(task, entry)
                node = self._node(task, value["params"]["message"])
                if isinstance(node, Ask) and node.timeout is not None:
                    self._check_instant(task, "question", entry.key, value["deadline"], node.timeout)
            case "timer" if entry.key.startswith("name:"):
                node = self._node(task, entry.key[5:].partition("#")[0])
                if isinstance(node, Sleep):
                    self._check_instant(task, "timer", entry.key, value["until"], node.seconds)
            case "done" if value["how"] in ("over", "timeout"):
                self._check_time(task, value["kind"], entry.key)
            case _:
                pass

    def _check_writer(self, process: Process, before: TaskRecord, what: str) -> None:
        """Only the process that has claimed a task records steps, questions and results."""
        owner = None if before.worker is None else before.worker.rpartition("/")[0]
        if owner is not None and owner != process.name:
            self.wrong("stale run writes", f"{process.name} records {what} of {before.id}, which {owner} has claimed")

    def _node(self, task: str, path: str) -> Node:
        node = self.plans[self.plan_of[task]].tree
        for place in path.split(".")[1:]:
            node = children_of(node)[int(place)]
        return node

    def _check_asked_once(self, task: str, entry: JournalEntry) -> None:
        path = entry.value["params"]["message"]
        node = self._node(task, path)
        asked = ("asked", path)
        self._entries[task][asked] += 1
        most = 2 if isinstance(node, Twice) else 1
        if self._entries[task][asked] > most and not _may_move_on(self.plans[self.plan_of[task]].tree):
            self.wrong("asked twice", f"the question {path} of {task} is put again, as {entry.key}")

    def _check_instant(self, task: str, kind: str, key: str, micros: int, seconds: float) -> None:
        """A sleep or a time-out was set: in the time of the store, give or take what a write may take."""
        at = micros / 1e6 - EPOCH.timestamp()
        self._due[task, kind, key] = at
        if abs(at - (self._now + seconds)) > LONGEST_WRITE:
            self.wrong(
                "wrong time", f"the {kind} {key} of {task}, of {seconds} s, is over {at - self._now:.1f} s from now"
            )

    def _check_time(self, task: str, kind: str, key: str) -> None:
        """A sleep has ended, or a question has timed out."""
        due = self._due.get((task, kind, key))
        if due is not None and self._now < due - CLOCK_ERROR:
            self.wrong("too early", f"the {kind} {key} of {task} is over {due - self._now:.1f} s before its time")

    def _forgotten(self, task: str) -> None:
        self.expired.add(task)
        if task not in self.tasks or task in self.lost:
            return
        if task not in self.ended:
            self.wrong("too early", f"{task} is removed, and has not ended")
            return
        kept, ttl = self._now - self.ended[task], self.plans[self.plan_of[task]].ttl
        if kept < ttl - CLOCK_ERROR:
            self.wrong("too early", f"the result of {task} is removed after {kept:.1f} s of {ttl:.0f} s")

    # How tasks end

    def _ends(self, before: TaskRecord, after: TaskRecord, outcome: Outcome | None) -> None:
        self.ended[after.id] = self._now
        self.open.discard(after.id)
        plan = self.plans[self.plan_of[after.id]]
        body: Any = None if outcome is None else decode_json(outcome.body)
        match after.status:
            case TaskStatus.COMPLETED:
                if body.get("isError"):
                    text = body["content"][0]["text"]
                    self.wrong("outage is an outcome" if "store" in text else "wrong error", f"{after.id}: {text}")
                    return
                value = body["structuredContent"]["value"]
                if not allows(plan.tree, "0", value) and not self._lost_child(after.id):
                    self.wrong("wrong result", f"no schedule of {after.id} gives {value}")
            case TaskStatus.FAILED if "data" in body and body["message"] == "the tree failed":
                if not may_fail(plan.tree, "0", body["data"]) and not self._lost_child(after.id):
                    self.wrong("wrong error", f"no schedule of {after.id} fails so: {body}")
            case TaskStatus.FAILED:
                self._check_failure(before, plan, body["message"])
            case _:
                if after.id not in self.cancelled:
                    self.wrong("wrong error", f"{after.id} was cancelled, and no client cancelled it")

    def _check_failure(self, before: TaskRecord, plan: ToolPlan, message: str) -> None:
        if before.id in self.lost:
            # It may fail, and must say why.
            if "unreachable" in message:
                self.wrong("outage is an outcome", f"{before.id} fails: {message}")
            return
        if message.removeprefix("RunStopped: ").startswith("Interrupted") and plan.once:
            worker = self._worker.get(before.id)
            if worker is None or worker.may_have_lost_runs:
                return
            self.wrong("interrupted", f"{before.id} ends as interrupted, and nothing happened to {worker.name}")
        else:
            kind = "outage is an outcome" if "unreachable" in message else "wrong error"
            self.wrong(kind, f"{before.id} fails: {message}")

    def _lost_child(self, task: str) -> bool:
        """Whether a child lost a write: then its parent may be told that it is gone."""
        plan = self.plan_of[task] + "/"
        return any(self.plan_of[each].startswith(plan) for each in self.lost)

    def check_answer(self, plan: str, result: Any) -> None:
        """A call was answered with a result, and not with a task."""
        if result is None or not allows(self.plans[plan].tree, "0", result["value"]):
            self.wrong("wrong result", f"no schedule of {plan} gives {result}")

    # Failovers

    def failed_over(
        self,
        before: Callable[[str], TaskRecord | None],
        after: Callable[[str], TaskRecord | None],
        journal: Callable[[str], Sequence[JournalEntry]],
    ) -> None:
        """The store went back: what was lost is known from now on."""
        self._failed_over_at = self._now
        for task in self.tasks:
            was, now = before(task), after(task)
            if (was and was.version) != (now and now.version):
                self.lost.add(task)
                if now is None or not now.is_final:
                    self.ended.pop(task, None)
                (self.open.discard if now is None or now.is_final else self.open.add)(task)
        if self._world.tracing:
            self._world.trace("STORE", f"fails over; writes of {sorted(self.lost)} are lost")

    # The end

    def check_end(self, clients: int) -> None:
        """Everything has ended, or never will; so many clients still wait."""
        if clients:
            self.wrong("waits forever", f"{clients} clients have no answer")
        waiting: list[str] = []
        for task in self.tasks:
            record = self._world.store.peek(task)
            if record is None:
                if task not in self.expired and task not in self.lost:
                    self.wrong("vanished", f"{task} is gone")
            elif not record.is_final:
                since = (
                    "" if record.wake_at is None else f", to wake at {(record.wake_at - EPOCH).total_seconds():.1f} s"
                )
                lost = ", lost a write" if task in self.lost else ""
                plan = self.plans[self.plan_of[task]]
                waiting.append(f"{brief(record)} ({self.plan_of[task]}, {record.name}{since}{lost}: {plan.tree})")
        if waiting:
            self.wrong("waits forever", "; ".join(waiting))


def _nodes(node: Node) -> list[Node]:
    return [node, *(each for child in children_of(node) for each in _nodes(child))]


def _may_move_on(tree: Node) -> bool:
    return any(isinstance(node, MoveOn) for node in _nodes(tree))
