"""One killable child process, asked and answered in bytes over a private pipe.

Compiling and running generated kernels crashes, hangs and prints; none of that may reach the process that tunes.
A :class:`ChildProcess` therefore runs a function of bytes in an interpreter of its own (``autosched.measure.child``)
and in a process group of its own, so that ending it ends whatever it started. Its standard streams go to an unnamed
temporary file, whose tail says what happened when it dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
import weakref
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import BinaryIO, Final

from autosched.errors import WorkerError

READY: Final = b"R"
REPLY: Final = b"O"
FAILED: Final = b"E"

_TICK_S: Final = 0.1
_TAIL_BYTES: Final = 4000
_OUTPUT_CAP_BYTES: Final = 64 << 20
_EXIT_GRACE_S: Final = 2.0
_BOOTSTRAP: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from autosched.measure.child import main; main(sys.argv[2:])"
)


class ChildTimeout(WorkerError):  # noqa: N818 - named for what happened, like subprocess.TimeoutExpired
    """The child did not answer in time and was killed.

    Args:
        name: Name of the child.
        seconds: The limit that it exceeded, in seconds.
        output: Tail of its standard streams.
    """

    def __init__(self, name: str, seconds: float, output: str = "") -> None:
        super().__init__(f"{name} did not answer within {seconds:g} s and was killed", "raise the time-out")
        self.seconds = seconds
        self.output = output


class ChildDied(WorkerError):  # noqa: N818 - named for what happened
    """The child ended without an answer.

    Args:
        name: Name of the child.
        returncode: Exit code, or minus the number of the signal that ended it.
        output: Tail of its standard streams.

    Attributes:
        signal: Name of the signal (``SIGSEGV``), empty if it exited by itself.
    """

    def __init__(self, name: str, returncode: int, output: str = "") -> None:
        self.signal = _signal_name(returncode)
        how = f"was ended by {self.signal}" if self.signal else f"exited with code {returncode}"
        super().__init__(f"{name} {how}" + (f"; its last output: {output}" if output else ""))
        self.returncode = returncode
        self.output = output


class ChildError(WorkerError):
    """The child's function raised; the child lives on.

    Args:
        text: Type and message of the exception.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class ChildCancelled(WorkerError):  # noqa: N818 - named for what happened
    """The caller gave up waiting; the child was killed."""


