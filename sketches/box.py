"""Boxes: where a tile over two groups of a matrix view lies in a tensor so that one TMA descriptor describes it."""

from __future__ import annotations

from dataclasses import dataclass

from autosched.sketches.op import Operand
from autosched.sketches.view import MatrixView

#: Extents whose coordinates are 32-bit integers; the largest stride in bytes (CUDA driver, cuTensorMapEncodeTiled).
LARGEST_EXTENT = 2**31
LARGEST_STRIDE = 2**40
#: Bytes of a cache line. Boxes whose rows begin in the midst of one touch more lines than they fill.
LINE = 128


@dataclass(frozen=True, slots=True)
class BoxMap:
    """A two-dimensional descriptor.

    Attributes:
        transposed: Whether the tensor is stored with the columns' group outermost, so that a box is turned after it.
        folded: Whether matrices of a batch follow each other along the outer dimension: its index is
            ``batch * extent + index``, and a box that overhangs it reads or writes the next matrix.
    """

    transposed: bool
    folded: bool = False


def box_map(view: MatrixView, operand: Operand, rows: str, columns: str) -> BoxMap | None:
    """How a box over two groups lies in ``operand``, or ``None`` where no descriptor describes it.

    That is where a group walks the tensor with more than one stride or none of the two with stride 1, where 16 bytes do
    not divide the other stride, and where matrices of a batch do not follow each other without a gap.
    """
    groups = (view.group(rows), view.group(columns))
    if any(len(g) != 1 for g in groups):
        return None
    (row,), (column,) = groups
    outer, inner = row.stride(operand.name), column.stride(operand.name)
    for transposed, big, unit, axes in ((False, outer, inner, (row, column)), (True, inner, outer, (column, row))):
        size = big * operand.dtype.bytes
        if unit != 1 or size % 16 != 0 or not 0 < size < LARGEST_STRIDE:
            continue
        batches = 1
        folded = False
        if any(a.stride(operand.name) for a in view.batch) and (view.extent("batch") > 1 or view.is_dynamic("batch")):
            if len(view.batch) != 1 or axes[0].dynamic or view.batch[0].stride(operand.name) != axes[0].extent * big:
                continue
            folded, batches = True, view.batch[0].extent
        if batches * axes[0].extent < LARGEST_EXTENT and axes[1].extent < LARGEST_EXTENT:
            return BoxMap(transposed, folded)
    return None
