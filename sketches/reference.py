"""The generic reference: what an op means, computed from its access maps with torch in fp32.

Generator and reference share the maps, so the tests hold the reference itself against torch's own functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from string import ascii_letters
from typing import TYPE_CHECKING, Any

from autosched.errors import UnsupportedError
from autosched.sketches.op import EpilogueStep, Op, Operand, Product
from autosched.sketches.steps import STEPS

if TYPE_CHECKING:
    import torch

#: Epilogue steps that are functions of the value alone, on an fp32 tensor.
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": lambda x: x.relu(),
    "gelu": lambda x: _functional().gelu(x),
    "gelu_tanh": lambda x: _functional().gelu(x, approximate="tanh"),
    "silu": lambda x: _functional().silu(x),
}


def reference_fp32(op: Op, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The output before the cast, of ``op.output``'s shape, in fp32 with full precision on either device.

    Sums of integers are exact in fp64, which is what they are returned in where no epilogue follows.

    Args:
        op: The op; every index map must be a single axis.
        tensors: Every input by name, as stored.

    Raises:
        UnsupportedError: An index map is more than one axis.
    """
    import torch

    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        wide = torch.float64 if op.accumulate == "int32" else torch.float32  # sums of int8 products need 31 bits
        sums: dict[str, torch.Tensor] = {}
        for product in op.products:
            term = _product(op, product, tensors, wide)
            known = sums.get(product.accumulator)
            sums[product.accumulator] = term if known is None else known + term
        value = sums[op.accumulators[0]]
        for step in op.epilogue:
            value = _apply(op, step, value.float(), sums, tensors)
        return value
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


def _product(op: Op, product: Product, tensors: Mapping[str, torch.Tensor], wide: torch.dtype) -> torch.Tensor:
    """One product, summed; a product for each group of ragged rows, one below the other."""
    import torch

    letters = dict(zip((a.name for a in op.axes), ascii_letters, strict=False))
    left, right = op.operand(product.left), op.operand(product.right)
    out = _subscript(op.output, letters)
    ragged = op.ragged
    if ragged is None:
        equation = f"{_subscript(left, letters)},{_subscript(right, letters)}->{out}"
        return torch.einsum(equation, tensors[left.name].to(wide), tensors[right.name].to(wide))
    row, group = letters[ragged.rows], letters[ragged.groups]
    rows, matrices = _subscript(left, letters).index(row), _subscript(right, letters).index(group)
    equation = f"{_subscript(left, letters)},{_subscript(right, letters).replace(group, '')}->{out}"
    pieces = []
    begin = 0
    for g, end in enumerate(tensors[ragged.offsets].tolist()):
        part = tensors[left.name].narrow(rows, begin, end - begin)
        pieces.append(torch.einsum(equation, part.to(wide), tensors[right.name].select(matrices, g).to(wide)))
        begin = end
    return torch.cat(pieces, out.index(row))


def _apply(
    op: Op,
    step: EpilogueStep,
    value: torch.Tensor,
    sums: Mapping[str, torch.Tensor],
    tensors: Mapping[str, torch.Tensor],
) -> torch.Tensor:
    """One step of the epilogue."""
    does = STEPS[step.kind].does
    if does == "apply":
        return FUNCTIONS[step.kind](value)
    if does == "scale":
        return value * step.factor
    if does == "gate":
        return value * sums[str(step.accumulator)]
    operand = op.operand(str(step.operand))
    other = aligned(op, operand, tensors[operand.name], groups_of_rows(op, tensors)).float()
    return value + step.factor * other if does == "add" else value * other


def reference(op: Op, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The output in its own dtype: :func:`reference_fp32`, cast."""
    import torch

    dtype: torch.dtype = getattr(torch, op.output.dtype.torch)
    return reference_fp32(op, tensors).to(dtype)


def _subscript(tensor: Operand, letters: Mapping[str, str]) -> str:
    names = [expr.single for expr in tensor.index]
    if None in names:
        raise UnsupportedError(f"index maps of {tensor.name} are not single axes", "no reference is known for it yet")
    return "".join(letters[str(name)] for name in names)


def aligned(op: Op, operand: Operand, tensor: torch.Tensor, groups: torch.Tensor | None = None) -> torch.Tensor:
    """``tensor`` with a dimension of 1 for each output axis that it lacks, in the output's order.

    What each group of ragged rows has of its own stands in every row of the group.

    Args:
        op: The op.
        operand: An operand of its epilogue.
        tensor: Its value.
        groups: The group of each row, if rows are ragged.
    """
    own = [expr.single for expr in operand.index]
    if op.ragged and groups is not None and op.ragged.groups in own:
        place = own.index(op.ragged.groups)
        tensor = tensor.index_select(place, groups)
        own[place] = op.ragged.rows
    order = [expr.single for expr in op.output.index]
    moved = tensor.permute([own.index(name) for name in order if name in own])
    shape = iter(moved.shape)
    return moved.reshape([next(shape) if name in own else 1 for name in order])


def groups_of_rows(op: Op, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """The group of each ragged row, int64 ``[rows]``, from the ends of the groups; waits for no device.

    Args:
        op: The op; ``None`` is the answer if its rows are not ragged.
        tensors: Every input by name.
    """
    import torch

    if op.ragged is None:
        return None
    left, offsets = op.operand(op.products[0].left), tensors[op.ragged.offsets]
    rows = tensors[left.name].shape[[expr.single for expr in left.index].index(op.ragged.rows)]
    return torch.searchsorted(offsets, torch.arange(rows, dtype=offsets.dtype, device=offsets.device), right=True)


def _functional() -> Any:
    import torch.nn.functional

    return torch.nn.functional
