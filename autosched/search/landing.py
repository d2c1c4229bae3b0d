"""Where knob values that were drawn without asking the space end up in it."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autosched.search.domains import Domains
from autosched.search.space import SKETCH_DISTANCE
from autosched.search.strategy import first_distinct

if TYPE_CHECKING:
    from autosched.search.space import Space
    from autosched.sketches.schedule import ScheduleBatch


class Landing:
    """Turns rows of any knob values of a space's sketches into members of it.

    In a generated space a row is itself, where it is valid. In a space that lists its members it is the nearest one
    that is free, on the scale of a table's moves: knobs on their own scales, an absent knob at its default,
    ``SKETCH_DISTANCE`` between sketches; the earlier one of two that are as near.

    Args:
        space: Where to land.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.domains = Domains.of(space.sketches)
        self._empty = space.sample(np.random.default_rng(0), 0)
        self._members = space.members()
        if self._members is not None:
            self._points = self.domains.encode(self._members.values, SKETCH_DISTANCE)
            self._keys = self._members.keys()

    def land(self, rows: NDArray[np.int32], taken: AbstractSet[bytes]) -> ScheduleBatch:
        """Distinct members that are not taken, in the order of the rows; none for a row that cannot land.

        Args:
            rows: Rows of a batch over the space's sketches, each value in its domain.
            taken: Row keys of members that are not free.
        """
        if self._members is None:
            batch = self._empty.with_values(rows)
            return first_distinct(batch.take(np.flatnonzero(self.space.contains(batch))), len(rows), taken)
        free = np.array([key not in taken for key in self._keys], np.bool_)
        chosen: list[int] = []
        for point in self.domains.encode(rows, SKETCH_DISTANCE)[: free.sum()]:
            distance = ((self._points - point) ** 2).sum(1)
            chosen.append(int(np.where(free, distance, np.inf).argmin()))
            free[chosen[-1]] = False
        return self._members.take(np.array(chosen, np.intp))
