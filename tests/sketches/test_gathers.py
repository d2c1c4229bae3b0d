"""Affine maps from the general definition to kernels: views, sketches, sources, and results in the interpreter."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import pytest

from autosched.errors import InvalidInputError, UnsupportedError
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
from autosched.sketches.dtypes import DTYPES
from autosched.sketches.op import Affine, Axis, Op, Operand, Product
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule
from autosched.sketches.target import PRESETS
from autosched.sketches.view import MatrixView, matrix_views
from tests.sketches.interpret import failures, interpret
from tests.sketches.test_interpreter_ops import spread
from tests.sketches.test_rules import described, names

H200 = PRESETS["H200"]


def view(op: Op) -> MatrixView:
    found, *_ = matrix_views(op)  # as matrices; channelwise ones come after
    return found


@pytest.mark.parametrize(
    ("op", "tag"),
    [
        (conv2d(4, 8, 16, 16, 24, 3, 3, 1, 1), "M=N.P.Q N=K K=R.S.C"),
        (conv2d(4, 8, 16, 16, 24, 3, 3), "M=N.P.Q N=K K=R.SC"),  # unpadded: S and C are one run of a row
        (conv2d(4, 8, 16, 16, 24, 1, 1), "M=NPQ N=K K=RSC"),
        (conv2d(4, 8, 16, 16, 24, 1, 1, 2), "M=NP.Q N=K K=RSC"),  # rows 2 * 16 apart follow those of the image before
        (conv2d(4, 8, 15, 15, 24, 1, 1, 2), "M=N.P.Q N=K K=RSC"),
        (conv2d(4, 8, 16, 16, 24, 3, 1, (1, 1), (1, 0)), "M=N.P.Q N=K K=RS.C"),  # S has one index
        (conv2d(4, 8, 16, 16, 24, 3, 3, 1, 1, groups=2), "batch=G M=N.P.Q N=K K=R.S.C"),
        (conv2d(4, 8, 16, 16, 8, 3, 3, 1, 1, groups=8), "batch=G M=N.P.Q N=K K=R.SC"),  # C has one index
        (conv2d(4, 8, 16, 16, 24, 3, 3, 1, 1, layout="nchw"), "M=N.P.Q N=K K=C.R.S"),
        (conv2d(4, 8, 16, 16, 24, 1, 1, layout="nchw"), "M=N.PQ N=K K=CRS"),
        (conv1d(4, 8, 16, 24, 3), "M=N.Q N=K K=SC"),
        (conv2d_weight_grad(4, 8, 16, 16, 24, 3, 3, 1, 1), "M=K N=R.S.C K=N.P.Q"),
        (conv2d_input_grad(4, 8, 16, 16, 24, 3, 3, 2, 1), "M=N.H.W N=C K=R.S.K"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_axes_are_grouped_and_fused(op: Op, tag: str) -> None:
    assert view(op).tag == tag


def test_what_one_tensor_walks_with_one_stride_is_one_walk() -> None:
    found = view(conv2d(4, 8, 16, 16, 24, 3, 3, 1, 1))
    walks = {
        (g, t): [(a.name, a.extent, a.stride(t)) for a in found.walk(g, t)] for g in "mnk" for t in ("x", "w", "out")
    }
    assert walks["m", "x"] == [("N", 4, 2048), ("P", 16, 128), ("Q", 16, 8)]
    assert walks["k", "x"] == [("R", 3, 128), ("S", 3, 8), ("C", 8, 1)]
    assert walks["n", "x"] == [("K", 24, 0)]
    assert walks["k", "w"] == [("RSC", 72, 1)]
    assert walks["m", "out"] == [("NPQ", 1024, 24)]
    assert dict(found.guards) == {"x": ("P", "R", "Q", "S")}


def test_alignment_of_gathered_rows() -> None:
    def alignment(op: Op, name: str = "x") -> int:
        return view(op).row_alignment(op.operand(name))

    assert alignment(conv2d(4, 64, 16, 16, 24, 3, 3, 1, 1)) == 16
    assert alignment(conv2d(4, 12, 16, 16, 24, 3, 3, 1, 1)) == 8  # rows begin at multiples of 12 elements of 2 bytes
    assert alignment(conv2d(4, 3, 16, 16, 24, 3, 3, 1, 1)) == 2
    assert alignment(conv2d(4, 64, 16, 16, 24, 3, 3, 1, 1, layout="nchw")) == 2  # a tap moves a row by one element
    assert alignment(conv2d(4, 64, 16, 16, 24, 1, 1, layout="nchw")) == 16
    assert alignment(conv2d(4, 64, 16, 16, 64, 3, 3, 1, 1, groups=64)) == 1  # neighbours are of other groups
    assert alignment(conv2d_input_grad(4, 64, 16, 16, 24, 3, 3, 2, 1), "grad") == 16


def test_padded_operands_are_gathered_and_the_others_are_boxes() -> None:
    found = names(conv2d(32, 64, 55, 55, 64, 3, 3, 2, 1))
    assert found == {
        f"{work}.ptr-{w}.{finish}"
        for w in ("ptr", "tma")
        for work, finish in (
            ("grid", "direct-ptr"), ("grid", "direct-tma"), ("persistent", "subtiled-ptr"),
            ("persistent", "subtiled-tma"), ("split", "workspace"), ("split", "atomic"), ("stream", "atomic"),
        )
    }  # fmt: skip
    weights = names(conv2d_weight_grad(32, 64, 56, 56, 64, 3, 3, 1, 1))
    assert {"grid.ptr-ptr.direct-ptr", "split.tma-ptr.atomic", "stream.tma-ptr.atomic"} <= weights
    assert not any("tma-tma" in name or "ptr-tma.workspace" in name for name in weights)


def test_few_pixels_are_swapped_and_single_ones_summed() -> None:
    assert "swap.split.tma-ptr.atomic" in names(conv2d(1, 256, 4, 4, 256, 3, 3, 1, 1))
    assert "split.ptr-ptr.sum.workspace" in names(conv2d(1, 256, 2, 2, 256, 3, 3, 1, 1))


def renamed(source: str) -> str:
    """The kernel without its head, its operands called a and b."""
    body = kernels(source)
    for old, new in (("x", "a"), ("w", "b")):
        body = re.sub(rf"\b{old}(?=\b|_)", new, body)
    return body


@pytest.mark.parametrize(
    ("op", "same"),
    [
        (conv2d(32, 64, 56, 56, 256, 1, 1), gemm(32 * 56 * 56, 256, 64, layout="nt")),
        (conv2d(1, 128, 16, 16, 512, 1, 1, epilogue=["bias"]), gemm(256, 512, 128, layout="nt", epilogue=["bias"])),
        (conv1d(2, 1001, 30, 100, 1), gemm(60, 100, 1001, layout="nt")),
        (conv3d(1, 64, 2, 2, 3, 640, 1, 1, 1, dtype="fp8e4m3"), gemm(12, 640, 64, layout="nt", dtype="fp8e4m3")),
        (conv2d_input_grad(2, 64, 16, 16, 128, 1, 1), gemm(512, 64, 128)),
        (conv2d_weight_grad(2, 64, 16, 16, 128, 1, 1), gemm(128, 64, 512, layout="tn")),
    ],
    ids=["stride 1", "bias", "misaligned", "skinny", "input gradient", "weight gradient"],
)
def test_unpadded_kernels_of_one_element_are_the_gemm_that_they_are(op: Op, same: Op) -> None:
    """The very sketches, with equal facts, and on the way down the very source."""
    assert described(op) == described(same)
    for found, expected in zip(derive(op, H200), derive(same, H200), strict=True):
        assert (found.name, found.knobs, found.facts()) == (expected.name, expected.knobs, expected.facts())
        if op.name == "conv2d":
            source, other = (generate(o, Schedule.of(s)).source for o, s in ((op, found), (same, expected)))
            assert renamed(source) == renamed(other)


@pytest.mark.parametrize("size", [56, 55])
def test_with_a_stride_it_is_the_gemm_of_every_second_pixel(size: int) -> None:
    op = conv2d(32, 128, size, size, 256, 1, 1, 2)
    sizes = {"n": 32, "p": 28, "q": 28, "c": 128, "k": 256}
    strides = {"a": (size * size * 128, 2 * size * 128, 256, 1)}
    same = contraction("npqc,kc->npqk", sizes, strides=strides)
    assert described(op) == described(same)
    assert "mask" not in generate(op, Schedule.of(derive(op, H200)[0])).source


def test_without_padding_nothing_is_masked() -> None:
    op = conv2d(32, 64, 34, 34, 64, 3, 3)
    assert not op.operand("x").zero_padded
    for sketch in derive(op, H200):
        assert "mask" not in generate(op, Schedule.of(sketch)).source


def loads(op: Op, **knobs: int) -> list[str]:
    """Lines of the reduction loop of the plainest sketch."""
    lines = generate(op, Schedule.of(derive(op, H200)[0], **knobs)).source.splitlines()
    start = next(i for i, line in enumerate(lines) if "for k0" in line)
    return [line.strip() for line in lines[start + 1 : next(i for i, line in enumerate(lines) if "tl.dot" in line)]]


def test_a_tap_of_a_whole_step_is_a_scalar_under_one_mask() -> None:
    lines = loads(conv2d(32, 320, 56, 56, 64, 3, 3, 1, 1), block_k=64)
    assert lines[:-2] == [
        "x_tap = k0 // 320",
        "x_k = k0 - x_tap * 320 + tl.arange(0, BLOCK_K)",
        "x_at_R = x_tap // 3",
        "x_at_S = x_tap % 3",
        "x_index2 = x_from2 + x_at_R",
        "x_index3 = x_from3 + x_at_S",
        "x = tl.load(x_base + (x_at_R * 17920 + x_at_S * 320 + x_k)[None, :], mask=((x_index2 >= 0) & "
        "(x_index2 < 56) & (x_index3 >= 0) & (x_index3 < 56))[:, None], other=0.0)",
    ]


def test_taps_within_a_step_are_told_element_by_element() -> None:
    lines = loads(conv2d(32, 48, 56, 56, 64, 3, 3, 2, 1), block_k=64)  # 57 * 57 inputs would be read; the last are not
    assert lines[:-2] == [
        "x_k = k0 + tl.arange(0, BLOCK_K)",
        "x_at_R = x_k // 144",
        "x_at_S = x_k // 48 % 3",
        "x_at_C = x_k % 48",
        "x_index2 = x_from2[:, None] + x_at_R[None, :]",
        "x_index3 = x_from3[:, None] + x_at_S[None, :]",
        "x = tl.load(x_base + (x_at_R * 2688 + x_at_S * 48 + x_at_C)[None, :], mask=(x_k < K)[None, :] & "
        "(x_index2 >= 0) & (x_index3 >= 0), other=0.0)",
    ]


def test_a_dimension_that_no_step_changes_is_tested_before_the_loop() -> None:
    source = generate(op := conv2d(4, 64, 16, 16, 64, 1, 1, 1, 1), Schedule.of(derive(op, H200)[0])).source
    before, inside = source.split("for k0")[0], loads(op)
    assert "x_inside2 = ((x_at_P - 1) >= 0) & ((x_at_P - 1) < 16)\n" in before
    assert any("mask=(x_m < M)[:, None] & (x_inside2 & x_inside3)[:, None]" in line for line in inside)


def affine(**terms: int) -> Affine:
    const = terms.pop("const", 0)
    return Affine(tuple(terms.items()), const)


#: What a hand-written convolution calls what the builder calls otherwise.
OTHERWISE = {
    "image": "x", "kernel": "w", "result": "out", "at_i": "at_N", "at_y": "at_P", "at_x": "at_Q", "at_dy": "at_R",
    "at_dx": "at_S", "at_c": "at_C", "index1": "index2", "index2": "index3", "from1": "from2", "from2": "from3",
}  # fmt: skip


def by_hand(**changes: Any) -> Op:
    """A padded, strided convolution in the general definition, with names and an order of dimensions of its own."""
    bf16 = DTYPES["bf16"]
    sizes = {"i": 2, "y": 5, "x": 5, "o": 24, "dy": 3, "dx": 3, "c": 16}
    window = (affine(y=2, dy=1, const=-1), affine(x=2, dx=1, const=-1))
    image = Operand(
        "image", bf16, (2, 9, 10, 16), (1440, 160, 16, 1), (affine(i=1), *window, affine(c=1)), zero_padded=True
    )
    kernel = Operand("kernel", bf16, (24, 3, 3, 16), (144, 48, 16, 1), tuple(affine(**{x: 1}) for x in KERNEL))
    result = Operand("result", bf16, (2, 5, 5, 24), (600, 120, 24, 1), tuple(affine(**{x: 1}) for x in "iyxo"))
    axes = tuple(Axis(name, n, "reduce" if name in ("dy", "dx", "c") else "parallel") for name, n in sizes.items())
    parts: dict[str, Any] = {"operands": (image, kernel), "products": (Product("image", "kernel"),), **changes}
    return Op(name="any", axes=axes, output=result, **parts)


KERNEL = ("o", "dy", "dx", "c")


def kernels(source: str) -> str:
    return source[source.index("@triton.jit") : source.index("#: Shape")]


def test_an_op_written_by_hand_is_the_builders() -> None:
    """The same sketches, facts and work, and the same source but for the names."""
    op, built = by_hand(), conv2d(2, 16, 9, 10, 24, 3, 3, 2, 1)
    assert described(op) == described(built)
    assert (op.flops, op.compulsory_bytes) == (built.flops, built.compulsory_bytes)
    pattern = re.compile("|".join(rf"(?<![a-z0-9]){name}(?![a-z0-9])" for name in OTHERWISE))
    for own, other in zip(derive(op, H200), derive(built, H200), strict=True):
        assert (own.name, own.facts()) == (other.name, other.facts())
        source = pattern.sub(lambda match: OTHERWISE[match[0]], generate(op, Schedule.of(own)).source)
        assert kernels(source) == kernels(generate(built, Schedule.of(other)).source)


def test_maps_that_leave_their_tensor_without_padding_are_refused() -> None:
    (image, kernel) = by_hand().operands
    bare = Operand(image.name, image.dtype, image.shape, image.strides, image.index)
    with pytest.raises(InvalidInputError, match=r"index \(2y\+dy-1\) of image leaves its 9 elements"):
        by_hand(operands=(bare, kernel))


def test_only_products_are_read_outside() -> None:
    op = by_hand(products=(Product("kernel", "image"),))
    assert view(op).tag == "M=o N=i.y.x K=dy.dx.c"
    padded = Operand("image", DTYPES["bf16"], (2,), (1,), (affine(i=1, const=-1),), zero_padded=True)
    diagonal = Op("any", (Axis("i", 2, "parallel"),), (padded, padded), (Product("image", "image"),), padded)
    with pytest.raises(UnsupportedError):
        derive(diagonal, H200)


OPS = {
    "3x3": conv2d(2, 16, 9, 11, 24, 3, 3, 1, 1, dtype="fp16", epilogue=["bias"]),
    "stride 2": conv2d(2, 32, 9, 8, 40, 3, 3, 2, 1, dtype="fp16", epilogue=["bias", "relu"]),
    "uneven": conv2d(1, 8, 11, 9, 80, 3, 2, (1, 2), (2, 0), dilation=2, dtype="fp32"),
    "3 channels": conv2d(2, 3, 13, 15, 16, 7, 7, 2, 3, dtype="fp16"),
    "groups": conv2d(2, 12, 9, 9, 20, 3, 3, 1, 1, groups=4, dtype="fp16", epilogue=["bias"]),
    "depthwise": conv2d(2, 10, 9, 9, 10, 3, 3, 2, 1, groups=10, dtype="fp32"),
    "nchw": conv2d(2, 16, 9, 11, 24, 3, 3, 1, 1, dtype="fp16", layout="nchw", epilogue=["residual"]),
    "unpadded": conv2d(2, 16, 9, 11, 24, 3, 3, dtype="fp16"),
    "1x1, stride 2": conv2d(2, 16, 9, 11, 24, 1, 1, 2, dtype="fp16"),
    "1x1, padded": conv2d(2, 16, 9, 11, 24, 1, 1, 1, 1, dtype="fp16"),
    "overlapping rows": conv1d(1, 16, 40, 24, 3, dtype="fp16"),
    "1d": conv1d(3, 5, 41, 24, 4, 2, 1, dtype="fp16", dilation=2),
    "3d": conv3d(1, 6, 5, 7, 6, 20, 3, 2, 3, (1, 2, 1), (1, 0, 1), dtype="fp16"),
    "gated, few pixels": conv2d(1, 128, 4, 4, 96, 3, 3, 1, 1, dtype="fp16", epilogue=["swiglu"]),
    "summed": conv2d(1, 64, 2, 2, 70, 3, 3, 1, 1, dtype="fp16", scales="tensor"),
    "fp8": conv2d(2, 32, 5, 7, 24, 3, 3, 1, 1, dtype="fp8e4m3", out_dtype="fp16"),
    "weight gradient": conv2d_weight_grad(2, 16, 9, 11, 24, 3, 3, 1, 1, dtype="fp16"),
    "weight gradient, groups": conv2d_weight_grad(2, 12, 9, 8, 20, 3, 2, 2, 1, dtype="fp32", dilation=2, groups=2),
    "input gradient": conv2d_input_grad(2, 16, 9, 11, 24, 3, 3, 1, 1, dtype="fp16"),
    "input gradient, stride": conv2d_input_grad(2, 16, 9, 11, 32, 3, 3, (2, 3), 1, dtype="fp16"),
    "input gradient, nchw": conv2d_input_grad(2, 16, 9, 11, 24, 3, 3, 2, 1, dtype="fp32", layout="nchw", groups=2),
}


def drawn(part: int) -> list[tuple[Op, Schedule]]:
    """A third of the ops' schedules, with short steps, which taps are longer than, and steps over several taps."""
    work = []
    for turn, op in list(enumerate(OPS.values()))[part::3]:
        for block_k in (16, 64):
            work += spread(op, turn, 6, block_k=block_k, block_n=(32, 96)[turn % 2], subtile=(1, 2)[turn % 2])
    return work


