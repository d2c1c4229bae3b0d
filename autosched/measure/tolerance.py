"""How close a right kernel's output comes to the reference, worked out from the op's data.

A bound is followed from the sum through the epilogue: scales multiply it, functions stretch it a little, a gate weighs
it with the other factor. So it is as tight in each element as the operands allow, and a tensor where they differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING

from autosched.measure.tensors import (
    ADDEND,
    EXACT,
    FACTORS,
    INTEGERS,
    LARGEST_INTEGER,
    factor_unit,
    largest_factor,
    reduction_length,
)
from autosched.sketches.op import EpilogueStep, Op
from autosched.sketches.reference import aligned, groups_of_rows, reference_fp32
from autosched.sketches.steps import STEPS

if TYPE_CHECKING:
    import torch

TRANSCENDENTAL_ATOL = 1e-4
"""Absolute part of the tolerance for elementary functions; the relative part is one unit in the output's last place.

The fp32 functions differ by a few 1e-7 of their argument where 1 + erf(x) or 1 + tanh(x) cancels, and arguments that
matter there are below 100.
"""

IMPRECISE_TERMS = 128
"""Products of 8-bit floats that a kernel without fast accumulation sums before it adds them up in fp32."""

_STRETCH = 1.13
"""Largest slope of a function step: gelu's (relu and silu: 1 and 1.1)."""

_NORMAL = 7.0
"""No standard normal number that is drawn comes near it."""


@dataclass(frozen=True)
class Tolerance:
    """``|got - expected| <= absolute + relative * |expected|``; without either equality is asked for.

    Attributes:
        relative: Share of the expected value.
        absolute: One for all elements, or a tensor that broadcasts to the output.
    """

    relative: float = 0.0
    absolute: float | torch.Tensor = 0.0

    @property
    def exact(self) -> bool:
        """Whether outputs have to be equal."""
        return self.relative == 0.0


def proof_tolerance(op: Op, tensors: Mapping[str, torch.Tensor]) -> Tolerance:
    """Equality, wherever each step on the proof's integers is exact in fp32.

    Elementary functions are not, nor is an ``alpha`` or ``beta`` such as 0.3: then one unit in the last place of the
    output is allowed, and what the step itself may be off, as far as the steps after it carry that.

    Args:
        op: What is proved.
        tensors: Operands by name.
    """
    made = _Data(addend=float(ADDEND), addend_unit=1.0, factor=2.0, factor_unit=0.5)
    return _tolerance(op, _Value(1 / largest_factor(op), LARGEST_INTEGER, 0.0), made, tensors, 0.0)


def timing_tolerance(op: Op, tensors: Mapping[str, torch.Tensor]) -> Tolerance:
    """How far a right kernel's output may be from the fp32 reference on timing data.

    Of K summed products each has a mean of 0 and a variance of 1, so partial sums grow like sqrt(k).

    * Cast: half a unit in the last place of the output dtype; a whole one is allowed.
    * fp32 accumulation with rounding: 2^-24 sqrt(k) an addition, independent, K 2^-24 / sqrt(2) in all. Tensor cores
      truncate instead, every 16 terms, always towards zero: at most 2^-23 (K / 16) (2/3) sqrt(K). Allowed are
      2^-20 K max(1, sqrt(K) / 64), between 3 and 20 times these bounds.
    * tf32 truncates inputs to 10 bits: 1.2 x 2^-11 a product, independent, hence 12 x 2^-11 sqrt(K) allowed, and
      2^-9 of the result for the bias.
    * 8-bit floats: see ``_float8_error``.
    * int8: sums are exact, and so are integer steps while values stay below 2^24: then equality is asked for.
    * Factors of products multiply sums that are formed in fp32 as above (8-bit floats: at most 128 terms in the tensor
      cores; int8: exactly), which are then added in fp32. All bounds are multiplied by the largest product of factors;
      its root mean square is 1.08 where two are uniform in ``FACTORS``, so that they are 2.1 times as wide as needed.

    Args:
        op: What is timed.
        tensors: Operands by name.
    """
    length, left = reduction_length(op), op.operand(op.products[0].left).dtype
    unit = factor_unit(op)
    made = _Data(addend=_NORMAL, addend_unit=0.0, factor=FACTORS[1] * unit, factor_unit=0.0)
    variance = ((2 * INTEGERS + 1) ** 2 - 1) / 12  # of one integer operand, and the standard deviation of a product
    if op.accumulate == "int32":
        largest = min(float(length * INTEGERS**2), _NORMAL * variance * sqrt(length))
        if all(op.operand(s.operand).dtype.name == "int32" for s in op.epilogue if s.operand is not None):
            made = replace(made, addend=float(INTEGERS), addend_unit=1.0)
        return _tolerance(op, _Value(1.0, largest, 0.0), made, tensors, 0.0)
    error = 2.0**-20 * length * max(1.0, sqrt(length) / 64)
    extra = 0.0
    if left.name == "tf32":
        error += 12 * 2.0**-11 * sqrt(length)
        extra = 2.0**-9
    if left.is_float8:
        error += _float8_error(length, length if op.fast_accumulate else min(length, IMPRECISE_TERMS))
    scale = made.factor ** max(len(product.factors) for product in op.products)
    scale *= variance if left.accumulator == "int32" else 1.0
    return _tolerance(op, _Value(0.0, _NORMAL * sqrt(length) * scale, error * scale), made, tensors, extra)


