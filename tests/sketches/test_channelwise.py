"""Columns with rows of their own (depthwise convolutions): views, sketches, source, features, results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autosched.features import COLUMN, extract, roofline_us
from autosched.sketches.builders import bmm, contraction, conv1d, conv2d, conv2d_input_grad, conv3d
from autosched.sketches.codegen import generate
from autosched.sketches.constraints import explain_invalid
from autosched.sketches.op import Op
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule, ScheduleBatch
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import PRESETS
from autosched.sketches.view import matrix_views
from tests.sketches.compiled import compile_all, opened, scheduled
from tests.sketches.interpret import failures, interpret

H200 = PRESETS["H200"]
DEPTHWISE = conv2d(32, 144, 56, 56, 144, 3, 3, 1, 1, groups=144, epilogue=["bias", "relu"])
NAME = "grid.ptr-ptr.channel.direct-ptr"
RUN = "grid.ptr-ptr.run.direct-ptr"


def channelwise(op: Op) -> tuple[Sketch, ...]:
    return tuple(s for s in derive(op, H200) if s.view.channelwise)


def test_groups_of_one_column_are_columns() -> None:
    views = matrix_views(DEPTHWISE)
    assert [view.tag for view in views] == [
        "batch=G M=N.P.Q N=K K=R.SC",
        "M=N.P.Q N=G K=R.SC, each column by itself",
        "M=N.P N=Q.G K=R.SC, each column by itself",
    ]
    assert [views[2].extent(group) for group in ("batch", "m", "n", "k")] == [1, 32 * 56, 56 * 144, 9]
    assert [views[1].extent(group) for group in ("batch", "m", "n", "k")] == [1, 32 * 56 * 56, 144, 9]
    names = {f"grid.ptr-ptr.{view}.direct-{store}" for view in ("channel", "run") for store in ("ptr", "tma")}
    assert {s.name for s in channelwise(DEPTHWISE)} == names


@pytest.mark.parametrize(
    "op",
    [
        conv2d(2, 12, 9, 9, 24, 3, 3, groups=12),
        conv2d(2, 12, 9, 9, 12, 3, 3),
        bmm(16, 64, 1, 128),
        contraction("gmk,gk->gm", {"g": 8, "m": 64, "k": 32}),
    ],
    ids=["two columns a group", "one group", "reduction in memory", "without columns"],
)
def test_what_has_no_columns_of_its_own(op: Op) -> None:
    assert channelwise(op) == ()


def test_channels_outermost_are_columns_too_since_rows_are_neighbours() -> None:
    assert len(channelwise(conv2d(2, 16, 9, 9, 16, 3, 3, 1, 1, groups=16, layout="nchw"))) >= 1


def test_a_step_is_a_tap_of_all_rows_and_columns_under_one_mask() -> None:
    source = generate(DEPTHWISE, scheduled(DEPTHWISE, NAME, block_m=32, block_n=64)).source
    for line in (
        "x_base = x_ptr - 8208 + (x_at_N * 451584 + x_at_P * 8064 + x_at_Q * 144)[:, None]",
        "x_base = x_base + x_n[None, :]",
        "w_base = w_ptr + w_n * 9",
        "for k0 in tl.range(0, K, BLOCK_K, num_stages=3):",
        "x_at_R = x_tap // 3",
        "w = tl.load(w_base + k0, mask=(w_n < N), other=0.0)",
        "acc += x.to(tl.float32) * w.to(tl.float32)[None, :]",
    ):
        assert line in source, line
    assert "tl.dot" not in source


def test_rows_of_pixels_are_runs_where_the_output_has_no_gap() -> None:
    """Columns count pixels and channels; of the index across, columns and taps tell whether it lies outside."""
    source = generate(DEPTHWISE, scheduled(DEPTHWISE, RUN, block_m=8, block_n=256)).source
    for line in (
        "x_at_Q = x_n // 144",
        "x_base = x_base + (x_at_Q * 144 + x_at_G)[None, :]",
        "x_index3 = -1 + x_at_SC + x_at_Q",
        "((x_index2 >= 0) & (x_index2 < 56))[:, None] & ((x_index3 >= 0) & (x_index3 < 56))[None, :]",
        "tl.store(out_ptr + (rows * 8064)[:, None] + columns[None, :]",
    ):
        assert line in source, line
    for op in (
        conv1d(1, 16, 40, 16, 3, 1, 1, groups=16),
        conv2d(2, 16, 9, 9, 16, 3, 3, 1, 1, groups=16, layout="nchw"),
    ):
        assert not any(s.view.in_runs for s in channelwise(op))


def test_several_axes_of_matrices_are_columns_and_no_runs() -> None:
    op = contraction("gkmh,hkg->gmh", {"g": 8, "m": 16, "h": 12, "k": 6})
    assert [(s.name, [a.name for a in s.view.n]) for s in channelwise(op)] == [(NAME, ["g", "h"])]


def test_short_loops_may_be_unrolled_as_a_whole() -> None:
    for op, values in ((DEPTHWISE, (1, 2, 4, 9)), (conv2d(2, 16, 32, 32, 16, 7, 7, 1, 3, groups=16), (1, 2, 4))):
        assert {k.values for s in channelwise(op) for k in s.knobs if k.name == "unroll"} == {values}


def test_knobs_are_those_of_a_tile_and_threads_may_be_idle() -> None:
    """Three recorded kernels of less than an element a thread were right: they are no more than slow."""
    (sketch, *_) = channelwise(DEPTHWISE)
    values = {k.name: k.values for k in sketch.knobs}
    assert values["block_m"] == (1, 2, 4, 8, 16, 32, 64, 128, 256)
    assert (values["block_n"], values["block_k"]) == ((16, 32, 64, 128, 256), (1,))
    assert explain_invalid(DEPTHWISE, H200, Schedule.of(sketch, block_m=4, block_n=16, warps=4)) is None


def test_features_count_rows_for_each_column() -> None:
    """32 x 64 of 100,352 x 144: 3,136 x 3 tiles, 16 sums a thread, and 2,048 + 64 elements of 2 bytes a step."""
    (sketch, *_) = channelwise(DEPTHWISE)
    schedule = Schedule.of(sketch, block_m=32, block_n=64, warps=4)
    x = extract(DEPTHWISE, H200, ScheduleBatch.of((sketch,), [schedule]))[0]
    found = {name: float(x[COLUMN[name]]) for name in ("log2_tiles_m", "log2_tiles_n", "log2_accumulators", "wgmma")}
    assert found["log2_tiles_m"] == pytest.approx(np.log2(3136), abs=1e-5)
    assert found["log2_tiles_n"] == pytest.approx(np.log2(3), abs=1e-5)
    assert found["log2_accumulators"] == pytest.approx(4.0)
    assert found["wgmma"] == 0.0
    assert x[COLUMN["log2_stage_bytes"]] == pytest.approx(np.log2((32 * 64 + 64) * 2), abs=1e-5)
    assert np.isfinite(x).all()


def test_features_count_instructions_and_what_misses_the_first_level_of_the_cache() -> None:
    """32 x 64 with 4 warps, 3 stages: 16 elements a thread, 92 registers, 5 CTAs an SM, 72 tiles on the busiest one.

    9 steps of 16 x 3.5 + 20 instructions and 60 more a warp; 5 tiles of 4 times 4,096 bytes are 0.351 of 228 KiB.
    """
    (sketch, *_) = channelwise(DEPTHWISE)
    schedule = Schedule.of(sketch, block_m=32, block_n=64, warps=4, stages=3)
    x = extract(DEPTHWISE, H200, ScheduleBatch.of((sketch,), [schedule]))[0]
    roofline = roofline_us(DEPTHWISE, H200)
    found = {
        name: float(2 ** x[COLUMN[f"log2_{name}"]]) * roofline for name in ("compute_time", "latency_time", "load_time")
    }
    assert x[COLUMN["blocks"]] == 5
    assert found["compute_time"] == pytest.approx(72 * 4 * (9 * (16 * 3.5 + 20) + 60) / (4 * 1980), rel=1e-4)
    assert found["latency_time"] == pytest.approx(15 * 0.6, rel=1e-4)
    missed = 2 * 5 * 4 * 4096 / 233472
    assert found["load_time"] == pytest.approx(missed * 72 * 9 * 4224 * 132 / (1.5 * 11e6), rel=1e-4)
    assert x[COLUMN["log2_gather_time"]] == 0


OPS = {
    "plain": conv2d(2, 24, 5, 6, 24, 3, 3, 1, 1, groups=24, dtype="fp16", epilogue=["bias", "relu"]),
    "strided": conv2d(3, 33, 8, 7, 33, 3, 2, (2, 1), (1, 0), groups=33, dtype="fp32", dilation=(1, 2)),
    "nchw": conv2d(2, 20, 9, 7, 20, 3, 3, 1, 1, groups=20, dtype="fp16", layout="nchw", epilogue=["residual"]),
    "1d": conv1d(2, 24, 31, 24, 5, 2, 2, groups=24, dtype="fp16"),
    "3d": conv3d(1, 18, 3, 4, 4, 18, 2, 2, 3, 1, 1, groups=18, dtype="fp32"),
    "input gradient": conv2d_input_grad(1, 24, 7, 6, 24, 3, 3, 2, 1, groups=24, dtype="fp16"),
}


@pytest.mark.parametrize("name", OPS)
def test_results_are_the_references(name: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    op = OPS[name]
    drawn = [
        Schedule.of(sketch, block_m=min(m, most), block_n=n, warps=1, unroll=u)
        for sketch in channelwise(op)
        for most in (next(k.values[-1] for k in sketch.knobs if k.name == "block_m"),)
        for m, n, u in ((16, 32, 1), (8, 16, 4))
    ]
    work = [(op, schedule) for schedule in drawn if explain_invalid(op, H200, schedule) is None]
    assert len(work) >= 2
    assert failures(work, interpret(work)) == []


def test_compiled_channels_are_loaded_by_16_bytes(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    knobs = {"block_m": 32, "block_n": 64, "warps": 4}
    work = [(DEPTHWISE, scheduled(DEPTHWISE, NAME, **knobs, stages=stages)) for stages in (1, 3)]
    with opened(tmp_path) as pool:
        plain, piped = compile_all(pool, work)
    assert plain.result.error == piped.result.error == ""
    assert (plain.features["spill_bytes"], plain.features["mma"], plain.features["wgmma"]) == (0, 0, 0)
    assert plain.features["plain_loads"] == 2 + 8 + 1  # 8 of a thread's 16 pixels a load, its channels' taps, the bias
    assert piped.features["cp_async_16"] == 6  # two for each of two steps ahead of the loop and one in it
