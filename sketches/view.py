"""The matrix view: an op's axes fused and grouped into batch, M, N and K by which tensors they index."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from math import gcd, prod

from autosched.sketches.op import Axis, Op, Operand, Product
from autosched.sketches.prepared import PaddedCopy, Prepared


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

    @property
    def is_single(self) -> bool:
        """Whether it has one index, whatever the op is launched on."""
        return self.extent == 1 and not self.dynamic

    def stride(self, tensor: str) -> int:
        """Element stride in ``tensor``, before any division of the index."""
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
        guards: Operands whose indices may lie outside, each with the axes that tell whether they do.
        channelwise: Whether the columns are the matrices of a batch that has one column each: rows differ by column.
        in_runs: Whether rows stand among these columns too, so that a tile is some runs of memory.
        prepared: The op written otherwise that it is a view of, if it is not one of the op itself.
    """

    batch: tuple[FusedAxis, ...]
    m: tuple[FusedAxis, ...]
    n: tuple[FusedAxis, ...]
    k: tuple[FusedAxis, ...]
    swapped: bool = False
    guards: tuple[tuple[str, tuple[str, ...]], ...] = ()
    channelwise: bool = False
    in_runs: bool = False
    prepared: Prepared | None = None

    def transposed(self) -> MatrixView:
        """The same product with rows and columns exchanged."""
        return replace(self, m=self.n, n=self.m, swapped=not self.swapped)

    @property
    def copies(self) -> dict[str, PaddedCopy]:
        """The padded copies that are read in place of operands, by operand."""
        return {copy.operand: copy for copy in self.prepared.copies} if self.prepared else {}

    def over(self, op: Op) -> Op:
        """What it is a view of: ``op``, or that written otherwise."""
        return self.prepared.op if self.prepared else op

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

    def walk(self, group: str, tensor: str) -> tuple[FusedAxis, ...]:
        """The axes of one group as one tensor walks them: those whose strides nest in it are one.

        Axes that guard the tensor stay alone.
        """
        alone = dict(self.guards).get(tensor, ())
        found: list[FusedAxis] = []
        for axis in self.group(group):
            own = FusedAxis(axis.axes, axis.extent, ((tensor, axis.stride(tensor)),), axis.dynamic)
            apart = not found or any(name in alone for name in (*found[-1].axes, *own.axes))
            merged = None if apart else _nested(found[-1], own)
            found[-1:] = [found[-1], own] if merged is None and found else [merged or own]
        return tuple(found)

    def is_plain(self, operand: Operand) -> bool:
        """Whether index 0 of every axis is an operand's first element, and no index lies outside."""
        return operand.name not in dict(self.guards) and operand.start == 0

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
        text += ", each column by itself" if self.channelwise else ""
        text += f", over copies of {' and '.join(sorted(self.copies))}" if self.copies else ""
        return text + (", rows from the right operand" if self.swapped else "")

    def row_alignment(self, tensor: Operand) -> int:
        """Largest power of two of bytes, at most 16, that divides the start of every contiguous row of ``tensor``.

        1 where no group of a tile walks the tensor with stride 1. The base address is taken to be 16-byte aligned.
        """
        walks = [
            (g, abs(a.stride(tensor.name))) for g in ("batch", "m", "n", "k") for a in self.group(g) if not a.is_single
        ]
        strides = [s for _, s in walks if s]
        if not strides and tensor.start == 0:
            return 16
        if not any(s == 1 and g != "batch" for g, s in walks):
            return 1
        rest = [s for s in strides if s != 1] + [1] * (strides.count(1) - 1)  # a second one moves the start of a row
        rest += [s for s, expr in zip(tensor.strides, tensor.index, strict=True) if expr.divisor > 1]
        return gcd(16, *(s * tensor.dtype.bytes for s in (*rest, tensor.start)))


