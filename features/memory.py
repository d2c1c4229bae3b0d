"""Features of the traffic, and the times that traffic and arithmetic would take alone.

Times are relative to the op's roofline time, the scale of what the models predict.
"""

from __future__ import annotations

import numpy as np

from autosched.features.columns import ASYNC, LOAD_LATENCY_US, MMA_SYNC_RATE, TURNED_RATE, WIDEST, Column, Columns
from autosched.features.schema import Feature

#: Features whose binary logarithm is stored.
LOG = (
    Feature(
        "log2_tile_intensity",
        "log2 flop/byte",
        "2 * products * block_m * block_n / ((block_m + block_n, each for all its operands) * element bytes)",
    ),
    Feature("log2_l2_traffic", "log2 1", "bytes that tiles load and store / compulsory bytes"),
    Feature("log2_dram_traffic", "log2 1", "bytes from DRAM, with reuse in L2 by group order / compulsory bytes"),
    Feature("log2_wave_over_l2", "log2 1", "distinct operand bytes that one wave of work items reads / L2 size"),
    Feature("log2_workspace", "log2 1", "1 + partial sums in fp32 written and read / compulsory bytes"),
    Feature(
        "log2_compute_time",
        "log2 1",
        "padded flops / rate (mma.sync 0.62, turned wgmma 0.4 of peak, summed fp32's), last SM round filled up; "
        "channelwise instructions / rate of issue",
    ),
    Feature("log2_dram_time", "log2 1", "bytes from DRAM / bandwidth"),
    Feature("log2_l2_time", "log2 1", "(bytes that tiles load and store + partial sums) / L2 bandwidth"),
    Feature(
        "log2_latency_time",
        "log2 1",
        "rounds of k_steps + stages - 1 loads, stages - 1 of 0.6 us in flight; channelwise 0.6 us a round",
    ),
    Feature("log2_bound_time", "log2 1", "largest of the compute, DRAM, L2 and latency times"),
    Feature(
        "log2_load_time",
        "log2 1",
        "stages that the busiest SM loads / 1.5 times its share of L2 bandwidth; channelwise what misses L1",
    ),
    Feature(
        "log2_reduction_time",
        "log2 1",
        "1 + time of putting parts together: a second kernel 3 us (dependent 1.5) and 0.3 a part, or a last block 1.5, "
        "and the partial sums / L2 bandwidth",
    ),
    Feature(
        "log2_gather_time",
        "log2 1",
        "1 + time of gathers' loads of fewer than 16 bytes, beyond those of 16: 4 cycles for 32 of them",
    ),
    Feature(
        "log2_copy_time",
        "log2 1",
        "1 + time of the copies: each 2 us (1 dependent), and traffic at 0.8 of the bandwidth",
    ),
    Feature("log2_serial_time", "log2 1", "sum of the compute, DRAM, load, latency, gather, reduction and copy times"),
)
LINEAR: tuple[Feature, ...] = ()

#: Time of a second kernel that has nothing to do, in microseconds (an estimate).
SECOND_KERNEL_US = 3.0
#: Of it, where it is launched before the first has ended; and of the last block of an atomic reduction (estimates).
DEPENDENT_US = 1.5
LAST_BLOCK_US = 1.5
#: Time of a copy that has nothing to do, in microseconds, and the share of the DRAM bandwidth that copies reach.
COPY_US = 2.0
DEPENDENT_COPY_US = 1.0
COPY_RATE = 0.8
#: Time that it takes for each part, which it adds one after the other, in microseconds (an estimate).
PART_US = 0.3
#: The same where all parts are asked for at once (an estimate).
PART_AT_ONCE_US = 0.02
#: Cycles for which the loads of a warp occupy an SM (an estimate).
CYCLES_A_LOAD = 4
#: Instructions of a tile whose columns have rows of their own: for each element of a thread and step of the reduction,
#: more where it passes through shared memory, for each step, for each tile (as counted in such kernels, the second
#: fitted); warp schedulers of an SM, which issue one a cycle each.
ISSUES_AN_ELEMENT = 2.5
ISSUES_STAGED = 1.0
ISSUES_A_STEP = 20
ISSUES_A_TILE = 60
SCHEDULERS = 4
#: Bytes of the first level of the cache that such a tile takes, over its own; least share of its loads that miss it;
#: time of such a load over that of one of a pipelined tile (estimates, fitted to a depthwise convolution on an H200).
HALO = 4
LEAST_MISSED = 0.15
MISS_COST = 2
#: What one SM can take of the L2 bandwidth while others idle, over its even share (an estimate).
BURST = 1.5


