"""The manifest: every MUST and SHOULD of SEP-2663, with its tests or the reason why it has none.

`tests/spec/test_manifest.py` reads it both ways: no entry without its tests, no marked test without its entry. What
binds servers is tested in this folder, what binds clients in `tests/client`.
"""

from __future__ import annotations

from tests.spec.requirements import calls, clients, eras, errors, lifecycle, transport
from tests.spec.requirements.model import Requirement

REQUIREMENTS: tuple[Requirement, ...] = (
    *calls.REQUIREMENTS,
    *lifecycle.REQUIREMENTS,
    *errors.REQUIREMENTS,
    *transport.REQUIREMENTS,
    *eras.REQUIREMENTS,
    *clients.REQUIREMENTS,
)

__all__ = ["REQUIREMENTS", "Requirement"]
