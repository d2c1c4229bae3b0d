"""Convolutions as they are built, what they mean (against torch's own), and what bad input gets."""

from __future__ import annotations

from typing import Any

import pytest

import autosched
from autosched.errors import InvalidInputError, UnsupportedError, UsageError
from autosched.sketches.builders import (
    build,
    build_named,
    conv1d,
    conv2d,
    conv2d_input_grad,
    conv2d_weight_grad,
    conv3d,
    conv_transpose2d,
)
from autosched.sketches.op import Affine, Op
from autosched.sketches.reference import reference, reference_fp32
from tests.sketches.test_reference import inputs


def test_axes_maps_and_strides() -> None:
    op = conv2d(2, 6, 9, 10, 8, 3, 5, (2, 1), (1, 2), dilation=(1, 2), groups=2, epilogue=["bias"])
    assert op.extents == {"G": 2, "N": 2, "P": 5, "Q": 6, "K": 4, "C": 3, "R": 3, "S": 5}  # Q = 10 + 4 - 8
    x, w, bias, out = *op.operands, op.output
    assert [o.name for o in op.operands] == ["x", "w", "bias"]
    assert (x.shape, x.strides, x.zero_padded) == ((2, 6, 9, 10), (540, 1, 60, 6), True)
    assert x.index[1:] == (
        Affine((("G", 3), ("C", 1))),
        Affine((("P", 2), ("R", 1)), -1),
        Affine((("Q", 1), ("S", 2)), -2),
    )
    assert (w.shape, w.strides, w.zero_padded) == ((8, 3, 3, 5), (45, 1, 15, 3), False)
    assert (bias.shape, bias.index) == ((8,), (Affine((("G", 4), ("K", 1))),))
    assert (out.shape, out.strides) == ((2, 8, 5, 6), (240, 1, 48, 8))
    assert [a.kind for a in op.axes] == ["parallel"] * 5 + ["reduce"] * 3
    assert op.iteration_space() == "G2.N2.P5.Q6.K4.C3.R3.S5"


def test_channels_first_is_dense_in_torchs_order() -> None:
    op = conv3d(2, 3, 4, 5, 6, 7, 2, 3, 1, layout="nchw")
    assert {o.name: (o.shape, o.strides) for o in (*op.operands, op.output)} == {
        "x": ((2, 3, 4, 5, 6), (360, 120, 30, 6, 1)),
        "w": ((7, 3, 2, 3, 1), (18, 6, 3, 1, 1)),
        "out": ((2, 7, 3, 3, 6), (378, 54, 18, 6, 1)),
    }


