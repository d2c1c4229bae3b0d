"""Executors: a list of workers, each of which runs one job at a time. At first one local GPU, under a lock.

Two runs on one GPU would spoil each other's timings, so a device is held by one process at a time, whoever asks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import tempfile
import threading
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from autosched.errors import WorkerError
from autosched.measure.messages import Compare, Compete, Device, Identify, Measure, Prove, Reply, Request, Setup, Source
from autosched.measure.process import ChildDied, ChildError, ChildProcess, ChildTimeout
from autosched.record import Status

ENTRY = "autosched.measure.gpu_worker:handle"
IDENTIFY_TIMEOUT_S = 60.0
ERROR_LENGTH = 2000

_log = logging.getLogger(__name__)


class Job(msgspec.Struct, frozen=True):
    """One request about one op.

    Attributes:
        id: What the result is called.
        setup: The op; a worker that has another one at hand is set up first.
        request: What to do.
        timeout: Seconds for it, set-up apart.
    """

    id: int
    setup: Setup
    request: Request
    timeout: float


class Worker(typing.Protocol):
    """Runs jobs, one at a time."""

    def run(self, job: Job) -> Reply:
        """The reply; whatever the kernel does to the worker is a status of it."""
        ...

    def close(self) -> None:
        """End every process that belongs to it."""
        ...


class GpuWorker:
    """A killable child process with one GPU.

    Args:
        device: Index among the visible devices.
        entry: What answers in the child; tests use their own.
        env: Environment of the child (the compile workers' cache).
    """

    def __init__(self, device: int = 0, *, entry: str = ENTRY, env: Mapping[str, str] | None = None) -> None:
        self.device = device
        self._child = ChildProcess(entry, env=env, name=f"measuring worker of GPU {device}")
        self._setup: Setup | None = None
        self._pid: int | None = None

    def start(self) -> None:
        """Start the child; returns before it has imported anything."""
        self._child.start()

    def identify(self) -> Device:
        """What the device says about itself.

        Raises:
            ChildError: There is no device; its text says so.
            WorkerError: The worker does not answer.
        """
        reply = self._ask(Identify(self.device), IDENTIFY_TIMEOUT_S)
        if reply.device is None:
            raise WorkerError(f"measuring worker of GPU {self.device} names no device", "report this as a defect")
        return reply.device

    def run(self, job: Job) -> Reply:
        """Run a job, after setting its op up if the child has another or is new.

        Raises:
            WorkerError: The op's operands could not be made: nothing can be measured.
        """
        self._prepare(job.setup)
        try:
            reply = self._ask(job.request, job.timeout)
        except ChildTimeout as error:
            return Reply(status=Status.RUN_TIMEOUT, error=_named(job, error.message), seconds=job.timeout)
        except ChildDied as error:
            return Reply(status=Status.WORKER_CRASH, error=_named(job, str(error)))
        except ChildError as error:
            return Reply(status=Status.LAUNCH_ERROR, error=_named(job, error.text))
        if reply.poisoned:
            self._child.kill()
        return reply

    def close(self) -> None:
        """End the child."""
        self._child.close()

    def _prepare(self, setup: Setup) -> None:
        if self._setup == setup and self._pid is not None and self._alive():
            return
        if self._pid is None or not self._alive():
            self._ask(Identify(self.device), IDENTIFY_TIMEOUT_S)
        try:
            self._ask(setup, setup.protocol.setup_timeout_s)
        except (ChildTimeout, ChildDied, ChildError) as error:
            self._child.kill()
            raise WorkerError(
                f"the operands of {setup.spec} could not be made: {error}", "use a smaller op or a larger GPU"
            ) from error
        self._setup, self._pid = setup, self._child.pid

    def _alive(self) -> bool:
        if self._child.pid is None or self._child.pid != self._pid:
            return False
        try:
            self._child.check()
        except ChildDied:
            return False
        return True

    def _ask(self, request: Request, timeout: float) -> Reply:
        return msgspec.msgpack.decode(self._child.request(msgspec.msgpack.encode(request), timeout), type=Reply)


def _named(job: Job, text: str) -> str:
    """An error's text behind the labels of the kernels that may have caused it."""
    request = job.request
    sources: tuple[Source, ...] = ()
    if isinstance(request, Measure | Compete):
        sources = (request.source,)
    elif isinstance(request, Prove | Compare):
        sources = request.sources
    label = "; ".join(source.label for source in sources)
    return (f"{label}: {text}" if label else text)[:ERROR_LENGTH]


class Executor:
    """Runs jobs on a list of workers.

    Args:
        workers: At least one.
        locks: Keys of what the workers use (a GPU's UUID); each is held by one process at a time.
    """

    def __init__(self, workers: Sequence[Worker], locks: Sequence[str] = ()) -> None:
        if not workers:
            raise WorkerError("an executor without workers", "give it at least one")
        self._workers = list(workers)
        self._keys = list(locks)
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Executor:
        try:
            for key in sorted(self._keys):
                self._held.enter_context(device_lock(key))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Reply]]:
        """Run jobs as they become ready, and yield replies as they come.

        With one worker, the next job is taken only when the one before it is done.

        Args:
            jobs: May wait for more to become ready.
        """
        if len(self._workers) == 1:
            for job in jobs:
                yield job.id, self._workers[0].run(job)
            return
        yield from self._spread(jobs)

    def close(self) -> None:
        """End all workers and release the devices."""
        for worker in self._workers:
            worker.close()
        self._held.close()

    def _spread(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Reply]]:
        """A thread a worker; a job is taken when a worker is idle."""
        idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[int, Reply | BaseException]] = queue.SimpleQueue()
        for worker in self._workers:
            idle.put(worker)

        def work(worker: Worker, job: Job) -> None:
            try:
                outcome: Reply | BaseException = worker.run(job)
            except BaseException as error:
                outcome = error
            done.put((job.id, outcome))
            idle.put(worker)

        running = 0
        for job in jobs:
            worker = idle.get()
            threading.Thread(target=work, args=(worker, job), daemon=True).start()
            running += 1
            while not done.empty():
                running -= 1
                yield _unwrap(done.get())
        for _ in range(running):
            yield _unwrap(done.get())


def _unwrap(finished: tuple[int, Reply | BaseException]) -> tuple[int, Reply]:
    identity, outcome = finished
    if isinstance(outcome, BaseException):
        raise outcome
    return identity, outcome


@contextlib.contextmanager
def device_lock(key: str, *, timeout: float = -1.0) -> Iterator[None]:
    """Hold a device against every other process of this machine.

    Args:
        key: What names the device: its UUID.
        timeout: Seconds to wait for whoever holds it; negative waits for ever.

    Raises:
        WorkerError: Somebody else held it for all that time.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(lock_path(key))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        _log.info("waiting for GPU %s, which another run holds", key)
        try:
            lock.acquire(timeout=timeout)
        except Timeout as error:
            raise WorkerError(f"GPU {key} is held by another run", "wait for it, or choose another device") from error
        except RuntimeError as error:  # filelock's own check: waiting would never end
            raise WorkerError(f"GPU {key} is held by another measurer of this process", "close that one") from error
    try:
        yield
    finally:
        lock.release()


def lock_path(key: str) -> Path:
    """File of a device's lock, in this user's folder for temporary files."""
    folder = Path(tempfile.gettempdir(), f"autosched-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    safe = "".join(c if c.isalnum() or c == "-" else "_" for c in key)
    return folder / f"gpu-{safe}.lock"
