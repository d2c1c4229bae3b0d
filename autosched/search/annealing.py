"""Simulated annealing of many chains that are all scored at once: the default strategy."""

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

#: Temperature at the start and the end of a round, in standard deviations of the scores of fresh schedules. A round
#: ends near zero: the differences that matter among the best are a few hundredths of that deviation.
HOT = 0.1
COLD = 0.003
#: Share of the chains that a round starts from fresh schedules, and from the best ones measured; the rest persist.
FRESH = 0.25
INCUMBENTS = 0.25
#: A round ends when its best distinct scores, ``LEADERS`` of them and one more for each excluded schedule, have not
#: changed for ``PATIENCE`` steps. (On the 1.4 million schedules of gemm(4096, 4096, 4096), scored by an XGBoost model
#: of a synthetic latency, a round found the 16 best of all in about 260 steps, to within 1e-4 of their mean.)
LEADERS = 64
PATIENCE = 20
#: Steps after a round in which its best rows move upwards only.
POLISH = 30


class Annealing:
    """Proposes the best-scored distinct schedules that its chains passed through.

    A round: the worst quarter of the chains restarts from fresh schedules and another quarter from the best measured
    ones; then, in each step, every chain makes one move, all moves are scored in one call, and a move that lowers the
    score by d is accepted with probability exp(-d / temperature). The temperature falls geometrically from ``HOT`` to
    ``COLD`` standard deviations of the scores of fresh schedules, so that the scale of the scores does not matter.
    Chains persist from round to round. At the end the best rows make ``POLISH`` moves more, of which only better ones
    are accepted.

    Exhaustive below ``chains * steps`` rows: where a space lists its members and these are no more than a round would
    score, all of them are scored instead, which is exact and no dearer.

    The first proposal is always the best-scored one that is not excluded. Those after it are spread: as long as there
    are others, at most ``share`` of the proposals come from one cell (sketch, block_m, block_n, block_k), and of
    schedules with the same score one comes before others that are nearly as good (see ``ranking.best_distinct``).

    Args:
        space: Where to search.
        chains: How many chains.
        steps: Most steps of a round.
        share: Largest share of a proposal from one cell, at least one schedule; 1 sets no limit.

    Raises:
        InvalidInputError: Fewer than one chain or step, or a share outside (0, 1].
    """

    asks_model: ClassVar[bool] = True

    def __init__(self, space: Space, *, chains: int = 128, steps: int = 500, share: float = 0.5) -> None:
        if chains < 1 or steps < 1:
            raise InvalidInputError(f"{chains} chains of {steps} steps search nothing", "give at least 1 of each")
        if not 0.0 < share <= 1.0:
            raise InvalidInputError(f"share = {share} is no share", "give more than 0 and at most 1")
        self.space = space
        self.chains = chains
        self.steps = steps
        self.share = share
        self._ends: ScheduleBatch | None = None
        self._incumbents = Incumbents(space, max(1, int(INCUMBENTS * chains)))

    def propose(self, n: int, score: Score, rng: np.random.Generator, exclude: AbstractSet[bytes]) -> ScheduleBatch:
        """Anneal for a round, or score all members of a small table; see ``Strategy.propose`` and the class."""
        check_count(n)
        members = self.space.members()
        if n == 0:
            return self.space.sample(rng, 0)
        if members is not None and len(members) <= self.chains * self.steps:
            seen, scores = members, scored(score, members)
        else:
            seen, scores = self._anneal(score, rng, LEADERS + len(exclude))
        chosen = best_distinct(seen, scores, n, exclude, self.share)
        return filled_up(chosen, self.space, n, rng, exclude)

    def observe(self, batch: ScheduleBatch, latencies: NDArray[np.float64]) -> None:
        """Remember the fastest members measured: a part of the next round's chains starts from them."""
        self._incumbents.observe(batch, latencies)

    def _anneal(self, score: Score, rng: np.random.Generator, lead: int) -> tuple[ScheduleBatch, NDArray[np.float64]]:
        """One round, which ends when its ``lead`` best scores settle: everything scored in it, repeats included."""
        fresh = self.space.sample(rng, self.chains)
        levels = scored(score, fresh)
        seen, scores = [fresh], [levels]
        finite = levels[np.isfinite(levels)]
        spread = float(finite.std()) if finite.size else 0.0
        batch, level = self._start(score, fresh, levels)
        seen.append(batch)
        scores.append(level)
        concat, chain, still = type(batch).concat, np.arange(self.chains), 0
        leaders = np.unique(np.concatenate(scores))[-lead:]
        for step in range(self.steps):
            temperature = spread * HOT * (COLD / HOT) ** (step / max(self.steps - 1, 1))
            moved = self.space.mutate(rng, batch)
            tried = scored(score, moved)
            seen.append(moved)
            scores.append(tried)
            accepted = _accepts(level, tried, temperature, rng)
            level = np.where(accepted, tried, level)
            batch = concat([batch, moved]).take(chain + self.chains * accepted)
            still += 1
            if len(leaders) < lead or tried.max() > leaders[0]:
                before, leaders = leaders, np.unique(np.concatenate([leaders, tried]))[-lead:]
                still = still if np.array_equal(before, leaders) else 0
            if still == PATIENCE:
                break
        self._ends = batch
        self._polish(score, rng, seen, scores)
        return concat(seen), np.concatenate(scores)

    def _polish(
        self, score: Score, rng: np.random.Generator, seen: list[ScheduleBatch], scores: list[NDArray[np.float64]]
    ) -> None:
        """From the best rows of the round only better ones: what it came near it should also reach."""
        every, levels = type(seen[0]).concat(seen), np.concatenate(scores)
        first = distinct(every)
        best = first[np.argsort(-levels[first], kind="stable")[: self.chains]]
        batch, level = every.take(best), levels[best]
        chain = np.arange(len(batch))
        for _ in range(POLISH):
            moved = self.space.mutate(rng, batch)
            tried = scored(score, moved)
            seen.append(moved)
            scores.append(tried)
            better = tried > level
            level = np.where(better, tried, level)
            batch = type(batch).concat([batch, moved]).take(chain + len(chain) * better)

    def _start(
        self, score: Score, fresh: ScheduleBatch, levels: NDArray[np.float64]
    ) -> tuple[ScheduleBatch, NDArray[np.float64]]:
        """The chains' first rows and their scores: what persists, best first, then incumbents, then fresh rows."""
        if self._ends is None:
            kept = fresh.take(np.arange(0))
        else:
            before = scored(score, self._ends)
            keep = self.chains - int(FRESH * self.chains) - len(self._incumbents)
            kept = self._ends.take(np.argsort(-before, kind="stable")[: max(keep, 0)])
        concat = type(fresh).concat
        starts = concat([kept, *self._incumbents.rows])
        starts = starts.take(np.arange(min(len(starts), self.chains)))
        if len(starts) == 0:
            return fresh, levels
        rest = self.chains - len(starts)
        return concat([starts, fresh.take(np.arange(rest))]), np.concatenate([scored(score, starts), levels[:rest]])


def _accepts(
    level: NDArray[np.float64], tried: NDArray[np.float64], temperature: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Metropolis' rule in logarithms: a gain of d is accepted when d >= temperature * log(u), u uniform in (0, 1]."""
    allowed = temperature * np.log1p(-rng.random(len(level)))
    worst = np.isneginf(level)
    gain = np.where(worst, 0.0, tried) - np.where(worst, 0.0, level)
    return np.asarray(gain >= allowed, np.bool_)