def test_tensors_are_torchs_channels_last() -> None:
    torch = pytest.importorskip("torch")
    op = conv2d(2, 6, 9, 10, 8, 3, 3, 1, 1)
    layer = torch.nn.Conv2d(6, 8, 3, padding=1, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    x = torch.empty(2, 6, 9, 10, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    found = {"x": x, "w": layer.weight, "out": layer(x)}
    assert {name: t.stride() for name, t in found.items()} == {n: op.operand(n).strides for n in found}


def test_keys_hold_what_changes_the_kernel() -> None:
    assert conv2d(2, 6, 9, 9, 8, 3, 3, 2, 1).key() == (
        "N2,P5,Q5,K8,C6,R3,S3/x[NC(2P+R-1)(2Q+S-1)]bf16:2x6x9x9@486x1x54x6,w[KCRS]bf16@54x1x18x6,out[NKPQ]bf16@200x1x40x8"
    )
    assert (
        conv1d(1, 8, 16, 8, 3, layout="nchw").key() == "N1,Q14,K8,C8,S3/x[NC(Q+S)]bf16:1x8x16,w[KCS]bf16,out[NKQ]bf16"
    )
    same_loops = [conv2d(2, 6, h, w, 8, 3, 3, 2, 1, layout="nchw") for h in (9, 10) for w in (9, 10)]
    assert len({op.iteration_space() for op in same_loops}) == 1
    assert len({op.key() for op in same_loops}) == 4


@pytest.mark.parametrize(
    "op",
    [
        conv1d(2, 5, 17, 7, 3, 2, 1, dtype="fp32", epilogue=["bias", "relu"]),
        conv2d(2, 6, 9, 10, 8, 3, 3, (2, 1), (1, 0), dilation=2, groups=2, layout="nchw", out_dtype="fp32"),
        conv2d(2, 6, 9, 10, 8, 3, 3, dynamic=["N"], deterministic=True, beta=2.0),
        conv3d(1, 2, 5, 6, 7, 3, 2, 2, 2, dtype="fp8e4m3", scales="tensor", fast_accumulate=True),
        conv2d_weight_grad(2, 6, 9, 10, 8, 3, 3, 2, 1, groups=2),
        conv2d_input_grad(2, 6, 9, 10, 8, 3, 3, 2, 1, dilation=(1, 2)),
    ],
    ids=lambda op: str(op.key()),
)
def test_specs_build_the_op_again(op: Op) -> None:
    again = build(op.spec)
    assert (again, again.key(), again.spec) == (op, op.key(), op.spec)


def test_names_and_shapes() -> None:
    op = conv2d(32, 64, 56, 56, 128, 3, 3, 2, 1)
    assert build_named("conv2d", (32, 64, 56, 56, 128, 3, 3, 2, 1)) == op
    named = {"N": 32, "C": 64, "H": 56, "W": 56, "K": 128, "R": 3, "S": 3}
    assert build_named("conv2d", {**named, "stride": 2, "padding": (1, 1)}) == op
    assert build_named("conv2d", named) == conv2d(32, 64, 56, 56, 128, 3, 3)
    grouped = conv2d(32, 64, 56, 56, 128, 3, 3, dilation=2, groups=64, layout="nchw")
    assert build_named("conv2d", {**named, "dilation": 2, "groups": 64}, layout="nchw") == grouped
    assert op.spec["layout"] == "nhwc"
    assert autosched.conv2d is conv2d


CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 6, 11, 9, 12, 3, 2), {}),
    "padded": ((2, 6, 11, 9, 12, 3, 3), {"padding": 1}),
    "strided": ((2, 6, 11, 9, 12, 3, 3), {"stride": 2, "padding": 1}),
    "dilated": ((2, 6, 11, 9, 12, 3, 3), {"padding": 2, "dilation": 2}),
    "uneven": ((2, 6, 11, 9, 12, 3, 2), {"stride": (2, 1), "padding": (0, 2), "dilation": (1, 3)}),
    "pointwise": ((2, 6, 11, 9, 12, 1, 1), {}),
    "strided pointwise": ((2, 6, 11, 9, 12, 1, 1), {"stride": 3}),
    "padded pointwise": ((2, 6, 11, 9, 12, 1, 1), {"padding": 1, "stride": 2}),
    "grouped": ((2, 6, 11, 9, 12, 3, 3), {"padding": 1, "groups": 3}),
    "depthwise": ((2, 6, 11, 9, 6, 3, 3), {"padding": 1, "stride": 2, "groups": 6}),
    "depthwise multiplied": ((2, 6, 11, 9, 12, 3, 3), {"groups": 6}),
    "skipping": ((1, 3, 12, 12, 4, 2, 2), {"stride": 5}),
}


def taps(op: Op, **steps: Any) -> int:
    """Products of a convolution that are not with padding, counted by torch."""
    torch = pytest.importorskip("torch")
    function = getattr(torch.nn.functional, op.name)
    x, w = (torch.ones(o.shape, dtype=torch.float64) for o in op.operands[:2])
    return int(function(x, w, **steps).sum())


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("case", CASES)
def test_conv2d_is_torchs_exactly_on_integers(case: str, layout: str) -> None:
    torch = pytest.importorskip("torch")
    shape, steps = CASES[case]
    op = conv2d(*shape, layout=layout, epilogue=["bias", "relu"], **steps)
    t = inputs(op)
    expected = torch.nn.functional.conv2d(*(t[x].float() for x in ("x", "w", "bias")), **steps).relu()
    assert torch.equal(reference_fp32(op, t), expected)
    assert torch.equal(reference(op, t), expected.to(torch.bfloat16))
    assert op.flops == 2 * taps(op, **steps)


