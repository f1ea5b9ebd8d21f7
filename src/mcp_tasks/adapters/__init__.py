"""Doors: what builds a `Caller` from a request, and sends on what the protocol answers.

`sdk` is the official SDK's extension seam, the only door so far.
"""

from mcp_tasks.adapters.sdk import SdkAdapter, caller_of

__all__ = ["SdkAdapter", "caller_of"]
