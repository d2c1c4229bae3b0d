"""The generic reference: what an op means, computed from its access maps with torch in fp32.

Generator and reference share the maps, so the tests hold the reference itself against torch's own functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from string import ascii_letters
from typing import TYPE_CHECKING, Any

from autosched.errors import UnsupportedError
from autosched.sketches.op import Affine, EpilogueStep, Op, Operand, Product
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
        op: The op; every index map of its output must be a single axis, or axes walked as one.
        tensors: Every input by name, as stored.

    Raises:
        UnsupportedError: The output's maps are of another kind, or a factor belongs to neither operand of its product.
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
    terms = [_subscript(op, o, letters) for o in (left, right)]
    out = _subscript(op, op.output, letters)
    ragged = op.ragged
    if ragged is None:
        values = [_opened(op, o, tensors[o.name].to(wide)) for o in (left, right)]
        for factor in map(op.operand, product.factors):
            side = next((i for i, o in enumerate((left, right)) if factor.axes <= o.axes), None)
            if side is None:
                raise UnsupportedError(f"factor {factor.name} of {op.key()}", "index it by axes of one operand alone")
            equation = f"{terms[side]},{_subscript(op, factor, letters)}->{terms[side]}"
            values[side] = torch.einsum(equation, values[side], _opened(op, factor, tensors[factor.name]).to(wide))
        return _closed(op.output, torch.einsum(f"{terms[0]},{terms[1]}->{out}", *values))
    row, group = letters[ragged.rows], letters[ragged.groups]
    rows, matrices = terms[0].index(row), terms[1].index(group)
    equation = f"{terms[0]},{terms[1].replace(group, '')}->{out}"
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


def _subscript(op: Op, tensor: Operand, letters: Mapping[str, str]) -> str:
    """A letter for each axis of the tensor, as :func:`_opened` has them."""
    if tensor is op.output and not all(expr.merged(op.extents) for expr in tensor.index):
        raise UnsupportedError(
            f"index maps of {tensor.name} are no axes, or axes walked with gaps", "no reference is known for it yet"
        )
    return "".join(letters[name] for expr in tensor.index for name in expr.axes)


def _opened(op: Op, operand: Operand, tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` with a dimension for each axis where one dimension is indexed by several, or by a map of an axis.

    It repeats what several indices of the axes read, and has zeros where an index lies outside.
    """
    for place, expr in reversed(list(enumerate(operand.index))):
        if expr.single is not None and (
            op.axis(expr.single).dynamic or op.extents[expr.single] == operand.shape[place]
        ):
            continue
        extents = [op.extents[name] for name in expr.axes]
        if not expr.merged(op.extents) or prod(extents) != operand.shape[place]:
            tensor = _read(tensor, place, expr, extents)
        tensor = tensor.view(*tensor.shape[:place], *extents, *tensor.shape[place + 1 :])
    return tensor


def _read(tensor: torch.Tensor, place: int, expr: Affine, extents: list[int]) -> torch.Tensor:
    """What a map reads along one dimension at every index of its axes, as one dimension; zero outside."""
    import torch

    value = torch.tensor(expr.const, device=tensor.device)
    for (_, coefficient), extent in zip(expr.terms, extents, strict=True):
        value = value[..., None] + coefficient * torch.arange(extent, device=tensor.device)
    size, value = tensor.shape[place], value.flatten()
    inside = (value % expr.divisor == 0) & (value >= 0) & (value < size * expr.divisor)
    found = tensor.index_select(place, torch.where(inside, value // expr.divisor, 0))
    kept = inside.view(-1, *[1] * (tensor.dim() - place - 1))
    return torch.where(kept, found, torch.zeros((), dtype=found.dtype, device=found.device))


def _closed(operand: Operand, tensor: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`_opened`."""
    for place, expr in enumerate(operand.index):
        if len(expr.terms) > 1:
            tensor = tensor.flatten(place, place + len(expr.terms) - 1)
    return tensor


def aligned(op: Op, operand: Operand, tensor: torch.Tensor, groups: torch.Tensor | None = None) -> torch.Tensor:
    """``tensor`` with a dimension of 1 for each output axis that it lacks, in the output's order.

    What each group of ragged rows has of its own stands in every row of the group.

    Args:
        op: The op.
        operand: An operand of its epilogue.
        tensor: Its value.
        groups: The group of each row, if rows are ragged.
    """
    own = [expr.axes for expr in operand.index]
    if op.ragged and groups is not None and (op.ragged.groups,) in own:
        place = own.index((op.ragged.groups,))
        tensor = tensor.index_select(place, groups)
        own[place] = (op.ragged.rows,)
    order = [expr.axes for expr in op.output.index]
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
