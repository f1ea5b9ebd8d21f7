"""Has a process forked that serves the pipes of this one, and ends as it ends; see `harness.forking.piped`.

    python -I -S piped.py SOCKET MODULE ARGUMENTS

It imports next to nothing: to start quickly is all that it is for. If it is killed, so is the other process.
"""

import json
import os
import socket
import sys

path, module, *arguments = sys.argv[1:]
order = {
    "module": module,
    "arguments": arguments,
    "environment": dict(os.environ),
    "cwd": os.getcwd(),
    "numbers": [0, 1, 2],
}
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as zygote:
    zygote.connect(path)
    socket.send_fds(zygote, [json.dumps(order).encode()], [0, 1, 2])
    for number in (0, 1):
        # The pipes are the other process's alone: here they would stay open when it has closed them.
        os.close(number)
    zygote.recv(64)
    code = int(zygote.recv(64))
os._exit(code if code >= 0 else 128 - code)
