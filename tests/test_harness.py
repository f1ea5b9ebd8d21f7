"""The harness keeps its own rules: what does not come up says why, and nothing that was started is left behind."""

import signal
import sys

import pytest

from harness.processes import (
    PIPE,
    ProcessError,
    end,
    environment,
    is_running,
    read_line,
    running,
)
from harness.serving import ServerProcess

PARENT = """
import sys, time
from harness.processes import running
with running([sys.executable, "-c", "import time; time.sleep(600)"], group=True) as child:
    print(child.pid, flush=True)
    time.sleep(600)
"""


def test_a_server_that_does_not_come_up_shows_what_it_printed() -> None:
    program = [sys.executable, "-c", "raise SystemExit('no such luck')"]
    server = ServerProcess("unlucky", "{port}", program=program)
    with pytest.raises(ProcessError, match="exit code 1; it printed:\nno such luck"), server:
        pass


def test_an_error_in_the_block_leaves_no_process_behind() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(ZeroDivisionError), running(command) as process:
        raise ZeroDivisionError
    assert not is_running(process.pid)


def test_who_is_told_to_end_ends_what_it_started() -> None:
    with running([sys.executable, "-c", PARENT], env=environment(), stdout=PIPE) as parent:
        child = int(read_line(parent))
        assert is_running(child)
        assert end(parent) == 128 + signal.SIGTERM
        assert not is_running(child)
