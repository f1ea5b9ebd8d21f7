"""A server that goes away and comes back while somebody waits: said at once, for how long, and when it is over."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from harness.serving import ServerProcess
from tests.cli.running import LIMIT, Cli
from tests.cli.terminal import CTRL_C, on_terminal


def until(path: Path, wanted: Callable[[str], bool]) -> str:
    end = time.monotonic() + LIMIT
    while not wanted(text := path.read_text()):
        assert time.monotonic() < end, text
        time.sleep(0.05)
    return text


def test_bars_lines_and_json_say_that_a_server_is_away_and_back(cli: Cli, tmp_path: Path) -> None:
    with ServerProcess("tests.cli.asking_server", "--port", "{port}", "--db", tmp_path / "tasks.db") as server:
        url = server.url
        task_id = cli.start(url, "slow", "seconds=60")
        said, changes = tmp_path / "said", tmp_path / "changes"
        with said.open("w") as err, changes.open("w") as out, Path(os.devnull).open("r+") as nothing:
            lines = cli.begin(["wait", task_id], [nothing.fileno(), nothing.fileno(), err.fileno()], terminal=False)
            watch = cli.begin(
                ["watch", task_id, "--json"], [nothing.fileno(), out.fileno(), nothing.fileno()], terminal=False
            )
        with (
            on_terminal(cli, "call", url, "slow", "seconds=50") as bars,
            on_terminal(cli, "watch", task_id) as table,
        ):
            bars.expect(" of 500")
            table.expect(" of 600")
            until(said, lambda text: " of 600" in text)
            until(changes, lambda text: " of 600" in text)
            server.kill()
            for terminal in (bars, table):
                terminal.expect("server out of reach for 0:0")
                terminal.expect("trying again")
            away = until(said, lambda text: "out of reach" in text)
            until(changes, lambda text: "outOfReachSince" in text)
            assert "server out of reach for 0:0" in away.splitlines()[-1]
            server.start()
            for terminal in (bars, table):
                terminal.expect("server is back after 0:")
                terminal.expect(" of ")
            until(said, lambda text: "server is back after 0:" in text)
            back = until(changes, lambda text: "outOfReachSeconds" in text)
            assert any(json.loads(line).get("outOfReachSeconds", 0) > 0 for line in back.splitlines() if line)
            bars.type(CTRL_C)
            bars.expect("again detaches")
            bars.enter("c")
            assert bars.wait() == 4
            table.type(CTRL_C)
            assert table.wait() == 0
        for command in (lines, watch):
            command.send(signal.SIGINT)
            command.wait()


def test_a_live_line_does_not_say_that_a_server_is_away_once_it_is_back(cli: Cli, tmp_path: Path) -> None:
    with ServerProcess("mcp_tasks.testing.fixture_server", "--port", "{port}", "--db", tmp_path / "tasks.db") as server:
        # A task that has nothing to say: no progress draws its line anew.
        task_id = cli.start(server.url, "park", "seconds=600")
        with on_terminal(cli, "wait", task_id) as bars, on_terminal(cli, "watch", task_id) as table:
            for terminal in (bars, table):
                terminal.expect("0:0")
            server.kill()
            for terminal in (bars, table):
                terminal.expect_screen(lambda screen: "out of reach" in screen)
            server.start()
            for terminal in (bars, table):
                terminal.expect("server is back after 0:")
                terminal.expect_screen(lambda screen: "out of reach" not in screen)