@pytest.mark.parametrize("dtype", ["fp16", "fp32", "tf32", "fp8e4m3", "int8"])
def test_other_ranks_and_types(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    line = conv1d(2, 4, 17, 7, 3, 2, 1, dtype=dtype, dilation=2, groups=1)
    t = inputs(line)
    expected = torch.nn.functional.conv1d(t["x"].double(), t["w"].double(), stride=2, padding=1, dilation=2)
    assert torch.equal(reference_fp32(line, t).double(), expected)
    volume = conv3d(2, 3, 5, 7, 6, 4, 3, 2, 3, (1, 2, 1), (1, 0, 1), dtype=dtype, layout="nchw")
    t = inputs(volume)
    steps: dict[str, Any] = {"stride": (1, 2, 1), "padding": (1, 0, 1)}
    expected = torch.nn.functional.conv3d(t["x"].double(), t["w"].double(), **steps)
    assert torch.equal(reference_fp32(volume, t).double(), expected)
    assert volume.flops == 2 * taps(volume, **steps)


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_autograds(case: str, layout: str) -> None:
    torch = pytest.importorskip("torch")
    shape, steps = CASES[case]
    forward = conv2d(*shape, layout=layout, dtype="fp32", **steps)
    kernel = conv2d_weight_grad(*shape, layout=layout, dtype="fp32", **steps)
    image = conv2d_input_grad(*shape, layout=layout, dtype="fp32", **steps)
    t, grad = inputs(forward), inputs(kernel)["grad"]
    x, w = t["x"].clone().requires_grad_(), t["w"].clone().requires_grad_()
    torch.nn.functional.conv2d(x, w, **steps).backward(grad)
    assert torch.equal(reference(kernel, {"grad": grad, "x": t["x"]}), w.grad)
    assert torch.equal(reference(image, {"grad": grad, "w": t["w"]}), x.grad)
    assert kernel.flops == image.flops == forward.flops
    assert (kernel.output.strides, image.output.strides) == (t["w"].stride(), t["x"].stride())


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize(
    "steps",
    [
        {},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"stride": (1, 3), "padding": (0, 1), "dilation": 2, "groups": 2, "output_padding": (0, 2)},
    ],
    ids=["plain", "strided", "uneven"],
)
def test_transposed_convolutions_are_torchs_exactly_on_integers(steps: dict[str, Any], layout: str) -> None:
    torch = pytest.importorskip("torch")
    op = conv_transpose2d(2, 6, 5, 4, 8, 3, 2, layout=layout, dtype="fp32", epilogue=["bias", "relu"], **steps)
    t = inputs(op)
    expected = torch.nn.functional.conv_transpose2d(t["x"], t["w"], t["bias"], **steps).relu()
    assert torch.equal(reference(op, t), expected)
    assert build(op.spec) == op


def test_a_transposed_convolution_is_the_input_gradient() -> None:
    op, gradient = conv_transpose2d(2, 6, 5, 4, 8, 3, 3, 2, 1), conv2d_input_grad(2, 8, 9, 7, 6, 3, 3, 2, 1)
    assert (op.axes, op.output) == (gradient.axes, gradient.output)
    assert [o.index for o in op.operands] == [o.index for o in gradient.operands]
    with pytest.raises(InvalidInputError, match="output_padding 2 with stride 2"):
        conv_transpose2d(2, 6, 5, 4, 8, 3, 3, 2, output_padding=2)
    with pytest.raises(InvalidInputError, match="an output of -1 x 1"):
        conv_transpose2d(2, 6, 1, 3, 8, 1, 1, padding=1)
    with pytest.raises(UnsupportedError, match="dynamic"):
        conv_transpose2d(2, 6, 5, 4, 8, 3, 3, dynamic=["N"])


def test_scales_gates_and_added_tensors() -> None:
    torch = pytest.importorskip("torch")
    gated = conv2d(2, 4, 5, 6, 8, 3, 3, 1, 1, dtype="fp32", beta=2.0, epilogue=["swiglu", "residual"])
    assert [o.name for o in gated.operands] == ["x", "w", "up", "c", "residual"]
    t = inputs(gated, integers=False)
    value, up = (torch.nn.functional.conv2d(t["x"], t[w], padding=1) for w in ("w", "up"))
    expected = torch.nn.functional.silu(value + 2 * t["c"]) * up + t["residual"]
    torch.testing.assert_close(reference(gated, t), expected, rtol=1e-5, atol=1e-4)
    scaled = conv2d(2, 4, 5, 6, 8, 3, 3, dtype="fp32", scales="tensor", epilogue=["column_scale", "row_scale"])
    t = inputs(scaled, integers=False)
    assert [(o.name, o.shape) for o in scaled.operands[2:]] == [
        ("x_scale", ()), ("w_scale", ()), ("column_scale", (8,)), ("row_scale", (2, 3, 4)),
    ]  # fmt: skip
    expected = torch.nn.functional.conv2d(t["x"] * t["x_scale"], t["w"] * t["w_scale"])
    expected = expected * t["column_scale"][:, None, None] * t["row_scale"][:, None]
    torch.testing.assert_close(reference(scaled, t), expected, rtol=1e-5, atol=1e-4)


