"""Compiling ahead: sources go to the compile workers when a round is proposed, and are waited for in its measuring."""

from __future__ import annotations

import itertools
import threading
import typing
from collections.abc import Collection, Sequence
from pathlib import Path

from autosched.sketches.codegen import Generated


class Compiled(typing.Protocol):
    """What a compile pool says about one source (``compiling.CompileResult``)."""

    @property
    def status(self) -> str:
        """One of the statuses of a trial."""
        ...

    @property
    def error(self) -> str:
        """In words."""
        ...

    @property
    def features(self) -> dict[str, float]:
        """Read from the compiled kernels."""
        ...

    @property
    def seconds(self) -> float:
        """That a worker spent on it."""
        ...


class Pool(typing.Protocol):
    """Compiles in parallel (``compiling.CompilePool``)."""

    def warm(self) -> None:
        """Start the workers; returns at once."""
        ...

    def aim(self, capability: int, shared_limit: int | None) -> None:
        """Say what to compile for, before the first source."""
        ...

    def submit(self, identity: int, generated: Generated, /) -> None:
        """Hand over a source; any thread may."""
        ...

    def ready(self, timeout: float) -> Sequence[tuple[int, Compiled]]:
        """What has been compiled since the last call, waiting up to ``timeout`` seconds for a first one."""
        ...

    def keep(self, source_hash: str, user_cache_dir: str | Path) -> bool:
        """Copy a schedule's compiled kernels to another cache of Triton; whether they were there."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...


class CompileAhead:
    """A pool's results by source: each source is compiled once, whoever asked first.

    Any thread may submit; one thread waits.

    Args:
        pool: What compiles.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._submitted: dict[int, str] = {}
        self._known: set[str] = set()
        self._identities = itertools.count()
        self._results: dict[str, Compiled] = {}

    def submit(self, generated: Generated) -> None:
        """Hand over a source, unless that was done before.

        Raises:
            WorkerError: The pool is closed.
        """
        with self._lock:
            if generated.source_hash in self._known:
                return
            self._known.add(generated.source_hash)
            identity = next(self._identities)
            self._submitted[identity] = generated.source_hash
        try:
            self._pool.submit(identity, generated)
        except BaseException:  # nobody must wait for it
            self._known.discard(generated.source_hash)
            raise

    def ready(self, hashes: Collection[str], timeout: float) -> dict[str, Compiled]:
        """Those of ``hashes`` that are compiled, waiting up to ``timeout`` seconds for any result where none is.

        Args:
            hashes: Of sources that were submitted.
            timeout: Seconds; 0 does not wait.
        """
        found = self._found(hashes)
        self._take(0.0 if found else timeout)
        return self._found(hashes)

    def _found(self, hashes: Collection[str]) -> dict[str, Compiled]:
        return {source: self._results[source] for source in hashes if source in self._results}

    def _take(self, timeout: float) -> None:
        for identity, result in self._pool.ready(timeout):
            self._results[self._submitted[identity]] = result
