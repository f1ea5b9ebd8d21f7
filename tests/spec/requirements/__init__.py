"""The manifest: every MUST and SHOULD of both eras, with its tests or the reason why it has none.

`tests/spec/test_manifest.py` reads it both ways: no entry without its tests, no marked test without its entry. What
SEP-2663 says is in `calls`, `lifecycle`, `errors`, `transport` and `eras`, tested in `tests/spec`, and in `clients`,
tested in `tests/client`. What 2025-11-25 says is in the modules that begin with `older`, and tested in
`tests/spec/legacy` with whatever other folders mark.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from tests.spec.requirements.model import Requirement


def _of_all_modules() -> tuple[Requirement, ...]:
    # Gathered, not listed: a module that nobody listed would be a part of the manifest that nobody reads.
    names = sorted(module.name for module in iter_modules(__path__) if module.name != "model")
    modules = [import_module(f"{__name__}.{name}") for name in names]
    return tuple(entry for module in modules for entry in module.REQUIREMENTS)


REQUIREMENTS: tuple[Requirement, ...] = _of_all_modules()

__all__ = ["REQUIREMENTS", "Requirement"]
