"""Windows of few channels: the copies, the op over them, which sketches read them, what is generated, results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autosched.features import COLUMN, extract, roofline_us
from autosched.features.workload import distinct
from autosched.sketches.builders import (
    contraction,
    conv1d,
    conv2d,
    conv2d_input_grad,
    conv2d_weight_grad,
    conv3d,
    gemm,
)
from autosched.sketches.codegen import generate
from autosched.sketches.constraints import explain_invalid
from autosched.sketches.op import Affine, Op
from autosched.sketches.prepared import PaddedCopy, windowed
from autosched.sketches.rules import default_schedule, derive
from autosched.sketches.schedule import Schedule, ScheduleBatch
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import PRESETS
from tests.sketches.compiled import compile_all, fitting, opened, scheduled
from tests.sketches.interpret import failures, interpret

H200 = PRESETS["H200"]
FIRST = conv2d(32, 3, 224, 224, 64, 7, 7, 2, 3, epilogue=["bias", "relu"])


def sketches(op: Op) -> tuple[Sketch, ...]:
    return tuple(s for s in derive(op, H200) if s.view.copies)


def copies(op: Op) -> tuple[PaddedCopy, ...]:
    found = windowed(op)
    assert found is not None
    return found.copies


def test_a_window_of_few_channels_is_a_run_of_the_copy() -> None:
    """230 = 224 + 2 x 3, and 4 channels: windows begin 2 pixels apart, at multiples of 16 bytes.

    Dimensions are torch's N, C, H, W and K, C, R, S; memory has the channels innermost.
    """
    found = windowed(FIRST)
    assert found is not None
    image, kernel = found.copies
    assert image == PaddedCopy("x", (0, 2, 3, 1), (0, -3, -3, 0), (32, 230, 230, 4))
    assert kernel == PaddedCopy("w", (0, 2, 3, 1), (0, 0, 0, 0), (64, 7, 8, 4))
    x, w = found.op.operand("x"), found.op.operand("w")
    assert (x.shape, x.strides, x.zero_padded) == ((32, 230, 112, 32), (211600, 920, 8, 1), False)
    assert x.index == (
        Affine((("N", 1),)),
        Affine((("P", 2), ("R", 1))),
        Affine((("Q", 1),)),
        Affine((("SC", 1),)),
    )
    assert (w.shape, w.strides) == ((64, 7, 32), (224, 32, 1))
    assert [(a.name, a.extent) for a in found.op.axes if a.kind == "reduce"] == [("R", 7), ("SC", 32)]
    assert (found.op.output, found.op.epilogue) == (FIRST.output, FIRST.epilogue)


@pytest.mark.parametrize(
    ("op", "image", "kernel"),
    [
        (conv2d(2, 3, 32, 32, 64, 3, 3, 1, 1), (2, 34, 35, 8), (64, 3, 4, 8)),
        (conv2d(2, 1, 28, 28, 32, 5, 5), (2, 28, 31, 8), (32, 5, 8, 8)),
        (conv2d(2, 3, 20, 20, 16, 3, 3, 1, 1, dtype="fp32"), (2, 22, 23, 4), (16, 3, 4, 4)),
        (conv2d(2, 3, 33, 30, 16, 3, 3, 2, 1, layout="nchw"), (2, 36, 32, 4), (16, 3, 4, 4)),
        (conv1d(2, 4, 100, 16, 9, 4), (2, 104, 4), (16, 16, 4)),
        (conv3d(2, 3, 8, 16, 16, 32, 3, 7, 7, 2, 3), (2, 14, 22, 22, 4), (32, 3, 7, 8, 4)),
        (conv2d(2, 3, 16, 16, 16, 3, 3, dtype="fp8e4m3"), (2, 16, 17, 16), (16, 3, 4, 16)),
    ],
    ids=["stride 1", "one channel", "fp32", "channels outermost", "1d", "3d", "fp8"],
)
def test_shapes_of_copies(op: Op, image: tuple[int, ...], kernel: tuple[int, ...]) -> None:
    """Channels up to a window's step of 16 bytes, taps to a power of two; rows to their step and to 16 bytes."""
    assert tuple(copy.shape for copy in copies(op)) == (image, kernel)


