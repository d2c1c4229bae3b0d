"""Features of how the work items run: how many at once, in how many waves, and how full the pipeline is."""

from __future__ import annotations

import numpy as np

from autosched.features.columns import BLOCKS_PER_SM, REGISTERS_BESIDE_ACCUMULATOR, Column, Columns
from autosched.features.schema import Feature

#: Features whose binary logarithm is stored.
LOG = (
    Feature("log2_programs", "log2 items", "work items: tiles * batch * split_k"),
    Feature("log2_items_per_sm", "log2 items", "programs / SMs"),
    Feature(
        "log2_accumulators",
        "log2 registers",
        "of a thread: accumulators * block_m * block_n / (32 * warps), summed times block_k",
    ),
    Feature("log2_stage_bytes", "log2 bytes", "(block_m + block_n, each for all its operands) * block_k * element"),
    Feature("log2_bytes_in_flight", "log2 bytes", "of an SM: blocks * max(stages - 1, 1) * stage bytes"),
    Feature("log2_resident_warps", "log2 warps", "of an SM: blocks * warps"),
)
LINEAR = (
    Feature("wave_efficiency", "1", "programs / (SMs * blocks) over the same rounded up (stream-K: to a whole step)"),
    Feature("sm_efficiency", "1", "programs / SMs over the same rounded up (stream-K: to a whole step)"),
    Feature("blocks", "CTAs", "of an SM, by shared memory, registers, threads; 1 if persistent"),
    Feature("blocks_by_shared", "CTAs", "shared memory of an SM / (shared memory of a CTA + 1 KiB), at most 32"),
    Feature("shared_fraction", "1", "shared memory of a CTA (lower bound) / its limit"),
    Feature("register_fraction", "1", "(accumulators + 80) / maxnreg, or 255, above 1 where registers spill"),
    Feature("pipeline_fill", "1", "k_steps / (k_steps + stages - 1)"),
    Feature("wgmma", "1", "dot is wgmma: sm_90, block_m >= 64, 4, 8 or 16 warps, no full-precision fp32"),
    Feature("mma", "1", "dot is mma.sync: tensor cores, neither wgmma nor summed without a dot"),
)


def compute(c: Columns) -> tuple[Column, ...]:
    """The columns of ``LOG`` (before the logarithm) and ``LINEAR``, in their order."""
    one, target = np.float32(1), c.constants.target
    per_sm = c.programs / np.float32(target.sms)
    waves = per_sm / c.blocks
    ahead: Column = c.stages - one
    fill: Column = c.k_steps / (c.k_steps + ahead)
    return (
        c.programs,
        per_sm,
        c.accumulators,
        c.stage_bytes,
        c.blocks * np.maximum(ahead, one) * c.stage_bytes,
        c.blocks * c.warps,
        np.where(c.stream_k > 0, per_sm / c.rounds, waves / np.ceil(waves)),
        per_sm / c.rounds,
        c.blocks,
        np.minimum(c.blocks_by_shared, np.float32(BLOCKS_PER_SM)),
        c.shared * np.float32(1 / target.shared_per_block),
        (c.accumulators + np.float32(REGISTERS_BESIDE_ACCUMULATOR)) * (one / c.register_limit),
        fill,
        c.wgmma,
        c.mma,
    )
