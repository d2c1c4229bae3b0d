"""Emitters of the Combine nodes: the accumulators, one step of the reduction into them, and what ends it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch
from math import gcd

from autosched.sketches.codegen.kernel import WHOLE, Kernel, Span, load
from autosched.sketches.nodes import ChannelCombine, DotCombine, ScaledCombine, SumCombine
from autosched.sketches.op import Operand, Product
from autosched.sketches.view import run_length

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
def _dot_start(node: DotCombine | ChannelCombine, k: Kernel) -> None:
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
            k.line(f"{acc} = tl.dot({left}, {right}, {acc}{_keywords(k, product)}{_promotion(k, product)})")


@emit_end.register
def _dot_end(node: DotCombine, k: Kernel) -> None:
    pass


def _keywords(k: Kernel, product: Product) -> str:
    """Keywords of a dot that follow from the type of its operands."""
    dtype = k.op.operand(product.left).dtype
    if dtype.input_precision:
        return f', input_precision="{dtype.input_precision}"'
    return ", out_dtype=tl.int32" if dtype.accumulator == "int32" else ""


def _promotion(k: Kernel, product: Product) -> str:
    """The keyword that has sums of 8-bit floats leave the tensor cores' own accumulator."""
    precise = k.op.operand(product.left).dtype.is_float8 and not k.op.fast_accumulate
    return f", max_num_imprecise_acc={min(PROMOTED, k.knobs['block_k'])}" if precise else ""


@emit_start.register
def _channel_start(node: ChannelCombine, k: Kernel) -> None:
    _dot_start(node, k)


@emit_step.register
def _channel_step(node: ChannelCombine, k: Kernel) -> None:
    (product,) = k.op.products
    k.line(f"{product.accumulator} += {product.left}.to(tl.float32) * {product.right}.to(tl.float32)[None, :]")


@emit_end.register
def _channel_end(node: ChannelCombine, k: Kernel) -> None:
    pass


@emit_start.register
def _scaled_start(node: ScaledCombine, k: Kernel) -> None:
    _dot_start(node, k)
    for factor, span in _factors(k):
        name, group = factor.name + span.suffix, _side(k, factor)
        base = k.pointer(factor)
        batch = k.coarse_offset(factor, "batch", "batch") if k.batched else ""
        base += f" + {batch}" if batch else ""
        if group:
            first = k.place(group, span)
            k.line(f"{name}_{group} = {first}" + ("" if _is_one(k, factor, span) else f" + {_arange(k, group, span)}"))
            base += f" + {k.coarse_offset(factor, group, f'{name}_{group}')}"
        k.line(f"{name}_base = {base}")


@emit_step.register
def _scaled_step(node: ScaledCombine, k: Kernel) -> None:
    for factor, span in _factors(k):
        name, group, step = factor.name + span.suffix, _side(k, factor), k.coarse_offset(factor, "k", "k0")
        bounds = k.bounds([(group, f"{name}_{group}", k.knobs[f"block_{group}"], "")]) if group else ""
        k.line(f"{name} = {load(f'{name}_base' + (f' + {step}' if step else ''), bounds)}")
    for product in k.op.products:
        for span in k.spans:
            left, right = k.view.left(product), f"{k.view.right(product)}{span.suffix}"
            acc, scale = accumulator(product.accumulator, span), " * ".join(_spread(k, product, span))
            k.line(f"{acc} += tl.dot({left}, {right}{_keywords(k, product)}) * ({scale})")


def _factors(k: Kernel) -> Iterator[tuple[Operand, Span]]:
    """Every factor, once for each piece of the columns if it differs between them."""
    for factor in map(k.op.operand, k.op.factors):
        for span in k.spans if k.indexes(factor, "n") else (WHOLE,):
            yield factor, span


def _spread(k: Kernel, product: Product, span: Span) -> Iterator[str]:
    """The values of a product's factors, along the rows or columns that they belong to."""
    for factor in map(k.op.operand, product.factors):
        group = _side(k, factor)
        name = factor.name + (span.suffix if group == "n" else "")
        axis = {"m": "[:, None]", "n": "[None, :]"}.get(group, "")
        yield name if _is_one(k, factor, span) else name + axis


def _side(k: Kernel, factor: Operand) -> str:
    """The group of the tile that indexes a factor: ``m``, ``n`` or none."""
    return next((group for group in "mn" if k.indexes(factor, group)), "")


def _is_one(k: Kernel, factor: Operand, span: Span) -> bool:
    """Whether a factor has one value for the whole piece: it begins where the value does, and is no longer."""
    group = _side(k, factor)
    if not group:
        return True
    run, block = run_length(k.op, k.view, group, (factor.name,)), k.knobs[f"block_{group}"]
    width, first = (span.width, span.start) if group == "n" else (block, 0)
    return run % width == 0 and gcd(block, first) % width == 0


def _arange(k: Kernel, group: str, span: Span) -> str:
    return f"tl.arange(0, {k.width(group, span)})"


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
