"""Answers for clients without tasks: the tool runs as a task that the caller does not see.

The call waits for the tool as long as its caller can (`waiting`). A client of 2026-07-28 is then asked to come back
(`request_state`); an older one is sent progress (`progress`) and questions while its call is open. When the time is
over, an ordinary result says so in words that a model cannot misread (`messages`), and companion tools fetch the result
(`companions`).
"""
