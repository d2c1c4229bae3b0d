"""Functions that tests run in child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time


def act(payload: bytes) -> bytes:
    """Do what the request names; ``echo`` is the default."""
    action, _, argument = payload.decode().partition(":")
    if action == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif action == "exit":
        sys.exit(int(argument))
    elif action == "hang":
        time.sleep(600)
    elif action == "print":
        print("x" * (int(argument) << 20))
        print("the last line")
    elif action == "print-crash":
        print("y" * (int(argument) << 20))
        print("the last line")
        os.kill(os.getpid(), signal.SIGSEGV)
    elif action == "raise":
        raise ValueError(argument)
    elif action == "die-idle":
        threading.Timer(0.1, os._exit, (7,)).start()
    elif action == "grandchild":
        return str(subprocess.Popen(["sleep", "600"]).pid).encode()
    elif action == "grandchild-hang":
        with open(argument, "w") as file:
            file.write(str(subprocess.Popen(["sleep", "600"]).pid))
        time.sleep(600)
    elif action == "fork-crash":
        if os.fork() == 0:
            time.sleep(600)
        os.kill(os.getpid(), signal.SIGSEGV)
    elif action == "env":
        return os.environ.get(argument, "").encode()
    elif action == "pid":
        return str(os.getpid()).encode()
    return payload
