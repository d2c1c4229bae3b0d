"""What an op is for its features: the extents of its matrix products and the bytes of their operands."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from autosched.sketches.op import Op, Operand
    from autosched.sketches.sketch import Sketch


class Extents(NamedTuple):
    """Extents of the matrix view: rows, columns and reduction of each of ``batch`` products.

    Where rows are ragged, each group that may have any stands for a product, with an even share of the rows.
    """

    m: float
    n: float
    k: float
    batch: float


def extents(op: Op, sketch: Sketch) -> Extents:
    """The extents that features of ``sketch`` are made of."""
    m, n, k, batch = (sketch.view.extent(x) for x in ("m", "n", "k", "batch"))
    if op.ragged is None:
        return Extents(m, n, k, batch)
    groups = min(m, batch)
    return Extents(m / groups, n, k, groups)


def distinct(op: Op, sketch: Sketch, name: str) -> float:
    """Elements of an operand over those that its tiles index: 1 but where several indices read one element."""
    view = sketch.view
    seen = view.over(op)
    operand = seen.operand(name)
    if name not in view.copies and all(expr.merged(seen.extents) for expr in operand.index):
        return 1.0
    elements = prod(view.copies[name].shape) if name in view.copies else seen.read_elements(operand)
    return elements / prod(view.extent(g) for g in ("batch", "m", "n", "k") if _indexes(sketch, operand, g))


def prepared_bytes(op: Op, sketch: Sketch) -> float:
    """Bytes that are read and written for the padded copies that a sketch is over; 0 without any."""
    pairs = [(op.operand(name), copy) for name, copy in sketch.view.copies.items()]
    return float(sum((op.read_elements(o) + prod(copy.shape)) * o.dtype.bytes for o, copy in pairs))


def _indexes(sketch: Sketch, operand: Operand, group: str) -> bool:
    return any(name in operand.axes for fused in sketch.view.group(group) for name in fused.axes)


def product_bytes(op: Op) -> int:
    """Bytes that must be read of the products' operands, each counted once; the others are the epilogue's."""
    names = {name for p in op.products for name in (p.left, p.right)}
    return sum(op.read_elements(o) * o.dtype.bytes for o in op.operands if o.name in names)
