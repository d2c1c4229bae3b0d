"""Spaces of schedules: what an op's sketches generate, or the finite table of a recorded log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from autosched.errors import InvalidInputError
from autosched.search.domains import Domains
from autosched.sketches.constraints import Rejections, why_invalid
from autosched.sketches.rules import derive
from autosched.sketches.schedule import ScheduleBatch

if TYPE_CHECKING:
    from autosched.sketches.op import Op
    from autosched.sketches.sketch import Sketch
    from autosched.sketches.target import Target

#: Rounds of drawing that may find no valid schedule before the space is enumerated for one.
DRAWS = 16
#: Rows of one piece of an enumeration.
CHUNK = 8192
#: Chance that a move in a table goes to any row instead of a near one, and how many rows are near.
ANY_ROW = 0.1
NEAR_ROWS = 8
#: Distance between rows of different sketches, beside that of their knobs (a knob's neighbours are 1 apart).
SKETCH_DISTANCE = 2.0


class Space(Protocol):
    """Where a strategy searches. Everything that comes out of it is a valid member."""

    @property
    def sketches(self) -> tuple[Sketch, ...]:
        """What column 0 of every batch counts through."""

    def sample(self, rng: np.random.Generator, n: int) -> ScheduleBatch:
        """``n`` members at random, repeats included."""

    def mutate(self, rng: np.random.Generator, batch: ScheduleBatch) -> ScheduleBatch:
        """One move from each row of ``batch``; a row whose move is rejected stays as it was."""

    def contains(self, batch: ScheduleBatch) -> NDArray[np.bool_]:
        """Which rows are members."""

    def members(self) -> ScheduleBatch | None:
        """All members where they are listed, ``None`` where they are only generated."""

    def enumerate(self, rng: np.random.Generator) -> Iterator[ScheduleBatch]:
        """All members, each once, in an order that depends on ``rng``; in pieces."""


class GeneratedSpace:
    """Everything that the sketches of an op and their knobs generate and that no constraint speaks against.

    A move takes one knob to a value next to its own, with chance ``domains.JUMP`` to any other value; or, with chance
    ``domains.SKETCH_MOVE``, it changes the sketch: knobs that both have keep their value (the nearest one of the new
    domain), the others are drawn as samples draw them. A knob that seldom matters is moved a quarter as often as
    another. A move to an invalid schedule is rejected: the row stays as it was.

    Args:
        op: What is computed.
        target: On what.
        sketches: Structures to choose from; without them those that ``derive`` finds.

    Raises:
        UnsupportedError: No sketch is derived for the op.
    """

    def __init__(self, op: Op, target: Target, sketches: tuple[Sketch, ...] | None = None) -> None:
        self.op = op
        self.target = target
        self._sketches = derive(op, target) if sketches is None else tuple(sketches)
        self._empty = ScheduleBatch.of(self._sketches, [])
        self._domains = Domains.of(self._sketches)
        self._rejected: Counter[str] = Counter()

    @property
    def sketches(self) -> tuple[Sketch, ...]:
        """What column 0 of every batch counts through."""
        return self._sketches

    @property
    def rejected(self) -> Mapping[str, int]:
        """Schedules rejected so far while sampling and mutating, by reason."""
        return dict(self._rejected)

    def sample(self, rng: np.random.Generator, n: int) -> ScheduleBatch:
        """``n`` valid schedules: a sketch uniformly, then its knobs by their own sampling; invalid ones drawn again.

        Raises:
            InvalidInputError: No schedule of the space is valid.
        """
        found = self._batch(np.empty((0, self._domains.columns), np.int32))
        empty = 0
        while len(found) < n:
            drawn = self._valid(self._batch(self._domains.sample(rng, 2 * (n - len(found)))))
            found = ScheduleBatch.concat([found, drawn])
            empty = 0 if len(drawn) else empty + 1
            if empty == DRAWS:
                found = ScheduleBatch.concat([found, self._scarce(rng, n - len(found))])
        return found.take(np.arange(n))

    def mutate(self, rng: np.random.Generator, batch: ScheduleBatch) -> ScheduleBatch:
        """One move from each row (see the class); takes about 0.1 ms for 128 rows, plus ``why_invalid``."""
        moved = self._batch(self._domains.move(rng, batch.values))
        verdict = why_invalid(self.op, self.target, moved)
        if verdict.codes.any():
            self._count(verdict)
            # The array is ours until it is returned; a second batch would work out the sketches' facts again.
            np.copyto(moved.values, batch.values, where=~verdict.valid[:, None])
        return moved

    def contains(self, batch: ScheduleBatch) -> NDArray[np.bool_]:
        """Rows with an existing sketch and all knobs in their domains that no constraint speaks against."""
        inside = self._domains.contains(batch.values)
        rows = np.flatnonzero(inside)
        inside[rows] = why_invalid(self.op, self.target, self._batch(batch.values[rows])).valid
        return inside

    def members(self) -> None:
        """Nothing: they are too many to list."""
        return None

    def enumerate(self, rng: np.random.Generator) -> Iterator[ScheduleBatch]:
        """All valid schedules, each once, in pieces of at most ``CHUNK`` rows; rejects are not counted."""
        for rows in self._domains.enumerate(rng, CHUNK):
            batch = self._batch(rows)
            yield batch.take(np.flatnonzero(why_invalid(self.op, self.target, batch).valid))

    def _batch(self, values: NDArray[np.int32]) -> ScheduleBatch:
        return self._empty.with_values(values)

    def _count(self, verdict: Rejections) -> None:
        counts = np.bincount(verdict.codes)
        for code in np.flatnonzero(counts):
            if code:
                self._rejected[verdict.reasons[code]] += int(counts[code])

    def _valid(self, batch: ScheduleBatch) -> ScheduleBatch:
        verdict = why_invalid(self.op, self.target, batch)
        self._count(verdict)
        return batch.take(np.flatnonzero(verdict.valid))

    def _scarce(self, rng: np.random.Generator, n: int) -> ScheduleBatch:
        """``n`` rows of the first piece of the enumeration that has any."""
        for chunk in self.enumerate(rng):
            if len(chunk):
                return chunk.take(rng.integers(len(chunk), size=n))
        reasons = ", ".join(sorted(self._rejected))
        raise InvalidInputError(
            f"no schedule of {self.op.key()} is valid on {self.target.name}: {reasons}", "choose other sketches"
        )


class TableSpace:
    """The schedules of a recorded table: finite, and all of them valid by having been recorded.

    A move goes to one of the row's ``NEAR_ROWS`` nearest rows, or with chance ``ANY_ROW`` to any row. Near is measured
    on the knobs' own scales, an absent knob standing at its default, with ``SKETCH_DISTANCE`` between sketches.

    Args:
        batch: The rows; repeats are dropped.

    Raises:
        InvalidInputError: The table is empty.
    """

    def __init__(self, batch: ScheduleBatch) -> None:
        if len(batch) == 0:
            raise InvalidInputError("a table without rows is no space to search", "give at least one schedule")
        first: dict[bytes, int] = {}
        for i, key in enumerate(batch.keys()):
            first.setdefault(key, i)
        self._batch = batch.take(np.fromiter(first.values(), np.intp))
        self._row = {key: i for i, key in enumerate(first)}

    @classmethod
    def allowed(cls, op: Op, target: Target, batch: ScheduleBatch) -> TableSpace:
        """The rows that no constraint speaks against, as in a generated space; all, where that leaves none."""
        valid = why_invalid(op, target, batch).valid
        return cls(batch.take(np.flatnonzero(valid)) if valid.any() else batch)

    @property
    def sketches(self) -> tuple[Sketch, ...]:
        """What column 0 of every batch counts through."""
        return self._batch.sketches

    def sample(self, rng: np.random.Generator, n: int) -> ScheduleBatch:
        """``n`` rows, uniformly, with repeats."""
        return self._batch.take(rng.integers(len(self._batch), size=n))

    def mutate(self, rng: np.random.Generator, batch: ScheduleBatch) -> ScheduleBatch:
        """One move from each row; a row that is not in the table goes to any row."""
        keys = batch.keys()
        at = np.array([self._row.get(key, -1) for key in keys], np.intp)
        moved = rng.integers(len(self._batch), size=len(at))
        near = self._near[at, rng.integers(self._near.shape[1], size=len(at))]
        stay = (at >= 0) & (rng.random(len(at)) >= ANY_ROW)
        return self._batch.take(np.where(stay, near, moved))

    def contains(self, batch: ScheduleBatch) -> NDArray[np.bool_]:
        """Rows that the table has."""
        keys = batch.keys()
        return np.array([key in self._row for key in keys], np.bool_)

    def members(self) -> ScheduleBatch:
        """The distinct rows, in the order given."""
        return self._batch

    def enumerate(self, rng: np.random.Generator) -> Iterator[ScheduleBatch]:
        """All rows, permuted, in one piece."""
        yield self._batch.take(rng.permutation(len(self._batch)))

    @cached_property
    def _near(self) -> NDArray[np.intp]:
        """Indices ``[rows, min(NEAR_ROWS, rows - 1)]`` of each row's nearest rows (itself where it is the only one)."""
        total = len(self._batch)
        if total == 1:
            return np.zeros((1, 1), np.intp)
        points = Domains.of(self.sketches).encode(self._batch.values, SKETCH_DISTANCE)
        square = (points**2).sum(1)
        count = min(NEAR_ROWS, total - 1)
        near = np.empty((total, count), np.intp)
        for start in range(0, total, 1024):
            rows = slice(start, min(start + 1024, total))
            distance = square[rows, None] + square - 2.0 * points[rows] @ points.T
            distance[np.arange(rows.stop - start), np.arange(rows.start, rows.stop)] = np.inf
            near[rows] = np.argsort(distance, axis=1, kind="stable")[:, :count]
        return near
