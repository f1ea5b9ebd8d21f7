"""The table by example: each thing that can happen to a task, once; when to poll, how long a task is kept."""

from datetime import datetime, timedelta

import pytest

from mcp_tasks.errors import StaleRun, TransitionRefused
from mcp_tasks.model import ChildProcess, InputRequest, Progress, TaskRecord, TaskStatus
from mcp_tasks.model.limits import (
    MAX_POLL_INTERVAL,
    MIN_POLL_INTERVAL,
    backoff,
    expires_at,
    is_expired,
    lifetime,
    poll_interval,
)
from mcp_tasks.model.machine import (
    Event,
    InputAnswered,
    InputHosted,
    InputRequested,
    InputWithdrawn,
    ProcessesChanged,
    ProgressReported,
    RunAskedOnCall,
    RunCompleted,
    RunFailed,
    RunLost,
    RunParked,
    RunPaused,
    RunReleased,
    RunResumed,
    RunResumeRequested,
    RunStarted,
    RunStartedOver,
    StepRecorded,
    TaskAnnounced,
    TaskCancelled,
    TrialPassed,
    apply,
)
from mcp_tasks.model.record import ALWAYS
from mcp_tasks.testing import make_record
from mcp_tasks.testing.clock import NOON

LATER = NOON + timedelta(minutes=5)
QUESTION = InputRequest(method="elicitation/create", params={"message": "Sure?"})


def after(*events: Event, record: TaskRecord | None = None) -> TaskRecord:
    record = record or make_record()
    for event in events:
        record = apply(record, event, NOON)
    return record


def running(*events: Event) -> TaskRecord:
    return after(RunStarted(worker="worker-1"), *events)


def asking(*keys: str) -> TaskRecord:
    return running(InputRequested(attempt=1, requests=dict.fromkeys(keys, QUESTION)))


def parked(*keys: str, wake_at: datetime | None = None) -> TaskRecord:
    """A task whose run left memory while it waits for the answers to all of `keys`, or for a timer."""
    before = asking(*keys) if keys else running()
    return after(RunParked(attempt=1, keys=frozenset(keys), wake_at=wake_at), record=before)


def test_a_new_task_is_taken_by_its_first_run_and_not_again() -> None:
    record = apply(make_record(), RunStarted(worker="worker-1"), LATER)
    assert (record.worker, record.attempt, record.started_at) == ("worker-1", 1, LATER)
    assert record.status is TaskStatus.WORKING
    with pytest.raises(TransitionRefused, match="worker-1 has it") as caught:
        after(RunStarted(worker="worker-2"), record=record)
    assert (caught.value.event, caught.value.status) == ("RunStarted", "working")


def test_a_run_that_was_released_before_its_tool_was_called_was_never_started() -> None:
    assert running(RunReleased(attempt=1)).started_at == NOON
    assert running(RunReleased(attempt=1, begun=False)).started_at is None


def test_a_run_gives_up_its_place_while_it_waits_and_has_it_again_to_go_on() -> None:
    waiting = running(RunPaused(attempt=1))
    assert (waiting.pause, waiting.worker, waiting.updated_at) == ("waiting", "worker-1", NOON)
    assert after(RunPaused(attempt=1), record=waiting) is waiting
    assert after(RunResumed(attempt=1), record=waiting).pause is None
    resuming = after(RunResumeRequested(attempt=1), record=waiting)
    assert resuming.pause == "resuming"
    assert after(RunPaused(attempt=1), RunResumeRequested(attempt=1), record=resuming) is resuming
    assert after(RunResumed(attempt=1), record=resuming).pause is None
    assert running().pause is None


def test_a_released_task_that_asks_is_taken_again_without_an_answer() -> None:
    record = after(RunReleased(attempt=1), record=asking("a"))
    assert (record.status, record.ready_at) == (TaskStatus.INPUT_REQUIRED, ALWAYS)
    record = after(RunStarted(worker="worker-2"), record=record)
    assert (record.attempt, list(record.inputs.outstanding)) == (2, ["a"])


