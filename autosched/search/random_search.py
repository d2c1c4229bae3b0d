"""Uniform random search: the baseline that every other strategy has to beat."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, ClassVar

from autosched.search.strategy import Score, check_observed, draw_distinct

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from autosched.search.space import Space
    from autosched.sketches.schedule import ScheduleBatch


class RandomSearch:
    """Draws without looking at scores or measurements.

    Args:
        space: Where to draw.
    """

    asks_model: ClassVar[bool] = False

    def __init__(self, space: Space) -> None:
        self.space = space

    def propose(self, n: int, score: Score, rng: np.random.Generator, exclude: AbstractSet[bytes]) -> ScheduleBatch:
        """Draw ``n`` distinct members that are not in ``exclude``; see ``Strategy.propose``."""
        return draw_distinct(self.space, n, rng, exclude)

    def observe(self, batch: ScheduleBatch, latencies: NDArray[np.float64]) -> None:
        """Learn nothing; see ``Strategy.observe``."""
        check_observed(self.space, batch, latencies)
