"""An operator as data: axes, operands with affine access maps, products, an epilogue chain.

Rules, features and generators read this data; none of them reads ``Op.name``, which is there for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Literal

import numpy as np

from autosched.errors import InvalidInputError
from autosched.sketches.dtypes import DType


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop of the operator.

    Attributes:
        name: Unique within the op.
        extent: Number of iterations; for a dynamic axis the size that it is tuned for.
        kind: ``parallel`` axes index the output or are groups of its rows, ``reduce`` axes are summed over.
        dynamic: Whether the extent is known only at run time.
        part_of: Name of the loop that it is a part of, if one loop is written as several axes, outermost first.
    """

    name: str
    extent: int
    kind: Literal["parallel", "reduce"]
    dynamic: bool = False
    part_of: str = ""


@dataclass(frozen=True, slots=True)
class Affine:
    """``sum(coefficient * axis) + const``, one index of a tensor.

    With ``divisor`` d > 1 the index is the value divided by d where ``value % d == 0``, and the element counts as
    zero elsewhere (the guard of a strided gradient).
    """

    terms: tuple[tuple[str, int], ...]
    const: int = 0
    divisor: int = 1

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes that the index depends on."""
        return tuple(name for name, _ in self.terms)

    @property
    def single(self) -> str | None:
        """The axis that the index is, if it is one axis unchanged."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and self.const == 0 and self.divisor == 1:
            return self.terms[0][0]
        return None

    def merged(self, extents: Mapping[str, int]) -> tuple[str, ...]:
        """The axes, outermost first, that the index walks without a gap or a repetition; none if it does otherwise.

        Args:
            extents: Of every axis by name; the outermost axis may have any.
        """
        step = 1
        for name, coefficient in reversed(self.terms):
            if coefficient != step:
                return ()
            step *= extents[name]
        return self.axes if self.const == 0 and self.divisor == 1 else ()

    def reach(self, extents: Mapping[str, int]) -> tuple[int, int]:
        """Smallest and largest value, before the division, over all indices of its axes."""
        ends = [coefficient * (extents[name] - 1) for name, coefficient in self.terms]
        return self.const + sum(min(e, 0) for e in ends), self.const + sum(max(e, 0) for e in ends)


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor of the op.

    Attributes:
        name: Its argument name.
        dtype: Element type.
        shape: Extents, outermost first.
        strides: In elements, one a dimension.
        index: One affine map a dimension, from axes to the index in that dimension.
        zero_padded: Whether indices outside ``shape`` read as zero.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    index: tuple[Affine, ...]
    zero_padded: bool = False

    def __post_init__(self) -> None:
        if not len(self.shape) == len(self.strides) == len(self.index):
            raise InvalidInputError(
                f"operand {self.name}: shape {self.shape}, strides {self.strides} and {len(self.index)} index maps",
                "give one stride and one map a dimension",
            )

    @property
    def span(self) -> int:
        """Elements between the first and one past the last, in memory order."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def axes(self) -> frozenset[str]:
        """Names of all axes that index it."""
        return frozenset(name for expr in self.index for name in expr.axes)

    @property
    def start(self) -> int:
        """Elements from the first one to that at index 0 of every axis; dimensions with a divisor do not count."""
        pairs = zip(self.strides, self.index, strict=True)
        return sum(stride * expr.const for stride, expr in pairs if expr.divisor == 1)

    def guarded(self, extents: Mapping[str, int]) -> tuple[int, ...]:
        """Dimensions whose index may lie outside the tensor, or on no element of it, where the operand reads zero."""
        return tuple(
            i
            for i, (size, expr) in enumerate(zip(self.shape, self.index, strict=True))
            if expr.divisor > 1 or not _inside(expr.reach(extents), size)
        )

    def stride_of(self, axis: str) -> int:
        """Elements between neighbours along ``axis`` (0 if it does not index the operand), before any division."""
        return sum(
            stride * coefficient
            for stride, expr in zip(self.strides, self.index, strict=True)
            for name, coefficient in expr.terms
            if name == axis
        )


@dataclass(frozen=True, slots=True)
class Product:
    """``accumulator += left * right``, summed over the reduce axes.

    Attributes:
        left: The operand that gives the rows.
        right: The operand that gives the columns.
        accumulator: What the sum goes to.
        factors: Operands that multiply each term as well. Each is indexed by axes of ``left`` or of ``right`` alone,
            and none by the innermost reduce axes: over these, partial sums may be formed before they are multiplied.
    """

    left: str
    right: str
    accumulator: str = "acc"
    factors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EpilogueStep:
    """One step on the accumulator, in fp32.

    Attributes:
        kind: Name in ``sketches.steps.STEPS``, which says what it does.
        operand: The tensor that it adds or multiplies by.
        accumulator: The accumulator that it multiplies by.
        factor: What its operand, or the value itself, is multiplied by.
    """

    kind: str
    operand: str | None = None
    accumulator: str | None = None
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows that are dealt out to groups, each of which multiplies them by a matrix of its own.

    Row t belongs to the first group g with ``t < offsets[g]``; a group whose end is the one before it has no rows.

    Attributes:
        rows: The axis of all groups' rows, one after the other.
        groups: The axis of the groups; it indexes no tensor that the rows index.
        offsets: The operand that holds the end of each group's rows: int32, never falling, the last one is the number
            of rows.
    """

    rows: str
    groups: str
    offsets: str


