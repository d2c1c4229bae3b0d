"""Features of sketch, op and device: the same for every schedule of a sketch, so they are tables by sketch."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autosched.features.roofline import roofline_us
from autosched.features.schema import Feature
from autosched.features.workload import extents, product_bytes

if TYPE_CHECKING:
    from autosched.sketches.op import Op
    from autosched.sketches.sketch import Sketch
    from autosched.sketches.target import Target

SKETCH = (
    Feature("persistent", "1", "programs loop over tiles, one program an SM"),
    Feature("split", "1", "the reduction is split over programs"),
    Feature("tma_a", "1", "left operand, which gives the tile's rows, is loaded by TMA"),
    Feature("tma_b", "1", "right operand, which gives the tile's columns, is loaded by TMA"),
    Feature("tma_store", "1", "output is stored by TMA"),
    Feature("subtiled", "1", "epilogue runs on pieces of the accumulator"),
    Feature("workspace", "1", "partial sums go through an fp32 workspace"),
    Feature("trans_a", "1", "K is not the contiguous axis of the left operand"),
    Feature("trans_b", "1", "N is not the contiguous axis of the right operand"),
    Feature("stream_k", "1", "the steps of the last tiles are dealt out evenly over the programs"),
    Feature("atomic", "1", "partial sums are added atomically, who adds the last one finishes"),
    Feature("copied_a", "1", "a kernel before copies the left operand: K innermost, rows padded, or windows"),
    Feature("copied_b", "1", "the same of the right operand"),
    Feature("summed", "1", "multiplied and added without tensor cores, a row a program"),
    Feature("swapped", "1", "rows of the tile are the op's right operand's"),
    Feature("log2_align_a", "log2 bytes", "power of two, at most 16, that divides each row start of the left operand"),
    Feature("log2_align_b", "log2 bytes", "the same of the right operand"),
    Feature("log2_align_out", "log2 bytes", "the same of the output"),
)
OP = (
    Feature("log2_m", "log2 elements", "M of the matrix view; of each group, rows dealt out evenly, if ragged"),
    Feature("log2_n", "log2 elements", "N of the matrix view"),
    Feature("log2_k", "log2 elements", "K of the matrix view"),
    Feature("log2_batch", "log2 matrices", "batch of the matrix view, groups that may have rows if ragged"),
    Feature("log2_element_bytes", "log2 bytes", "element of the product's operands"),
    Feature("log2_output_bytes", "log2 bytes", "element of the output"),
    Feature("tensor_cores", "1", "the product's type runs on tensor cores (all but full-precision fp32)"),
    Feature("accumulators", "1", "sums that products go to, two in a gated pair"),
    Feature("ragged", "1", "which rows belong to which product is known only at run time"),
    Feature("epilogue_steps", "steps", "length of the epilogue chain"),
    Feature("epilogue_traffic", "1", "bytes of the epilogue's operands / compulsory bytes"),
    Feature("log2_intensity", "log2 flop/byte", "flops / compulsory bytes"),
    Feature("log2_roofline", "log2 us", "roofline_us"),
    Feature("log2_operands_over_l2", "log2 1", "bytes of the products' operands / L2 size"),
)
DEVICE = (
    Feature("log2_sms", "log2 SMs", "target"),
    Feature("log2_machine_balance", "log2 flop/byte", "peak rate / DRAM bandwidth"),
    Feature("log2_shared_limit", "log2 bytes", "shared memory that a CTA can have"),
    Feature("capability", "1", "compute capability / 10"),
)
TABLE = (*SKETCH, *OP, *DEVICE)


def table(op: Op, target: Target, sketches: Sequence[Sketch]) -> NDArray[np.float32]:
    """The features of ``TABLE`` for each sketch, float32 ``[len(TABLE), len(sketches)]``."""
    left = op.operand(op.products[0].left)
    compulsory = sum(op.compulsory_bytes)
    operands = product_bytes(op)
    peak = target.peak_flops(left.dtype.name)
    of_op = [
        log2(left.dtype.bytes),
        log2(op.output.dtype.bytes),
        float(left.dtype.input_precision != "ieee"),
        len(op.accumulators),
        float(op.ragged is not None),
        len(op.epilogue),
        (op.compulsory_bytes[0] - operands) / compulsory,
        log2(max(op.flops, 1) / compulsory),
        log2(roofline_us(op, target)),
        log2(operands / target.l2_bytes),
    ]
    of_device = [log2(target.sms), log2(peak / target.bandwidth), log2(target.shared_per_block), target.capability / 10]
    rows = []
    for sketch in sketches:
        facts = sketch.facts()
        flags = [facts[f.name] for f in SKETCH[:-3]]
        aligned = [log2(facts[name]) for name in ("align_a", "align_b", "align_out")]
        rows.append([*flags, *aligned, *map(log2, extents(op, sketch)), *of_op, *of_device])
    return np.asarray(rows, np.float32).reshape(len(rows), len(TABLE)).T.copy()
