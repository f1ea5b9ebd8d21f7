"""The JSON types of the package: what arguments, results, answers and errors are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

JsonValue: TypeAlias = Any
"""Any value `json.dumps` takes. Spelled `Any` because a recursive alias helps nobody at a call site."""

JsonObject: TypeAlias = Mapping[str, JsonValue]
"""A JSON object. A `Mapping`, because records are values: nobody writes into one."""