def test_a_parked_task_is_not_taken_before_its_answer() -> None:
    record = parked("a")
    assert (record.worker, record.ready_at) == (None, None)
    with pytest.raises(TransitionRefused, match="waits for an answer"):
        apply(record, RunStarted(worker="worker-1"), LATER)
    assert apply(after(InputAnswered(keys={"a"}), record=record), RunStarted(worker="worker-1"), LATER).attempt == 2


def test_any_of_several_answers_wakes_a_parked_task() -> None:
    record = after(InputAnswered(keys={"b"}), record=parked("a", "b"))
    assert (record.status, record.ready_at) == (TaskStatus.INPUT_REQUIRED, ALWAYS)
    woken = after(RunStarted(worker="worker-2"), record=record)
    assert (woken.attempt, woken.wake_at, list(woken.inputs.outstanding)) == (2, None, ["a"])


def test_an_answer_while_the_run_was_leaving_queues_the_task_at_once() -> None:
    answered = after(InputAnswered(keys={"b"}), record=asking("a", "b"))
    record = after(RunParked(attempt=1, keys={"a", "b"}, wake_at=LATER), record=answered)
    assert (record.worker, record.ready_at) == (None, ALWAYS)


def test_a_lost_run_is_counted_and_the_task_is_queued() -> None:
    record = running(RunLost(attempt=1))
    assert (record.worker, record.lost, record.ready_at) == (None, 1, ALWAYS)
    record = after(RunStarted(worker="worker-2"), RunLost(attempt=2), record=record)
    assert (record.attempt, record.lost) == (2, 2)


@pytest.mark.parametrize(
    ("further", "lost"),
    [
        (StepRecorded(attempt=2), 0),
        (RunParked(attempt=2, wake_at=LATER), 0),
        (ProgressReported(attempt=2, progress=Progress(progress=1)), 1),
        (RunReleased(attempt=2), 1),
    ],
    ids=["a step", "parked", "a report", "released"],
)
def test_only_a_run_that_gets_further_ends_the_count_of_lost_ones(further: Event, lost: int) -> None:
    assert running(RunLost(attempt=1), RunStarted(worker="worker-2"), further).lost == lost


def test_child_processes_of_a_lost_run_are_kept_for_the_next_ones_and_for_no_longer_than_the_task() -> None:
    lost, next_one = (ChildProcess(attempt=n, group=40 + n, started="7", boot="b", host="h") for n in (1, 2))
    first = running(ProcessesChanged(attempt=1, started=lost))
    assert first.processes == (lost,)
    again = [RunLost(attempt=1), RunStarted(worker="worker-2"), ProcessesChanged(attempt=2, started=next_one)]
    both = after(*again, record=first)
    assert both.processes == (lost, next_one)
    # Those of a run that is given up in order have ended.
    assert after(RunReleased(attempt=2), record=both).processes == (lost,)
    assert after(RunParked(attempt=2, wake_at=LATER), record=both).processes == (lost,)
    assert after(ProcessesChanged(attempt=2, ended=frozenset({lost})), record=both).processes == (next_one,)
    assert after(RunFailed(attempt=2), record=both).processes == ()


def test_a_sleeping_task_is_taken_when_its_time_has_come_and_not_before() -> None:
    asleep = parked(wake_at=LATER)
    with pytest.raises(TransitionRefused, match="a timer"):
        apply(asleep, RunStarted(worker="worker-1"), LATER - timedelta(microseconds=1))
    awake = apply(asleep, RunStarted(worker="worker-1"), LATER)
    assert (awake.attempt, awake.wake_at) == (2, None)


def test_a_timer_that_is_over_does_not_start_the_task_once_more() -> None:
    awake = apply(parked(wake_at=LATER), RunStarted(worker="worker-1"), LATER)
    asking_now = after(InputRequested(attempt=2, requests={"a": QUESTION}), record=awake)
    assert not after(RunParked(attempt=2, keys={"a"}), record=asking_now).is_queued(LATER)