@pytest.mark.parametrize("part", range(3))
def test_results_are_the_references(part: int) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    work = drawn(part)
    assert failures(work, interpret(work)) == []


def any_convolution(draw: random.Random) -> Op:
    """One with small random sizes and steps of any kind; drawn again if a kernel is longer than what it slides over."""
    groups = draw.choice((1, 1, 2, 3, 8))
    channels = (groups * draw.choice((1, 2, 3, 5, 8, 16)), groups * draw.choice((1, 2, 7, 8, 24)))
    make: Any = draw.choice((conv1d, conv2d, conv2d, conv3d, conv2d_weight_grad, conv2d_input_grad))
    rank = {conv1d: 1, conv3d: 3}.get(make, 2)
    sizes, taps, stride, padding, dilation = (
        [draw.randint(low, high) for _ in range(rank)]
        for low, high in ((1, (40, 13, 6)[rank - 1]), (1, 4), (1, 3), (0, 3), (1, 3))
    )
    options: Any = {"layout": draw.choice(("nhwc", "nchw")), "dtype": draw.choice(("fp16", "fp32"))}
    if make in (conv1d, conv2d, conv3d):
        options["epilogue"] = draw.choice(([], ["bias"], ["residual", "relu"], ["row_scale"]))
    shape: Any = (draw.randint(1, 3), channels[0], *sizes, channels[1], *taps)
    try:
        op: Op = make(*shape, stride, padding, dilation=dilation, groups=groups, **options)
        return op
    except InvalidInputError:
        return any_convolution(draw)


