"""The examples, as real processes: they assert what they show, and show what their page says."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.processes import ENVIRONMENT, PIPE, ROOT, run, start_async
from harness.rpc import hello, legacy_request
from harness.schema import check_legacy_result
from harness.stdio import StdioWire

PAGE = (ROOT / "docs" / "examples.md").read_text()
SHOWN = dict(re.findall(r"^\$ python (examples/\w+\.py)\n((?:(?!\$|```).*\n)+)", PAGE, flags=re.MULTILINE))
LIMIT = 110


@pytest.mark.parametrize("script", SHOWN)
def test_an_example_does_what_its_page_shows(script: str) -> None:
    done = run([sys.executable, script], env=ENVIRONMENT, limit=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == SHOWN[script]


def test_every_example_is_on_the_page() -> None:
    parts_of_others = {"demo_server", "server_process"}
    for script in (ROOT / "examples").glob("*.py"):
        named = f"examples/{script.name}" if script.stem != "demo" else "make demo"
        assert script.stem in parts_of_others or named in PAGE
    assert len(SHOWN) == 4


@pytest.mark.parametrize(
    ("script", "timeout", "what_happened"),
    [
        ("raise SystemExit('no such database')", 60.0, "ended with code 1 instead of serving"),
        ("import sys, time; print('loading', file=sys.stderr, flush=True); time.sleep(600)", 3.0, "did not accept"),
    ],
    ids=["it ends", "it never serves"],
)
def test_a_server_that_does_not_start_is_shown_with_all_that_is_known(
    tmp_path: Path, script: str, timeout: float, what_happened: str
) -> None:
    (tmp_path / "broken.py").write_text(script)
    starts_it = f"""
import asyncio, pathlib
from server_process import ServerProcess
asyncio.run(ServerProcess(pathlib.Path({str(tmp_path / "broken.py")!r}), timeout={timeout}).start())
"""
    command = [sys.executable, "-c", starts_it]
    done = run(command, cwd=ROOT / "examples", env=ENVIRONMENT, limit=LIMIT)
    assert done.returncode == 1
    assert re.search(rf"the server at http://127\.0\.0\.1:\d+/mcp {what_happened}.*, [\d.]+ seconds after", done.stderr)
    assert "broken.py --port" in done.stderr
    assert ("no such database" if "SystemExit" in script else "loading") in done.stderr
    assert "Traceback" not in done.stderr


# The echo server's prompt and resource as tasks on the older wire: no client of the SDK asks for that.

READS: dict[str, tuple[str, dict[str, Any], str]] = {
    "prompt": (
        "prompts/get",
        {"name": "echo", "arguments": {"message": "hi"}},
        "Please process this message: hi",
    ),
    "resource": ("resources/read", {"uri": "echo://hi"}, "Resource echo: hi"),
    "tool": ("tools/call", {"name": "echo", "arguments": {"message": "hi"}}, "Tool echo: hi"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("kind", READS)
async def test_everything_named_echo_is_a_task_on_the_older_wire(kind: str) -> None:
    method, params, expected = READS[kind]
    command = [sys.executable, "examples/echo.py", "serve"]
    process = await start_async(command, env=ENVIRONMENT, stdin=PIPE, stdout=PIPE)
    wire = StdioWire(process)
    reading = asyncio.create_task(wire.read())
    try:
        welcome = await _ask(wire, "initialize", hello())
        assert welcome["capabilities"]["tasks"]["requests"] == {
            "tools": {"call": {}},
            "prompts": {"get": {}},
            "resources": {"read": {}},
        }
        await wire.notify("notifications/initialized")
        created = await _ask(wire, method, {**params, "task": {"ttl": 60_000}})
        check_legacy_result("CreateTaskResult", created)
        result = await _ask(wire, "tasks/result", {"taskId": created["task"]["taskId"]})
        assert expected in json.dumps(result)
        plain = await _ask(wire, method, params)
        result.pop("_meta")
        plain.pop("_meta", None)
        assert result == plain
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
        await reading


async def _ask(wire: StdioWire, method: str, params: dict[str, Any]) -> dict[str, Any]:
    return (await wire.send(legacy_request(method, params))).result
