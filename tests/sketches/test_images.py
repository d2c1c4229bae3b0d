"""Image boxes: where they lie, which sketches use them, what is generated and compiled, and results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autosched.sketches.box import ImageMap, Side, image_box, image_map, image_store
from autosched.sketches.builders import conv1d, conv2d, conv2d_input_grad, conv3d, gemm
from autosched.sketches.codegen import generate
from autosched.sketches.constraints import explain_invalid, shared_lower_bound
from autosched.sketches.op import Op
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule, ScheduleBatch
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import PRESETS
from autosched.sketches.view import MatrixView, matrix_views
from tests.sketches.compiled import compile_all, opened, scheduled
from tests.sketches.interpret import failures, interpret
from tests.sketches.test_rules import names

H200 = PRESETS["H200"]
BODY = conv2d(32, 256, 14, 14, 256, 3, 3, 1, 1)
WORKS = (
    ("grid", "direct-ptr"),
    ("grid", "direct-tma"),
    ("persistent", "subtiled-ptr"),
    ("persistent", "subtiled-tma"),
    ("split", "workspace"),
    ("split", "atomic"),
    ("stream", "atomic"),
)


def turned(op: Op) -> MatrixView:
    (view,) = matrix_views(op)
    return view.transposed()


def mapped(dims: tuple[int, ...], boxed: str, channel: str) -> ImageMap:
    return ImageMap(tuple(map(Side, dims)), tuple(boxed), channel)


def image(op: Op) -> ImageMap | None:
    return image_map(op, turned(op), op.operands[0], "n", "k")


def sketches(op: Op) -> tuple[Sketch, ...]:
    return tuple(s for s in derive(op, H200) if "image" in s.name)


def test_rows_columns_and_images_are_a_box_and_taps_shift_it() -> None:
    """Dimensions are torch's N, C, H, W; memory has the channels innermost."""
    expected = mapped((0, 2, 3, 1), "NPQ", "C")
    for op in (BODY, conv2d(2, 64, 9, 9, 32, 3, 3), conv2d(2, 64, 9, 9, 32, 5, 3, 1, (4, 2), dilation=2)):
        assert image(op) == expected
    assert image(conv2d(2, 64, 9, 9, 64, 3, 3, 1, 1, groups=2)) == expected
    assert image(conv3d(2, 16, 4, 5, 6, 16, 3, 3, 3, 1, 1)) == mapped((0, 2, 3, 4, 1), "NOPQ", "C")
    assert image(conv1d(4, 32, 100, 64, 5, 1, 2)) == mapped((0, 2, 1), "NQ", "C")
    assert image_store(BODY, turned(BODY)) == mapped((0, 2, 3, 1), "NPQ", "K")


def test_every_second_pixel_is_a_pixel_where_no_tap_moves_it() -> None:
    op = conv2d(2, 64, 9, 10, 32, 1, 1, 2)
    found = image(op)
    assert found == ImageMap((Side(0), Side(2, 2), Side(3, 2), Side(1)), ("N", "P", "Q"), "C")
    assert found.sizes(op.operands[0]) == (2, 5, 5, 64)
    assert found.strides(op.operands[0]) == (9 * 10 * 64, 2 * 10 * 64, 2 * 64, 1)
    source = generate(op, scheduled(op, "swap.grid.tma-image.direct-tma", block_n=32, box_h=4, box_w=4)).source
    assert "x_desc.load([x_N, x_P, x_Q, k0])" in source


def test_with_a_stride_taps_choose_the_phase_of_rows_and_columns() -> None:
    """Rows and columns are pairs; that of the columns lies in one dimension with the channels, which makes five."""
    op = conv2d(4, 64, 12, 14, 32, 3, 3, 2, 1)
    found = image(op)
    sides = (Side(0), Side(2, 2), Side(2, 2, low=True), Side(3, 2), Side(1))
    assert found == ImageMap(sides, ("N", "P", "Q"), "C", Side(3, 2, low=True))
    assert found.sizes(op.operands[0]) == (4, 6, 2, 7, 128)
    assert found.strides(op.operands[0]) == (12 * 14 * 64, 2 * 14 * 64, 14 * 64, 128, 1)
    source = generate(op, scheduled(op, "swap.grid.tma-image.direct-tma", block_n=32, box_h=4, box_w=4)).source
    for line in (
        "[x_N, x_P + ((x_tap // 3) + 1) // 2 - 1, (((x_tap // 3) + 1) % 2), x_Q + ((x_tap % 3) + 1) // 2 - 1, ",
        "(((x_tap % 3) + 1) % 2) * 64 + k0 - x_tap * 64]",
        "TensorDescriptor(x, [4, 6, 2, 7, 128], [10752, 1792, 896, 128, 1], [2, 4, 1, 4, 64])",
    ):
        assert line in source, line
    short = image(conv1d(4, 64, 102, 32, 5, 3, 1))
    assert short == ImageMap((Side(0), Side(2, 3), Side(2, 3, low=True), Side(1)), ("N", "Q"), "C")


