"""Analytic features: what can be said of a schedule before it is compiled, for a whole mixed batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autosched.errors import InvalidInputError
from autosched.features import execution, memory, structure, tiles
from autosched.features.columns import Columns, Constants
from autosched.features.schema import Feature, schema_id

if TYPE_CHECKING:
    from autosched.sketches.op import Op
    from autosched.sketches.schedule import ScheduleBatch
    from autosched.sketches.sketch import Sketch
    from autosched.sketches.target import Target

_FAMILIES = (tiles, execution, memory)

#: Every column of the feature matrix, in order.
FEATURES: tuple[Feature, ...] = (*(f for x in _FAMILIES for f in (*x.LOG, *x.LINEAR)), *structure.TABLE)

#: Version and digest of ``FEATURES``.
SCHEMA: str = schema_id(FEATURES)

#: Column of each feature by name.
COLUMN: dict[str, int] = {f.name: i for i, f in enumerate(FEATURES)}


class Extractor:
    """Features of schedules of one op on one target, with everything that is the same for all of them done once.

    Args:
        op: The operator.
        target: The device.
        sketches: The sketches that the batches will refer to, in the order of their ``sketches``.
    """

    def __init__(self, op: Op, target: Target, sketches: Sequence[Sketch]) -> None:
        self._sketches = tuple(sketches)
        self._constants = Constants.of(op, target, sketches)
        self._table = structure.table(op, target, sketches)

    def __call__(self, batch: ScheduleBatch) -> NDArray[np.float32]:
        """Features of each row, float32 ``[len(batch), len(FEATURES)]``; every value is finite.

        Raises:
            InvalidInputError: The batch is of other sketches.
        """
        if batch.sketches is not self._sketches and tuple(batch.sketches) != self._sketches:
            raise InvalidInputError(
                "the batch's sketches are not the extractor's", "make an Extractor of batch.sketches"
            )
        columns = Columns(self._constants, batch)
        out = np.empty((len(FEATURES), len(batch)), np.float32)
        row = 0
        for family in _FAMILIES:
            start = row
            for value in family.compute(columns):
                out[row] = value
                row += 1
            logarithms = out[start : start + len(family.LOG)]
            np.log2(logarithms, out=logarithms)
        self._table.take(columns.index, axis=1, out=out[row:], mode="clip")
        return np.ascontiguousarray(out.T)


def extract(op: Op, target: Target, batch: ScheduleBatch) -> NDArray[np.float32]:
    """Features of the rows of a mixed batch, float32 ``[len(batch), len(FEATURES)]``.

    For many batches of the same sketches make one :class:`Extractor`.
    """
    return Extractor(op, target, batch.sketches)(batch)
