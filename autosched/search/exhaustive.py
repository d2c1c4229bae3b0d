"""Exhaustive search: everything in the space, in a fixed order."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from autosched.search.strategy import Score, check_count, check_observed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autosched.search.space import Space
    from autosched.sketches.schedule import ScheduleBatch


class Exhaustive:
    """Walks through the whole space once, in the same order for every seed; asks no model and learns nothing.

    A listed space is walked in its own order, a generated one in the order of ``Space.enumerate`` under seed 0. Nothing
    is proposed twice, whether it was measured or not; after the last member, proposals are empty.

    Args:
        space: What to walk through.
    """

    asks_model: ClassVar[bool] = False

    def __init__(self, space: Space) -> None:
        self.space = space
        self._empty = space.sample(np.random.default_rng(0), 0)
        self._left = self._walk()

    def propose(self, n: int, score: Score, rng: np.random.Generator, exclude: AbstractSet[bytes]) -> ScheduleBatch:
        """The next ``n`` members that are not in ``exclude``; see ``Strategy.propose``."""
        check_count(n)
        rows = list(islice((row for key, row in self._left if key not in exclude), n))
        return self._empty.with_values(np.array(rows, np.int32).reshape(len(rows), self._empty.values.shape[1]))

    def observe(self, batch: ScheduleBatch, latencies: NDArray[np.float64]) -> None:
        """Learn nothing; see ``Strategy.observe``."""
        check_observed(self.space, batch, latencies)

    def _walk(self) -> Iterator[tuple[bytes, NDArray[np.int32]]]:
        """Key and values of every member."""
        members = self.space.members()
        chunks = self.space.enumerate(np.random.default_rng(0)) if members is None else iter([members])
        for chunk in chunks:
            yield from zip(chunk.keys(), chunk.values, strict=True)
