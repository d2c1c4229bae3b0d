"""What the strategies share that ask a model: scores without nan, the best distinct rows, the best measured ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autosched.search.strategy import Score, check_observed
from autosched.sketches.knobs import KNOBS

if TYPE_CHECKING:
    from autosched.search.space import Space
    from autosched.sketches.schedule import ScheduleBatch

#: Scores that differ by no more than this are the same.
TIE = 1e-9
#: How many times the rows asked for, of different families, are looked through for scores that differ.
DEPTH = 16

#: Columns of a batch with knobs that seldom matter.
_SELDOM = [i for i, info in enumerate(KNOBS.values(), 1) if info.seldom]


class Incumbents:
    """The fastest members of a space that were measured.

    Args:
        space: Rows outside it are not kept.
        most: How many are kept.
    """

    def __init__(self, space: Space, most: int) -> None:
        self.space = space
        self.most = most
        self._ranked: list[tuple[float, bytes, ScheduleBatch]] = []

    def __len__(self) -> int:
        return len(self._ranked)

    @property
    def rows(self) -> list[ScheduleBatch]:
        """Batches of one row each, fastest first."""
        return [row for _, _, row in self._ranked]

    def observe(self, batch: ScheduleBatch, latencies: NDArray[np.float64]) -> None:
        """Take note of measurements; see ``Strategy.observe``. Failures are left out."""
        check_observed(self.space, batch, latencies)
        rows = np.flatnonzero(np.isfinite(latencies))
        batch = batch.take(rows)
        known = {key: (latency, row) for latency, key, row in self._ranked}
        keys = batch.keys()
        for i in np.flatnonzero(self.space.contains(batch)):
            latency = float(latencies[rows[i]])
            if keys[i] not in known or latency < known[keys[i]][0]:
                known[keys[i]] = (latency, batch.take(np.array([i])))
        ranked = sorted(((latency, key, row) for key, (latency, row) in known.items()), key=lambda x: x[:2])
        self._ranked = ranked[: self.most]


def scored(score: Score, batch: ScheduleBatch) -> NDArray[np.float64]:
    """Scores of a batch, nan and +inf replaced by -inf."""
    scores = np.asarray(score(batch), np.float64)
    return np.where(scores < np.inf, scores, -np.inf)


def best_distinct(
    seen: ScheduleBatch, scores: NDArray[np.float64], n: int, exclude: AbstractSet[bytes], share: float
) -> ScheduleBatch:
    """The best distinct rows that are not excluded, best first, spread as far as that leaves ``n``.

    Spread means that no cell has more than its share, that of a family, rows that differ only in knobs that seldom
    matter, the best comes before the others, and that of the ``DEPTH * n`` best families those with a score of their
    own, or the first of several with the same, come before the others: to measure what the score cannot tell apart
    teaches little, and what seldom matters is not to fill a batch. Rows whose score is not finite are left out.

    Args:
        seen: Rows, repeats included.
        scores: One a row.
        n: How many to choose.
        exclude: Row keys that must not be chosen.
        share: Largest share of ``n`` from one cell (sketch, block_m, block_n, block_k), at least one row.
    """
    first = distinct(seen)
    order = first[np.argsort(-scores[first], kind="stable")]
    free = (i for i, key in _keys(seen, order[np.isfinite(scores[order])]) if key not in exclude)
    head, kin = _families(seen, free, DEPTH * n)
    tied = np.diff(scores[head], prepend=np.inf) >= -TIE
    cells = np.column_stack([seen.sketch_index, *(seen.column(x) for x in ("block_m", "block_n", "block_k"))])
    limit = max(1, math.floor(share * n))
    chosen: list[int] = []
    spare: list[int] = []
    taken: Counter[bytes] = Counter()
    for i in chain(head[~tied].tolist(), head[tied].tolist(), kin, free):
        if len(chosen) == n:
            break
        cell = cells[i].tobytes()
        if taken[cell] < limit:
            taken[cell] += 1
            chosen.append(i)
        elif len(spare) < n:
            spare.append(i)
    chosen += spare[: n - len(chosen)]
    rows = np.array(chosen, np.intp)
    return seen.take(rows[np.argsort(-scores[rows], kind="stable")])


def _families(seen: ScheduleBatch, ranked: Iterator[int], most: int) -> tuple[NDArray[np.intp], list[int]]:
    """The first of each of the first ``most`` families among ``ranked`` rows, and the rows of them passed over."""
    values = seen.values.copy()
    values[:, _SELDOM] = 0
    family = _digests(values).tolist()
    first: dict[int, int] = {}
    kin: list[int] = []
    while len(first) < most and (i := next(ranked, None)) is not None:
        if first.setdefault(family[i], i) != i:
            kin.append(i)
    return np.fromiter(first.values(), np.intp), kin


def distinct(batch: ScheduleBatch) -> NDArray[np.intp]:
    """Index of the first of each row's repeats, rising."""
    _, first = np.unique(_digests(batch.values), return_index=True)
    first.sort()
    return first


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