@pytest.mark.parametrize(
    "op",
    [
        conv2d(2, 8, 32, 32, 64, 3, 3, 1, 1),
        conv2d(2, 3, 32, 32, 64, 1, 1),
        conv2d(2, 6, 32, 32, 64, 3, 3, groups=2),
        conv2d(2, 3, 32, 32, 64, 3, 3, dilation=2),
        conv2d(2, 3, 32, 32, 64, 3, 3, dynamic=["N"]),
        conv2d_weight_grad(2, 3, 32, 32, 64, 3, 3, 1, 1),
        conv2d_weight_grad(2, 64, 32, 32, 64, 3, 3, 1, 1, layout="nchw"),
        conv2d_input_grad(2, 3, 32, 32, 64, 3, 3, 2, 1),
        contraction("mk,nk->mn", {"m": 64, "n": 64, "k": 4}),
        gemm(64, 64, 3),
    ],
    ids=[
        "16 bytes",
        "no window",
        "groups",
        "dilated",
        "dynamic",
        "over pixels",
        "images as channels",
        "divided",
        "contraction",
        "gemm",
    ],
)
def test_what_has_no_window_of_few_channels(op: Op) -> None:
    assert windowed(op) is None
    assert sketches(op) == ()


def test_every_structure_reads_the_copies_and_none_is_copied_again() -> None:
    names = {s.name for s in sketches(FIRST)}
    assert all(name.startswith("window.") and "copy" not in name for name in names)
    for name in ("grid.ptr-tma.direct-tma", "swap.persistent.tma-image.subtiled-tma", "swap.split.tma-image.workspace"):
        assert f"window.{name}" in names
    assert derive(FIRST, H200)[0].name == "grid.ptr-ptr.direct-ptr"
    assert default_schedule(FIRST, H200, derive(FIRST, H200)).sketch.view.prepared is None


def test_the_derivation_says_what_is_copied() -> None:
    steps = next(s for s in sketches(FIRST) if s.name == "window.swap.grid.tma-image.direct-tma").derivation
    assert steps[0].what == "padded copies before: x as 32 x 230 x 230 x 4, w as 64 x 7 x 8 x 4"
    assert steps[1].what == "M=N.P.Q N=K K=R.SC, over copies of w and x"


def test_the_copy_has_zeros_around_and_a_tap_row_is_a_step() -> None:
    name = "window.swap.grid.tma-image.direct-tma"
    generated = generate(FIRST, scheduled(FIRST, name, block_n=128, box_h=4, box_w=16, block_k=32))
    for line in (
        "at1 = at // 920 % 230 - 3",
        "values = tl.load(x_ptr + at0 * 150528 + at1 * 672 + at2 * 3 + at3, mask=(at < 6771200) & (at1 >= 0) & "
        "(at1 < 224) & (at2 >= 0) & (at2 < 224) & (at3 < 3), other=0.0)",
        "x_desc.load([x_N, x_P + ((x_tap)) // 2, (((x_tap)) % 2), x_Q, k0 - x_tap * 32])",
        "TensorDescriptor(x_copy, [32, 115, 2, 112, 32], [211600, 1840, 920, 8, 1], [2, 4, 1, 16, 32])",
        "TensorDescriptor(w_copy, [64, 224], [224, 1], ",
        "x_copy = workspace[0 : end0].view(x.dtype)",
    ):
        assert line in generated.source, line
    assert [k.name for k in generated.kernels] == ["copy_x", "copy_w", "contract"]
    assert generated.workspace_bytes == 2 * (32 * 230 * 230 * 4 + 64 * 7 * 8 * 4)
    assert generated.op_key == FIRST.key()


def test_no_element_beyond_an_operand_is_read_for_a_copy() -> None:
    """The last program reaches beyond the copy; an operand that is one element everywhere has no offset."""
    source = generate(FIRST, scheduled(FIRST, "window.grid.ptr-tma.direct-ptr")).source
    loads = [line.strip() for line in source.splitlines() if "values = tl.load" in line]
    assert ["(at < 6771200)" in load for load in loads] == [True, False]  # 64 x 224 are whole programs
    one = conv2d(2, 3, 9, 9, 16, 3, 3, 1, 1, strides={"w": (0, 0, 0, 0)})
    assert "tl.load(w_ptr, mask=" in generate(one, scheduled(one, "window.grid.ptr-tma.direct-ptr")).source


