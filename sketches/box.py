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
    not divide the other stride, where matrices of a batch do not follow each other without a gap, and where the tensor
    is indexed from elsewhere than its first element, or outside.
    """
    groups = (view.walk(rows, operand.name), view.walk(columns, operand.name))
    if any(len(g) != 1 for g in groups) or not view.is_plain(operand):
        return None
    (row,), (column,) = groups
    outer, inner = row.stride(operand.name), column.stride(operand.name)
    for transposed, big, unit, axes in ((False, outer, inner, (row, column)), (True, inner, outer, (column, row))):
        size = big * operand.dtype.bytes
        if unit != 1 or size % 16 != 0 or not 0 < size < LARGEST_STRIDE:
            continue
        batches = 1
        folded = False
        batch = view.walk("batch", operand.name)
        if any(a.stride(operand.name) for a in batch) and (view.extent("batch") > 1 or view.is_dynamic("batch")):
            if len(batch) != 1 or axes[0].dynamic or batch[0].stride(operand.name) != axes[0].extent * big:
                continue
            folded, batches = True, batch[0].extent
        if batches * axes[0].extent < LARGEST_EXTENT and axes[1].extent < LARGEST_EXTENT:
            return BoxMap(transposed, folded)
    return None
