"""Plain ``triton.autotune``: a matrix product as tutorials write it, over the list of configs that people take."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosched.errors import UnsupportedError
from autosched.measure.vendor import Vendor
from autosched.sketches.op import Op, Operand
from autosched.sketches.steps import STEPS
from autosched.sketches.view import MatrixView, matrix_views

if TYPE_CHECKING:
    import torch

CONFIGS: tuple[tuple[int, int, int, int, int], ...] = (
    (128, 256, 64, 3, 8),
    (64, 256, 32, 4, 4),
    (128, 128, 32, 4, 4),
    (128, 64, 32, 4, 4),
    (64, 128, 32, 4, 4),
    (128, 32, 32, 4, 4),
    (64, 32, 32, 5, 2),
    (32, 64, 32, 5, 2),
    (128, 256, 128, 3, 8),
    (256, 128, 128, 3, 8),
    (256, 64, 128, 4, 4),
    (64, 256, 128, 4, 4),
    (128, 128, 128, 4, 4),
    (128, 64, 64, 4, 4),
    (64, 128, 64, 4, 4),
    (128, 32, 64, 4, 4),
    (16, 128, 128, 4, 4),
    (16, 64, 256, 4, 4),
)
"""Rows, columns and depth of the tile, stages, warps: the list of the matrix-product tutorial and two for few rows.