def test_kernels_of_a_chain_wait_for_the_one_ahead() -> None:
    name = "window.swap.persistent.tma-image.subtiled-tma"
    source = generate(FIRST, scheduled(FIRST, name, dependent=1)).source
    assert source.count("gdc_launch_dependents()") == 2
    assert source.count("gdc_wait()") == 2
    assert source.count("launch_pdl=True") == 2


def test_features_know_the_copies_and_the_length_of_the_reduction() -> None:
    """Both copies start a kernel of 2 us; the bytes of both images and of both kernels pass at 0.8 of 4.8 TB/s.

    Of 32 x 112 x 112 x 224 elements that tiles index, the copy of the image has 32 x 230 x 230 x 4.
    """
    (sketch,) = [s for s in sketches(FIRST) if s.name == "window.grid.ptr-tma.direct-tma"]
    facts = sketch.facts()
    assert (facts["copied_a"], facts["copied_b"], facts["align_a"], facts["align_b"]) == (1, 1, 16, 16)
    x = extract(FIRST, H200, ScheduleBatch.of((sketch,), [Schedule.of(sketch)]))[0]
    assert x[COLUMN["log2_k"]] == pytest.approx(np.log2(224), abs=1e-5)
    assert x[COLUMN["log2_m"]] == pytest.approx(np.log2(32 * 112 * 112), abs=1e-5)
    assert np.isfinite(x).all()
    moved = 2 * (32 * 3 * 224 * 224 + 32 * 230 * 230 * 4 + 64 * 147 + 64 * 224)
    copies = (2 * 2 + moved / (0.8 * 4.8e6)) / roofline_us(FIRST, H200)
    assert x[COLUMN["log2_copy_time"]] == pytest.approx(np.log2(1 + copies), abs=1e-4)
    indexed = 32 * 112 * 112 * 224
    assert distinct(FIRST, sketch, "x") == pytest.approx(32 * 230 * 230 * 4 / indexed)
    assert distinct(FIRST, sketch, "w") == 1.0


OPS = {
    "stride 2": conv2d(1, 3, 11, 16, 24, 5, 7, 2, 3, dtype="fp16", epilogue=["bias", "relu"]),
    "one channel, fp32": conv2d(2, 1, 9, 8, 16, 3, 4, 1, (2, 1), dtype="fp32", epilogue=["residual"]),
    "nchw": conv2d(2, 5, 9, 13, 16, 3, 3, 3, 1, dtype="fp16", layout="nchw", epilogue=["bias"]),
    "1d": conv1d(2, 4, 41, 24, 9, 4, 2, dtype="fp16"),
    "3d": conv3d(1, 3, 3, 4, 6, 16, 2, 2, 3, 1, 1, dtype="fp32"),
}


#: A sketch for each kind of work, load and store.
CHECKED = (
    "grid.ptr-ptr.direct-ptr",
    "split.ptr-tma.atomic",
    "swap.grid.tma-image.direct-tma",
    "swap.persistent.tma-ptr.subtiled-ptr",
    "swap.split.ptr-image.workspace",
    "swap.stream.ptr-image.atomic",
)


@pytest.mark.parametrize("name", OPS)
def test_results_are_the_references(name: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    op, work = OPS[name], []
    for sketch in sketches(op):
        if sketch.name.removeprefix("window.") not in CHECKED:
            continue
        schedule = fitting(sketch, block_m=16, block_n=32, block_k=16, box_h=2, box_w=4, split_k=2, warps=4)
        if explain_invalid(op, H200, schedule) is None:
            work.append((op, schedule))
    assert len(work) >= 2
    assert failures(work, interpret(work)) == []


def test_a_compiled_window_is_loaded_through_tma_and_multiplied_from_shared_memory(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    op = conv2d(32, 3, 224, 224, 64, 7, 7, 2, 3)
    name = "window.swap.persistent.tma-image.subtiled-tma"
    knobs = {"block_m": 64, "block_n": 256, "block_k": 32, "warps": 4, "stages": 4, "box_h": 4, "box_w": 16}
    with opened(tmp_path) as pool:
        (found,) = compile_all(pool, [(op, scheduled(op, name, **knobs))])
    assert found.result.error == ""
    assert (found.features["spill_bytes"], found.features["register_a_hazard"]) == (0, 0)
    assert found.features["wgmma"] > 0