@pytest.mark.parametrize(
    "op",
    [
        conv2d(2, 64, 9, 10, 32, 3, 3, 2, 1),
        conv3d(2, 64, 4, 4, 4, 32, 3, 3, 3, 2, 1),
        conv2d(2, 64, 9, 9, 32, 3, 3, 1, 1, layout="nchw"),
        conv2d(2, 12, 9, 9, 32, 3, 3, 1, 1),
        conv2d(2, 64, 9, 9, 32, 3, 3, 1, 1, dynamic=["N"]),
        conv2d_input_grad(2, 64, 9, 9, 32, 3, 3, 2, 1),
        conv1d(1, 64, 100, 32, 3, 1, 1),
        gemm(512, 512, 512),
    ],
    ids=[
        "uneven rows",
        "seven dimensions",
        "channels outermost",
        "rows of 24 bytes",
        "dynamic",
        "divided",
        "one axis",
        "no image",
    ],
)
def test_what_no_box_of_an_image_describes(op: Op) -> None:
    assert image(op) is None
    assert sketches(op) == ()


def test_sides_of_a_box() -> None:
    """Images, rows and columns; the first ones have a box of 1, and of two the first has the rest."""
    assert image_box(3, 128, 8, 16) == (1, 8, 16)
    assert image_box(3, 128, 4, 8) == (4, 4, 8)
    assert image_box(4, 64, 4, 4) == (1, 4, 4, 4)
    assert image_box(2, 64, 1, 16) == (4, 16)


def test_boxes_stand_on_the_right_of_the_dot_in_every_structure() -> None:
    found = {s.name for s in sketches(BODY)}
    assert found == {f"swap.{work}.{w}-image.{finish}" for work, finish in WORKS for w in ("ptr", "tma")}
    assert all(s.view.swapped and s.loads[-1].boxed == ("N", "P", "Q") for s in sketches(BODY))
    gathered = {f"swap.{work}.{w}-ptr.{finish}" for work, finish in WORKS for w in ("ptr", "tma")}
    assert gathered <= names(BODY)


def test_without_a_window_it_is_the_gemm_whose_boxes_are_simpler() -> None:
    assert sketches(conv2d(32, 64, 56, 56, 256, 1, 1)) == ()


def test_groups_store_through_pointers_since_a_box_would_reach_into_the_next() -> None:
    finishes = {s.name.rpartition(".")[2] for s in sketches(conv2d(2, 64, 9, 9, 64, 3, 3, 1, 1, groups=2))}
    assert finishes == {"direct-ptr", "subtiled-ptr", "workspace", "atomic"}


def test_knobs_keep_a_step_within_a_tap_and_a_box_within_the_image() -> None:
    sketch = sketches(conv2d(2, 48, 20, 7, 40, 3, 3, 1, 1))[0]
    values = {k.name: k.values for k in sketch.knobs}
    assert values["block_k"] == (16,)  # 48 = 3 * 16
    assert (values["box_h"], values["box_w"]) == ((1, 2, 4, 8, 16, 32), (1, 2, 4, 8))
    assert values["block_n"] == (16, 32, 64, 128, 256)  # no 96 and 192, which are two accumulators


def test_a_box_larger_than_the_tile_is_refused() -> None:
    sketch = sketches(BODY)[0]
    assert explain_invalid(BODY, H200, Schedule.of(sketch, block_n=128, box_h=8, box_w=16)) is None
    assert "box: rows" in str(explain_invalid(BODY, H200, Schedule.of(sketch, block_n=64, box_h=8, box_w=16)))


def test_places_of_a_step_and_of_a_tile_are_those_worked_out_by_hand() -> None:
    """A tile of 2 images x 4 rows x 16 columns of 14 x 14 ones: 16 * 4 * 1 of them; 4 steps of 64 channels a tap."""
    source = generate(BODY, scheduled(BODY, "swap.grid.tma-image.direct-tma", box_h=4, box_w=16, block_m=64)).source
    for line in (
        "TILES_N: tl.constexpr = 64",
        "x_N = tile_n // 4 * 2",
        "x_P = tile_n % 4 * 4",
        "x_Q = tile_n % 1 * 16",
        "x_tap = k0 // 256",
        "x_desc.load([x_N, x_P + (x_tap // 3) - 1, x_Q + (x_tap % 3) - 1, k0 - x_tap * 256])",
        "TensorDescriptor(x, [32, 14, 14, 256], [50176, 3584, 256, 1], [2, 4, 16, 64])",
        "TensorDescriptor(out, [32, 14, 14, 256], [50176, 3584, 256, 1], [2, 4, 16, 64])",
        "out_desc.store([corner_N, corner_P, corner_Q, tile_m * BLOCK_M], ",
    ):
        assert line in source, line


