"""The child's side of :mod:`autosched.measure.process`: import an entry, then answer requests with it until the end."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import select
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import cast

from autosched.measure.process import FAILED, READY, REPLY


def main(arguments: Sequence[str]) -> None:
    """Serve requests until the parent's end of the pipe closes; never returns.

    Args:
        arguments: Entry (``module:function``), number of the pipe's file descriptor, environment as a JSON object.
    """
    entry, descriptor, environment = arguments
    os.environ.update(json.loads(environment))
    faulthandler.enable()
    os.set_inheritable(int(descriptor), False)
    connection = Connection(int(descriptor))
    threading.Thread(target=_end_with_parent, args=(int(descriptor),), daemon=True).start()
    serve(_load(entry), connection)
    os.killpg(0, signal.SIGKILL)


def serve(function: Callable[[bytes], bytes], connection: Connection) -> None:
    """Say ready, then answer each request with ``function``; returns when the parent's end closes.

    An exception goes back as text and its traceback to the standard error stream; anything beyond ``Exception`` ends
    the child.
    """
    connection.send_bytes(READY)
    while True:
        try:
            payload = connection.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            message = REPLY + function(payload)
        except Exception as error:
            traceback.print_exc()
            message = FAILED + f"{type(error).__name__}: {error}".encode(errors="replace")
        try:
            connection.send_bytes(message)
        except OSError:
            return


def _load(entry: str) -> Callable[[bytes], bytes]:
    """Import ``module:function``."""
    module, _, function = entry.partition(":")
    return cast("Callable[[bytes], bytes]", getattr(importlib.import_module(module), function))


def _end_with_parent(descriptor: int) -> None:
    """Kill the process group as soon as the parent's end of the pipe is closed, even in the middle of a request."""
    poller = select.poll()
    poller.register(descriptor, 0)  # hang-up and error are always reported
    poller.poll()
    os.killpg(0, signal.SIGKILL)
