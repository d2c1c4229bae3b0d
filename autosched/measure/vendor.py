"""The vendor library's implementation of an op, written as people write it with torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from string import ascii_letters
from typing import TYPE_CHECKING

from autosched.errors import UnsupportedError
from autosched.measure.tensors import torch_dtype
from autosched.sketches.op import Op, Operand
from autosched.sketches.reference import FUNCTIONS

if TYPE_CHECKING:
    import torch

NAME = "cublas"

Vendor = Callable[["Sequence[torch.Tensor]", "torch.Tensor"], "torch.Tensor"]
"""Called with the operands in the op's order and a tensor for the output; returns the result, which may be another."""


def vendor(op: Op) -> Vendor:
    """``torch.matmul`` on views where the op is a (batched) matrix product of single axes, else ``torch.einsum``.

    A bias or residual right after the product goes into ``addmm`` or ``baddbmm``; other epilogue steps run eagerly.

    Raises:
        UnsupportedError: The op has several products, or index maps that are not single axes.
    """
    if len(op.products) != 1:
        raise UnsupportedError(
            f"{len(op.products)} products have no counterpart in the vendor library", "compare with none"
        )
    matrix = _matrix(op)
    product = _einsum(op) if matrix is None else _matmul(op, matrix)
    skipped = 1 if matrix is not None and _fused(op, matrix) else 0

    def run(tensors: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        value = product(tensors, out)
        for step in op.epilogue[skipped:]:
            if step.operand is None:
                value = value.relu_() if step.kind == "relu" else FUNCTIONS[step.kind](value)
            else:
                operand = op.operand(step.operand)
                value = value.add_(_broadcast(op, operand, tensors[op.operands.index(operand)]))
        return value

    return run


@contextlib.contextmanager
def precision(op: Op, *, reduced: bool) -> Iterator[None]:
    """The library's precision while an op runs, restored afterwards.

    Args:
        op: tf32 ops may use tf32, all others compute fp32 in full.
        reduced: Whether partial sums of bf16 and fp16 products may be reduced in that type (torch's default).
    """
    import torch

    matmul = torch.backends.cuda.matmul
    before = (
        matmul.allow_tf32,
        matmul.allow_bf16_reduced_precision_reduction,
        matmul.allow_fp16_reduced_precision_reduction,
    )
    matmul.allow_tf32 = op.operand(op.products[0].left).dtype.name == "tf32"
    matmul.allow_bf16_reduced_precision_reduction = reduced
    matmul.allow_fp16_reduced_precision_reduction = reduced
    try:
        yield
    finally:
        (
            matmul.allow_tf32,
            matmul.allow_bf16_reduced_precision_reduction,
            matmul.allow_fp16_reduced_precision_reduction,
        ) = before


@dataclass(frozen=True)
class _Matrix:
    """The axis of each role in a (batched) matrix product; ``None`` where there is none."""

    batch: str | None
    m: str | None
    n: str | None
    k: str | None

    def order(self, first: str, second: str) -> tuple[str | None, ...]:
        """Batch, if any, and the two roles."""
        return ((self.batch,) if self.batch else ()) + (getattr(self, first), getattr(self, second))


def _matrix(op: Op) -> _Matrix | None:
    """Roles of the axes, if each role has one axis at most."""
    product = op.products[0]
    left, right = op.operand(product.left).axes, op.operand(product.right).axes
    output = op.output.axes
    groups = [
        [a.name for a in op.axes if a.name in left & right & output],
        [a.name for a in op.axes if a.name in left - right],
        [a.name for a in op.axes if a.name in right - left],
        [a.name for a in op.axes if a.name in (left & right) - output],
    ]
    if any(len(group) > 1 for group in groups):
        return None
    return _Matrix(*(group[0] if group else None for group in groups))


def _names(operand: Operand) -> list[str]:
    names = [expr.single for expr in operand.index]
    if None in names:
        raise UnsupportedError(f"index maps of {operand.name} are not single axes", "compare with none")
    return [str(name) for name in names]


def _view(operand: Operand, order: Sequence[str | None], tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its dimensions in ``order``; a role without an axis becomes a dimension of 1."""
    names = _names(operand)
    moved = tensor.permute([names.index(name) for name in order if name is not None])
    for position, name in enumerate(order):
        if name is None:
            moved = moved.unsqueeze(position)
    return moved


def _fused(op: Op, matrix: _Matrix) -> bool:
    """Whether the first epilogue step goes into the library's call."""
    if not op.epilogue or op.epilogue[0].operand is None or op.output.dtype != op.operands[0].dtype:
        return False
    full = op.operand(op.epilogue[0].operand).axes == op.output.axes
    return None not in (matrix.m, matrix.n, matrix.k) and (full or matrix.batch is None)


def _matmul(op: Op, matrix: _Matrix) -> Vendor:
    import torch

    a, b = op.operand(op.products[0].left), op.operand(op.products[0].right)
    first, second = op.operands.index(a), op.operands.index(b)
    widened = op.output.dtype != a.dtype
    fused = op.operand(str(op.epilogue[0].operand)) if _fused(op, matrix) else None
    orders = matrix.order("m", "k"), matrix.order("k", "n"), matrix.order("m", "n")

    def run(tensors: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        left, right = _view(a, orders[0], tensors[first]), _view(b, orders[1], tensors[second])
        result = _view(op.output, orders[2], out)
        if fused is not None:
            added = tensors[op.operands.index(fused)]
            if _names(fused) != [matrix.n]:  # a one-dimensional bias goes into the library's own epilogue
                added = _view(op.output, orders[2], _broadcast(op, fused, added))
            (torch.addmm if matrix.batch is None else torch.baddbmm)(added, left, right, out=result)
        elif not widened:
            (torch.mm if matrix.batch is None else torch.bmm)(left, right, out=result)
        elif left.is_cuda:
            aten = torch.ops.aten
            (aten.mm if matrix.batch is None else aten.bmm).dtype_out(left, right, out.dtype, out=result)
        else:
            result.copy_(torch.matmul(left, right))
        return out

    return run


def _einsum(op: Op) -> Vendor:
    import torch

    letters = dict(zip((a.name for a in op.axes), ascii_letters, strict=False))
    a, b = op.operand(op.products[0].left), op.operand(op.products[0].right)
    terms = ["".join(letters[name] for name in _names(o)) for o in (a, b, op.output)]
    equation = f"{terms[0]},{terms[1]}->{terms[2]}"
    first, second = op.operands.index(a), op.operands.index(b)
    dtype = torch_dtype(op.output.dtype)

    def run(tensors: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        return torch.einsum(equation, tensors[first], tensors[second]).to(dtype)

    return run


def _broadcast(op: Op, operand: Operand, tensor: torch.Tensor) -> torch.Tensor:
    """An epilogue operand with the output's dimensions; those that it lacks are 1."""
    names, order = _names(operand), _names(op.output)
    moved = tensor.permute([names.index(name) for name in order if name in names])
    for position, name in enumerate(order):
        if name not in names:
            moved = moved.unsqueeze(position)
    return moved
