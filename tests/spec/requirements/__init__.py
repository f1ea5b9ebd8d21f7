"""The manifest: every sentence of SEP-2663 that binds a server, with its tests or the reason why it has none.

`tests/spec/test_manifest.py` reads it both ways: no entry without its tests, no marked test without its entry. The
sentences that bind clients will be further modules with `party="client"`.
"""

from __future__ import annotations

from tests.spec.requirements import calls, eras, errors, lifecycle, transport
from tests.spec.requirements.model import Requirement

REQUIREMENTS: tuple[Requirement, ...] = (
    *calls.REQUIREMENTS,
    *lifecycle.REQUIREMENTS,
    *errors.REQUIREMENTS,
    *transport.REQUIREMENTS,
    *eras.REQUIREMENTS,
)

__all__ = ["REQUIREMENTS", "Requirement"]
