"""Assembly: from what a builder was asked for to an op whose every index is one axis, or one cut into blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from autosched.errors import InvalidInputError, UnsupportedError
from autosched.sketches.dtypes import DTYPES, DType, parse_dtype
from autosched.sketches.op import Affine, Axis, EpilogueStep, Op, Operand, Product, Ragged
from autosched.sketches.steps import GATED, STEPS

INT64_MAX = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Mapped:
    """Dimensions that are indexed by other than an axis of their own, and tensors stored in another order than named.

    Attributes:
        axes: All axes.
        index: The map of each dimension, by letter; one that is not here is indexed by the axis of its letter.
        order: Dimensions of a tensor, outermost first in memory, by how they are named; as named if not here.
        columns: The output's dimension that a bias, or a scale of columns, is indexed by.
        padded: Inputs whose indices may lie outside, where they read zero.
    """

    axes: tuple[Axis, ...]
    index: Mapping[str, Affine]
    order: Mapping[str, str]
    columns: str
    padded: tuple[str, ...] = ()


#: What ``scales`` may be: none, one factor for each product operand, one for each row of a and each column of b, or one
#: for each block of a's rows and each square block of b.
SCALES = ("", "tensor", "row_column", "block")

#: Epilogue steps by the name that people give, and the operand that each takes (see ``StepInfo.takes``).
EPILOGUES: dict[str, str | None] = {
    **{name: info.takes for name, info in STEPS.items() if info.does not in ("scale", "gate")},
    **dict.fromkeys(GATED),
}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The keywords that all builders share; their docstrings say what each means."""

    dtype: Any = "bf16"
    epilogue: Sequence[str] = ()
    out_dtype: Any = None
    dynamic: Iterable[str] = ()
    strides: Mapping[str, Sequence[int]] | None = None
    deterministic: bool = False
    scales: str = ""
    alpha: float = 1.0
    beta: float = 0.0
    fast_accumulate: bool = False


def assemble(
    name: str,
    extents: Mapping[str, int],
    inputs: Mapping[str, str],
    out: str,
    wanted: Wanted,
    ragged: Ragged | None = None,
    blocks: Mapping[str, int] | None = None,
    mapped: Mapped | None = None,
) -> Op:
    """A product of two tensors, with its epilogue; every index is one axis, but for what ``mapped`` says.

    With scales of blocks, an axis that is cut into blocks is two: which block, and where in the block. The operands of
    the product and the output keep their dimensions, and index them by both.

    Args:
        name: For people.
        extents: Of every axis, or of every dimension where these are ``mapped``.
        inputs: Dimensions of both inputs by name, outermost first, one letter each.
        out: Dimensions of the output.
        wanted: The rest.
        ragged: How rows are dealt out to groups, if they are: a bias, and scales of columns, are then one row a group.
        blocks: Lengths of the blocks by axis, if the op may have scales of blocks.
        mapped: How dimensions are indexed and stored, if not each by its axis and in its place.

    Raises:
        InvalidInputError: A dtype, axis, stride, scale or step that there is not.
        UnsupportedError: A combination that no kernel is generated for.
    """
    return _Assembly(extents, dict(inputs), out, wanted, ragged, blocks or {}, mapped).op(name)


