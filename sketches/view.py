"""The matrix view: an op's axes fused and grouped into batch, M, N and K by which tensors they index."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from math import gcd, prod

from autosched.sketches.op import Axis, Op, Operand, Product


@dataclass(frozen=True, slots=True)
class FusedAxis:
    """One or more axes, outermost first, that every tensor but factors of products walks with a single stride.

    Attributes:
        axes: Names of the axes that it is made of.
        extent: Product of their extents.
        strides: Element stride in each such tensor, by name (0 where it does not index it).
        dynamic: Whether the extent is known only at run time.
    """

    axes: tuple[str, ...]
    extent: int
    strides: tuple[tuple[str, int], ...]
    dynamic: bool = False

    @property
    def name(self) -> str:
        """Names of its axes, joined."""
        return "".join(self.axes)

    def stride(self, tensor: str) -> int:
        """Element stride in ``tensor``."""
        return dict(self.strides)[tensor]


@dataclass(frozen=True)
class MatrixView:
    """An op seen as (batched) matrix products: the axes of each group, outermost first.

    Attributes:
        batch: Axes of both operands and the output, or groups of ragged rows.
        m: Rows of a tile.
        n: Columns of a tile.
        k: Axes that are summed over.
        swapped: Whether the rows are the right operand's: the transpose of the product as it is written.
    """

    batch: tuple[FusedAxis, ...]
    m: tuple[FusedAxis, ...]
    n: tuple[FusedAxis, ...]
    k: tuple[FusedAxis, ...]
    swapped: bool = False

    def transposed(self) -> MatrixView:
        """The same product with rows and columns exchanged."""
        return MatrixView(self.batch, self.n, self.m, self.k, not self.swapped)

    def left(self, product: Product) -> str:
        """The operand that gives the rows."""
        return product.right if self.swapped else product.left

    def right(self, product: Product) -> str:
        """The operand that gives the columns."""
        return product.left if self.swapped else product.right

    def extent(self, group: str) -> int:
        """Number of indices of ``group`` (``"batch"``, ``"m"``, ``"n"`` or ``"k"``); 1 for an empty one."""
        return prod(a.extent for a in self.group(group))

    def group(self, group: str) -> tuple[FusedAxis, ...]:
        """The fused axes of one group."""
        axes: tuple[FusedAxis, ...] = getattr(self, group)
        return axes

    def is_dynamic(self, group: str) -> bool:
        """Whether the group's extent is known only at run time."""
        return any(a.dynamic for a in self.group(group))

    @cached_property
    def tag(self) -> str:
        """The grouping, for people: ``M=M N=N K=K``."""
        groups = (("batch", self.batch), ("M", self.m), ("N", self.n), ("K", self.k))
        text = " ".join(
            f"{name}={'.'.join(a.name for a in axes) or '1'}" for name, axes in groups if axes or name != "batch"
        )
        return text + (", rows from the right operand" if self.swapped else "")

    def row_alignment(self, tensor: Operand) -> int:
        """Largest power of two of bytes, at most 16, that divides the start of every contiguous row of ``tensor``.

        1 where no group walks the tensor with stride 1. The base address is taken to be 16-byte aligned.
        """
        strides = [
            a.stride(tensor.name) for g in ("batch", "m", "n", "k") for a in self.group(g) if a.extent > 1 or a.dynamic
        ]
        strides = [s for s in strides if s]
        if not strides:
            return 16
        if 1 not in strides:
            return 1
        return gcd(16, *(s * tensor.dtype.bytes for s in strides if s != 1))


def matrix_views(op: Op) -> tuple[MatrixView, ...]:
    """Every legal grouping of ``op``'s axes; each product's left tensor gives the rows and its right the columns.

    An axis that indexes both inputs and the output is batch, and so are the groups of ragged rows, which index the
    right alone; left and output M; right and output N; both inputs alone K. All products must agree. An op with an axis
    of another kind, or whose index maps are neither single axes nor axes walked as one, has none.
    """
    tensors = (*op.operands, op.output)
    if not all(expr.merged(op.extents) for t in tensors for expr in t.index):
        return ()
    groups: dict[str, list[Axis]] = {"batch": [], "m": [], "n": [], "k": []}
    for axis in op.axes:
        roles = {_role(op, axis.name, p.left, p.right) for p in op.products}
        if len(roles) != 1 or None in roles:
            return ()
        groups[str(roles.pop())].append(axis)
    fused = {name: _fuse(op, axes) for name, axes in groups.items()}
    return (MatrixView(fused["batch"], fused["m"], fused["n"], fused["k"]),)


def run_length(op: Op, view: MatrixView, group: str, tensors: Iterable[str]) -> int:
    """Indices of ``group``, from a multiple of that number on, over which each of ``tensors`` stays at one element."""
    names = [name for fused in view.group(group) for name in fused.axes]
    indexing = frozenset().union(*(op.operand(t).axes for t in tensors))
    return prod(op.extents[name] for name in takewhile(lambda name: name not in indexing, reversed(names)))


def _role(op: Op, axis: str, left: str, right: str) -> str | None:
    if op.ragged and axis == op.ragged.groups:
        return "batch" if axis in op.operand(right).axes - op.operand(left).axes - op.output.axes else None
    indexed = (axis in op.operand(left).axes, axis in op.operand(right).axes, axis in op.output.axes)
    return {
        (True, True, True): "batch",
        (True, False, True): "m",
        (False, True, True): "n",
        (True, True, False): "k",
    }.get(indexed)


def _fuse(op: Op, axes: list[Axis]) -> tuple[FusedAxis, ...]:
    """Merges neighbours whose strides nest in every tensor but factors; the first axis of a run may be dynamic."""
    tensors = [o for o in (*op.operands, op.output) if o.name not in op.factors]
    # A later tensor of stride order decides which axis is the inner one: outermost first by the output, else the left.
    key_tensor = op.output if axes and axes[0].name in op.output.axes else op.operand(op.products[0].left)
    ordered = sorted(axes, key=lambda a: -key_tensor.stride_of(a.name))
    fused: list[FusedAxis] = []
    for axis in ordered:
        strides = {t.name: t.stride_of(axis.name) for t in tensors}
        last = fused[-1] if fused else None
        if last and not axis.dynamic and all(last.stride(t) == s * axis.extent for t, s in strides.items()):
            fused[-1] = FusedAxis(
                (*last.axes, axis.name), last.extent * axis.extent, tuple(strides.items()), last.dynamic
            )
        else:
            fused.append(FusedAxis((axis.name,), axis.extent, tuple(strides.items()), axis.dynamic))
    return tuple(fused)
