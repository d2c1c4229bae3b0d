"""A schedule is a sketch and a value for each of its knobs; a batch holds many, of any sketches, as integer columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autosched.errors import InvalidInputError
from autosched.sketches.knobs import KNOB_NAMES, KNOBS
from autosched.sketches.sketch import Sketch

ABSENT = -1


@dataclass(frozen=True)
class Schedule:
    """One concrete way to compute an op.

    Attributes:
        sketch: The structure.
        values: One entry for each of ``KNOB_NAMES``; -1 where the sketch has no such knob.
    """

    sketch: Sketch
    values: tuple[int, ...]

    @property
    def knobs(self) -> dict[str, int]:
        """The knobs that the sketch has, by name."""
        return {k: v for k, v in zip(KNOB_NAMES, self.values, strict=True) if v != ABSENT}

    def to_json(self) -> dict[str, int | str]:
        """``{"sketch": name, knob: value, ...}``; :meth:`from_json` gives an equal schedule."""
        return {"sketch": self.sketch.name, **self.knobs}

    @staticmethod
    def of(sketch: Sketch, **knobs: int | str) -> Schedule:
        """A schedule with the given knobs; those not given take their defaults (the nearest value of the sketch).

        Raises:
            InvalidInputError: A knob that the sketch does not have, or a value outside its choice.
        """
        domains = {k.name: k for k in sketch.knobs}
        if unknown := set(knobs) - set(domains):
            raise InvalidInputError(
                f"sketch {sketch.name} has no knob {sorted(unknown)[0]!r}", f"it has {', '.join(domains)}"
            )
        values = []
        for name in KNOB_NAMES:
            if name not in domains:
                values.append(ABSENT)
                continue
            knob = domains[name]
            value = knobs[name] if name in knobs else knob.nearest(KNOBS[name].default)
            if isinstance(value, bool) or not isinstance(value, int) or value not in knob.values:
                raise InvalidInputError(
                    f"{name} = {value!r} in sketch {sketch.name}", f"one of {', '.join(map(str, knob.values))}"
                )
            values.append(value)
        return Schedule(sketch, tuple(values))

    @staticmethod
    def from_json(data: Mapping[str, int | str], sketches: Sequence[Sketch]) -> Schedule:
        """The schedule again, every value checked against the sketches that ``derive`` gives.

        Raises:
            InvalidInputError: The sketch is not derived for the op, or a knob or value is not in its choice.
        """
        found = next((s for s in sketches if s.name == data.get("sketch")), None)
        if found is None:
            raise InvalidInputError(
                f"sketch {data.get('sketch')!r} is not derived for this op",
                f"one of {', '.join(s.name for s in sketches)}",
            )
        return Schedule.of(found, **{k: v for k, v in data.items() if k != "sketch"})


@dataclass(frozen=True)
class ScheduleBatch:
    """Many schedules as columns.

    Attributes:
        sketches: The sketches that column 0 counts through.
        values: int32, one row a schedule: the sketch's index, then each of ``KNOB_NAMES`` (-1 = absent).
    """

    sketches: tuple[Sketch, ...]
    values: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, i: int) -> Schedule:
        row = self.values[i]
        return Schedule(self.sketches[int(row[0])], tuple(int(v) for v in row[1:]))

    def schedules(self) -> list[Schedule]:
        """All rows as schedules."""
        return [self[i] for i in range(len(self))]

    def take(self, rows: NDArray[np.integer] | Sequence[int] | NDArray[np.bool_]) -> ScheduleBatch:
        """The rows chosen, in that order."""
        return self.with_values(self.values[np.asarray(rows)])

    def with_values(self, values: NDArray[np.int32]) -> ScheduleBatch:
        """Other rows over the same sketches; what was derived from the sketches is kept."""
        batch = ScheduleBatch(self.sketches, values)
        batch.__dict__.update(_facts=self._facts, k_extents=self.k_extents)
        return batch

    @property
    def sketch_index(self) -> NDArray[np.int32]:
        """Index into ``sketches`` of each row."""
        return self.values[:, 0]

    def column(self, knob: str) -> NDArray[np.int32]:
        """One knob of every row; -1 where absent."""
        return self.values[:, 1 + KNOB_NAMES.index(knob)]

    @cached_property
    def k_extents(self) -> NDArray[np.int64]:
        """Length of the reduction of each sketch."""
        return np.asarray([s.view.extent("k") for s in self.sketches], np.int64)

    @cached_property
    def _facts(self) -> dict[str, NDArray[np.int32]]:
        rows = [s.facts() for s in self.sketches]
        return {name: np.asarray([r[name] for r in rows], np.int32) for name in (rows[0] if rows else {})}

    def fact(self, name: str) -> NDArray[np.int32]:
        """One of ``Sketch.facts()`` for every row."""
        return self._facts[name][self.sketch_index]

    def keys(self) -> list[bytes]:
        """The bytes of each row: what sets and dictionaries of rows are made of."""
        return [row.tobytes() for row in np.ascontiguousarray(self.values)]

    @staticmethod
    def of(sketches: Sequence[Sketch], schedules: Iterable[Schedule]) -> ScheduleBatch:
        """A batch of the given schedules, whose sketches must be among ``sketches``."""
        index = {s: i for i, s in enumerate(sketches)}
        rows = [(index[s.sketch], *s.values) for s in schedules]
        values = np.asarray(rows, np.int32).reshape(len(rows), 1 + len(KNOB_NAMES))
        return ScheduleBatch(tuple(sketches), values)

    @staticmethod
    def concat(batches: Sequence[ScheduleBatch]) -> ScheduleBatch:
        """All rows of batches over the same sketches."""
        return batches[0].with_values(np.concatenate([b.values for b in batches]))
