"""Features of the traffic, and the times that traffic and arithmetic would take alone.

Times are relative to the op's roofline time, the scale of what the models predict.
"""

from __future__ import annotations

import numpy as np

from autosched.features.columns import LOAD_LATENCY_US, MMA_SYNC_RATE, TURNED_RATE, Column, Columns
from autosched.features.schema import Feature

#: Features whose binary logarithm is stored.
LOG = (
    Feature("log2_tile_intensity", "log2 flop/byte", "2 * block_m * block_n / ((block_m + block_n) * element bytes)"),
    Feature("log2_l2_traffic", "log2 1", "bytes that tiles load and store / compulsory bytes"),
    Feature("log2_dram_traffic", "log2 1", "bytes from DRAM, with reuse in L2 by group order / compulsory bytes"),
    Feature("log2_wave_over_l2", "log2 1", "distinct operand bytes that one wave of work items reads / L2 size"),
    Feature("log2_workspace", "log2 1", "1 + fp32 workspace written and read / compulsory bytes"),
    Feature(
        "log2_compute_time",
        "log2 1",
        "padded flops / rate (mma.sync 0.62, turned wgmma 0.4 of peak), last SM round filled up",
    ),
    Feature("log2_dram_time", "log2 1", "bytes from DRAM / bandwidth"),
    Feature("log2_l2_time", "log2 1", "(bytes that tiles load and store + workspace) / L2 bandwidth"),
    Feature("log2_latency_time", "log2 1", "rounds of k_steps + stages - 1 loads, stages - 1 of 0.6 us in flight"),
    Feature("log2_bound_time", "log2 1", "largest of the compute, DRAM, L2 and latency times"),
    Feature("log2_load_time", "log2 1", "stages that the busiest SM loads / 1.5 times its share of L2 bandwidth"),
    Feature(
        "log2_reduction_time", "log2 1", "1 + time of the workspace's second kernel: 3 us + workspace / L2 bandwidth"
    ),
    Feature("log2_serial_time", "log2 1", "sum of the compute, DRAM, load and latency times and the second kernel's"),
)
LINEAR: tuple[Feature, ...] = ()

#: Time of a second kernel that has nothing to do, in microseconds (an estimate).
SECOND_KERNEL_US = 3.0
#: Time that it takes for each part, which it adds one after the other, in microseconds (an estimate).
PART_US = 0.3
#: What one SM can take of the L2 bandwidth while others idle, over its even share (an estimate).
BURST = 1.5


def compute(c: Columns) -> tuple[Column, ...]:
    """The columns of ``LOG`` (before the logarithm), in their order."""
    k, one, f32 = c.constants, np.float32(1), np.float32
    target = k.target
    panel_a, panel_b = c.m * c.k * c.batch * f32(k.element), c.n * c.k * c.batch * f32(k.element)
    operands = panel_a + panel_b
    stored = c.m * c.n * c.batch * f32(k.output) + f32(k.extra_bytes)
    l2 = c.tiles_n * panel_a + c.tiles_m * panel_b + stored
    workspace = c.workspace * f32(8) * c.split_k * c.m * c.n * c.batch

    resident = np.minimum(c.programs, f32(target.sms) * c.blocks)
    rows = np.minimum(np.maximum(c.group_m, np.ceil(resident / c.tiles_n)), c.tiles_m)
    columns = np.minimum(np.ceil(resident / rows), c.tiles_n)
    repeats = np.maximum(resident / (rows * columns), one)
    wave = (rows * c.block_m + columns * c.block_n) * repeats * c.k_steps * c.block_k * f32(k.element)
    reloaded = np.maximum(wave * (c.programs / resident) - operands, f32(0))
    missed = one - np.minimum(f32(target.l2_bytes) / operands, one)
    dram = f32(k.compulsory) + reloaded * missed

    scale = f32(1 / k.roofline)
    rounds = np.ceil(c.programs / f32(target.sms))
    rate = (
        f32(k.peak)
        if target.capability != 90 or not k.tensor_cores
        else (f32(k.peak) * (c.wgmma - c.turned * f32(1 - TURNED_RATE) + c.mma * f32(MMA_SYNC_RATE)))
    )
    work = c.area * c.block_k * c.k_steps * f32(2 * target.sms)
    compute_time = rounds * work / rate * scale
    dram_time = dram * f32(1e6 / target.bandwidth) * scale
    l2_time = (l2 + workspace) * f32(1e6 / target.l2_bandwidth) * scale
    ahead = np.maximum(c.stages - one, one)
    loads = np.ceil(rounds / c.blocks) * (c.k_steps + ahead)
    latency_time = loads / ahead * f32(LOAD_LATENCY_US) * scale
    load_time = rounds * c.k_steps * c.stage_bytes * f32(target.sms * 1e6 / (BURST * target.l2_bandwidth)) * scale
    second = c.workspace * (f32(SECOND_KERNEL_US) + f32(PART_US) * c.split_k) + workspace * f32(
        1e6 / target.l2_bandwidth
    )
    compulsory = f32(1 / k.compulsory)
    return (
        c.area * f32(2 / k.element) / c.edges,
        l2 * compulsory,
        dram * compulsory,
        wave * f32(1 / target.l2_bytes),
        one + workspace * compulsory,
        compute_time,
        dram_time,
        l2_time,
        latency_time,
        np.maximum(np.maximum(compute_time, dram_time), np.maximum(l2_time, latency_time)),
        load_time,
        one + second * scale,
        compute_time + dram_time + load_time + latency_time + second * scale,
    )
