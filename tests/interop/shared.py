"""What these tests share with the conformance suite: where Node is, and how a server under test is run."""

from __future__ import annotations

from tests.conformance.serving import free_port, serving
from tests.conformance.suite import CHECKOUT, find_node

__all__ = ["CHECKOUT", "find_node", "free_port", "serving"]
