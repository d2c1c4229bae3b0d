"""The time that no correct kernel can beat: a timing below it is a measuring error or a wrong kernel."""

from __future__ import annotations

from math import prod

from autosched.sketches.op import Op, Operand
from autosched.sketches.target import Target

MARGIN = 0.9
"""Share of the physical bound that is still believed: event resolution is 0.5 us, and data sheets round."""


def floor_us(op: Op, target: Target, *, clock_mhz: float | None = None) -> float:
    """``0.9 x max(flops / peak, DRAM bytes / bandwidth)`` in microseconds.

    Every distinct input element comes from DRAM once, since the L2 cache is cold. The output may stay in the L2 cache,
    so that writes count only beyond its size. The peak is taken at the highest SM clock, which is above the one that
    data sheets quote.

    Args:
        op: What is computed.
        target: The device; its figures are the peaks.
        clock_mhz: Highest SM clock that the device reports; the target's if not given.
    """
    rate = target.peak_flops(op.operand(op.products[0].left).dtype.name)
    if clock_mhz is not None:
        rate *= clock_mhz / target.clock_mhz
    reads = sum(min(op.read_elements(o), o.span) * o.dtype.bytes for o in op.operands)
    writes = max(0, _distinct_bytes(op.output) - target.l2_bytes)
    return MARGIN * 1e6 * max(op.flops / rate, (reads + writes) / target.bandwidth)


def _distinct_bytes(operand: Operand) -> int:
    """Bytes of the memory that the operand's elements occupy (a stride of 0 repeats elements)."""
    return min(prod(operand.shape), operand.span) * operand.dtype.bytes
