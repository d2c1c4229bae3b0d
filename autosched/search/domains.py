"""The knobs' domains of several sketches as padded tables, so that a mixed batch is drawn and moved by indexing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autosched.sketches.knobs import KNOB_NAMES, KNOBS, SELDOM, Knob
from autosched.sketches.schedule import ABSENT

if TYPE_CHECKING:
    from autosched.sketches.sketch import Sketch

#: Chance that a move changes the sketch instead of a knob.
SKETCH_MOVE = 0.1
#: Chance that a move of a knob goes to any other value instead of a neighbour.
JUMP = 0.2

#: Lots of a knob, or of a value, where those of a knob that seldom matters have one: the default has more (``SELDOM``).
_LOTS = round(1 / (1 - SELDOM))
_PAD = -2


@dataclass(frozen=True)
class Domains:
    """Tables over sketches ``S``, knobs ``K`` (in the order of ``KNOB_NAMES``) and positions in a domain ``J``.

    Attributes:
        sketches: What they are the domains of.
        values: int32 ``[S, K, J]``: the values, padded; an absent knob has -1 as its first.
        counts: ``[S, K]``: how many values, 0 for an absent knob.
        near: int32 ``[S, K, J, N]``: values next to the one at ``J``, padded.
        near_counts: ``[S, K, J]``: how many.
        draws: int32 ``[S, K, D]``: the values to draw from uniformly, padded: the domain, or, of a knob that seldom
            matters, as many times each value as its chance in ``Knob.sample`` says.
        draw_counts: ``[S, K]``: how many, 0 for an absent knob.
        movable: ``[S, L]``: the knobs with more than one value, to draw from uniformly, padded: each ``_LOTS`` times,
            one that seldom matters once.
        movable_counts: ``[S]``: how many.
        union: int32 ``[K, U]``: the values that a knob has in any sketch, padded.
        nearest: int32 ``[S, K, U]``: the sketch's value closest to the union's; -1 where the knob is absent.
    """

    sketches: tuple[Sketch, ...]
    values: NDArray[np.int32]
    counts: NDArray[np.intp]
    near: NDArray[np.int32]
    near_counts: NDArray[np.intp]
    draws: NDArray[np.int32]
    draw_counts: NDArray[np.intp]
    movable: NDArray[np.intp]
    movable_counts: NDArray[np.intp]
    union: NDArray[np.int32]
    nearest: NDArray[np.int32]

    @classmethod
    def of(cls, sketches: Sequence[Sketch]) -> Domains:
        """Work the tables out."""
        knobs = {(s, KNOB_NAMES.index(k.name)): k for s, sketch in enumerate(sketches) for k in sketch.knobs}
        shape = (len(sketches), len(KNOB_NAMES))
        longest = max((len(k.values) for k in knobs.values()), default=1)
        counts = np.zeros(shape, np.intp)
        values = np.full((*shape, longest), _PAD, np.int32)
        values[:, :, 0] = ABSENT
        near_counts = np.zeros((*shape, longest), np.intp)
        widest = max((len(k.neighbours(v)) for k in knobs.values() for v in k.values), default=0)
        near = np.full((*shape, longest, max(widest, 1)), _PAD, np.int32)
        for at, knob in knobs.items():
            counts[at] = len(knob.values)
            values[at][: len(knob.values)] = knob.values
            for j, value in enumerate(knob.values):
                neighbours = knob.neighbours(value)
                near_counts[at][j] = len(neighbours)
                near[at][j, : len(neighbours)] = neighbours
        lots = np.where([info.seldom for info in KNOBS.values()], 1, _LOTS) * (counts > 1)
        return cls(
            tuple(sketches),
            values,
            counts,
            near,
            near_counts,
            *_draws(knobs, shape),
            _padded([np.repeat(np.arange(shape[1]), row) for row in lots]),
            lots.sum(1),
            *_union(knobs, shape),
        )

    @property
    def columns(self) -> int:
        """Columns of a batch over these domains."""
        return 1 + len(KNOB_NAMES)

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.int32]:
        """``n`` rows of a batch: a sketch uniformly, then each knob by its own sampling."""
        rows = np.full((n, self.columns), ABSENT, np.int32)
        rows[:, 0] = rng.integers(len(self.sketches), size=n)
        for s, sketch in enumerate(self.sketches):
            mine = np.flatnonzero(rows[:, 0] == s)
            for knob in sketch.knobs:
                rows[mine, 1 + KNOB_NAMES.index(knob.name)] = knob.sample(rng, len(mine))
        return rows

    def move(self, rng: np.random.Generator, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """One move from each row, as ``GeneratedSpace`` describes it; constraints are not asked."""
        moved = rows.copy()
        sketch, chance, every = rows[:, 0], rng.random((4, len(rows))), np.arange(len(rows))
        choices = self.movable_counts[sketch]
        knob = self.movable[sketch, _pick(chance[1], choices)]
        domain, now = self.values[sketch, knob], rows[every, 1 + knob]
        place = (domain == now[:, None]).argmax(1)
        neighbours = self.near_counts[sketch, knob, place]
        close = self.near[sketch, knob, place, _pick(chance[2], neighbours)]
        others = self.counts[sketch, knob] - 1
        other = _pick(chance[2], others)
        far = domain[every, np.minimum(other + (other >= place), others)]
        value = np.where((chance[3] < JUMP) | (neighbours == 0), far, close)
        moved[every, 1 + knob] = np.where(choices == 0, now, value)
        if len(self.sketches) > 1:
            changed = np.flatnonzero((chance[0] < SKETCH_MOVE) | (choices == 0))
            moved[changed] = self._other_sketch(rng, rows[changed], chance[1, changed])
        return moved

    def contains(self, rows: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Rows whose sketch exists and whose knobs are all in its domains, and no others."""
        inside = (rows[:, 0] >= 0) & (rows[:, 0] < len(self.sketches))
        domains = self.values[np.where(inside, rows[:, 0], 0)]
        known = (domains == rows[:, 1:, None]) & (domains != _PAD)
        return np.asarray(inside & known.any(2).all(1), np.bool_)

    def enumerate(self, rng: np.random.Generator, chunk: int) -> Iterator[NDArray[np.int32]]:
        """All rows, each once, in pieces; the order is an arithmetic progression through them that ``rng`` chooses."""
        radix = np.maximum(self.counts, 1)
        sizes = radix.prod(1, dtype=np.int64)
        ends = np.cumsum(sizes)
        total = int(ends[-1])
        step = int(rng.integers(1, total + 1))
        while math.gcd(step, total) != 1:
            step = step % total + 1
        at = int(rng.integers(total))
        for start in range(0, total, chunk):
            length = min(chunk, total - start)
            rest = (at + step * np.arange(length, dtype=np.int64)) % total
            at = (at + step * length) % total
            rows = np.full((length, self.columns), ABSENT, np.int32)
            rows[:, 0] = sketch = np.searchsorted(ends, rest, side="right")
            rest -= (ends - sizes)[sketch]
            for k in range(self.columns - 1):
                base = radix[sketch, k]
                rows[:, 1 + k] = self.values[sketch, k, rest % base]
                rest //= base
            yield rows

    def encode(self, rows: NDArray[np.int32], between: float) -> NDArray[np.float32]:
        """Points ``[n, K + S]`` on the knobs' own scales, an absent knob at its default.

        Args:
            rows: Rows of a batch.
            between: Distance between two sketches whose knobs are alike.
        """
        points = np.zeros((len(rows), len(KNOB_NAMES) + len(self.sketches)), np.float32)
        for k, name in enumerate(KNOB_NAMES):
            scale = Knob(name, (KNOBS[name].default,))
            points[:, k] = scale.encode(np.where(rows[:, 1 + k] == ABSENT, KNOBS[name].default, rows[:, 1 + k]))
        points[np.arange(len(rows)), len(KNOB_NAMES) + rows[:, 0]] = between / math.sqrt(2.0)
        return points

    def _other_sketch(
        self, rng: np.random.Generator, rows: NDArray[np.int32], chance: NDArray[np.float64]
    ) -> NDArray[np.int32]:
        """Each row under another sketch: shared knobs keep the nearest value, the others are drawn as samples are."""
        knobs = np.arange(self.columns - 1)
        sketch = _pick(chance, np.asarray(len(self.sketches) - 1))
        sketch += sketch >= rows[:, 0]
        place = _pick(rng.random((len(rows), len(knobs))), self.draw_counts[sketch])
        drawn = self.draws[sketch[:, None], knobs, place]
        place = (self.union == rows[:, 1:, None]).argmax(2)
        carried = self.nearest[sketch[:, None], knobs, place]
        return np.column_stack([sketch.astype(np.int32), np.where(rows[:, 1:] == ABSENT, drawn, carried)])


