"""The time that no kernel of an operator can beat by much: the scale of all latencies."""

from __future__ import annotations

from autosched.sketches.op import Op
from autosched.sketches.target import Target


def roofline_us(op: Op, target: Target) -> float:
    """Roofline time of ``op`` in microseconds: the larger of compute time and compulsory traffic time.

    ``max(flops / peak, (bytes read once + bytes written once) / bandwidth)`` at the highest clock (Williams,
    Waterman and Patterson, "Roofline", 2009). A measured latency may lie below it by the part of the output that
    stays in L2.
    """
    dtype = op.operand(op.products[0].left).dtype.name
    return 1e6 * max(op.flops / target.peak_flops(dtype), sum(op.compulsory_bytes) / target.bandwidth)