@dataclass(frozen=True)
class Op:
    """An operator.

    Attributes:
        name: For people only.
        axes: All loops.
        operands: Inputs, the products' first, then their factors, then the epilogue's.
        products: What is multiplied and summed into which accumulator.
        output: The result tensor.
        epilogue: Steps between accumulator and output.
        accumulate: Name of the accumulator's type.
        deterministic: Whether only structures with a fixed order of summation may be used.
        fast_accumulate: Whether products of 8-bit floats may stay in the tensor cores' own accumulator, which keeps
            fewer bits than fp32, over the whole reduction.
        ragged: How rows are dealt out to groups, if they are.
        spec: The builder's name and arguments, JSON-able; ``builders.build(spec)`` makes an equal op.
    """

    name: str
    axes: tuple[Axis, ...]
    operands: tuple[Operand, ...]
    products: tuple[Product, ...]
    output: Operand
    epilogue: tuple[EpilogueStep, ...] = ()
    accumulate: str = "fp32"
    deterministic: bool = False
    fast_accumulate: bool = False
    ragged: Ragged | None = None
    spec: dict[str, Any] = field(default_factory=dict, compare=False, hash=False)

    def __post_init__(self) -> None:
        for operand in (*self.operands, self.output):
            outside = () if operand.zero_padded else operand.guarded(self.extents)
            if outside:
                raise InvalidInputError(
                    f"index {_affine_key(operand.index[outside[0]])} of {operand.name} leaves its "
                    f"{operand.shape[outside[0]]} elements",
                    "make the axes shorter, or the operand zero_padded",
                )

    def axis(self, name: str) -> Axis:
        """The axis called ``name``."""
        return next(a for a in self.axes if a.name == name)

    def operand(self, name: str) -> Operand:
        """The input or output called ``name``."""
        return next(o for o in (*self.operands, self.output) if o.name == name)

    @property
    def accumulators(self) -> tuple[str, ...]:
        """Names of the accumulators, in the order of the products; the epilogue works on the first."""
        return tuple(dict.fromkeys(p.accumulator for p in self.products))

    @cached_property
    def extents(self) -> dict[str, int]:
        """Extent of every axis by name."""
        return {a.name: a.extent for a in self.axes}

    @cached_property
    def flops(self) -> int:
        """Multiplications and additions of the products, 2 for each point of the iteration space.

        A row belongs to one group, so that groups are no dimension of that space. Points at which an operand reads
        zero because its index lies outside do not count.
        """
        groups = self.ragged.groups if self.ragged else None
        axes = [a.name for a in self.axes if a.name != groups]
        pairs = [[self.operand(x) for x in (p.left, p.right)] for p in self.products]
        return 2 * sum(_points(axes, self.extents, operands) for operands in pairs)

    @cached_property
    def compulsory_bytes(self) -> tuple[int, int]:
        """Bytes that must be read at least once and written at least once."""
        read = sum(self.read_elements(o) * o.dtype.bytes for o in self.operands)
        return read, prod(self.output.shape) * self.output.dtype.bytes

    def read_elements(self, operand: Operand) -> int:
        """Elements of an input that must be read: those that an index reaches.

        Of what each group of ragged rows has, that of as many groups as there are rows.
        """
        pairs = zip(operand.shape, operand.index, strict=True)
        elements, ragged = prod(_reached(expr, size, self.extents) for size, expr in pairs), self.ragged
        if ragged is None or operand.name == ragged.offsets or ragged.groups not in operand.axes:
            return elements
        groups = self.extents[ragged.groups]
        return elements // groups * min(groups, self.extents[ragged.rows])

    @property
    def factors(self) -> tuple[str, ...]:
        """Names of all products' factors."""
        return tuple(dict.fromkeys(name for p in self.products for name in p.factors))

    @property
    def loops(self) -> dict[str, int]:
        """Extent of every loop by name; axes that are parts of one loop are one."""
        found: dict[str, int] = {}
        for axis in self.axes:
            name = axis.part_of or axis.name
            found[name] = found.get(name, 1) * axis.extent
        return found

    def iteration_space(self) -> str:
        """The loops and nothing else: the unit by which data sets are split, whatever else an op has."""
        return ".".join(f"{name}{extent}" for name, extent in self.loops.items())

    def key(self) -> str:
        """Readable identity of the kernel: everything that changes it, dynamic axes included, and nothing else.

        It is made from the maps alone, so two builders that mean the same kernel share it.
        """
        axes = ",".join(f"{a.name}{'?' if a.dynamic else ''}{a.extent}" for a in self.axes)
        tensors = ",".join(self._tensor_key(o) for o in (*self.operands, self.output))
        parts = [axes, tensors]
        if len(self.products) > 1 or self.factors:
            parts.append("+".join("*".join((p.left, p.right, *p.factors)) for p in self.products))
        if self.epilogue:
            parts.append("+".join(s.kind + (f"{s.factor:g}" if s.factor != 1.0 else "") for s in self.epilogue))
        if self.deterministic:
            parts.append("deterministic")
        if self.fast_accumulate:
            parts.append("fast")
        if self.ragged:
            parts.append(f"{self.ragged.rows}by{self.ragged.offsets}")
        return "/".join(parts)

    def _tensor_key(self, o: Operand) -> str:
        index = "".join(_affine_key(expr) for expr in o.index)
        dense = dense_strides(o.shape)
        strides = "" if o.strides == dense else "@" + "x".join(map(str, o.strides))
        sizes = [prod(self.extents[name] for name in expr.merged(self.extents)) for expr in o.index]
        covered = all(expr.merged(self.extents) for expr in o.index) and sizes == list(o.shape)
        shape = "" if covered else ":" + "x".join(map(str, o.shape))  # else the axes say how large it is
        return f"{o.name}[{index}]{o.dtype.name}{shape}{strides}"


