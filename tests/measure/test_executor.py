"""Executors: several workers, and the lock that keeps two runs off one GPU."""

from __future__ import annotations

import threading

import pytest

from autosched.errors import WorkerError
from autosched.measure.base import Protocol
from autosched.measure.executor import Executor, Job, device_lock, lock_path
from autosched.measure.messages import Reply, Setup, Vendor

SETUP = Setup({}, Protocol(), 0.0, "")


class Meeting:
    """A worker whose jobs end only when another worker's job has begun."""

    def __init__(self, barrier: threading.Barrier) -> None:
        self.barrier = barrier
        self.closed = False

    def run(self, job: Job) -> Reply:
        self.barrier.wait(10)
        if job.id == 99:
            raise WorkerError("job 99")
        return Reply(seconds=float(job.id))

    def close(self) -> None:
        self.closed = True


def _jobs(*identities: int) -> list[Job]:
    return [Job(i, SETUP, Vendor(), 1.0) for i in identities]


def test_two_workers_run_side_by_side_and_every_job_is_answered() -> None:
    barrier = threading.Barrier(2)
    workers = [Meeting(barrier), Meeting(barrier)]
    with Executor(workers) as executor:
        found = dict(executor.run(_jobs(*range(6))))
    assert {i: reply.seconds for i, reply in found.items()} == {i: float(i) for i in range(6)}
    assert all(worker.closed for worker in workers)


def test_an_error_of_a_worker_reaches_the_caller() -> None:
    with Executor([Meeting(threading.Barrier(1))] * 2) as executor, pytest.raises(WorkerError, match="job 99"):
        list(executor.run(_jobs(1, 99, 2)))


def test_an_executor_needs_workers() -> None:
    with pytest.raises(WorkerError, match="without workers"):
        Executor([])


def test_a_device_is_held_by_one_at_a_time() -> None:
    key = "GPU-test/lock key"
    assert lock_path(key).name == "gpu-GPU-test_lock_key.lock"
    with device_lock(key), pytest.raises(WorkerError, match="held by another run"), device_lock(key, timeout=0.05):
        pass
    with device_lock(key), pytest.raises(WorkerError, match="another measurer of this process"), device_lock(key):
        pass
    with device_lock(key, timeout=0.05):
        assert lock_path(key).exists()
