"""Evolutionary search: a population that mutates and crosses under the model's score."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from autosched.errors import InvalidInputError
from autosched.search.ranking import Incumbents, best_distinct, distinct, scored
from autosched.search.strategy import Score, check_count, filled_up

if TYPE_CHECKING:
    from autosched.search.space import Space
    from autosched.sketches.schedule import ScheduleBatch

#: Share of the first generation that may be the best measured members; the others are fresh.
INCUMBENTS = 0.25
#: Chance that a child is a cross of two members; else it is one move away from one.
CROSSOVER = 0.3
#: A round ends when its best distinct scores, ``LEADERS`` of them and one more for each excluded schedule, have not
#: changed for ``PATIENCE`` generations.
LEADERS = 64
PATIENCE = 6


class Evolutionary:
    """Proposes the best-scored distinct schedules of a population that evolved under the score.

    A round: the best measured members and fresh ones are the first generation. In each generation, every child gets the
    better of two random members as a parent and is one move away from it, or, with chance ``CROSSOVER``, takes each
    knob from it or from another member of the same sketch, either with the same chance (one move, where that is no
    member of the space). All children are scored in one call; the best distinct ones of parents and children survive.

    A round scores at most ``population * (2 + generations)`` candidates, 63,488 unless other numbers are given: no more
    than 128 annealing chains of 500 steps. Where a space lists its members and these are no more than that, all of them
    are scored instead. Proposals are spread as those of ``Annealing``.

    Args:
        space: Where to search.
        population: How many survive.
        generations: Most generations of a round.
        share: Largest share of a proposal from one cell (sketch, block_m, block_n, block_k), as long as there are
            others; 1 sets no limit.

    Raises:
        InvalidInputError: Fewer than two members or one generation, or a share outside (0, 1].
    """

    asks_model: ClassVar[bool] = True

    def __init__(self, space: Space, *, population: int = 1024, generations: int = 60, share: float = 0.5) -> None:
        if population < 2 or generations < 1:
            raise InvalidInputError(
                f"{generations} generations of {population} search nothing", "give at least 1 generation of 2"
            )
        if not 0.0 < share <= 1.0:
            raise InvalidInputError(f"share = {share} is no share", "give more than 0 and at most 1")
        self.space = space
        self.population = population
        self.generations = generations
        self.share = share
        self._incumbents = Incumbents(space, max(1, int(INCUMBENTS * population)))

    def propose(self, n: int, score: Score, rng: np.random.Generator, exclude: AbstractSet[bytes]) -> ScheduleBatch:
        """Evolve for a round, or score all members of a small table; see ``Strategy.propose`` and the class."""
        check_count(n)
        members = self.space.members()
        if n == 0:
            return self.space.sample(rng, 0)
        if members is not None and len(members) <= self.population * (2 + self.generations):
            seen, scores = members, scored(score, members)
        else:
            seen, scores = self._evolve(score, rng, LEADERS + len(exclude))
        chosen = best_distinct(seen, scores, n, exclude, self.share)
        return filled_up(chosen, self.space, n, rng, exclude)

    def observe(self, batch: ScheduleBatch, latencies: NDArray[np.float64]) -> None:
        """Remember the fastest members measured: the next round's first generation holds them."""
        self._incumbents.observe(batch, latencies)

    def _evolve(self, score: Score, rng: np.random.Generator, lead: int) -> tuple[ScheduleBatch, NDArray[np.float64]]:
        """One round, which ends when its ``lead`` best scores settle: everything scored in it, repeats included."""
        first = self.space.sample(rng, self.population)
        concat = type(first).concat
        first = concat([*self._incumbents.rows, first])
        seen, scores = [first], [scored(score, first)]
        alive, level = self._survivors(first, scores[0])
        still = 0
        for _ in range(self.generations):
            children = self._children(rng, alive)
            tried = scored(score, children)
            seen.append(children)
            scores.append(tried)
            before = level
            alive, level = self._survivors(concat([alive, children]), np.concatenate([level, tried]))
            still = still + 1 if np.array_equal(before[:lead], level[:lead]) else 0
            if still == PATIENCE:
                break
        return concat(seen), np.concatenate(scores)

    def _survivors(
        self, batch: ScheduleBatch, scores: NDArray[np.float64]
    ) -> tuple[ScheduleBatch, NDArray[np.float64]]:
        """The best distinct rows and their scores, best first."""
        first = distinct(batch)
        rows = first[np.argsort(-scores[first], kind="stable")][: self.population]
        return batch.take(rows), scores[rows]

    def _children(self, rng: np.random.Generator, alive: ScheduleBatch) -> ScheduleBatch:
        """One child for each place in the population; ``alive`` comes best first, so a lower index is a better one."""
        parent = rng.integers(len(alive), size=(2, self.population)).min(axis=0)
        parents = alive.take(parent)
        children = self.space.mutate(rng, parents)
        crossed = np.flatnonzero(rng.random(self.population) < CROSSOVER)
        mates = alive.take(_mates(rng, alive.sketch_index, parent[crossed]))
        mine = rng.random((len(crossed), alive.values.shape[1])) < 0.5
        cross = alive.with_values(np.where(mine, parents.values[crossed], mates.values))
        valid = self.space.contains(cross)
        values = children.values.copy()
        values[crossed[valid]] = cross.values[valid]
        return alive.with_values(values)


def _mates(rng: np.random.Generator, sketch: NDArray[np.int32], rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """For each of ``rows`` a random row of the same sketch, which may be itself."""
    order = np.argsort(sketch, kind="stable")
    grouped = sketch[order]
    start, end = (np.searchsorted(grouped, sketch[rows], side=side) for side in ("left", "right"))
    return np.asarray(order[rng.integers(start, end)], np.intp)
