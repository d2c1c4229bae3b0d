"""Every feature of three schedules against values worked out by hand, and the properties of whole batches."""

from math import log2

import numpy as np
import pytest

from autosched.features import COLUMN, FEATURES, Extractor, extract
from autosched.search.domains import Domains
from autosched.sketches.builders import bmm, gemm, grouped_gemm
from autosched.sketches.op import Op
from autosched.sketches.rules import derive
from autosched.sketches.schedule import ScheduleBatch
from autosched.sketches.target import PRESETS, Target
from tests.features.stubs import H200, one

ROOFLINE_4096 = 2 * 4096**3 / (4096 * 132 * 1980e6) * 1e6


LARGE = {
    # 128x256x64 tiles of 4096^3 bf16, 8 warps, 4 stages, groups of 8; persistent, TMA, stored in two pieces.
    "log2_block_m": 7,
    "log2_block_n": 8,
    "log2_block_k": 6,
    "log2_warps": 3,
    "log2_group_m": 3,
    "log2_split_k": 0,
    "log2_subtile": 1,
    "log2_tile_aspect": -1,
    "log2_tiles_m": 5,
    "log2_tiles_n": 4,
    "log2_k_steps": 6,
    "log2_unroll": 0,
    "log2_box_h": 0,
    "log2_box_w": 0,
    "log2_padded_flops": 0,
    "stages": 4,
    "flatten": 1,
    "specialize": 0,
    "dependent": 0,
    "maxnreg": 0,
    "evict": 0,
    "cache": 0,
    "pieced": 0,
    "used_m": 1,
    "used_n": 1,
    "used_k": 1,
    "log2_programs": 9,
    "log2_items_per_sm": log2(512 / 132),
    "log2_accumulators": log2(128 * 256 / 256),
    "log2_stage_bytes": log2(384 * 64 * 2),
    "log2_bytes_in_flight": log2(3 * 49152),
    "log2_resident_warps": 3,
    "wave_efficiency": (512 / 132) / 4,
    "sm_efficiency": (512 / 132) / 4,
    "blocks": 1,
    # 4 * 49152 B of stages and a store buffer of 128 * 256 * 2 / 2 B: 229,376 B, one CTA an SM.
    "blocks_by_shared": 1,
    "shared_fraction": 229376 / 232448,
    "register_fraction": 208 / 255,
    "pipeline_fill": 64 / 67,
    "wgmma": 1,
    "mma": 0,
    "log2_tile_intensity": log2(2 * 128 * 256 / (384 * 2)),
    # A (33.55 MB) 16 times, B 32 times, the output once; compulsory are 3 times 33.55 MB.
    "log2_l2_traffic": log2((16 + 32 + 1) / 3),
    # 132 items: 9 rows (132 items / 16 columns, more than the group) by 15 columns of tiles, 64 steps of 64:
    # (9 * 128 + 15 * 256) * 4096 * 2 B = 40.9 MB a wave, 512 / 132 waves, 158.6 MB; of the 91.5 MB above the operands'
    # 67.1 MB, 1 - 60 MiB / 64 MiB are missed in L2.
    "log2_dram_traffic": log2((3 * 33554432 + (40894464 * 512 / 132 - 67108864) * (1 - 60 / 64)) / (3 * 33554432)),
    "log2_wave_over_l2": log2(40894464 / (60 << 20)),
    "log2_workspace": 0,
    # 4 rounds of 132 tiles where 512 would do.
    "log2_compute_time": log2(4 * 132 / 512),
    "log2_dram_time": log2((3 * 33554432 + (40894464 * 512 / 132 - 67108864) * (1 - 60 / 64)) / 4.8e6 / ROOFLINE_4096),
    "log2_l2_time": log2(49 * 33554432 / 11e6 / ROOFLINE_4096),
    # 4 rounds of 64 + 3 loads, 3 of them in flight for 0.6 us.
    "log2_latency_time": log2(4 * 67 / 3 * 0.6 / ROOFLINE_4096),
    "log2_bound_time": log2(49 * 33554432 / 11e6 / ROOFLINE_4096),
    # The busiest SM takes 4 tiles of 64 steps of 49,152 B, at 1.5 / 132 of 11 TB/s: 125 kB/us.
    "log2_load_time": log2(4 * 64 * 49152 / 125000 / ROOFLINE_4096),
    "log2_reduction_time": 0,
    "log2_gather_time": 0,
    "log2_copy_time": 0,
    "log2_serial_time": log2(
        4 * 132 / 512
        + (3 * 33554432 + (40894464 * 512 / 132 - 67108864) * (1 - 60 / 64)) / 4.8e6 / ROOFLINE_4096
        + 4 * 64 * 49152 / 125000 / ROOFLINE_4096
        + 4 * 67 / 3 * 0.6 / ROOFLINE_4096
    ),
    "persistent": 1,
    "split": 0,
    "tma_a": 1,
    "tma_b": 1,
    "tma_store": 1,
    "subtiled": 1,
    "workspace": 0,
    "trans_a": 0,
    "trans_b": 0,
    "stream_k": 0,
    "atomic": 0,
    "copied_a": 0,
    "copied_b": 0,
    "summed": 0,
    "swapped": 0,
    "log2_align_a": 4,
    "log2_align_b": 4,
    "log2_align_out": 4,
    "log2_m": 12,
    "log2_n": 12,
    "log2_k": 12,
    "log2_batch": 0,
    "log2_element_bytes": 1,
    "log2_output_bytes": 1,
    "tensor_cores": 1,
    "accumulators": 1,
    "ragged": 0,
    "epilogue_steps": 0,
    "epilogue_traffic": 0,
    "log2_intensity": log2(2 * 4096**3 / (3 * 33554432)),
    "log2_roofline": log2(ROOFLINE_4096),
    "log2_operands_over_l2": log2(64 / 60),
    "log2_sms": log2(132),
    "log2_machine_balance": log2(4096 * 132 * 1980e6 / 4.8e12),
    "log2_shared_limit": log2(232448),
    "capability": 9.0,
}