class _Assembly:
    """An op in the making: its operands and steps so far."""

    def __init__(
        self,
        extents: Mapping[str, int],
        inputs: dict[str, str],
        out: str,
        wanted: Wanted,
        ragged: Ragged | None,
        blocks: Mapping[str, int],
        mapped: Mapped | None,
    ) -> None:
        self.extents, self.inputs, self.out, self.wanted, self.ragged = extents, inputs, out, wanted, ragged
        self.mapped = mapped
        self.columns = mapped.columns if mapped else out[-1:]
        self.groups = ragged.groups if ragged else ""
        self.blocks = blocks if wanted.scales == "block" else {}
        self.dynamic = tuple(wanted.dynamic)
        self.strides = dict(wanted.strides or {})
        self.in_type = parse_dtype(wanted.dtype)
        self.out_type = _default_output(self.in_type) if wanted.out_dtype is None else parse_dtype(wanted.out_dtype)
        self._check()
        self.operands = [self._tensor(label, letters, self.in_type) for label, letters in inputs.items()]
        if ragged:
            self.operands.append(self._tensor(ragged.offsets, ragged.groups, DTYPES["int32"]))
        left, right = inputs
        self.products = [Product(left, right)]
        self.steps: list[EpilogueStep] = []

    def op(self, name: str) -> Op:
        wanted, given = self.wanted, self.strides
        self._scale()
        if wanted.alpha != 1.0:
            self.steps.append(EpilogueStep("alpha", factor=float(wanted.alpha)))
        if wanted.beta != 0.0:
            self._add("residual", "c", float(wanted.beta))
        for step in wanted.epilogue:
            self._step(step)
        axes = self.mapped.axes if self.mapped else tuple(axis for x in self.extents for axis in self._axes(x))
        spec = {
            "dtype": self.in_type.name,
            **({"epilogue": list(wanted.epilogue)} if wanted.epilogue else {}),
            **({"out_dtype": self.out_type.name} if self.out_type != _default_output(self.in_type) else {}),
            **({"dynamic": list(self.dynamic)} if self.dynamic else {}),
            **({"strides": {k: list(v) for k, v in given.items()}} if given else {}),
            **({"deterministic": True} if wanted.deterministic else {}),
            **({"scales": wanted.scales} if wanted.scales else {}),
            **({"alpha": float(wanted.alpha)} if wanted.alpha != 1.0 else {}),
            **({"beta": float(wanted.beta)} if wanted.beta != 0.0 else {}),
            **({"fast_accumulate": True} if wanted.fast_accumulate else {}),
        }
        return Op(
            name=name,
            axes=axes,
            operands=tuple(self.operands),
            products=tuple(self.products),
            output=self._tensor("out", self.out, self.out_type),
            epilogue=tuple(self.steps),
            accumulate="fp32" if self.blocks else self.in_type.accumulator,
            deterministic=wanted.deterministic,
            fast_accumulate=wanted.fast_accumulate,
            ragged=self.ragged,
            spec=spec,
        )

    def _check(self) -> None:
        wanted = self.wanted
        if not self.in_type.product:
            takes = ", ".join(d.name for d in DTYPES.values() if d.product)
            raise UnsupportedError(f"dtype {self.in_type.name} has no products", f"one of {takes}")
        if self.out_type.bytes == 1:
            raise UnsupportedError(f"out_dtype {self.out_type.name} is not served", "take a type of 2 or 4 bytes")
        if self.out_type.name == "int32" and self.in_type.accumulator != "int32":
            raise UnsupportedError(f"out_dtype int32 of {self.in_type.name} products", "take a float type")
        if unknown := set(self.dynamic) - set(self.extents):
            axes = ", ".join(self.extents)
            raise InvalidInputError(f"dynamic axis {sorted(unknown)[0]!r} is no axis", f"one of {axes}")
        scaled = [f"{label}_scale" for label in self.inputs] if self.blocks else []
        if unknown := set(self.strides) - {*self.inputs, *scaled, "out"}:
            has = ", ".join([*self.inputs, *scaled])
            raise InvalidInputError(f"strides for {sorted(unknown)[0]!r}", f"{has} and out have strides")
        if wanted.scales not in SCALES:
            raise InvalidInputError(f"unknown scales {wanted.scales!r}", f"one of {', '.join(filter(None, SCALES))}")
        if wanted.fast_accumulate and not self.in_type.is_float8:
            raise UnsupportedError(
                f"fast_accumulate for {self.in_type.name}", "it is a choice for fp8e4m3 and fp8e5m2 alone"
            )
        if wanted.scales and any(step in GATED for step in wanted.epilogue):
            raise UnsupportedError("scales of a gated pair", "scale before or after it")
        if wanted.scales == "row_column" and self.mapped:
            raise UnsupportedError("scales of rows and columns in this op", "scale by tensor")
        if wanted.scales == "block":
            self._check_blocks()

    def _check_blocks(self) -> None:
        if not self.blocks:
            raise UnsupportedError("scales of blocks in this op", "scale by tensor or row_column, or a plain GEMM")
        if self.wanted.fast_accumulate:
            raise UnsupportedError("fast_accumulate with scales of blocks", "the sum of each block leaves it anyway")
        for x, block in self.blocks.items():
            if self.extents[x] % block:
                raise UnsupportedError(f"{x} = {self.extents[x]} with scales of blocks of {block}", "pad with zeros")
            if x in self.dynamic:
                raise UnsupportedError(f"dynamic axis {x!r}, which is cut into blocks", "make another one dynamic")

    def _axes(self, letter: str) -> tuple[Axis, ...]:
        """The axis, or its blocks and their insides."""
        extent = self.extents[letter]
        kind: Literal["parallel", "reduce"] = "parallel" if letter in self.groups + self.out else "reduce"
        if letter not in self.blocks:
            return (Axis(letter, extent, kind, letter in self.dynamic),)
        block = self.blocks[letter]
        outer, inner = _parts(letter)
        return Axis(outer, extent // block, kind, part_of=letter), Axis(inner, block, kind, part_of=letter)

    def _index(self, letter: str) -> Affine:
        if self.mapped and letter in self.mapped.index:
            return self.mapped.index[letter]
        if letter not in self.blocks:
            return Affine(((letter, 1),))
        outer, inner = _parts(letter)
        return Affine(((outer, self.blocks[letter]), (inner, 1)))

    def _scale(self) -> None:
        """The factors of both product operands: of each block's sum, or applied to the accumulator first."""
        if self.blocks:
            left, right = self.inputs
            rows = "".join(sorted(self.inputs[left], key=lambda x: x in self.blocks))  # blocks of a row side by side
            self.operands += [self._factor(left, rows), self._factor(right, self.inputs[right])]
            self.products = [Product(left, right, factors=(f"{left}_scale", f"{right}_scale"))]
            return
        for label, letters in self.inputs.items() if self.wanted.scales else ():
            if self.wanted.scales == "tensor":
                self._add("scale", f"{label}_scale")
                continue
            kept = "".join(x for x in self.groups + self.out if x in letters)
            kind = "column_scale" if self.columns in letters else "row_scale"
            self._add(kind, f"{label}_scale", letters=kept)

    def _step(self, step: str) -> None:
        if step not in EPILOGUES:
            raise InvalidInputError(f"unknown epilogue {step!r}", f"a chain of {', '.join(EPILOGUES)}")
        if step in GATED:
            self._gate(step)
        elif EPILOGUES[step] is None:
            self.steps.append(EpilogueStep(step))
        else:
            label = step if step not in {o.name for o in self.operands} else f"{step}{len(self.steps)}"
            self._add(step, label)

    def _gate(self, step: str) -> None:
        """A second product of the same left operand, whose sum multiplies the activated first one."""
        if len(self.products) > 1:
            raise UnsupportedError(f"a second gate, {step!r}", "gate once")
        left, right = self.inputs
        self.operands.insert(2, self._tensor("up", self.inputs[right], self.in_type, self.strides.get(right)))
        self.products.append(Product(left, "up", "acc_up"))
        for kind in GATED[step]:
            self.steps.append(EpilogueStep(kind, accumulator="acc_up" if STEPS[kind].does == "gate" else None))

    def _add(self, kind: str, label: str, factor: float = 1.0, letters: str | None = None) -> None:
        takes = STEPS[kind].takes
        others = "".join(x for x in self.out if x != self.columns)
        shapes = {"row": self.groups + self.columns, "column": others, "full": self.out, "scalar": ""}
        axes = shapes[str(takes)] if letters is None else letters
        dtype = DTYPES["fp32"] if STEPS[kind].does == "multiply" else _addend(self.in_type, self.out_type)
        self.operands.append(self._tensor(label, axes, dtype))
        self.steps.append(EpilogueStep(kind, label, factor=factor))

    def _factor(self, label: str, letters: str) -> Operand:
        """One fp32 factor for each block of an operand."""
        shape = tuple(self.extents[x] // self.blocks.get(x, 1) for x in letters)
        index = tuple(Affine(((_parts(x)[0] if x in self.blocks else x, 1),)) for x in letters)
        return self._stored(f"{label}_scale", letters, DTYPES["fp32"], shape, index, None)

    def _tensor(self, label: str, letters: str, dtype: DType, strides: Sequence[int] | None = None) -> Operand:
        shape = tuple(self.extents[x] for x in letters)
        return self._stored(label, letters, dtype, shape, tuple(map(self._index, letters)), strides)

    def _stored(
        self,
        label: str,
        letters: str,
        dtype: DType,
        shape: tuple[int, ...],
        index: tuple[Affine, ...],
        strides: Sequence[int] | None,
    ) -> Operand:
        strides = self.strides.get(label) if strides is None else strides
        order = self.mapped.order.get(letters, letters) if self.mapped else letters
        if any(x in self.dynamic for x in order[1:]):
            raise UnsupportedError(
                f"dynamic axis inside {label}[{letters}] makes its strides dynamic",
                "store it with the dynamic axis outermost",
            )
        sizes = dict(zip(letters, shape, strict=True))
        dense = tuple(prod(sizes[x] for x in order[order.index(letter) + 1 :]) for letter in letters)
        chosen = dense if strides is None else tuple(int(s) for s in strides)
        if len(chosen) != len(shape) or any(s < 0 for s in chosen):
            raise InvalidInputError(f"strides {chosen} of {label}[{letters}]", f"give {len(shape)}, none negative")
        if label == "out" and any(s == 0 and n > 1 for s, n in zip(chosen, shape, strict=True)):
            raise InvalidInputError(f"strides {chosen} of the output overlap", "give each element a place of its own")
        padded = self.mapped is not None and label in self.mapped.padded
        operand = Operand(label, dtype, shape, chosen, index, padded)
        if operand.span * dtype.bytes > INT64_MAX:
            raise InvalidInputError(f"{label} of shape {shape} spans more than 2^63 bytes", "use smaller extents")
        return operand


def _parts(letter: str) -> tuple[str, str]:
    """Names of the axes that an axis cut into blocks becomes: of the blocks, and of what lies inside one."""
    return f"{letter}B", f"{letter}I"


def _default_output(dtype: DType) -> DType:
    """Type of the output where none is asked for: the operands' own, bf16 for 8-bit floats, int32 for integers."""
    return DTYPES["bf16"] if dtype.is_float8 else DTYPES["int32"] if dtype.accumulator == "int32" else dtype


def _addend(in_type: DType, out_type: DType) -> DType:
    """Type of a bias or residual: the product operands' own, or the output's where these have 8 bits."""
    return in_type if in_type.bytes > 1 else out_type