def matrix_views(op: Op) -> tuple[MatrixView, ...]:
    """Every legal grouping of ``op``'s axes; each product's left tensor gives the rows and its right the columns.

    An axis that indexes both inputs and the output is batch, and so are the groups of ragged rows, which index the
    right alone; left and output M; right and output N; both inputs alone K. All products must agree. An op with an axis
    of another kind has none, nor has one in which others than the products' operands may be read outside, or in which
    an index of the batch tells whether one is.
    """
    guards = _guards(op)
    if not {name for name, _ in guards} <= {name for p in op.products for name in (p.left, p.right)}:
        return ()
    groups: dict[str, list[Axis]] = {"batch": [], "m": [], "n": [], "k": []}
    for axis in op.axes:
        roles = {_role(op, axis.name, p.left, p.right) for p in op.products}
        if len(roles) != 1 or None in roles:
            return ()
        groups[str(roles.pop())].append(axis)
    alone = {name for _, names in guards for name in names}
    if alone & {axis.name for axis in groups["batch"]}:
        return ()
    fused = {name: _fuse(op, axes, alone) for name, axes in groups.items()}
    view = MatrixView(fused["batch"], fused["m"], fused["n"], fused["k"], guards=guards)
    return (view, *_channelwise(op, view))


def _channelwise(op: Op, view: MatrixView) -> tuple[MatrixView, ...]:
    """The views in which matrices of one column each stand side by side.

    None where there are no such matrices, and where neither neighbours among them nor among rows are in memory. Where
    in the output the innermost rows follow each other without a gap, all matrices of each, they may be columns too: a
    tile is then some runs of memory.
    """
    single = view.extent("n") == 1 and not any(view.is_dynamic(g) for g in ("batch", "n"))
    plain = len(op.products) == 1 and not op.factors and op.ragged is None and op.accumulate == "fp32"
    left = op.products[0].left
    near = any(axes and axes[-1].stride(left) == 1 for axes in (view.m, view.batch))
    if not single or not plain or not near or 1 in (view.extent("batch"), view.extent("m")):
        return ()
    found = MatrixView((), view.m, view.batch, view.k, guards=view.guards, channelwise=True)
    *rows, inner = view.m
    run = replace(found, m=tuple(rows), n=(inner, *view.batch), in_runs=True)
    whole = view.batch[-1].stride(left) == 1 and len(run.walk("n", op.output.name)) == 1
    return (found, run) if whole and run.extent("m") > 1 and not inner.dynamic else (found,)


def _guards(op: Op) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The axes of more than one index in those dimensions of each tensor whose indices may lie outside it."""
    found = []
    for tensor in (*op.operands, op.output):
        axes = [name for i in tensor.guarded(op.extents) for name in tensor.index[i].axes]
        kept = dict.fromkeys(name for name in axes if op.extents[name] > 1 or op.axis(name).dynamic)
        if tensor.guarded(op.extents):
            found.append((tensor.name, tuple(kept)))
    return tuple(found)


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


def _fuse(op: Op, axes: list[Axis], alone: Collection[str]) -> tuple[FusedAxis, ...]:
    """Merges neighbours whose strides nest in every tensor but factors, unless one of them must stay alone.

    The first axis of a run may be dynamic.
    """
    tensors = [o for o in (*op.operands, op.output) if o.name not in op.factors]
    # A later tensor of stride order decides which axis is the inner one: outermost first by the output, else the left.
    key_tensor = op.output if axes and axes[0].name in op.output.axes else op.operand(op.products[0].left)
    ordered = sorted(axes, key=lambda a: -abs(key_tensor.stride_of(a.name)))
    fused: list[FusedAxis] = []
    for axis in ordered:
        strides = tuple((t.name, t.stride_of(axis.name)) for t in tensors)
        own = FusedAxis((axis.name,), axis.extent, strides, axis.dynamic)
        apart = not fused or any(name in alone for name in (*fused[-1].axes, axis.name))
        may_join = fused and (not apart or fused[-1].is_single or own.is_single)
        merged = _joined(fused[-1], own) if may_join else None
        fused[-1:] = [fused[-1], own] if merged is None and fused else [merged or own]
    return tuple(fused)


def _joined(outer: FusedAxis, inner: FusedAxis) -> FusedAxis | None:
    """Both as one axis: their strides nest, or one of them has a single index, which adds nothing."""
    nested = _nested(outer, inner)
    if nested is not None:
        return nested
    for single, other in ((outer, inner), (inner, outer)):
        if single.is_single:
            return FusedAxis((*outer.axes, *inner.axes), other.extent, other.strides, other.dynamic)
    return None


def _nested(outer: FusedAxis, inner: FusedAxis) -> FusedAxis | None:
    """Both as one axis with the inner one's strides, if the outer one's strides step over the inner one."""
    if inner.dynamic or any(outer.stride(tensor) != s * inner.extent for tensor, s in inner.strides):
        return None
    return FusedAxis((*outer.axes, *inner.axes), outer.extent * inner.extent, inner.strides, outer.dynamic)
