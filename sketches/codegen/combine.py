"""Emitters of the Combine nodes: the accumulators, and one step of the reduction into them."""

from __future__ import annotations

from autosched.sketches.codegen.kernel import Kernel
from autosched.sketches.nodes import DotCombine


def emit_start(node: DotCombine, k: Kernel) -> None:
    """Emits the accumulators, zero."""
    shape = f"({k.knob('block_m')}, {k.knob('block_n')})"
    for product in k.op.products:
        k.line(f"{product.accumulator} = tl.zeros({shape}, tl.float32)")


def emit_step(node: DotCombine, k: Kernel) -> None:
    """Emits the products of one step."""
    for product in k.op.products:
        precision = k.op.operand(product.left).dtype.input_precision
        keyword = f', input_precision="{precision}"' if precision else ""
        acc = product.accumulator
        k.line(f"{acc} = tl.dot({product.left}, {product.right}, {acc}{keyword})")