def compute(c: Columns) -> tuple[Column, ...]:
    """The columns of ``LOG`` (before the logarithm), in their order."""
    k, one, f32 = c.constants, np.float32(1), np.float32
    target = k.target
    panel_a = c.m * c.k * c.batch * f32(k.element) * c.operands_a
    panel_b = c.n * c.k * c.batch * f32(k.element) * c.operands_b
    operands = panel_a * c.distinct_a + panel_b * c.distinct_b
    stored = c.m * c.n * c.batch * f32(k.output) + f32(k.extra_bytes)
    l2 = c.tiles_n * panel_a + c.tiles_m * panel_b + stored
    parts: Column = np.where(c.stream_k > 0, _cut(c) * c.area, c.split_k * c.m * c.n * c.batch)
    workspace = np.maximum(c.workspace, c.atomic) * f32(8 * k.sums) * parts

    resident = np.minimum(c.programs, f32(target.sms) * c.blocks)
    rows = np.minimum(np.maximum(c.group_m, np.ceil(resident / c.tiles_n)), c.tiles_m)
    columns = np.minimum(np.ceil(resident / rows), c.tiles_n)
    repeats = np.maximum(resident / (rows * columns), one)
    wave = (
        (rows * c.rows * c.distinct_a + columns * c.columns * c.distinct_b)
        * repeats
        * c.k_steps
        * c.block_k
        * f32(k.element)
    )
    reloaded = np.maximum(wave * (c.programs / resident) - operands, f32(0))
    missed = one - np.minimum(f32(target.l2_bytes) / operands, one)
    dram = f32(k.compulsory) + reloaded * missed

    scale = f32(1 / k.roofline)
    rounds = c.rounds
    rate: Column = f32(k.peak) * _share_of_peak(c)
    work = c.area * f32(k.products) * c.block_k * c.k_steps * f32(2 * target.sms)
    compute_time: Column = np.divide(rounds * work, rate) * scale
    dram_time = dram * f32(1e6 / target.bandwidth) * scale
    l2_time = (l2 + workspace) * f32(1e6 / target.l2_bandwidth) * scale
    blocking = np.maximum(c.narrow_a, c.narrow_b) > f32(1 / ASYNC - 1 / WIDEST)  # such loads are not asynchronous
    ahead: Column = np.where(blocking, one, np.maximum(c.stages - one, one))
    turns = np.ceil(rounds / c.blocks)
    loads = np.where(c.stream_k > 0, rounds, turns) * c.k_steps + turns * ahead
    latency_time = loads / ahead * f32(LOAD_LATENCY_US) * scale
    load_time = rounds * c.k_steps * c.stage_bytes * f32(target.sms * 1e6 / (BURST * target.l2_bandwidth)) * scale
    columns_narrow = c.columns * c.narrow_b
    channels = c.channelwise > 0
    if channels.any():
        compute_time = np.where(channels, _issue_time(c) * scale, compute_time)
        latency_time = np.where(channels, turns * f32(LOAD_LATENCY_US) * scale, latency_time)
        load_time = np.where(channels, _missed(c) * load_time, load_time)
        columns_narrow = np.where(channels, f32(0), columns_narrow)  # those loads are among the instructions
    narrow = (c.rows * c.narrow_a + columns_narrow) * c.block_k * f32(k.element)
    gather = rounds * c.k_steps * narrow * f32(CYCLES_A_LOAD / (32 * target.clock_mhz))
    kernel = f32(SECOND_KERNEL_US) - c.dependent * f32(SECOND_KERNEL_US - DEPENDENT_US)
    part = f32(PART_US) - c.dependent * f32(PART_US - PART_AT_ONCE_US)
    second = c.workspace * (kernel + part * c.split_k) + c.atomic * (parts > 0) * f32(LAST_BLOCK_US)
    second = second + workspace * f32(1e6 / target.l2_bandwidth)
    copied = np.where(c.prepared > 0, c.prepared, f32(2) * (c.copied_a * panel_a + c.copied_b * panel_b))
    copied = copied * f32(1e6 / (COPY_RATE * target.bandwidth))
    each = f32(COPY_US) - c.dependent * f32(COPY_US - DEPENDENT_COPY_US)
    copies = (c.copied_a * c.operands_a + c.copied_b * c.operands_b) * each + copied
    compulsory = f32(1 / k.compulsory)
    return (
        c.area * f32(2 * k.products / k.element) / c.edges,
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
        one + gather * scale,
        one + copies * scale,
        compute_time + dram_time + load_time + latency_time + (gather + second + copies) * scale,
    )


def _issue_time(c: Columns) -> Column:
    """Microseconds in which the busiest SM issues the instructions of tiles whose columns have rows of their own."""
    element: Column = np.float32(ISSUES_AN_ELEMENT) + np.float32(ISSUES_STAGED) * (c.stages > 1).astype(np.float32)
    step: Column = element * c.accumulators + np.float32(ISSUES_A_STEP)
    issued: Column = c.warps * (c.k_steps * step + np.float32(ISSUES_A_TILE))
    time: Column = c.rounds * issued * np.float32(1 / (SCHEDULERS * c.constants.target.clock_mhz))
    return time


def _missed(c: Columns) -> Column:
    """Cost of the loads of such a tile over that of a pipelined one: its windows overlap, so what L1 holds is cheap."""
    k = c.constants
    held: Column = c.blocks * c.area * np.float32(HALO * k.element / k.target.shared_per_sm)
    share: Column = np.minimum(np.maximum(held, np.maximum(c.distinct_a, np.float32(LEAST_MISSED))), np.float32(1))
    return share * np.float32(MISS_COST)


def _share_of_peak(c: Columns) -> Column:
    """Share of the peak rate that the instructions of each row reach."""
    k = c.constants
    dots = np.ones_like(c.wgmma)
    if k.target.capability == 90 and k.tensor_cores:
        dots = c.wgmma - c.turned * np.float32(1 - TURNED_RATE) + c.mma * np.float32(MMA_SYNC_RATE)
    share: Column = np.where(c.summed > 0, np.float32(k.fma), dots)
    return share


def _cut(c: Columns) -> Column:
    """Pieces of tiles whose sums a stream adds atomically, at most.

    The last tiles are cut where shares end. Where there are at least as many tiles as programs a share is one to two
    tiles, so each end cuts another tile in two; where there are fewer, each end makes one piece more. Nothing is cut
    where the tiles go up evenly in the programs, or have one step.
    """
    sms = np.float32(c.constants.target.sms)
    whole = np.floor(c.programs / sms)
    rest = c.programs - whole * sms
    pieces = np.where(whole > 0, np.float32(2) * sms, np.minimum(rest + sms, rest * c.k_steps))
    cut: Column = np.where((rest > 0) & (c.k_steps > 1), pieces, np.float32(0))
    return cut
