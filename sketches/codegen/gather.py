"""Gathers along several axes: where a tile's elements lie in a tensor, and which of them lie inside it.

For operands that a group walks with more than one stride, or whose indices may lie outside. What the reduction does not
change is worked out before its loop. In a step, axes that have one index over the whole step are scalars, so that
neighbours along the reduction stay neighbours, under one mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from autosched.sketches.codegen.kernel import INT32_ELEMENTS, Kernel, Span, along, digits, load, plus, scaled
from autosched.sketches.op import Operand
from autosched.sketches.view import FusedAxis


@dataclass(frozen=True, slots=True)
class Index:
    """The index along axes that a tensor walks with one stride.

    Attributes:
        name: The value.
        piece: The axes.
        spread: The slice that spreads it over the tile (``[:, None]``), empty for a scalar.
    """

    name: str
    piece: FusedAxis
    spread: str


@dataclass(frozen=True)
class Gather:
    """The gather of one operand's piece of a tile.

    Attributes:
        k: The kernel.
        tensor: The operand.
        group: The group that the reduction loop does not move along.
        fixed: The slice that spreads an index along that group over the tile.
        moving: The same for the reduction, or for columns that are gathered beside rows.
        span: The piece of the tile's columns.
    """

    k: Kernel
    tensor: Operand
    group: str
    fixed: str
    moving: str
    span: Span

    @property
    def name(self) -> str:
        """What the names of its values begin with."""
        return self.tensor.name + self.span.suffix

    def emit_prologue(self) -> None:
        """Emits the indices along the fixed group, the base pointers, and what is known of the guarded dimensions."""
        k, flat = self.k, f"{self.name}_{self.group}"
        k.line(f"{flat} = {k.place(self.group, self.span)} + tl.arange(0, {k.width(self.group, self.span)})")
        self._emit_split(self._fixed, flat)
        offset = self._offset(self._fixed)
        k.line(f"{self.name}_base = {k.base(self.tensor)}" + (f" + {along(offset, self.fixed)}" if offset else ""))
        for i in self._guarded:
            if self._is_settled(i):
                k.line(f"{self.name}_inside{i} = {' & '.join(self._tests(i, self._known(i)))}")
            elif self._known(i) != self._from(i):
                k.line(f"{self._from(i)} = {self._known(i)}")

    def emit_indices(self) -> None:
        """Emits the indices of a step, which are the same for all pieces of the columns."""
        name, block = self.tensor.name, self.k.knob("block_k")
        start = "k0 + "
        if self._uniform:
            # as a difference: Triton would forget that the remainder is a multiple of the block
            self.k.line(f"{name}_tap = k0 // {self._inner}")
            start = "" if self._inner == self.k.knobs["block_k"] else f"k0 - {name}_tap * {self._inner} + "
        self.k.line(f"{name}_k = {start}tl.arange(0, {block})")
        self._emit_split(self._vectors, f"{name}_k")
        self._emit_split(self._uniform, f"{name}_tap")

    def emit_step(self, options: str) -> None:
        """Emits the tests of the guarded dimensions and the load; ``options`` are further keywords of it."""
        k = self.k
        pointers = [f"{self.name}_base"]
        offset = self._offset((*self._uniform, *self._vectors))
        pointers += [along(offset, self.moving) if self._offset(self._vectors) else offset] if offset else []
        places, tests = self._emit_guards()
        pointers += places
        bounds = k.bounds(
            [
                (self.group, f"{self.name}_{self.group}", k.knobs[f"block_{self.group}"], self.fixed),
                ("k", f"{self.tensor.name}_k", k.knobs["block_k"], self.moving),
            ]
        )
        masks = [bounds, *tests]
        text = " + ".join(pointers)
        spreads = {
            self.fixed if self._offset(self._fixed) else "",
            *(x for x in (self.fixed, self.moving) if x in text),
        }
        if len(spreads - {""}) < len((self.fixed, self.moving)):
            rows, columns = (self.group, "k") if self.fixed == "[:, None]" else ("k", self.group)
            text = f"tl.broadcast_to({text}, ({k.width(rows, self.span)}, {k.width(columns, self.span)}))"
        k.line(f"{self.name} = {load(text, ' & '.join(filter(None, masks)), options)}")

    # -- indices --------------------------------------------------------------------------------------------------
    @cached_property
    def _fixed(self) -> tuple[Index, ...]:
        pieces = self.k.view.walk(self.group, self.tensor.name)
        return _indices(pieces, f"{self.name}_{self.group}", self.name, self.fixed)

    @cached_property
    def _cut(self) -> tuple[tuple[FusedAxis, ...], tuple[FusedAxis, ...]]:
        """The reduction's axes with one index over a step, which begins at a multiple of its length, and the others."""
        pieces, block = self.k.view.walk("k", self.tensor.name), self.k.knobs["block_k"]
        for i in reversed(range(1, len(pieces))):
            if prod(piece.extent for piece in pieces[i:]) % block == 0:
                return pieces[:i], pieces[i:]
        return (), pieces

    @property
    def _inner(self) -> int:
        """Indices of the reduction over which the uniform axes have one."""
        return prod(piece.extent for piece in self._cut[1])

    @cached_property
    def _uniform(self) -> tuple[Index, ...]:
        return _indices(self._cut[0], f"{self.tensor.name}_tap", self.tensor.name, "")

    @cached_property
    def _vectors(self) -> tuple[Index, ...]:
        return _indices(self._cut[1], f"{self.tensor.name}_k", self.tensor.name, self.moving)

    def _emit_split(self, indices: Sequence[Index], flat: str) -> None:
        """Emits each index that something depends on, from the index ``flat`` of all of them."""
        for index, part in zip(indices, digits(flat, [index.piece.extent for index in indices]), strict=True):
            if index.name != flat and (self._stride(index.piece) or self._guards(index.piece)):
                self.k.line(f"{index.name} = {part}")

    # -- places ---------------------------------------------------------------------------------------------------
    def _stride(self, piece: FusedAxis) -> int:
        """Stride along a piece in the dimensions without a divisor, whose offset is linear."""
        pairs = [(s, e) for s, e in zip(self.tensor.strides, self.tensor.index, strict=True) if e.divisor > 1]
        walked = {name for name in piece.axes if self._moves(name)}
        return piece.stride(self.tensor.name) - sum(s * c for s, e in pairs for name, c in e.terms if name in walked)

    def _offset(self, indices: Sequence[Index]) -> str:
        terms = (scaled(self._wide(i.name, i.spread), self._stride(i.piece)) for i in indices)
        return " + ".join(filter(None, terms))

    def _wide(self, value: str, spread: str) -> str:
        """A name in 64 bits where offsets need them; a scalar of a step is a number to the interpreter."""
        dynamic = self.k.view.is_dynamic(self.group if spread == self.fixed else "k")
        if self.tensor.span <= INT32_ELEMENTS and not dynamic:
            return value
        return f"{value}.to(tl.int64)" if spread else f"tl.full((), {value}, tl.int64)"

    def _moves(self, axis: str) -> bool:
        """Whether an axis has more than one index."""
        return self.k.op.extents[axis] > 1 or self.k.op.axis(axis).dynamic

    # -- guards ---------------------------------------------------------------------------------------------------
    @property
    def _guarded(self) -> tuple[int, ...]:
        return self.tensor.guarded(self.k.op.extents)

    def _emit_guards(self) -> tuple[list[str], list[str]]:
        """Emits the index of a step in each guarded dimension; offsets in divided ones, and masks over the tile."""
        places: list[str] = []
        tests: dict[str, list[str]] = {self.fixed: [], self.moving: [], "": []}
        for i in self._guarded:
            if self._is_settled(i):
                tests[self.fixed].append(f"{self.name}_inside{i}")
                continue
            index, (value, spread) = f"{self.name}_index{i}", self._value(i)
            self.k.line(f"{index} = {value}")
            tests[spread] += self._tests(i, index)
            divisor = self.tensor.index[i].divisor
            if divisor > 1:
                place = scaled(f"({self._wide(index, self.fixed)} // {divisor})", self.tensor.strides[i])
                places.append(f"({place}){spread}")
        return places, [_spread(found, spread) for spread, found in tests.items()]

    def _guards(self, piece: FusedAxis) -> bool:
        return any(name in dict(self.k.view.guards).get(self.tensor.name, ()) for name in piece.axes)

    def _terms(self, i: int, indices: Sequence[Index]) -> str:
        """The part of a dimension's index that some of the axes make, without the constant."""
        terms = [(name, c) for name, c in self.tensor.index[i].terms if c and self._moves(name)]
        return " + ".join(scaled(x.name, c) for name, c in terms for x in indices if name in x.piece.axes)

    def _known(self, i: int) -> str:
        """The part of a dimension's index that a step does not change."""
        return plus(self._terms(i, self._fixed), self.tensor.index[i].const)

    def _from(self, i: int) -> str:
        """Name of that part, if it is more than a name or a number."""
        known = self._known(i)
        return f"{self.name}_from{i}" if self._terms(i, self._fixed) and not known.isidentifier() else known

    def _is_settled(self, i: int) -> bool:
        """Whether no step changes a dimension's index, and it is not divided."""
        moving = self._terms(i, (*self._uniform, *self._vectors))
        return not moving and self.tensor.index[i].divisor == 1 and bool(self._terms(i, self._fixed))

    def _value(self, i: int) -> tuple[str, str]:
        """A dimension's index in a step, and the slice that spreads it over the tile, empty if it needs none."""
        known, uniform, vectors = self._from(i), self._terms(i, self._uniform), self._terms(i, self._vectors)
        start = " + ".join(x for x in (known if known != "0" else "", uniform) if x) or "0"
        if not self._terms(i, self._fixed):
            value = " + ".join(x for x in (start if start != "0" or not vectors else "", vectors) if x)
            return value, self.moving if vectors else ""
        if not vectors:
            return start, self.fixed
        return f"{along(start, self.fixed)} + {along(vectors, self.moving)}", ""

    def _tests(self, i: int, value: str) -> Iterator[str]:
        """What must hold of a dimension's index for it to lie on an element."""
        expr, size = self.tensor.index[i], self.tensor.shape[i]
        value = value if value.isidentifier() else f"({value})"
        low, high = expr.reach(self.k.op.extents)
        loose = any(self.k.op.axis(name).dynamic for name in expr.axes)
        if expr.divisor > 1:
            yield f"({value} % {expr.divisor} == 0)"
        if low < 0 or loose:
            yield f"({value} >= 0)"
        if high >= size * expr.divisor or loose:
            yield f"({value} < {size * expr.divisor})"


