"""Answers for clients that speak no tasks: the same tool, run as a task that the caller does not see.

The call waits for the tool as long as its caller can. A client of the newest era is then told to come back (`legs`), an
older one is kept with progress while its call is open (`relay`) and asked on it (`asking`). When nobody waits any
longer, an ordinary result says so in words that a model cannot misread (`words`), and companion tools fetch the result
(`companions`).
"""