class ChildProcess:
    """A killable child that answers requests with ``MODULE:FUNCTION``, a function from bytes to bytes.

    The child starts on first use and again after it was killed or died. It ends with its parent, whichever way that
    ends. Not thread-safe: one thread uses it.

    Args:
        entry: ``package.module:function``, imported in the child along the parent's ``sys.path``.
        env: Environment variables set in the child before anything else is imported, on top of the parent's.
        name: What errors call it; the entry if empty.
        start_timeout: Seconds for starting the interpreter and importing the entry; apart from a request's time-out.
    """

    def __init__(
        self, entry: str, *, env: Mapping[str, str] | None = None, name: str = "", start_timeout: float = 120.0
    ) -> None:
        self.entry = entry
        self.name = name or entry
        self._env = dict(env or {})
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._output: BinaryIO | None = None
        self._ready = False
        self._finalizer: weakref.finalize[..., ChildProcess] | None = None

    def __enter__(self) -> ChildProcess:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the running child, ``None`` before the start and after the end."""
        return self._process.pid if self._process else None

    @property
    def ready(self) -> bool:
        """Whether the child has said that it imported its entry; :meth:`receive` and :meth:`request` update it."""
        return self._ready

    @property
    def connection(self) -> Connection:
        """The parent's end of the pipe, for ``multiprocessing.connection.wait``.

        Raises:
            WorkerError: The child is not running.
        """
        if self._connection is None:
            raise WorkerError(f"{self.name} is not running", "call start() first")
        return self._connection

    def fileno(self) -> int:
        """File descriptor of :attr:`connection`."""
        return self.connection.fileno()

    def start(self) -> None:
        """Start the child unless it runs; returns before it has imported its entry.

        Raises:
            WorkerError: The process could not be started.
        """
        if self._process is not None and _running(self._process):
            return
        self.kill()
        ours, theirs = Pipe(duplex=True)
        output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child; kill() closes it
        # Appending keeps the child's writes at the end after the parent has truncated the file.
        fcntl.fcntl(output, fcntl.F_SETFL, fcntl.fcntl(output, fcntl.F_GETFL) | os.O_APPEND)
        arguments = [json.dumps(sys.path), self.entry, str(theirs.fileno()), json.dumps(self._env)]
        try:
            process = subprocess.Popen(
                [sys.executable, "-u", "-c", _BOOTSTRAP, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            output.close()
            raise WorkerError(f"cannot start {self.name}: {error}", "free memory or process slots") from error
        finally:
            theirs.close()
        self._process, self._connection, self._output, self._ready = process, ours, output, False
        self._finalizer = weakref.finalize(self, _end, process, ours, output)

    def request(self, payload: bytes, timeout: float, cancelled: threading.Event | None = None) -> bytes:
        """Ask and wait for the answer; starts the child if need be.

        Args:
            payload: What the child's function is called with.
            timeout: Seconds from the moment the child is ready.
            cancelled: Ends the wait within a tenth of a second once another thread has set it.

        Returns:
            What the function returned.

        Raises:
            ChildTimeout: No answer in time; the child was killed. The next request starts a new one.
            ChildDied: The child ended without an answer; likewise.
            ChildError: The function raised.
            ChildCancelled: ``cancelled`` was set; the child was killed.
        """
        try:
            self.start()
            while not self._ready:
                self._await(self._start_timeout, cancelled)
                self.receive()
            self.send(payload)
            while True:
                self._await(timeout, cancelled)
                reply = self.receive()
                if reply is not None:
                    return reply
        except ChildError:
            raise
        except BaseException:  # Ctrl-C included: a late answer must not be taken for the next request's
            self.kill()
            raise

    def send(self, payload: bytes) -> None:
        """Hand over a request without waiting; starts the child if need be. For pools.

        Raises:
            ChildDied: The child ended before it took the request.
        """
        self.start()
        self._clear_output(0)
        try:
            self.connection.send_bytes(payload)
        except OSError:
            raise self._died() from None

    def receive(self) -> bytes | None:
        """Take one message, waiting for it if need be; call it when :attr:`connection` is readable.

        Returns:
            The answer to a request, or ``None`` if the child only said that it is ready.

        Raises:
            ChildDied: The child has ended.
            ChildError: The function raised.
        """
        try:
            message = self.connection.recv_bytes()
        except (EOFError, OSError):
            raise self._died() from None
        kind, body = message[:1], message[1:]
        if kind == READY:
            self._ready = True
            return None
        if kind == FAILED:
            raise ChildError(body.decode(errors="replace"))
        return body

    def check(self) -> None:
        """Raise if the child has ended without a message waiting; keeps its output within bounds. For pools.

        Raises:
            ChildDied: The child has ended (even if a process that it left behind holds the pipe open).
        """
        self._clear_output(_OUTPUT_CAP_BYTES)
        if self._process is None or (not _running(self._process) and not _unread(self.connection)):
            raise self._died()

    def output_tail(self) -> str:
        """The last 4,000 bytes that the child wrote to its standard streams since the last request."""
        if self._output is None:
            return ""
        size = os.fstat(self._output.fileno()).st_size
        start = max(0, size - _TAIL_BYTES)
        return os.pread(self._output.fileno(), _TAIL_BYTES, start).decode(errors="replace").strip()

    def kill(self) -> None:
        """End the child and everything that it started, at once; the next request starts a new one."""
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._connection = self._output = self._finalizer = None
        self._ready = False

    def close(self) -> None:
        """End the child and leave nothing behind; may be called more than once."""
        self.kill()

    def _await(self, timeout: float, cancelled: threading.Event | None) -> None:
        """Wait until a message can be received, or raise what :meth:`request` says."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            if wait([self.connection], timeout=max(0.0, min(_TICK_S, left))):
                return
            if cancelled is not None and cancelled.is_set():
                raise ChildCancelled(f"{self.name} was stopped")
            if left <= 0:
                raise ChildTimeout(self.name, timeout, self.output_tail())
            self.check()

    def _died(self) -> ChildDied:
        """The error that says how the child ended; kills what is left of it."""
        if self._process is None:
            return ChildDied(self.name, 0, "it was not running")
        process = self._process
        limit = time.monotonic() + _EXIT_GRACE_S
        while _running(process) and time.monotonic() < limit:  # the pipe closes shortly before the process is gone
            time.sleep(0.005)
        tail = self.output_tail()
        self.kill()
        return ChildDied(self.name, process.returncode or 0, tail)

    def _clear_output(self, above: int) -> None:
        """Empty the output file if it holds more than ``above`` bytes."""
        if self._output is not None and os.fstat(self._output.fileno()).st_size > above:
            os.ftruncate(self._output.fileno(), 0)


def _running(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process lives; leaves a dead one unreaped, so that its process group's id stays taken."""
    if process.returncode is not None:
        return False
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def _unread(connection: Connection) -> bool:
    """Whether bytes wait to be read; unlike ``poll()``, which also says yes at the end of the stream."""
    count = fcntl.ioctl(connection.fileno(), termios.FIONREAD, b"\0" * 4)
    return int.from_bytes(count, sys.byteorder) > 0


def _end(process: subprocess.Popen[bytes], connection: Connection, output: BinaryIO) -> None:
    """Kill the process group, reap its leader, close the files."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    connection.close()
    output.close()


def _signal_name(returncode: int) -> str:
    """Name of the signal behind a negative return code, empty for any other."""
    if returncode >= 0:
        return ""
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"