def test_large_persistent_tma() -> None:
    values = one(
        gemm(4096, 4096, 4096),
        {"persistent": 1, "tma_a": 1, "tma_b": 1, "tma_store": 1, "subtiled": 1},
        block_m=128,
        block_n=256,
        block_k=64,
        warps=8,
        stages=4,
        group_m=8,
        flatten=1,
        subtile=2,
    )
    assert values == pytest.approx(LARGE, rel=1e-4, abs=1e-5)
    assert set(LARGE) == {f.name for f in FEATURES}


def test_matrix_vector_split() -> None:
    # M = 1 in a 16-row tile, 64 columns, 8 splits of 4096 over two-stage loops of 128: mma.sync, workspace.
    values = one(
        gemm(1, 4096, 4096, epilogue=["bias", "relu"], layout="nt"),
        {"split": 1, "workspace": 1, "trans_b": 1},
        block_m=16,
        block_n=64,
        block_k=128,
        warps=2,
        stages=2,
        group_m=4,
        split_k=8,
    )
    compulsory = 2 * (4096 + 4096 * 4096 + 4096 + 4096)
    roofline = compulsory / 4.8e6
    expected = {
        "log2_group_m": 0.0,  # there is one row of tiles
        "log2_split_k": 3,
        "log2_tiles_m": 0,
        "log2_tiles_n": 6,
        "log2_k_steps": 2,  # 32 steps of 128 in 8 parts
        "log2_padded_flops": 4,
        "used_m": 1 / 16,
        "log2_programs": 9,
        "log2_accumulators": 4,
        "log2_stage_bytes": log2(80 * 128 * 2),
        # One 20,480 B stage (mma.sync needs one less than asked for) and 1 KiB: 10 CTAs; registers would allow 10.
        "blocks_by_shared": 10,
        "blocks": 10,
        "log2_bytes_in_flight": log2(10 * 20480),
        "log2_resident_warps": log2(20),
        "wave_efficiency": 512 / 1320,
        "sm_efficiency": (512 / 132) / 4,
        "shared_fraction": 20480 / 232448,
        "register_fraction": 96 / 255,
        "pipeline_fill": 4 / 5,
        "wgmma": 0,
        "mma": 1,
        # fp32 partial sums of 8 parts, written and read.
        "log2_workspace": log2(1 + 8 * 8 * 4096 / compulsory),
        # A is read by each of 64 columns of tiles, B once, the output and the bias once.
        "log2_l2_traffic": log2((64 * 8192 + 33554432 + 8192 + 8192) / compulsory),
        "log2_dram_traffic": 0,
        # All 512 items at once: 64 distinct column tiles, 8 parts of 512: the whole of B, and A once.
        "log2_wave_over_l2": log2((16 + 64 * 64) * 8 * 4 * 128 * 2 / (60 << 20)),
        "log2_compute_time": log2(4 * 132 * 2 * 16 * 64 * 512 / (0.62 * 4096 * 132 * 1980) / roofline),
        "log2_dram_time": 0,
        "log2_l2_time": log2((64 * 8192 + 33554432 + 16384 + 64 * 4096) / 11e6 / roofline),
        # ceil(4 / 10) round of 4 + 1 loads, one in flight.
        "log2_latency_time": log2(5 * 0.6 / roofline),
        # The busiest SM takes 4 of the items, each 4 steps of 20,480 B.
        "log2_load_time": log2(4 * 4 * 20480 / 125000 / roofline),
        # 3 us, 0.3 us for each of 8 parts, and 262,144 B of workspace written and read at 11 TB/s.
        "log2_reduction_time": log2(1 + (3 + 8 * 0.3 + 64 * 4096 / 11e6) / roofline),
        "log2_serial_time": log2(
            1
            + (
                4 * 132 * 2 * 16 * 64 * 512 / (0.62 * 4096 * 132 * 1980)
                + 4 * 4 * 20480 / 125000
                + 5 * 0.6
                + (3 + 8 * 0.3 + 64 * 4096 / 11e6)
            )
            / roofline
        ),
        "trans_b": 1,
        "split": 1,
        "workspace": 1,
        "log2_m": 0,
        "epilogue_steps": 2,
        "epilogue_traffic": 8192 / compulsory,
        "log2_roofline": log2(roofline),
    }
    assert {name: values[name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_odd_sizes() -> None:
    # 1000^3: 8 by 8 tiles of 128, the last of each of 104; 16 steps of 64 reach 1024.
    values = one(
        gemm(1000, 1000, 1000, dtype="fp16"),
        {},
        block_m=128,
        block_n=128,
        block_k=64,
        warps=4,
        stages=3,
        group_m=32,
        split_k=1,
    )
    expected = {
        "log2_group_m": 3,
        "log2_tiles_m": 3,
        "log2_tiles_n": 3,
        "log2_k_steps": 4,
        "used_m": 1000 / 1024,
        "used_n": 1000 / 1024,
        "used_k": 1000 / 1024,
        "log2_padded_flops": 3 * log2(1.024),
        "log2_programs": 6,
        "log2_items_per_sm": log2(64 / 132),
        "log2_accumulators": 7,
        # 3 stages of 32,768 B and 1 KiB: 2 CTAs; 208 registers of 128 threads: 2 CTAs.
        "blocks": 2,
        "blocks_by_shared": 2,
        "wave_efficiency": 64 / 264,
        "sm_efficiency": 64 / 132,
        "wgmma": 1,
        "mma": 0,
        "pipeline_fill": 16 / 18,
        "log2_l2_traffic": log2(17 / 3),
        "log2_dram_traffic": 0,
        "log2_workspace": 0,
    }
    assert {name: values[name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_instruction_class() -> None:
    def kind(warps: int, block_m: int, dtype: str) -> tuple[float, float]:
        values = one(
            gemm(512, 512, 512, dtype=dtype), {}, block_m=block_m, block_n=64, block_k=32, warps=warps, stages=2
        )
        return values["wgmma"], values["mma"]

    assert kind(4, 64, "bf16") == (1, 0)
    assert kind(4, 64, "tf32") == (1, 0)
    assert kind(2, 64, "bf16") == (0, 1)
    assert kind(4, 32, "fp16") == (0, 1)
    assert kind(4, 64, "fp32") == (0, 0)


def test_wgmma_turns_operands_of_other_than_two_bytes_unless_k_is_contiguous() -> None:
    def compute_time(dtype: str, warps: int = 4, **facts: int) -> float:
        values = one(
            gemm(4096, 4096, 4096, dtype=dtype), facts, block_m=128, block_n=128, block_k=32, warps=warps, stages=2
        )
        return float(2 ** values["log2_compute_time"])

    # 1024 tiles in 8 rounds of 132.
    filled = 8 * 132 / 1024
    assert compute_time("bf16", trans_b=0) == pytest.approx(filled, rel=1e-4)
    assert compute_time("tf32", trans_b=1) == pytest.approx(filled, rel=1e-4)
    assert compute_time("tf32", trans_b=0) == pytest.approx(filled / 0.4, rel=1e-4)
    assert compute_time("tf32", trans_a=1, trans_b=1) == pytest.approx(filled / 0.4, rel=1e-4)
    assert compute_time("tf32", warps=2, trans_b=0) == pytest.approx(filled / 0.62, rel=1e-4)


ODD_SHAPES = [(1, 1, 1), (1, 4096, 4096), (1000, 1000, 1000), (4095, 4097, 4099), (128, 128, 65536), (7, 3, 100003)]
#: Features that are shares, above 0.
SHARES = ("used_m", "used_n", "used_k", "wave_efficiency", "sm_efficiency", "pipeline_fill")
#: Features that are logarithms of 1 or more, or shares that may be 0.
NOT_NEGATIVE = (
    "log2_l2_traffic",
    "log2_workspace",
    "log2_gather_time",
    "log2_reduction_time",
    "log2_copy_time",
    "epilogue_traffic",
)


def random_batch(op: Op, n: int, seed: int, target: Target = H200) -> ScheduleBatch:
    """Schedules of all sketches, valid or not."""
    sketches = derive(op, target)
    return ScheduleBatch(sketches, Domains.of(sketches).sample(np.random.default_rng(seed), n))


def check_values(op: Op, target: Target) -> None:
    batch = random_batch(op, 500, 1, target)
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        values = extract(op, target, batch)
    assert np.isfinite(values).all()
    for name in SHARES:
        column = values[:, COLUMN[name]]
        assert column.min() > 0, name
        assert column.max() <= 1 + 1e-6, name
    for name in NOT_NEGATIVE:
        assert values[:, COLUMN[name]].min() > -1e-5, name


@pytest.mark.parametrize("shape", ODD_SHAPES)
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "tf32", "fp8e4m3", "int8"])
def test_random_batches_are_finite(shape: tuple[int, int, int], dtype: str) -> None:
    check_values(gemm(*shape, dtype=dtype, layout="nt"), H200)
    if dtype != "fp8e4m3":
        check_values(bmm(3, *shape, dtype=dtype, layout="tn"), PRESETS["A100"])


@pytest.mark.parametrize("rows", [1, 7, 1000, 4096])
def test_random_batches_of_ragged_rows_are_finite(rows: int) -> None:
    check_values(grouped_gemm(32, rows, 1024, 768, layout="nt", epilogue=["bias"]), H200)


@pytest.mark.parametrize("shape", [(16, 4096, 1024), (1024, 512, 100)])
@pytest.mark.parametrize("dtype", ["bf16", "fp8e4m3"])
def test_random_batches_of_gated_pairs_are_finite(shape: tuple[int, int, int], dtype: str) -> None:
    check_values(gemm(*shape, dtype=dtype, layout="nt", epilogue=["swiglu", "residual"]), H200)


def test_rows_do_not_depend_on_their_neighbours() -> None:
    op = gemm(1000, 1000, 1000)
    batch = random_batch(op, 300, 2)
    whole = extract(op, H200, batch)
    order = np.random.default_rng(3).permutation(300)
    assert np.array_equal(extract(op, H200, batch.take(order)), whole[order])
    for i in range(len(batch.sketches)):
        rows = np.flatnonzero(batch.sketch_index == i)
        assert np.array_equal(extract(op, H200, batch.take(rows)), whole[rows])
    assert extract(op, H200, batch.take(np.arange(0))).shape == (0, len(FEATURES))


def test_an_extractor_refuses_other_sketches() -> None:
    op = gemm(512, 512, 512)
    batch = random_batch(op, 4, 0)
    extractor = Extractor(op, H200, batch.sketches[:1])
    with pytest.raises(ValueError, match="sketches"):
        extractor(batch)
    assert np.array_equal(Extractor(op, H200, batch.sketches)(batch), extract(op, H200, batch))