Those that ask for too much shared memory cost a failed compile, as they do in the tutorial.
"""

GROUP_M = 8
"""Rows of tiles beside each other, as in the tutorial."""

INT32_ELEMENTS = 2**31


@dataclass(frozen=True)
class Arguments:
    """What the kernel is called with, tensors apart.

    Attributes:
        left: Index of the left operand among the op's operands.
        right: Index of the first product's right operand.
        second: Index of the second product's right operand; ``right`` where there is one product.
        extras: Indices of the operands of the epilogue, in the order of the steps that take one.
        sizes: M, N and K.
        batch: Number of products beside each other.
        strides: Of the left operand, the right ones, the output and each extra, by the kernel's argument.
        constants: Its compile-time arguments, ``ACCUMULATOR`` as a name.
    """

    left: int
    right: int
    second: int
    extras: tuple[int, ...]
    sizes: tuple[int, int, int]
    batch: int
    strides: dict[str, Any]
    constants: dict[str, Any]

    def positional(self, tensors: Sequence[torch.Tensor], out: torch.Tensor) -> tuple[Any, ...]:
        """The arguments before the compile-time ones; an epilogue without operands gets the output for one."""
        return (
            *(tensors[index] for index in (self.left, self.right, self.second)),
            out,
            tuple(tensors[index] for index in self.extras) or (out,),
            *self.sizes,
            *self.strides.values(),
        )


@contextlib.contextmanager
def triton_autotune(op: Op, folder: Path) -> Iterator[Vendor]:
    """The kernel under ``triton.autotune`` over ``CONFIGS``, keyed on M, N and K.

    Args:
        op: What is computed.
        folder: Takes what Triton compiles, so that the first call tunes, whatever was compiled before.

    Raises:
        UnsupportedError: The kernel does not serve the op.
    """
    arguments = plan(op)
    import triton

    from autosched.measure.rivals.triton_matmul import matmul

    configs = [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}, num_stages=stages, num_warps=warps)
        for m, n, k, stages, warps in CONFIGS
    ]
    tuned = triton.autotune(configs=configs, key=["M", "N", "K"])(triton.jit(matmul))
    constants = kernel_constants(arguments)
    m, n, _ = arguments.sizes

    def grid(meta: dict[str, Any]) -> tuple[int, int]:
        return triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]), arguments.batch

    tuned_before = False

    def call(tensors: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        nonlocal tuned_before
        with contextlib.nullcontext() if tuned_before else _cache(folder):
            tuned[grid](*arguments.positional(tensors, out), **constants)
        tuned_before = True
        return out

    yield call


@contextlib.contextmanager
def _cache(folder: Path) -> Iterator[None]:
    """Let Triton keep what it compiles in ``folder``."""
    from triton import knobs

    with knobs.cache.scope():
        knobs.cache.dir = str(folder)
        yield


def kernel_constants(arguments: Arguments) -> dict[str, Any]:
    """The compile-time arguments as the kernel takes them."""
    import triton.language as tl

    return {**arguments.constants, "ACCUMULATOR": getattr(tl, arguments.constants["ACCUMULATOR"])}


def plan(op: Op) -> Arguments:
    """How the kernel computes an op.

    Raises:
        UnsupportedError: The op is no (batched) matrix product with one axis of each kind, has more products than a
            gated pair, a step that the kernel does not have, or a tensor whose offsets need 64 bits.
    """
    view = _view(op)
    products = op.products
    rights = [op.operand(product.right) for product in products]
    if op.factors:
        raise _refused("a product with factors")
    if len(products) > 2 or len(op.accumulators) < len(products) or len({p.left for p in products}) > 1:
        raise _refused(f"{len(products)} products that are no gated pair")
    if len({_strides(view, right, "k", "n") for right in rights}) > 1:
        raise _refused("a gated pair whose right operands differ in their strides")
    for tensor in (*op.operands, op.output):
        if tensor.span >= INT32_ELEMENTS:
            raise _refused(f"{tensor.name}, which spans {tensor.span} elements,")
    left = op.operand(products[0].left)
    taking = [op.operand(step.operand) for step in op.epilogue if step.operand is not None]
    extras = [_strides(view, operand, "m", "n") for operand in taking]
    position = {operand.name: index for index, operand in enumerate(op.operands)}
    return Arguments(
        left=position[left.name],
        right=position[rights[0].name],
        second=position[rights[-1].name],
        extras=tuple(position[operand.name] for operand in taking),
        sizes=(view.extent("m"), view.extent("n"), view.extent("k")),
        batch=view.extent("batch"),
        strides={
            "a_strides": _strides(view, left, "m", "k"),
            "b_strides": _strides(view, rights[0], "k", "n"),
            "out_strides": _strides(view, op.output, "m", "n"),
            "extra_strides": tuple(extras) or ((0, 0, 0),),
        },
        constants={
            **_steps(op, view),
            "PAIR": len(products) > 1,
            "ACCUMULATOR": {"fp32": "float32"}.get(op.accumulate, op.accumulate),
            "PRECISION": left.dtype.input_precision or None,
            "PROMOTED": left.dtype.is_float8 and not op.fast_accumulate,
            "GROUP_M": GROUP_M,
        },
    )


def _view(op: Op) -> MatrixView:
    views = [view for view in matrix_views(op) if not view.swapped]
    several = any(len(view.group(group)) > 1 for view in views[:1] for group in ("batch", "m", "n", "k"))
    if op.ragged is not None or not views or several or views[0].guards:
        raise _refused("an op that is no (batched) matrix product with one axis of each kind")
    return views[0]


def _strides(view: MatrixView, tensor: Operand, first: str, second: str) -> tuple[int, int, int]:
    """Strides in elements of batch and two groups; 0 where the tensor does not have them."""
    found = [sum(axis.stride(tensor.name) for axis in view.group(group)) for group in ("batch", first, second)]
    return found[0], found[1], found[2]


def _steps(op: Op, view: MatrixView) -> dict[str, Any]:
    """The epilogue as compile-time arguments."""
    does, takes, slots = [], [], []
    taken = 0
    for step in op.epilogue:
        info = STEPS[step.kind]
        does.append(step.kind if info.does == "apply" else info.does)
        shape = ""
        if step.operand is not None:
            axes = op.operand(step.operand).axes
            rows, columns = (any(set(a.axes) & axes for a in view.group(group)) for group in ("m", "n"))
            shape = {(True, True): "full", (True, False): "column", (False, True): "row"}.get((rows, columns), "scalar")
        takes.append(shape)
        slots.append(taken)
        taken += step.operand is not None
    factors = tuple(step.factor for step in op.epilogue)
    return {"STEPS": tuple(does), "TAKES": tuple(takes), "SLOTS": tuple(slots), "FACTORS": factors}


def _refused(what: str) -> UnsupportedError:
    return UnsupportedError(f"{what} is not served by the tutorial's kernel", "compete with other rivals")
