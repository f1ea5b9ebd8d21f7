"""Whether a process is still there, asked about real ones."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NoReturn

import pytest

from harness.processes import is_running
from mcp_tasks.runtime.lease import is_gone, new_worker_name
from tests.unit.processes import other_process, renamed, start_time

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="start times are read from /proc")
posix = pytest.mark.skipif(os.name == "nt", reason="there is no asking about another process")


def test_names_of_one_process_differ_from_call_to_call() -> None:
    assert new_worker_name() != new_worker_name()


def test_this_process_is_not_gone() -> None:
    assert not is_gone(new_worker_name())


def test_a_name_holds_the_process_id_and_its_start_time() -> None:
    assert new_worker_name().split("/")[1:3] == [str(os.getpid()), start_time(os.getpid())]


@posix
def test_a_process_is_gone_once_it_was_killed_and_reaped() -> None:
    with other_process() as (worker, process):
        assert not is_gone(worker)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert is_gone(worker)


@posix
@needs_proc
def test_a_process_that_only_waits_to_be_reaped_is_gone() -> None:
    with other_process() as (worker, process):
        process.send_signal(signal.SIGKILL)
        # Returns when it is dead, and leaves it there as a zombie.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_running(process.pid)
        assert is_gone(worker)


@posix
@needs_proc
def test_a_stopped_process_is_still_there() -> None:
    with other_process() as (worker, process):
        process.send_signal(signal.SIGSTOP)
        assert not is_gone(worker)


@posix
@needs_proc
def test_a_process_id_that_was_used_again_is_known_by_its_start_time() -> None:
    with other_process() as (worker, _):
        assert is_gone(renamed(worker, started="1"))
        assert not is_gone(renamed(worker, started="?"))


@needs_proc
def test_our_own_process_id_used_by_an_earlier_process_is_known_by_its_start_time() -> None:
    assert is_gone(renamed(new_worker_name(), started="1"))
    assert not is_gone(renamed(new_worker_name(), started="?"))


@posix
def test_a_process_of_another_user_is_still_there() -> None:
    # Process 1 belongs to root; as root it is simply a process that runs.
    assert not is_gone(renamed(new_worker_name(), pid="1", started="?"))


@pytest.mark.parametrize("place", ["another-boot:pid:[1]", "", "another-machine"])
def test_of_a_process_elsewhere_nothing_can_be_told(place: str) -> None:
    assert not is_gone(renamed(new_worker_name(), place=place, pid="999999"))


@pytest.mark.parametrize("worker", ["", "/", "worker-1", "a/b/c", "a/1"])
def test_of_a_name_that_is_not_ours_nothing_can_be_told(worker: str) -> None:
    assert not is_gone(worker)


@pytest.mark.parametrize("pid", ["", "x", "-1", str(2**70)])
def test_of_a_process_id_that_makes_no_sense_nothing_can_be_told(pid: str) -> None:
    assert not is_gone(renamed(new_worker_name(), pid=pid))


@pytest.fixture
def no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without /proc."""

    def missing(path: Path) -> NoReturn:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(Path, "read_bytes", missing)


@posix
@pytest.mark.usefixtures("no_proc")
def test_without_start_times_a_process_is_known_by_machine_and_id() -> None:
    name = new_worker_name()
    assert name.split("/")[:3] == [os.uname().nodename, str(os.getpid()), "?"]
    assert not is_gone(name)
    assert not is_gone(renamed(name, pid=str(os.getppid())))
    with other_process() as (worker, process):
        assert not is_gone(worker)
        process.kill()
        process.wait()
        assert is_gone(worker)