def _pick(chance: NDArray[np.float64], count: NDArray[np.intp]) -> NDArray[np.intp]:
    """Index below ``count`` from a number in [0, 1); 0 where there is nothing to choose."""
    return np.asarray(chance * np.maximum(count, 1)).astype(np.intp)


def _padded(rows: Sequence[NDArray[np.intp]]) -> NDArray[np.intp]:
    """Rows of different lengths as a table, padded with 0."""
    table = np.zeros((len(rows), max([1, *map(len, rows)])), np.intp)
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    return table


def _draws(knobs: dict[tuple[int, int], Knob], shape: tuple[int, int]) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
    """The tables ``draws`` and ``draw_counts`` of ``Domains``."""
    lots = {at: _lots(knob) for at, knob in knobs.items()}
    counts = np.zeros(shape, np.intp)
    draws = np.full((*shape, max((len(x) for x in lots.values()), default=1)), _PAD, np.int32)
    draws[:, :, 0] = ABSENT
    for at, values in lots.items():
        counts[at] = len(values)
        draws[at][: len(values)] = values
    return draws, counts


def _lots(knob: Knob) -> tuple[int, ...]:
    """Values of a knob of which a uniform draw is one of ``Knob.sample``."""
    info = KNOBS[knob.name]
    if not info.seldom or info.default not in knob.values:
        return knob.values
    more = (_LOTS - 1) * len(knob.values)
    return tuple(v for value in knob.values for v in (value,) * (1 + more * (value == info.default)))


def _union(knobs: dict[tuple[int, int], Knob], shape: tuple[int, int]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The tables ``union`` and ``nearest`` of ``Domains``."""
    merged = [sorted({v for (_, k), knob in knobs.items() if k == at for v in knob.values}) for at in range(shape[1])]
    longest = max(1, *(len(m) for m in merged))
    union = np.full((shape[1], longest), _PAD, np.int32)
    nearest = np.full((*shape, longest), ABSENT, np.int32)
    for k, known in enumerate(merged):
        union[k, : len(known)] = known
    for (s, k), knob in knobs.items():
        scale = knob.encode(np.asarray(knob.values))
        gaps = np.abs(knob.encode(np.asarray(merged[k]))[:, None] - scale)
        nearest[s, k, : len(merged[k])] = np.asarray(knob.values, np.int32)[gaps.argmin(1)]
    return union, nearest
