"""Features of the rarer structures against values worked out by hand."""

from math import log2
from typing import Any

import numpy as np
import pytest

from autosched.features import FEATURES, extract
from autosched.sketches.builders import bmm, gemm, grouped_gemm
from autosched.sketches.op import Op
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule, ScheduleBatch
from autosched.sketches.target import PRESETS
from tests.features.stubs import H200, one

MIB = 1 << 20
#: Flops of an H200 in a microsecond: bf16, and without tensor cores.
PEAK, FMA = 4096 * 132 * 1980, 256 * 132 * 1980

#: Features of a sketch's sides, in which a ragged and a batched product may differ.
SIDES = ("log2_align_a", "log2_align_b", "log2_align_out")


def near(values: dict[str, float], expected: dict[str, float]) -> None:
    assert {name: values[name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_stream_deals_out_steps() -> None:
    # 512 tiles of 64 steps: 248.2 steps for each of 132 programs, the busiest takes 249.
    values = one(
        gemm(4096, 4096, 4096),
        {"persistent": 1, "stream_k": 1, "atomic": 1},
        block_m=128,
        block_n=256,
        block_k=64,
        warps=8,
        stages=4,
        group_m=8,
    )
    roofline = 2 * 4096**3 / PEAK
    # 2 tiles for each program are whole; 132 ends of shares cut 132 of the other 248, each in two.
    workspace = 8 * 264 * 128 * 256
    reduction = 1.5 + workspace / 11e6
    near(
        values,
        {
            "stream_k": 1,
            "atomic": 1,
            "wave_efficiency": 512 * 64 / 132 / 249,
            "sm_efficiency": 512 * 64 / 132 / 249,
            "blocks": 1,
            "log2_compute_time": log2(249 / 64 * 132 / 512),
            # The pipeline is filled for 4 tiles.
            "log2_latency_time": log2((249 + 4 * 3) / 3 * 0.6 / roofline),
            "log2_load_time": log2(249 * 49152 / 125000 / roofline),
            "log2_workspace": log2(1 + workspace / (96 * MIB)),
            "log2_l2_time": log2((49 * 32 * MIB + workspace) / 11e6 / roofline),
            "log2_reduction_time": log2(1 + reduction / roofline),
        },
    )


def test_a_stream_of_as_many_tiles_as_programs_cuts_none() -> None:
    # 12 by 11 tiles for 132 programs.
    values = one(
        gemm(1536, 2816, 4096),
        {"persistent": 1, "stream_k": 1, "atomic": 1},
        block_m=128,
        block_n=256,
        block_k=64,
        warps=8,
        stages=4,
        group_m=8,
    )
    near(values, {"sm_efficiency": 1, "log2_workspace": 0, "log2_reduction_time": 0, "log2_compute_time": 0})


@pytest.mark.parametrize(("tiles", "steps"), [(1, 32), (4, 8), (66, 16), (100, 7), (133, 16), (200, 1), (1000, 4)])
def test_a_stream_adds_at_most_the_pieces_that_are_counted(tiles: int, steps: int) -> None:
    values = one(
        gemm(64, 64 * tiles, 64 * steps),
        {"persistent": 1, "stream_k": 1, "atomic": 1},
        block_m=64,
        block_n=64,
        block_k=64,
        warps=4,
        stages=2,
        group_m=1,
    )
    counted = (2 ** values["log2_workspace"] - 1) * sum(gemm(64, 64 * tiles, 64 * steps).compulsory_bytes) / 8 / 64**2
    programs = min(132, tiles * steps)
    whole = max(0, tiles // programs - (tiles % programs > 0)) * programs
    rest = (tiles - whole) * steps
    ends = {program * rest // programs for program in range(programs + 1)} | set(range(0, rest + 1, steps))
    pieces = np.diff(sorted(ends))
    added = int((pieces < steps).sum())

    assert added <= counted + 1e-2
    assert counted <= 2 * added + 1e-2


def test_parts_are_added_atomically() -> None:
    # 4 tiles of 256 steps in 32 parts of 8.
    op = gemm(128, 128, 65536)
    values = one(
        op,
        {"split": 1, "atomic": 1},
        block_m=64,
        block_n=64,
        block_k=256,
        warps=4,
        stages=3,
        group_m=1,
        split_k=32,
    )
    compulsory = 2 * (2 * 128 * 65536 + 128 * 128)
    workspace = 8 * 32 * 128 * 128
    near(
        values,
        {
            "atomic": 1,
            "workspace": 0,
            "log2_programs": 7,
            "log2_k_steps": 3,
            "log2_workspace": log2(1 + workspace / compulsory),
            "log2_reduction_time": log2(1 + (1.5 + workspace / 11e6) / (compulsory / 4.8e6)),
        },
    )


@pytest.mark.parametrize(("dependent", "second", "part"), [(0, 3.0, 0.3), (1, 1.5, 0.02)])
def test_a_second_kernel_that_is_launched_early_takes_less(dependent: int, second: float, part: float) -> None:
    values = one(
        gemm(1, 4096, 4096),
        {"split": 1, "workspace": 1},
        block_m=16,
        block_n=64,
        block_k=128,
        warps=2,
        stages=2,
        group_m=1,
        split_k=8,
        dependent=dependent,
    )
    roofline = 2 * (4096 + 4096 * 4096 + 4096) / 4.8e6
    near(
        values,
        {
            "dependent": dependent,
            "log2_reduction_time": log2(1 + (second + 8 * part + 8 * 8 * 4096 / 11e6) / roofline),
        },
    )


def gated(**facts: int) -> dict[str, float]:
    """A pair of 512x1024x2048: a has 2 MiB, b and its gate 4 each, the output 1."""
    wide, narrow = ("block_m", "block_n") if facts.get("swapped") else ("block_n", "block_m")
    return one(
        gemm(512, 1024, 2048, epilogue=["swiglu"]),
        facts,
        H200,
        **{wide: 128, narrow: 64},
        block_k=64,
        warps=4,
        stages=3,
        group_m=1,
        split_k=4 if facts.get("split") else -1,
    )


@pytest.mark.parametrize("swapped", [0, 1])
def test_a_gated_pair_has_two_tiles_on_the_side_of_its_columns(swapped: int) -> None:
    values = gated(swapped=swapped)
    flops = 2 * 2 * 512 * 1024 * 2048
    # 8 by 8 tiles of 64 by 128 in one round; a, and both others, are read 8 times.
    near(
        values,
        {
            "accumulators": 2,
            "swapped": swapped,
            "log2_m": 10 if swapped else 9,
            "log2_n": 9 if swapped else 10,
            "log2_tile_aspect": 1 if swapped else -1,
            "log2_accumulators": log2(2 * 64 * 128 / 128),
            "log2_stage_bytes": log2((64 + 2 * 128) * 64 * 2),
            "log2_tile_intensity": log2(2 * 2 * 64 * 128 / ((64 + 2 * 128) * 2)),
            "log2_l2_traffic": log2((8 * 2 + 8 * 8 + 1) / 11),
            "log2_dram_traffic": 0,
            # One wave: all operands once.
            "log2_wave_over_l2": log2(10 / 60),
            "log2_operands_over_l2": log2(10 / 60),
            "log2_compute_time": log2(132 / 64 * flops / PEAK / max(flops / PEAK, 11 * MIB / 4.8e6)),
            "log2_padded_flops": 0,
            "epilogue_traffic": 0,
            "epilogue_steps": 2,
        },
    )


def test_a_gated_pair_has_two_sums_for_each_part_and_two_copies() -> None:
    flops = 2 * 2 * 512 * 1024 * 2048
    roofline = max(flops / PEAK, 11 * MIB / 4.8e6)
    # 4 parts of 2 sums of 512 by 1024.
    near(gated(split=1, workspace=1), {"log2_workspace": log2(1 + 8 * 4 * 2 * 512 * 1024 / (11 * MIB))})
    near(gated(copied_a=1), {"log2_copy_time": log2(1 + (2 + 2 * 2 * MIB / (0.8 * 4.8e6)) / roofline)})
    near(gated(copied_b=1), {"log2_copy_time": log2(1 + (2 * 2 + 2 * 8 * MIB / (0.8 * 4.8e6)) / roofline)})
    near(gated(copied_a=1, swapped=1), {"log2_copy_time": gated(copied_b=1)["log2_copy_time"]})


def test_copies_come_before_the_kernel() -> None:
    facts = {"tma_a": 1, "tma_b": 1}
    knobs: dict[str, Any] = {"block_m": 128, "block_n": 128, "block_k": 64, "warps": 8, "stages": 3, "group_m": 8}
    plain, copied = (
        one(gemm(1024, 1024, 1024), facts | more, **knobs) for more in ({}, {"copied_a": 1, "copied_b": 1})
    )
    copies = (2 * 2 + 2 * 4 * MIB / (0.8 * 4.8e6)) / (2 * 1024**3 / PEAK)
    near(
        copied,
        {
            "copied_a": 1,
            "copied_b": 1,
            "log2_copy_time": log2(1 + copies),
            "log2_serial_time": log2(2 ** plain["log2_serial_time"] + copies),
            "log2_bound_time": plain["log2_bound_time"],
        },
    )


def test_ragged_rows_are_dealt_out_evenly_to_groups_that_may_have_any() -> None:
    def features(op: Op, block_m: int = 64) -> dict[str, float]:
        sketches = derive(op, H200)
        schedule = Schedule.of(sketches[0], block_m=block_m, block_n=128, block_k=64, warps=4, stages=3, group_m=1)
        values = extract(op, H200, ScheduleBatch.of(sketches, [schedule]))[0]
        return {f.name: float(v) for f, v in zip(FEATURES, values, strict=True)}

    ragged, batched = features(grouped_gemm(8, 800, 512, 256)), features(bmm(8, 100, 512, 256))
    # The ends of the groups are 8 numbers of 4 bytes more to read.
    more = 8 * 4 / (2 * 8 * (100 * 256 + 256 * 512 + 100 * 512))
    assert ragged.pop("ragged") - batched.pop("ragged") == 1
    assert ragged.pop("epilogue_traffic") == pytest.approx(more, rel=1e-3)
    assert batched.pop("epilogue_traffic") == 0
    near(ragged, {"log2_m": log2(100), "log2_batch": 3, "log2_tiles_m": 1, "log2_programs": 6, "used_m": 100 / 128})
    assert {k: v for k, v in ragged.items() if k not in SIDES} == pytest.approx(
        {k: v for k, v in batched.items() if k not in SIDES}, abs=2e-3
    )
    # 3 rows in 64 groups: 3 groups have one each, and no other matrix is read.
    few = features(grouped_gemm(64, 3, 512, 256), 16)
    near(few, {"log2_m": 0, "log2_batch": log2(3), "log2_operands_over_l2": log2(3 * 2 * 256 * 513 / (60 * MIB))})


def summed(dtype: str, preset: str = "H200") -> dict[str, float]:
    return one(
        gemm(1, 4096, 4096, dtype=dtype),
        {"summed": 1},
        PRESETS[preset],
        block_m=1,
        block_n=64,
        block_k=32,
        warps=4,
        stages=3,
        group_m=1,
    )


def test_a_row_is_summed_without_tensor_cores() -> None:
    roofline = 2 * (4096 + 4096 * 4096 + 4096) / 4.8e6
    near(
        summed("bf16"),
        {
            "summed": 1,
            "wgmma": 0,
            "mma": 0,
            "used_m": 1,
            "log2_padded_flops": 0,
            # Each of 128 threads keeps its part of 32 by 64 sums.
            "log2_accumulators": 4,
            "register_fraction": 96 / 255,
            "log2_stage_bytes": log2(65 * 32 * 2),
            # Two stages of 4,160 B and 1 KiB: 24 CTAs; 96 registers of 128 threads: 5 CTAs.
            "blocks_by_shared": 24,
            "blocks": 5,
            # 64 tiles in one round on 132 SMs.
            "log2_compute_time": log2(132 / 64 * 2 * 4096 * 4096 / FMA / roofline),
        },
    )


@pytest.mark.parametrize("dtype", ["bf16", "tf32", "fp32", "fp8e4m3"])
def test_what_is_summed_takes_as_long_in_every_type(dtype: str) -> None:
    values = summed(dtype)
    assert 2 ** (values["log2_compute_time"] + values["log2_roofline"]) == pytest.approx(
        132 / 64 * 2 * 4096 * 4096 / FMA, rel=1e-4
    )
    assert values["tensor_cores"] == (dtype != "fp32")


def test_what_is_summed_runs_at_the_device_s_rate_for_fp32() -> None:
    values = summed("bf16", "A100")
    assert 2 ** (values["log2_compute_time"] + values["log2_roofline"]) == pytest.approx(
        108 / 64 * 2 * 4096 * 4096 / (128 * 108 * 1410), rel=1e-4
    )


def test_knobs_that_seldom_matter() -> None:
    knobs: dict[str, Any] = {"block_m": 64, "block_n": 192, "block_k": 64, "warps": 4, "stages": 2, "group_m": 8}
    op = gemm(4096, 4096, 4096)
    plain = one(op, {"persistent": 1}, **knobs)
    near(plain, {"pieced": 1, "register_fraction": 176 / 255, "maxnreg": 0, "log2_unroll": 0, "evict": 0, "cache": 0})
    limited = one(op, {}, **knobs, maxnreg=128, unroll=4, specialize=1, evict=2, cache=1)
    near(
        limited,
        {
            "pieced": 1,
            "maxnreg": 0.5,
            "log2_unroll": 2,
            "specialize": 1,
            "evict": 2,
            "cache": 1,
            # 96 registers of sums and 80 beside them, of which 48 spill; 128 registers of 128 threads: 4 CTAs, and two
            # stages of 32,768 B and 1 KiB: 3 CTAs.
            "register_fraction": 176 / 128,
            "blocks_by_shared": 3,
            "blocks": 3,
        },
    )
    # Without the limit: 176 registers of 128 threads, 2 CTAs.
    near(one(op, {}, **knobs), {"blocks": 2})
    assert H200.registers_per_sm == 65536


def test_narrow_gathers_cost_instructions_and_are_not_asynchronous() -> None:
    op = gemm(4096, 4096, 4096)

    def at(**facts: int) -> dict[str, float]:
        return one(op, facts, block_m=128, block_n=128, block_k=64, warps=8, stages=4, group_m=8)

    # 1,024 tiles are 8 rounds of 64 steps; a step loads 16 KiB for each side.
    steps, cycles = 8 * 64, 4 / 32 / 1980
    roofline = 2 * 4096**3 / PEAK
    aligned = at(align_a=16, align_b=16)
    quarter = at(align_a=4, align_b=16)
    odd = at(align_a=2, align_b=2)
    box = at(align_a=2, align_b=2, tma_a=1, tma_b=1)
    assert aligned["log2_gather_time"] == box["log2_gather_time"] == 0.0
    near(quarter, {"log2_gather_time": log2(1 + steps * (4096 - 1024) * cycles / roofline)})
    near(odd, {"log2_gather_time": log2(1 + steps * 2 * (8192 - 1024) * cycles / roofline)})
    # one program on an SM: 8 turns of 64 steps; 3 loads in flight, or each waited for
    near(quarter, {"log2_latency_time": log2((8 * 64 + 8 * 3) / 3 * 0.6 / roofline)})
    near(odd, {"log2_latency_time": log2((8 * 64 + 8) * 0.6 / roofline)})