def test_what_an_older_run_or_one_that_gave_the_task_up_says_is_refused() -> None:
    released = running(RunReleased(attempt=1))
    said = [kind(attempt=1) for kind in (RunCompleted, RunReleased, RunParked, RunLost, StepRecorded)]
    for event in said:
        with pytest.raises(StaleRun):
            apply(after(RunStarted(worker="worker-2"), record=released), event, LATER)
    with pytest.raises(StaleRun, match="nobody has claimed it"):
        after(said[0], record=released)


@pytest.mark.parametrize(
    ("keys", "why"), [("", "nothing to ask"), *((keys, f"already used: {keys[-1]}") for keys in ("a", "b", "ca", "cb"))]
)
def test_asking_nothing_or_with_a_key_that_was_used_is_refused(keys: str, why: str) -> None:
    answered = after(InputAnswered(keys={"a"}), record=asking("a", "b"))
    with pytest.raises(TransitionRefused, match=why):
        after(InputRequested(attempt=1, requests=dict.fromkeys(keys, QUESTION)), record=answered)


def test_questions_make_a_task_input_required_until_the_last_answer() -> None:
    record = asking("a", "b")
    assert record.status is TaskStatus.INPUT_REQUIRED
    record = after(InputAnswered(keys={"a"}), record=record)
    assert record.status is TaskStatus.INPUT_REQUIRED
    assert list(record.inputs.outstanding) == ["b"]
    record = after(InputAnswered(keys={"b"}), record=record)
    assert record.status is TaskStatus.WORKING
    assert record.inputs.used == {"a", "b"}


def test_a_question_that_the_tool_gave_up_on_is_closed_and_its_key_stays_used() -> None:
    record = after(InputWithdrawn(attempt=1, keys={"a"}), record=asking("a", "b"))
    assert (record.status, list(record.inputs.outstanding)) == (TaskStatus.INPUT_REQUIRED, ["b"])
    record = after(InputWithdrawn(attempt=1, keys={"b"}), record=record)
    assert (record.status, record.inputs.used) == (TaskStatus.WORKING, {"a", "b"})
    assert after(InputAnswered(keys={"a", "b"}), record=record) is record


def test_a_question_that_the_client_holds_as_a_task_stays_open_and_says_so() -> None:
    record = asking("a", "b")
    hosted = apply(record, InputHosted(key="a", task_id="theirs"), LATER)
    assert (hosted.status, hosted.updated_at) == (TaskStatus.INPUT_REQUIRED, record.updated_at)
    assert hosted.inputs.outstanding["a"].hosted_as == "theirs"
    assert hosted.inputs.outstanding["b"] is record.inputs.outstanding["b"]
    assert apply(hosted, InputHosted(key="a", task_id="theirs"), LATER) is hosted
    assert apply(record, InputHosted(key="never asked", task_id="theirs"), LATER) is record
    answered = after(InputAnswered(keys={"a", "b"}), record=hosted)
    assert apply(answered, InputHosted(key="a", task_id="theirs"), LATER) is answered


def test_answers_to_questions_that_are_not_open_make_no_difference() -> None:
    record = after(InputAnswered(keys={"a"}), record=asking("a"))
    assert apply(record, InputAnswered(keys={"a", "never asked"}), LATER) is record


def test_an_answer_after_the_deadline_of_its_question_makes_no_difference() -> None:
    in_time = InputRequest(method="elicitation/create", params={}, deadline=LATER)
    record = running(InputRequested(attempt=1, requests={"a": in_time, "b": QUESTION}))
    assert apply(record, InputAnswered(keys={"a"}), LATER) is record
    answered = apply(record, InputAnswered(keys={"a", "b"}), LATER)
    assert (answered.status, list(answered.inputs.outstanding)) == (TaskStatus.INPUT_REQUIRED, ["a"])
    assert not apply(record, InputAnswered(keys={"a", "b"}), LATER - timedelta(microseconds=1)).inputs.outstanding