def _float8_error(length: int, run: int) -> float:
    """What products of 8-bit floats may be off after ``length`` terms, if fp32 takes over after each ``run`` of them.

    The tensor cores of Hopper and Ada keep 13 fraction bits: of 32 products and the sum so far each is cut to 2^-13 of
    the largest, about 2^-13 sqrt(run). Cut products are independent: their errors add up like sqrt(length / 32). The
    sum is cut towards zero: run / 32 times in each run, whose signs are independent.

    A simulation of that arithmetic (``tests/measure/test_tolerance.py``) errs by at most 0.2 of the two together in the
    root mean square. Its worst of 2 x 10^5 elements and more is 0.05 at a run of K = 256 (0.16 is allowed), 0.18 at 512
    (0.33) and 0.25 at 1024 (0.72). A missing step of 32 terms is off by 5.7 (the root of 32), a missing tile of 64 by
    8; allowed are 0.42 at K = 4096, and 3.6 with fast accumulation.
    """
    products = 2.0**-13 * sqrt(run) * sqrt(length / 32)
    sums = 2.0**-13 * sqrt(run) * (run / 32) * sqrt(length / run)
    return 24.0 * products + 1.5 * sums


@dataclass(frozen=True)
class _Data:
    """Largest magnitudes of the epilogue's operands, and what each of their values is a multiple of (0: of nothing)."""

    addend: float
    addend_unit: float
    factor: float
    factor_unit: float


@dataclass(frozen=True, eq=False)
class _Value:
    """What is known of the value between two steps.

    Attributes:
        unit: Every value is a multiple of it; 0 if that is not known.
        largest: Bound of the magnitude.
        error: Bound of the difference between two right kernels, one for all elements or one for each.
    """

    unit: float
    largest: float
    error: float | torch.Tensor

    @property
    def rounded(self) -> _Value:
        """The value after fp32 took it up: no longer on its grid if that is too fine."""
        return self if self.largest <= EXACT * self.unit else replace(self, unit=0.0)


def _tolerance(op: Op, total: _Value, made: _Data, tensors: Mapping[str, torch.Tensor], extra: float) -> Tolerance:
    value = total
    for index, step in enumerate(op.epilogue):
        value = _after(op, index, step, value.rounded, total, made, tensors).rounded
    if value.unit:
        return Tolerance()
    error = value.error
    if op.output.dtype.name == "int32":
        error = error + 1.0  # the cast cuts: 3.9999 becomes 3
    return Tolerance(max(2.0**-op.output.dtype.mantissa, 1e-5) + extra, error)


def _after(
    op: Op,
    index: int,
    step: EpilogueStep,
    value: _Value,
    total: _Value,
    made: _Data,
    tensors: Mapping[str, torch.Tensor],
) -> _Value:
    """What is known after step number ``index``, of ``value`` before it and of each accumulator."""
    info = STEPS[step.kind]
    unit, factor = _unit(step.factor), abs(step.factor)
    if info.does == "scale":
        return _Value(value.unit * unit, value.largest * factor, value.error * factor)
    if info.does == "add":
        shared = min(value.unit, made.addend_unit * unit)
        largest = value.largest + made.addend * factor
        rounding = 0.0 if largest <= EXACT * shared else 2.0**-22 * largest
        return _Value(shared, largest, value.error + rounding)
    if info.does == "multiply":
        error = value.error
        if not isinstance(error, float) or error:
            name = str(step.operand)
            error = error * aligned(op, op.operand(name), tensors[name], groups_of_rows(op, tensors)).float().abs()
        return _Value(value.unit * made.factor_unit, value.largest * made.factor, error)
    if info.does == "gate":
        return _Value(0.0, value.largest * total.largest, _gated(op, index, value, total, tensors))
    if info.transcendental:
        return _Value(0.0, value.largest, value.error * _STRETCH + TRANSCENDENTAL_ATOL)
    return value


def _gated(
    op: Op, index: int, value: _Value, total: _Value, tensors: Mapping[str, torch.Tensor]
) -> float | torch.Tensor:
    """Error of a product of two values, each of which has its own."""
    accumulator = op.epilogue[index].accumulator
    products = tuple(product for product in op.products if product.accumulator == accumulator)
    error = value.error * reference_fp32(replace(op, products=products, epilogue=()), tensors).float().abs()
    if isinstance(total.error, float) and total.error == 0.0:
        return error
    before = reference_fp32(replace(op, epilogue=op.epilogue[:index]), tensors).float().abs()
    return error + total.error * (before + value.error)


def _unit(factor: float) -> float:
    """The largest power of two that divides ``factor``; 1 for 0."""
    numerator, denominator = factor.as_integer_ratio()
    return (numerator & -numerator) / denominator if numerator else 1.0
