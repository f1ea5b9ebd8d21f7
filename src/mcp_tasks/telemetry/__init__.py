"""What an operator can see and prove: the audit log, traces, metrics and suspicious patterns.

They observe the runtime, and nothing waits for them. Nothing is imported here: each module is for those who use it.
"""
