"""Boxes: where a tile over two groups of a matrix view lies in a tensor so that one TMA descriptor describes it."""

from __future__ import annotations

from dataclasses import dataclass

from autosched.sketches.op import Op, Operand
from autosched.sketches.view import MatrixView

#: Extents whose coordinates are 32-bit integers; the largest stride in bytes (CUDA driver, cuTensorMapEncodeTiled).
LARGEST_EXTENT = 2**31
LARGEST_STRIDE = 2**40
#: Dimensions of a descriptor.
LARGEST_RANK = 5
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


@dataclass(frozen=True, slots=True)
class Side:
    """One dimension of a descriptor of an image.

    Attributes:
        index: The dimension of the tensor.
        step: Elements of it that count as one: with stride 2 every second column is a column.
        low: Whether it is the place within a step instead, which taps choose.
    """

    index: int
    step: int = 1
    low: bool = False


@dataclass(frozen=True, slots=True)
class ImageMap:
    """A descriptor over a tensor's own dimensions, in which a tile and a step of the reduction are a box.

    Attributes:
        sides: Its dimensions, outermost in memory first.
        boxed: Axes along which a tile is a box, outermost first: images, rows, columns.
        channel: The axis of the innermost dimension, which the box has a run of; it has one index along all others.
        folded: A place within a step that is a part of the innermost dimension, so that there are not too many.
    """

    sides: tuple[Side, ...]
    boxed: tuple[str, ...]
    channel: str
    folded: Side | None = None

    def sizes(self, operand: Operand) -> tuple[int, ...]:
        """Extents of the descriptor."""
        *outer, last = (s.step if s.low else -(-operand.shape[s.index] // s.step) for s in self.sides)
        return (*outer, last * (self.folded.step if self.folded else 1))

    def strides(self, operand: Operand) -> tuple[int, ...]:
        """Elements between neighbours along each dimension of the descriptor."""
        return tuple(operand.strides[s.index] * (1 if s.low else s.step) for s in self.sides)


def image_map(op: Op, view: MatrixView, operand: Operand, group: str, inner: str) -> ImageMap | None:
    """How boxes over several axes of ``group`` and a run of ``inner`` lie in ``operand``, or ``None`` where none do.

    Every axis of the group walks a dimension of its own, in the order of the tensor's memory; the innermost axis of
    ``inner`` is the innermost dimension. Others may shift the box. A dimension that is walked by a step and shifted is
    two, so that a box has neighbours in the first: the step divides it. What a box holds outside the tensor reads as
    zero and is not written (CUDA driver, cuTensorMapEncodeTiled).
    """
    groups = (group, inner, "batch")
    names = {g: [x for fused in view.group(g) for x in fused.axes if op.extents[x] > 1] for g in groups}
    if len(names[group]) < 2 or not names[inner] or any(view.is_dynamic(g) for g in groups):
        return None
    channel, shifting = names[inner][-1], {*names[inner][:-1], *names["batch"]}
    dims = sorted(range(len(operand.shape)), key=lambda i: (-operand.strides[i], i))
    boxed: list[str] = []
    sides: list[Side] = []
    for i in dims:
        expr, last = operand.index[i], i == dims[-1]
        moving = [(name, c) for name, c in expr.terms if op.extents[name] > 1]
        terms = [(name, c) for name, c in moving if name not in shifting]
        walked, step = terms[0] if terms else ("", 1)
        shifted = len(moving) > 1 or expr.const != 0
        if (
            expr.divisor > 1
            or len(terms) > 1
            or step < 1
            or (step > 1 and (last or (shifted and operand.shape[i] % step)))
        ):
            return None
        if last != (walked == channel) or (walked and not last and walked not in names[group]):
            return None
        boxed += [walked] if walked and not last else []
        sides += [Side(i, step), *([Side(i, step, low=True)] if step > 1 and shifted else [])]
        size = operand.strides[i] * operand.dtype.bytes
        if operand.strides[i] != 1 if last else size % 16 != 0 or not 0 < size * step < LARGEST_STRIDE:
            return None
    if boxed != names[group] or max(operand.shape) >= LARGEST_EXTENT:
        return None
    folded = None
    if len(sides) > LARGEST_RANK and sides[-2].low and operand.strides[sides[-2].index] == operand.shape[dims[-1]]:
        folded = sides.pop(-2)
    return ImageMap(tuple(sides), tuple(boxed), channel, folded) if len(sides) <= LARGEST_RANK else None


def image_load(op: Op, view: MatrixView, operand: Operand) -> ImageMap | None:
    """How boxes of columns and a step of the reduction lie in an operand that no simpler box describes."""
    return None if box_map(view, operand, "k", "n") else image_map(op, view, operand, "n", "k")


def image_store(op: Op, view: MatrixView) -> ImageMap | None:
    """How boxes of columns lie in the output with rows as channels; none where a box would reach into other rows."""
    found = image_map(op, view, op.output, "n", "m")
    others = [x for g in ("m", "batch") for fused in view.group(g) for x in fused.axes if op.extents[x] > 1]
    return found if found is not None and others == [found.channel] else None


def image_box(rank: int, block: int, box_h: int, box_w: int) -> tuple[int, ...]:
    """Sides of the box of ``block`` elements along ``rank`` axes, at least 2: the third from the end has the rest."""
    if rank == 2:
        return block // box_w, box_w
    return (1,) * (rank - 3) + (block // (box_h * box_w), box_h, box_w)


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