def test_bytes_are_those_that_are_read() -> None:
    """A kernel of one element with stride 3 reads every third row and column: 4 of 11 rows, 3 of 9 columns."""
    op = conv2d(2, 6, 11, 9, 12, 1, 1, 3)
    assert op.read_elements(op.operand("x")) == 2 * 6 * 4 * 3
    assert op.compulsory_bytes == (2 * (2 * 6 * 4 * 3 + 12 * 6), 2 * 2 * 12 * 4 * 3)
    whole = conv2d(2, 6, 11, 9, 12, 3, 3, 1, 1)
    assert whole.compulsory_bytes == (2 * (2 * 6 * 11 * 9 + 12 * 6 * 9), 2 * 2 * 12 * 11 * 9)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: conv2d(0, 3, 8, 8, 4, 3, 3), InvalidInputError, "extent N is 0"),
        (lambda: conv2d(1, 3, 8, 8, 4, 3, 2.0), UsageError, "extent S is 2.0"),  # type: ignore[arg-type]
        (lambda: conv2d(1, 3, 8, 8, 4, 3, 3, 0), InvalidInputError, r"stride\[0\] is 0"),
        (lambda: conv2d(1, 3, 8, 8, 4, 3, 3, 1, (0, -1)), InvalidInputError, r"padding\[1\] is -1"),
        (lambda: conv2d(1, 3, 8, 8, 4, 3, 3, (1, 1, 1)), InvalidInputError, r"stride \(1, 1, 1\) for 2 spatial"),
        (lambda: conv2d(1, 3, 8, 8, 4, 3, 3, 1, "same"), InvalidInputError, "padding 'same'"),  # type: ignore[arg-type]
        (lambda: conv2d(1, 3, 8, 8, 4, 3, 3, pad=1), UsageError, "no argument 'pad' .*dilation, groups"),  # type: ignore[call-arg]
        (lambda: conv2d(1, 3, 8, 8, 4, 3, 3, dilation=0), InvalidInputError, r"dilation\[0\] is 0"),
        (lambda: conv2d(1, 3, 8, 8, 4, 3, 3, groups=2), InvalidInputError, "2 groups of C = 3 channels"),
        (lambda: conv2d(1, 4, 8, 8, 6, 3, 3, groups=4), InvalidInputError, "4 groups of K = 6 channels"),
        (lambda: conv2d(1, 3, 8, 4, 4, 3, 5), InvalidInputError, "S = 5 .* longer than W = 4 with padding 0"),
        (lambda: conv2d(1, 3, 5, 8, 4, 3, 3, 1, 1, dilation=4), InvalidInputError, "R = 3 with dilation 4"),
        (lambda: conv2d(1, 3, 8, 8, 4, 3, 3, layout="nn"), InvalidInputError, "layout 'nn' .*nhwc, nchw"),
        (lambda: conv2d(1, 3, 8, 8, 4, 3, 3, dtype="fp7"), InvalidInputError, "fp7"),
        (lambda: conv2d(1, 3, 8, 8, 4, 3, 3, epilogue=["tanh"]), InvalidInputError, "tanh"),
        (lambda: conv2d(1, 3, 8, 8, 4, 3, 3, scales="row_column"), UnsupportedError, "scale by tensor"),
        (lambda: conv2d(1, 3, 8, 8, 4, 3, 3, dynamic=["H"]), UnsupportedError, "'H' .*only N"),
        (lambda: conv2d(1, 3, 8, 8, 4, 3, 3, strides={"a": (1, 1, 1, 1)}), InvalidInputError, "x, w and out"),
        (lambda: conv2d_weight_grad(1, 3, 8, 8, 4, 3, 3, epilogue=["relu"]), UnsupportedError, "epilogue"),
        (lambda: conv2d_input_grad(1, 3, 8, 8, 4, 3, 3, dynamic=["N"]), UnsupportedError, "dynamic"),
        (lambda: build_named("conv2d", (1, 3, 8, 8, 4, 3, 3)), InvalidInputError, "7 entries .*R,S,stride,padding"),
        (lambda: build_named("conv2d", {"N": 1}), InvalidInputError, "give N, C, H, W, K, R, S, and if wanted stride"),
        (lambda: build_named("conv1d", {"N": 1, "C": 1, "H": 3, "W": 3, "K": 1, "S": 1}), InvalidInputError, "'H'"),
        (lambda: build_named("gemm", (1, 2, 3), groups=2), InvalidInputError, "gemm has no 'groups'"),
        (lambda: build_named("gemm", {"M": 1, "N": 1, "K": 1, "groups": 1}), InvalidInputError, "give M, N, K"),
    ],
)
def test_bad_input_is_named(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