def test_random_convolutions() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    draw = random.Random(0)
    work = [pair for turn in range(40) for pair in spread(any_convolution(draw), turn, 3, block_k=16 << turn % 3)]
    assert len({op for op, _ in work}) == 40
    assert failures(work, interpret(work)) == []


def test_the_drawn_schedules_reach_every_structure() -> None:
    seen = Counter(part for i in range(3) for _, s in drawn(i) for part in s.sketch.name.replace("-", ".").split("."))
    assert set(seen) >= {"grid", "persistent", "split", "swap", "sum", "tma", "ptr", "direct", "workspace", "atomic"}


def test_streams_and_images_whose_number_is_known_late() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    op = conv2d(2, 16, 7, 6, 72, 3, 3, 1, 1, dtype="fp16")
    work = [(o, s) for o, s in spread(op, 0, 40) if s.sketch.work.tag == "stream"]
    written = {s.sketch.name for _, s in work if not s.sketch.view.swapped}
    assert written == {f"stream.ptr-{w}.atomic" for w in ("ptr", "tma", "copy")}
    assert failures(work, interpret(work)) == []
    op = conv2d(3, 16, 5, 5, 24, 3, 3, 1, 1, dtype="fp16", dynamic=["N"], epilogue=["bias"])
    work = spread(op, 0, 8)
    assert failures(work, interpret(work, sizes=[{"N": n} for n in (0, 1, 3, 2)])) == []


def test_offsets_past_32_bits_are_wide() -> None:
    op = conv2d(64, 256, 512, 512, 64, 3, 3, 1, 1)  # 2^32 elements
    source = generate(op, Schedule.of(derive(op, H200)[0], block_k=64)).source
    assert "x_at_N.to(tl.int64) * 67108864 + x_at_P.to(tl.int64) * 131072" in source
    assert "tl.full((), x_at_R, tl.int64) * 131072" in source
