"""Simulated annealing of many chains that are all scored at once: the default strategy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autosched.errors import InvalidInputError
from autosched.search.strategy import Score, check_count, draw_distinct

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


class Annealing:
    """Proposes the best-scored distinct schedules that its chains passed through.

    A round: the worst quarter of the chains restarts from fresh schedules and another quarter from the best measured
    ones; then, in each step, every chain makes one move, all moves are scored in one call, and a move that lowers the
    score by d is accepted with probability exp(-d / temperature). The temperature falls geometrically from ``HOT`` to
    ``COLD`` standard deviations of the scores of fresh schedules, so that the scale of the scores does not matter.
    Chains persist from round to round.

    Exhaustive below ``chains * steps`` rows: where a space lists its members and these are no more than a round would
    score, all of them are scored instead, which is exact and no dearer.

    The first proposal is always the best-scored one that is not excluded. Those after it take turns in tiles: as long
    as there are others, at most ``share`` of the proposals come from one cell (sketch, block_m, block_n, block_k).

    Args:
        space: Where to search.
        chains: How many chains.
        steps: Most steps of a round.
        share: Largest share of a proposal from one cell, at least one schedule; 1 sets no limit.

    Raises:
        InvalidInputError: Fewer than one chain or step, or a share outside (0, 1].
    """

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
        self._measured: list[tuple[float, bytes, ScheduleBatch]] = []

    def propose(self, n: int, score: Score, rng: np.random.Generator, exclude: AbstractSet[bytes]) -> ScheduleBatch:
        """Anneal for a round, or score all members of a small table; see ``Strategy.propose`` and the class."""
        check_count(n)
        members = self.space.members()
        if n == 0:
            return self.space.sample(rng, 0)
        if members is not None and len(members) <= self.chains * self.steps:
            seen, scores = members, _scored(score, members)
        else:
            seen, scores = self._anneal(score, rng, LEADERS + len(exclude))
        chosen = self._best(seen, scores, n, exclude)
        if len(chosen) < n:
            rest = draw_distinct(self.space, n - len(chosen), rng, {*exclude, *chosen.keys()})
            chosen = type(chosen).concat([chosen, rest])
        return chosen

    def observe(self, batch: ScheduleBatch, latencies: NDArray[np.float64]) -> None:
        """Remember the fastest members measured: a part of the next round's chains starts from them.

        Raises:
            InvalidInputError: Not one latency for each row, or the batch is over other sketches than the space.
        """
        if np.shape(latencies) != (len(batch),):
            raise InvalidInputError(
                f"{np.shape(latencies)} latencies for {len(batch)} schedules", "give one a schedule, nan for failures"
            )
        if batch.sketches != self.space.sketches:
            raise InvalidInputError("the batch counts through other sketches than the space", "use space.sketches")
        rows = np.flatnonzero(np.isfinite(latencies))
        batch = batch.take(rows)
        inside = np.flatnonzero(self.space.contains(batch))
        known = {key: (latency, row) for latency, key, row in self._measured}
        keys = batch.keys()
        for i in inside:
            latency = float(latencies[rows[i]])
            if keys[i] not in known or latency < known[keys[i]][0]:
                known[keys[i]] = (latency, batch.take(np.array([i])))
        ranked = sorted(((latency, key, row) for key, (latency, row) in known.items()), key=lambda x: x[:2])
        self._measured = ranked[: max(1, int(INCUMBENTS * self.chains))]

    def _anneal(self, score: Score, rng: np.random.Generator, lead: int) -> tuple[ScheduleBatch, NDArray[np.float64]]:
        """One round, which ends when its ``lead`` best scores settle: everything scored in it, repeats included."""
        fresh = self.space.sample(rng, self.chains)
        levels = _scored(score, fresh)
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
            tried = _scored(score, moved)
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
        return concat(seen), np.concatenate(scores)

    def _start(
        self, score: Score, fresh: ScheduleBatch, levels: NDArray[np.float64]
    ) -> tuple[ScheduleBatch, NDArray[np.float64]]:
        """The chains' first rows and their scores: what persists, best first, then incumbents, then fresh rows."""
        if self._ends is None:
            kept = fresh.take(np.arange(0))
        else:
            before = _scored(score, self._ends)
            keep = self.chains - int(FRESH * self.chains) - len(self._measured)
            kept = self._ends.take(np.argsort(-before, kind="stable")[: max(keep, 0)])
        concat = type(fresh).concat
        starts = concat([kept, *(row for _, _, row in self._measured)])
        starts = starts.take(np.arange(min(len(starts), self.chains)))
        if len(starts) == 0:
            return fresh, levels
        rest = self.chains - len(starts)
        return concat([starts, fresh.take(np.arange(rest))]), np.concatenate([_scored(score, starts), levels[:rest]])

    def _best(
        self, seen: ScheduleBatch, scores: NDArray[np.float64], n: int, exclude: AbstractSet[bytes]
    ) -> ScheduleBatch:
        """The best distinct rows that are not excluded, best first, within the share of a cell where that leaves ``n``.

        Rows whose score is not finite are left out.
        """
        _, first = np.unique(_digests(seen.values), return_index=True)
        first.sort()
        order = first[np.argsort(-scores[first], kind="stable")]
        order = order[np.isfinite(scores[order])]
        cells = np.column_stack([seen.sketch_index, *(seen.column(x) for x in ("block_m", "block_n", "block_k"))])
        limit = max(1, math.floor(self.share * n))
        chosen: list[int] = []
        spare: list[int] = []
        taken: Counter[bytes] = Counter()
        for i, key in _keys(seen, order):
            if len(chosen) == n:
                break
            if key in exclude:
                continue
            cell = cells[i].tobytes()
            if taken[cell] < limit:
                taken[cell] += 1
                chosen.append(i)
            elif len(spare) < n:
                spare.append(i)
        chosen += spare[: n - len(chosen)]
        rows = np.array(chosen, np.intp)
        return seen.take(rows[np.argsort(-scores[rows], kind="stable")])


def _scored(score: Score, batch: ScheduleBatch) -> NDArray[np.float64]:
    """Scores of a batch, nan and +inf replaced by -inf."""
    scores = np.asarray(score(batch), np.float64)
    return np.where(scores < np.inf, scores, -np.inf)


def _accepts(
    level: NDArray[np.float64], tried: NDArray[np.float64], temperature: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Metropolis' rule in logarithms: a gain of d is accepted when d >= temperature * log(u), u uniform in (0, 1]."""
    allowed = temperature * np.log1p(-rng.random(len(level)))
    worst = np.isneginf(level)
    gain = np.where(worst, 0.0, tried) - np.where(worst, 0.0, level)
    return np.asarray(gain >= allowed, np.bool_)


def _digests(values: NDArray[np.int32]) -> NDArray[np.uint64]:
    """A 64-bit digest of each row. Two rows that share one by accident only cost one of them its proposal."""
    digest = np.zeros(len(values), np.uint64)
    for column in values.T:
        digest = (digest ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        digest ^= digest >> np.uint64(29)
    return digest


def _keys(batch: ScheduleBatch, rows: NDArray[np.intp]) -> Iterable[tuple[int, bytes]]:
    """Indices with their row keys, worked out in pieces: mostly only the first ones are asked for."""
    for start in range(0, len(rows), 256):
        piece = rows[start : start + 256]
        yield from zip(piece.tolist(), batch.take(piece).keys(), strict=True)
