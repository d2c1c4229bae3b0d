"""Compiling ahead: each source once, whoever asks, and results kept until somebody wants them."""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from autosched.errors import WorkerError
from autosched.measure.ahead import CompileAhead
from autosched.sketches.codegen import Generated
from tests.measure.test_local import Result


def source(name: str) -> Generated:
    return Generated(name, hashlib.sha256(name.encode()).hexdigest(), (), 0, False, "gemm")


class SlowPool:
    """Answers what it was told to, in the order of :meth:`finish`."""

    def __init__(self) -> None:
        self.submitted: list[tuple[int, str]] = []
        self.waits: list[float] = []
        self.closed = False
        self._done: queue.SimpleQueue[tuple[int, Result]] = queue.SimpleQueue()

    def finish(self, *names: str) -> None:
        for name in names:
            for identity in [identity for identity, text in self.submitted if text == name]:
                self._done.put((identity, Result("ok", name)))

    def warm(self) -> None: ...

    def aim(self, capability: int, shared_limit: int | None) -> None: ...

    def submit(self, identity: int, generated: Generated, /) -> None:
        if self.closed:
            raise WorkerError("closed")
        self.submitted.append((identity, generated.source))

    def ready(self, timeout: float) -> Sequence[tuple[int, Result]]:
        self.waits.append(timeout)
        return [self._done.get() for _ in range(self._done.qsize())]

    def keep(self, source_hash: str, user_cache_dir: str | Path) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


def errors(ahead: CompileAhead, *names: str, timeout: float = 0.5) -> set[str]:
    """Names of those that are compiled, as their results say."""
    wanted = [source(name).source_hash for name in names]
    found = ahead.ready(wanted, timeout)
    assert set(found) <= set(wanted)
    return {result.error for result in found.values()}


def test_a_source_is_compiled_once_and_its_result_is_kept() -> None:
    pool = SlowPool()
    ahead = CompileAhead(pool)
    for name in ("a", "b", "a"):
        ahead.submit(source(name))
    assert [text for _, text in pool.submitted] == ["a", "b"]
    pool.finish("a", "b")
    assert errors(ahead, "a") == {"a"}
    ahead.submit(source("a"))
    assert [text for _, text in pool.submitted] == ["a", "b"]
    assert errors(ahead, "a", "b") == {"a", "b"}


def test_results_of_another_round_are_not_given_away_nor_lost() -> None:
    pool = SlowPool()
    ahead = CompileAhead(pool)
    for name in ("now", "next"):
        ahead.submit(source(name))
    pool.finish("next")
    assert errors(ahead, "now") == set()
    pool.finish("now")
    assert errors(ahead, "now") == {"now"}
    assert errors(ahead, "next") == {"next"}


def test_it_waits_only_where_nothing_is_there() -> None:
    pool = SlowPool()
    ahead = CompileAhead(pool)
    ahead.submit(source("a"))
    assert errors(ahead, "a", timeout=0.25) == set()
    pool.finish("a")
    assert errors(ahead, "a", timeout=0.25) == {"a"}
    assert errors(ahead, "a", timeout=0.25) == {"a"}
    assert pool.waits == [0.25, 0.25, 0.0]


def test_two_threads_submit_the_same_sources() -> None:
    pool = SlowPool()
    ahead = CompileAhead(pool)
    names = [str(i) for i in range(200)]

    def submit() -> None:
        for name in names:
            ahead.submit(source(name))

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(text for _, text in pool.submitted) == sorted(names)
    assert len({identity for identity, _ in pool.submitted}) == 200
    pool.finish(*names)
    assert errors(ahead, *names) == set(names)


def test_a_source_that_the_pool_refused_is_refused_again() -> None:
    pool = SlowPool()
    ahead = CompileAhead(pool)
    pool.close()
    for _ in range(2):
        with pytest.raises(WorkerError, match="closed"):
            ahead.submit(source("a"))


def test_waiting_for_a_source_that_another_thread_is_about_to_hand_over() -> None:
    pool = SlowPool()
    ahead = CompileAhead(pool)
    found: set[str] = set()

    def wait() -> None:
        limit = time.monotonic() + 10
        while not found and time.monotonic() < limit:
            found.update(errors(ahead, "late"))

    waiter = threading.Thread(target=wait)
    waiter.start()
    ahead.submit(source("late"))
    pool.finish("late")
    waiter.join()
    assert found == {"late"}
