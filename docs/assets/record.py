"""Record the terminal pictures of the docs: a real `mcp-tasks` on a real terminal, against the demo's server.

    make pictures

Needs tmux. Writes call.svg, and prints the screens as text.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from docs.assets.demo import demo_server, environment_in, put_command_into

ASSETS = Path(__file__).parent
WIDTH, HEIGHT = 100, 60
PORT = 8000
URL = f"http://localhost:{PORT}/mcp"


class Screen:
    """A terminal in tmux."""

    def __init__(self, folder: Path) -> None:
        self._tmux = ["tmux", "-S", str(folder / "tmux")]
        variables = {**environment_in(folder), "PS1": "$ "}
        shell = ["env", "-i", *(f"{name}={value}" for name, value in variables.items()), "bash", "--norc"]
        self._run("new-session", "-d", "-x", str(WIDTH), "-y", str(HEIGHT), *shell)

    def enter(self, line: str) -> None:
        """Type a line."""
        self._run("send-keys", line, "Enter")

    def wait_for(self, text: str) -> None:
        """Wait until something is on the screen."""
        until = time.monotonic() + 60
        while text not in self._run("capture-pane", "-p"):
            if time.monotonic() > until:
                raise SystemExit(f"{text!r} did not come:\n{self._run('capture-pane', '-p')}")
            time.sleep(0.02)

    def show(self) -> None:
        """Print what is on the screen."""
        print(*(line.rstrip() for line in self._run("capture-pane", "-p").rstrip().splitlines()), "", sep="\n")

    def picture(self, name: str) -> None:
        """Keep what is on the screen, under this name."""
        console = Console(record=True, width=WIDTH, file=io.StringIO())
        console.print(Text.from_ansi(self._run("capture-pane", "-p", "-e").rstrip()))
        picture = console.export_svg(title="mcp-tasks", unique_id=name)
        # A picture that fetches fonts tells another host who looks at it: the reader's own will do.
        (ASSETS / f"{name}.svg").write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL))

    def close(self) -> None:
        """End the terminal."""
        self._run("kill-server")

    def _run(self, *arguments: str) -> str:
        return subprocess.run([*self._tmux, *arguments], check=True, capture_output=True, text=True).stdout


def record(screen: Screen) -> None:
    """Everything that is shown."""
    screen.enter(f"mcp-tasks call {URL} release version=1.4.0")
    screen.wait_for("Publish (")
    screen.enter("yes")
    screen.wait_for("1.4.0 published\n$")
    screen.enter(f"mcp-tasks call {URL} render frames=40")
    screen.wait_for("frame 25")
    screen.show()
    screen.picture("call")
    screen.wait_for("40 frames rendered\n$")
    screen.enter("clear")
    screen.enter(f"mcp-tasks doctor {URL} --tool render frames=8")
    screen.wait_for("skipped")
    screen.show()


def main() -> None:
    """Start the server, record, stop it."""
    # The shell may write its history there when nobody looks any more.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        put_command_into(folder)
        screen = Screen(folder)
        try:
            with demo_server(folder, PORT):
                record(screen)
        finally:
            screen.close()


if __name__ == "__main__":
    if shutil.which("tmux") is None:
        raise SystemExit("tmux is needed")
    main()
