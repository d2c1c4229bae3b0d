"""A grid: one fixed sweep through all sketches and knobs that is spread evenly wherever it is cut off."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from autosched.search.landing import Landing
from autosched.search.strategy import Score, check_count, check_observed, first_distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autosched.search.space import Space
    from autosched.sketches.schedule import ScheduleBatch

#: Points of the lattice, and of the piece of it that is worked out at once.
POINTS = 2**16
PIECE = 1024


class Grid:
    """Sweeps a lattice over sketches and knobs, the same one for every seed; asks no model and learns nothing.

    Point i of the lattice belongs to sketch i modulo their number, taken in steps of about the golden section; its knob
    k is the value at position floor(count * frac(1/2 + i * a^(k+1))) of the knob's domain, where 1/a is the root of
    x^(d+1) = x + 1 for d knobs (the additive recurrence that generalises the golden section: every prefix is of low
    discrepancy, in each knob and in all together). In the domain of a knob that seldom matters its default stands as
    often as samples have it. Points that are no members, or that repeat one, are left out; in a listed space a point
    is the nearest member that is left (see ``Landing``). Of each ``PIECE`` points, the rest is put in an order in which
    the sketches take turns. After ``POINTS`` of them come the members that were not met, as the space enumerates them.
    A proposal is the first of this sweep that is not excluded.

    Args:
        space: What to sweep.
    """

    asks_model: ClassVar[bool] = False

    def __init__(self, space: Space) -> None:
        self.space = space
        self._empty = space.sample(np.random.default_rng(0), 0)
        self._rest = self._sweep()
        self._keys: list[bytes] = []
        self._values: list[NDArray[np.int32]] = []

    def propose(self, n: int, score: Score, rng: np.random.Generator, exclude: AbstractSet[bytes]) -> ScheduleBatch:
        """The first ``n`` members of the sweep that are not in ``exclude``; see ``Strategy.propose``."""
        check_count(n)
        chosen: list[NDArray[np.int32]] = []
        at = 0
        while len(chosen) < n:
            if at == len(self._keys):
                piece = next(self._rest, None)
                if piece is None:
                    break
                self._keys += piece.keys()
                self._values += list(piece.values)
                continue
            if self._keys[at] not in exclude:
                chosen.append(self._values[at])
            at += 1
        return self._empty.with_values(np.array(chosen, np.int32).reshape(len(chosen), self._empty.values.shape[1]))

    def observe(self, batch: ScheduleBatch, latencies: NDArray[np.float64]) -> None:
        """Learn nothing; see ``Strategy.observe``."""
        check_observed(self.space, batch, latencies)

    def _sweep(self) -> Iterator[ScheduleBatch]:
        """Every member once, in pieces."""
        landing = Landing(self.space)
        met: set[bytes] = set()
        for start in range(0, POINTS, PIECE):
            piece = landing.land(_lattice(landing, np.arange(start, start + PIECE)), met)
            met.update(piece.keys())
            yield piece.take(np.argsort(_turn(piece.sketch_index), kind="stable"))
        for chunk in self.space.enumerate(np.random.default_rng(0)):
            yield first_distinct(chunk, len(chunk), met)


def _lattice(landing: Landing, i: NDArray[np.intp]) -> NDArray[np.int32]:
    """Rows of the lattice's points ``i``."""
    domains = landing.domains
    total, knobs = domains.counts.shape
    stride = _coprime_near(total, (np.sqrt(5.0) - 1.0) / 2.0)
    sketch = i * stride % total
    root = 1.5
    for _ in range(64):
        root = (1.0 + root) ** (1.0 / (knobs + 1))
    place = np.modf(0.5 + i[:, None] * root ** -np.arange(1.0, knobs + 1.0))[0]
    position = (place * np.maximum(domains.draw_counts[sketch], 1)).astype(np.intp)
    values = domains.draws[sketch[:, None], np.arange(knobs), position]
    return np.column_stack([sketch.astype(np.int32), values])


def _turn(sketch: NDArray[np.int32]) -> NDArray[np.intp]:
    """How many rows of the same sketch stand before each row."""
    order = np.argsort(sketch, kind="stable")
    turn = np.empty(len(sketch), np.intp)
    turn[order] = np.arange(len(sketch)) - np.searchsorted(sketch[order], sketch[order])
    return turn


def _coprime_near(total: int, share: float) -> int:
    """The number coprime to ``total`` that is nearest to ``share`` of it."""
    coprime = [x for x in range(1, total + 1) if np.gcd(x, total) == 1]
    return min(coprime, key=lambda x: abs(x - share * total))