def test_pieces_of_a_subtiled_box_are_stored_where_they_lie() -> None:
    op = conv2d(4, 64, 16, 16, 64, 3, 3, 1, 1)
    knobs = {"block_m": 64, "block_n": 128, "box_h": 4, "box_w": 16, "subtile": 4}
    source = generate(op, scheduled(op, "swap.persistent.tma-image.subtiled-tma", **knobs)).source
    stores = [line.split("store([")[1].split("]")[0] for line in source.splitlines() if "out_desc.store" in line]
    corners = [("corner_N", "corner_P"), ("corner_N", "corner_P + 2"), ("corner_N + 1", "corner_P")]
    corners.append(("corner_N + 1", "corner_P + 2"))
    assert stores == [f"{n}, {p}, corner_Q, tile_m * BLOCK_M" for n, p in corners]
    assert "[1, 2, 16, 64])" in source


OPS = {
    "3x3": conv2d(3, 32, 9, 11, 24, 3, 3, 1, 1, dtype="fp16", epilogue=["bias", "relu"]),
    "dilated": conv2d(2, 32, 7, 7, 40, 3, 3, 1, 2, dtype="fp16", dilation=2),
    "groups": conv2d(2, 64, 6, 5, 48, 3, 2, 1, (1, 0), dtype="fp16", groups=2, epilogue=["bias", "residual"]),
    "unpadded": conv2d(2, 16, 9, 8, 24, 3, 3, dtype="fp32"),
    "strided": conv2d(3, 32, 8, 10, 24, 3, 3, 2, 1, dtype="fp16", epilogue=["bias"]),
    "strided by three": conv2d(2, 16, 9, 12, 24, 5, 4, (3, 2), (2, 1), dtype="fp16", dilation=(1, 2)),
    "strided line": conv1d(3, 32, 36, 24, 5, 3, 2, dtype="fp16"),
    "every second pixel": conv2d(2, 32, 9, 11, 24, 1, 1, 2, dtype="fp16", epilogue=["bias"]),
    "1d": conv1d(3, 32, 37, 24, 5, 1, 2, dtype="fp16"),
    "3d": conv3d(2, 16, 4, 5, 6, 16, 3, 3, 3, 1, 1, dtype="fp16"),
    "input gradient": conv2d_input_grad(2, 32, 9, 7, 16, 3, 3, 1, 1, dtype="fp16"),
}


def drawn(op: Op, seed: int) -> list[tuple[Op, Schedule]]:
    """A schedule of each sketch, with a small tile and a box that it holds."""
    rng = np.random.default_rng(seed)
    found = []
    for sketch in sketches(op):
        while True:
            knobs = {k.name: int(k.sample(rng, 1)[0]) for k in sketch.knobs}
            schedule = Schedule.of(sketch, **knobs)
            small = knobs["block_m"] * knobs["block_n"] <= 32 * 64
            if small and explain_invalid(op, H200, schedule) is None:
                found.append((op, schedule))
                break
    return found


@pytest.mark.parametrize("name", OPS)
def test_results_are_the_references(name: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    work = drawn(OPS[name], list(OPS).index(name))
    assert len(work) >= 6
    assert failures(work, interpret(work)) == []


def test_compiled_both_operands_stay_in_shared_memory(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    knobs = {"block_m": 64, "block_n": 128, "warps": 4, "stages": 4, "box_h": 4, "box_w": 16, "group_m": 1}
    kept = ("grid.tma-image.direct-ptr", "persistent.tma-image.subtiled-tma", "split.tma-image.workspace")
    work = [(BODY, scheduled(BODY, f"swap.{name}", **knobs)) for name in kept]
    with opened(tmp_path) as pool:
        done = compile_all(pool, work)
    for case in done:
        assert case.result.error == "", case.label
        assert (case.features["register_a"], case.features["mma"], case.features["cp_async_16"]) == (0, 0, 0)
        assert case.features["wgmma"] == 4 and case.features["tma_loads"] == 8  # 3 ahead of the loop, 1 in it, of each
        bound = shared_lower_bound(BODY, H200, ScheduleBatch.of((case.schedule.sketch,), [case.schedule]))
        assert 0 <= case.features["shared_bytes"] - int(bound[0]) <= 256


def test_a_sketch_without_boxes_has_none_in_its_facts() -> None:
    plain = derive(gemm(512, 512, 512), H200)[0].facts()
    assert {name: plain[name] for name in plain if name.startswith("image")} == {
        "image_outer": 0, "image_n": 0, "image_h": 0, "image_w": 0,
    }  # fmt: skip
    volume = sketches(conv3d(2, 16, 4, 5, 6, 16, 3, 3, 3, 1, 1))[0].facts()
    assert [volume[f"image_{x}"] for x in ("outer", "n", "h", "w")] == [2, 4, 5, 6]
    line = sketches(OPS["1d"])[0].facts()
    assert [line[f"image_{x}"] for x in ("outer", "n", "h", "w")] == [1, 3, 1, 37]


def test_other_strides_than_torchs_are_boxes_where_16_bytes_divide_them() -> None:
    padded = conv2d(2, 12, 9, 9, 32, 3, 3, 1, 1, strides={"x": (9 * 9 * 16, 1, 9 * 16, 16)})
    x = padded.operands[0]
    assert image(padded) == mapped((0, 2, 3, 1), "NPQ", "C")
    assert (
        image(replace(padded, operands=(replace(x, strides=(9 * 9 * 12, 1, 9 * 12, 12)), *padded.operands[1:]))) is None
    )