@dataclass(frozen=True)
class StepGather(Gather):
    """The gather of one step of the reduction: its axes are scalars, and columns are gathered beside rows."""

    def emit_prologue(self) -> None:
        """Emits the indices of rows and columns, the base pointers, and what is known of the guarded dimensions."""
        super().emit_prologue()
        k, name = self.k, self.name
        k.line(f"{name}_n = {k.place('n', self.span)} + tl.arange(0, {k.width('n', self.span)})")
        self._emit_split(self._vectors, f"{name}_n")
        k.line(f"{name}_base = {name}_base + {along(self._offset(self._vectors), self.moving)}")

    def emit_indices(self) -> None:
        """Emits the index along each axis of the reduction."""
        self.k.line(f"{self.tensor.name}_tap = k0")
        self._emit_split(self._uniform, f"{self.tensor.name}_tap")

    def emit_step(self, options: str) -> None:
        """Emits the tests of the guarded dimensions and the load."""
        k = self.k
        offset = self._offset(self._uniform)
        pointers = [f"{self.name}_base", *([offset] if offset else [])]
        places, tests = self._emit_guards()
        pointers += places
        rows = (self.group, f"{self.name}_{self.group}", k.knobs[f"block_{self.group}"], self.fixed)
        columns = ("n", f"{self.name}_n", k.knobs["block_n"], self.moving)
        masks = [k.bounds([rows, columns]), *tests]
        text, mask = " + ".join(pointers), " & ".join(filter(None, masks))
        k.line(f"{self.name} = {load(text, mask, options)}")

    @cached_property
    def _cut(self) -> tuple[tuple[FusedAxis, ...], tuple[FusedAxis, ...]]:
        return self.k.view.walk("k", self.tensor.name), ()

    @cached_property
    def _vectors(self) -> tuple[Index, ...]:
        return _indices(self.k.view.walk("n", self.tensor.name), f"{self.name}_n", self.name, self.moving)


def _indices(pieces: tuple[FusedAxis, ...], flat: str, name: str, spread: str) -> tuple[Index, ...]:
    """An index a piece; the only piece's is the flat index itself."""
    if len(pieces) == 1:
        return (Index(flat, pieces[0], spread),)
    return tuple(Index(f"{name}_at_{piece.name}", piece, spread) for piece in pieces)


def _spread(tests: Sequence[str], spread: str) -> str:
    """Tests along one dimension of the tile as one mask over it."""
    if not tests or not spread:
        return " & ".join(tests)
    return f"({' & '.join(tests)}){spread}" if len(tests) > 1 else tests[0] + spread