def _affine_key(expr: Affine) -> str:
    if expr.single is not None:
        return expr.single
    body = "+".join(name if c == 1 else f"{c}{name}" for name, c in expr.terms).replace("+-", "-")
    body += f"{expr.const:+d}" if expr.const else ""
    return f"({body})" + (f"/{expr.divisor}" if expr.divisor > 1 else "")


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Elements between neighbours along each dimension of a tensor without gaps, outermost first."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def _inside(reach: tuple[int, int], size: int) -> bool:
    return reach[0] >= 0 and reach[1] < size


def _values(expr: Affine, axes: tuple[str, ...], extents: Mapping[str, int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The affine value before the division at every index of ``axes``, one dimension an axis."""
    value = np.full((1,) * len(axes), expr.const, np.int64)
    for name, coefficient in expr.terms:
        shape = [-1 if x == name else 1 for x in axes]
        value = value + coefficient * np.arange(extents[name]).reshape(shape)
    return value


def _reached(expr: Affine, size: int, extents: Mapping[str, int]) -> int:
    """How many of ``size`` indices an affine map reaches."""
    if expr.merged(extents):
        return prod(extents[name] for name in expr.axes)
    values = np.unique(_values(expr, expr.axes, extents))
    values = values[(values % expr.divisor == 0) & (values >= 0) & (values < size * expr.divisor)]
    return len(values)


def _points(names: list[str], extents: Mapping[str, int], operands: list[Operand]) -> int:
    """Points of the space of the named axes at which no operand's index lies outside.

    Guards that share axes are counted together.
    """
    guards = [(o.index[i], o.shape[i]) for o in operands for i in o.guarded(extents)]
    clusters: list[list[tuple[Affine, int]]] = []
    for guard in guards:
        shared = [c for c in clusters if any(set(expr.axes) & set(guard[0].axes) for expr, _ in c)]
        clusters = [c for c in clusters if c not in shared] + [[guard, *(g for c in shared for g in c)]]
    count, counted = 1, set[str]()
    for cluster in clusters:
        axes = tuple(dict.fromkeys(name for expr, _ in cluster for name in expr.axes))
        inside = np.ones([extents[name] for name in axes], bool)
        for expr, size in cluster:
            values = _values(expr, axes, extents)
            inside &= (values % expr.divisor == 0) & (values >= 0) & (values < size * expr.divisor)
        count *= int(inside.sum())
        counted.update(axes)
    return count * prod(extents[name] for name in names if name not in counted)