def test_an_answer_ends_a_sleep() -> None:
    record = parked("a", "b", wake_at=LATER)
    assert after(InputAnswered(keys={"a"}), record=record).ready_at == ALWAYS
    last = after(InputAnswered(keys={"a", "b"}), record=record)
    assert (last.status, last.wake_at, last.ready_at) == (TaskStatus.WORKING, None, ALWAYS)


def test_a_result_that_is_an_error_completes_the_task_and_says_what_the_tool_said() -> None:
    record = apply(running(), RunCompleted(attempt=1, is_error=True, message="no paper"), LATER)
    assert (record.status, record.is_error, record.status_message) == (TaskStatus.COMPLETED, True, "no paper")
    plain = apply(running(), RunCompleted(attempt=1), LATER)
    assert (plain.is_error, plain.status_message) == (False, None)


def test_progress_is_seen_and_kept_at_the_end_and_a_step_is_not_seen() -> None:
    record = running()
    progress = Progress(progress=1, total=3, message="one of three")
    reported = apply(record, ProgressReported(attempt=1, progress=progress), LATER)
    assert (reported.progress, reported.updated_at) == (progress, LATER)
    assert after(TaskCancelled(reason="enough"), record=reported).progress == progress
    stepped = apply(record, StepRecorded(attempt=1), LATER)
    assert (stepped.version, stepped.updated_at) == (record.version + 1, record.updated_at)


def test_a_result_completes_a_task_and_closes_its_questions() -> None:
    record = apply(asking("a"), RunCompleted(attempt=1), LATER)
    assert record.status is TaskStatus.COMPLETED
    assert (record.finished_at, record.updated_at, record.worker) == (LATER, LATER, None)
    assert not record.inputs.outstanding
    assert record.inputs.used == {"a"}


def test_a_tool_may_ask_on_the_original_call_until_the_task_is_announced() -> None:
    unannounced = apply(make_record(announced=False), RunStarted(worker="worker-1"), NOON)
    asked = apply(unannounced, RunAskedOnCall(attempt=1), LATER)
    assert (asked.status, asked.finished_at, asked.announced) == (TaskStatus.CANCELLED, LATER, False)
    # Both want to be first; the compare-and-swap lets one of them, and the other finds this.
    announced = apply(unannounced, TaskAnnounced(), LATER)
    assert (announced.announced, announced.version) == (True, unannounced.version + 1)
    assert announced.updated_at == unannounced.updated_at
    with pytest.raises(TransitionRefused, match="answered with the task"):
        apply(announced, RunAskedOnCall(attempt=1), LATER)
    assert apply(asked, TaskAnnounced(), LATER) is asked
    assert apply(announced, TaskAnnounced(), LATER) is announced


def test_a_run_that_starts_over_has_asked_and_reported_nothing() -> None:
    waiting = apply(asking("a", "b"), ProgressReported(attempt=1, progress=Progress(progress=1)), NOON)
    released = after(RunReleased(attempt=1), RunStarted(worker="worker-2", tool_version="2"), record=waiting)
    record = apply(released, RunStartedOver(attempt=2), LATER)
    assert (record.status, record.progress, record.tool_version) == (TaskStatus.WORKING, None, "2")
    assert (record.worker, record.attempt, record.updated_at) == ("worker-2", 2, LATER)
    # A key is used once in the life of a task, whatever becomes of its run.
    assert (dict(record.inputs.outstanding), record.inputs.used) == ({}, {"a", "b"})


def test_a_trial_is_passed_once_and_the_lost_runs_stay_counted() -> None:
    tried = running(RunLost(attempt=1), RunStarted(worker="worker-2", trial="alone"))
    passed = apply(tried, TrialPassed(attempt=2), LATER)
    assert (passed.trial, passed.lost, passed.worker) == (None, 1, "worker-2")
    assert passed.updated_at == NOON, "nobody outside sees it"
    assert apply(passed, TrialPassed(attempt=2), LATER) is passed


