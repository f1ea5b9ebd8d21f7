"""Builds the site and looks at it with a real browser: `make browse`. Pictures are left in .cache/site.

Not a test: it takes a minute, and a browser from the npm registry, which the tests with other implementations install.
"""

import json
import sys
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from docs.site.__main__ import build
from harness.processes import ROOT, run

PICTURES = ROOT / ".cache" / "site"


class Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, without a line for each."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


def packages() -> Path:
    found = sorted((ROOT / ".cache" / "interop").glob("npm-*/node_modules/@sparticuz/chromium"))
    if not found:
        raise SystemExit("there is no browser yet: `make interop` installs it")
    return found[-1].parents[2]


def look(url: str) -> dict[str, Any]:
    PICTURES.mkdir(parents=True, exist_ok=True)
    script = Path(__file__).with_suffix(".mjs")
    done = run(["node", script, url, PICTURES, packages()], limit=600)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        for version in ("0.1.0", None):
            build(Path(name), version)
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=name))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        seen = look(f"http://127.0.0.1:{server.server_port}/")
        server.shutdown()
    print(json.dumps(seen, indent=2))
    expected = {
        "it leads to the newest release": seen["landed"].endswith("/latest/index.html"),
        "the picture is shown": seen["picture"],
        "code can be copied": seen["copyButtons"] > 0,
        "both versions can be chosen": seen["versions"] == ["development", "0.1.0"],
        "the search finds something": seen["found"] > 0 and "ancel" in seen["searchText"],
        "there is a dark scheme": seen["scheme"] == "slate",
        "a page that was renamed leads on": seen["redirected"].endswith("/running.html"),
        "no errors in the console": seen["errors"] == [],
        "nothing from elsewhere": seen["elsewhere"] == [],
    }
    wrong = [what for what, holds in expected.items() if not holds]
    sys.exit(f"not so: {', '.join(wrong)}" if wrong else 0)


if __name__ == "__main__":
    main()
