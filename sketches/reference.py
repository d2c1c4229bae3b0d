"""The generic reference: what an op means, computed from its access maps with torch in fp32.

Generator and reference share the maps, so the tests hold the reference itself against torch's own functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from string import ascii_letters
from typing import TYPE_CHECKING, Any

from autosched.errors import UnsupportedError
from autosched.sketches.op import Op, Operand

if TYPE_CHECKING:
    import torch

#: Epilogue steps without an operand, on an fp32 tensor.
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: x.relu(),
    "gelu": lambda x: _functional().gelu(x),
    "gelu_tanh": lambda x: _functional().gelu(x, approximate="tanh"),
    "silu": lambda x: _functional().silu(x),
}


def reference_fp32(op: Op, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The output before the cast, of ``op.output``'s shape, in fp32 with full precision on either device.

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
        letters = dict(zip((a.name for a in op.axes), ascii_letters, strict=False))
        out = _subscript(op.output, letters)
        value = None
        for product in op.products:
            pair = [op.operand(product.left), op.operand(product.right)]
            equation = ",".join(_subscript(o, letters) for o in pair) + "->" + out
            term = torch.einsum(equation, *(tensors[o.name].float() for o in pair))
            value = term if value is None else value + term
        assert value is not None
        for step in op.epilogue:
            if step.operand is None:
                value = FUNCTIONS[step.kind](value)
            else:
                value = value + _aligned(op, op.operand(step.operand), tensors[step.operand].float())
        return value
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


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


def _aligned(op: Op, operand: Operand, tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` with a dimension of 1 for each output axis that it lacks, in the output's order."""
    own = [expr.single for expr in operand.index]
    order = [expr.single for expr in op.output.index]
    moved = tensor.permute([own.index(name) for name in order if name in own])
    shape = iter(moved.shape)
    return moved.reshape([next(shape) if name in own else 1 for name in order])


def _functional() -> Any:
    import torch.nn.functional

    return torch.nn.functional
