"""The fast path: hot requests of the newest wire answered from the runtime, before the SDK sees them."""