@pytest.mark.parametrize("record", [make_record(), running(), asking("a")], ids=["queued", "running", "asking"])
def test_a_task_is_cancelled_wherever_it_stands_and_what_comes_later_is_ignored(record: TaskRecord) -> None:
    cancelled = apply(record, TaskCancelled(reason="changed my mind"), LATER)
    assert cancelled.status is TaskStatus.CANCELLED
    assert (cancelled.status_message, cancelled.worker, cancelled.wake_at) == ("changed my mind", None, None)
    assert apply(cancelled, RunCompleted(attempt=1), LATER) is cancelled


def test_a_clock_that_jumped_back_takes_no_time_back() -> None:
    earlier = NOON - timedelta(days=1)
    record = apply(running(), RunCompleted(attempt=1), earlier)
    assert record.updated_at == record.finished_at == NOON


# When to poll, how long a task is kept, how long to wait before another try

HOUR = timedelta(hours=1)


def finished(after: timedelta, retention: timedelta | None = HOUR) -> TaskRecord:
    record = apply(make_record(retention=retention), RunStarted(worker="worker-1"), NOON)
    return apply(record, RunCompleted(attempt=1), NOON + after)


@pytest.mark.parametrize(
    ("age", "interval"),
    [
        (timedelta(0), MIN_POLL_INTERVAL),
        (timedelta(hours=-1), MIN_POLL_INTERVAL),
        (timedelta(seconds=1.9), MIN_POLL_INTERVAL),
        (timedelta(seconds=20), timedelta(seconds=2)),
        (timedelta(days=3), MAX_POLL_INTERVAL),
    ],
)
def test_a_task_is_polled_less_often_the_older_it_is(age: timedelta, interval: timedelta) -> None:
    assert poll_interval(make_record(), NOON + age) == interval
    # What the author chose stays.
    assert poll_interval(make_record(poll_interval=timedelta(minutes=1)), NOON + age) == timedelta(minutes=1)


def test_a_finished_task_expires_its_retention_after_the_end() -> None:
    record = finished(timedelta(days=3))
    assert expires_at(record) == NOON + timedelta(days=3) + HOUR
    assert not is_expired(record, NOON + timedelta(days=3) + HOUR - timedelta(microseconds=1))
    assert is_expired(record, NOON + timedelta(days=3) + HOUR)


def test_a_running_task_and_one_without_a_retention_do_not_expire() -> None:
    done = finished(HOUR, retention=None)
    assert lifetime(done, NOON + HOUR) is None
    for record in (make_record(retention=timedelta(seconds=1)), done):
        assert expires_at(record) is None
        assert not is_expired(record, NOON + timedelta(days=10_000))


@pytest.mark.parametrize(
    ("age", "told"),
    [
        (timedelta(hours=-5), HOUR),
        (timedelta(0), HOUR),
        (timedelta(minutes=29), HOUR),
        (timedelta(minutes=30), timedelta(minutes=90)),
        (timedelta(minutes=59), timedelta(minutes=90)),
        (timedelta(hours=24), timedelta(hours=25)),
    ],
)
def test_the_lifetime_of_a_running_task_grows_in_steps_of_half_a_retention(age: timedelta, told: timedelta) -> None:
    assert lifetime(make_record(), NOON + age) == told


def test_the_lifetime_of_a_finished_task_ends_when_the_task_does() -> None:
    record = finished(timedelta(hours=2))
    assert lifetime(record, NOON + timedelta(hours=2)) == timedelta(hours=3)
    assert lifetime(record, NOON + timedelta(hours=9)) == timedelta(hours=3)


def test_backing_off_doubles_up_to_its_limit() -> None:
    base, limit = timedelta(milliseconds=100), timedelta(seconds=5)
    waits = [backoff(attempt, base=base, limit=limit) for attempt in range(8)]
    assert [wait / base for wait in waits] == [1, 2, 4, 8, 16, 32, 50, 50]
    assert backoff(10_000, base=base, limit=limit) == limit
