"""Emitters of the Combine nodes: the accumulators, one step of the reduction into them, and what ends it."""

from __future__ import annotations

from functools import singledispatch

from autosched.sketches.codegen.kernel import Kernel, Span
from autosched.sketches.nodes import DotCombine, SumCombine
from autosched.sketches.op import Product

#: Terms of a sum of 8-bit floats that stay in the tensor cores' own accumulator before they are added in fp32.
PROMOTED = 128


@singledispatch
def emit_start(node: object, k: Kernel) -> None:
    """Emits the accumulators, zero."""
    raise NotImplementedError(type(node).__name__)


@singledispatch
def emit_step(node: object, k: Kernel) -> None:
    """Emits the products of one step."""
    raise NotImplementedError(type(node).__name__)


@singledispatch
def emit_end(node: object, k: Kernel) -> None:
    """Emits what follows the reduction: afterwards the accumulators are tiles."""
    raise NotImplementedError(type(node).__name__)


def accumulator(name: str, span: Span) -> str:
    """Name of an accumulator's piece."""
    return f"{name}{'_' if name[-1].isdigit() and span.suffix else ''}{span.suffix}"


@emit_start.register
def _dot_start(node: DotCombine, k: Kernel) -> None:
    kind = "tl.int32" if k.op.accumulate == "int32" else "tl.float32"
    for name in k.op.accumulators:
        for span in k.spans:
            shape = f"({k.knob('block_m')}, {k.width('n', span)})"
            k.line(f"{accumulator(name, span)} = tl.zeros({shape}, {kind})")


@emit_step.register
def _dot_step(node: DotCombine, k: Kernel) -> None:
    for product in k.op.products:
        for span in k.spans:
            left, right = k.view.left(product), f"{k.view.right(product)}{span.suffix}"
            acc = accumulator(product.accumulator, span)
            k.line(f"{acc} = tl.dot({left}, {right}, {acc}{_keywords(k, product)})")


@emit_end.register
def _dot_end(node: DotCombine, k: Kernel) -> None:
    pass


def _keywords(k: Kernel, product: Product) -> str:
    dtype = k.op.operand(product.left).dtype
    if dtype.input_precision:
        return f', input_precision="{dtype.input_precision}"'
    if k.op.accumulate == "int32":
        return ", out_dtype=tl.int32"
    if dtype.is_float8 and not k.op.fast_accumulate:
        return f", max_num_imprecise_acc={min(PROMOTED, k.knobs['block_k'])}"
    return ""


@emit_start.register
def _sum_start(node: SumCombine, k: Kernel) -> None:
    for name in k.op.accumulators:
        k.line(f"{name} = tl.zeros(({k.knob('block_k')}, {k.knob('block_n')}), tl.float32)")


@emit_step.register
def _sum_step(node: SumCombine, k: Kernel) -> None:
    for product in k.op.products:
        left, right = k.view.left(product), k.view.right(product)
        k.line(f"{product.accumulator} += tl.trans({left}).to(tl.float32) * {right}.to(tl.float32)")


@emit_end.register
def _sum_end(node: SumCombine, k: Kernel) -> None:
    for name in k.op.accumulators:
        k.line(f"{name} = tl.sum({name}, 0)[None, :]")
