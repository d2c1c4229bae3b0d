"""Convolutions are found in index maps, and the library's call computes them exactly on integers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autosched.errors import UnsupportedError
from autosched.measure.rivals import RIVALS, usual
from autosched.measure.vendor import precision, vendor, vendor_name
from autosched.measure.vendor_convolution import convolution
from autosched.sketches.builders import build_named, contraction, gemm
from autosched.sketches.op import Affine, Op
from autosched.sketches.reference import reference

torch = pytest.importorskip("torch")

#: By name: operator, shape, and the stride, padding, dilation and groups that are read off the maps.
CASES: dict[str, tuple[str, dict[str, Any], tuple[tuple[int, ...], ...], int]] = {
    "strided": ("conv2d", {"stride": 2, "padding": 1}, ((2, 2), (1, 1), (1, 1)), 1),
    "dilated groups": (
        "conv2d",
        {"S": 2, "padding": (1, 0), "dilation": 2, "groups": 2},
        ((1, 1), (1, 0), (2, 2)),
        2,
    ),
    "depthwise": ("conv2d", {"K": 6, "padding": 1, "groups": 6}, ((1, 1), (1, 1), (1, 1)), 6),
    "pointwise": ("conv2d", {"R": 1, "S": 1}, ((1, 1), (0, 0), (1, 1)), 1),
    "patches": ("conv2d", {"R": 3, "S": 3, "stride": 3}, ((3, 3), (0, 0), (1, 1)), 1),
    "one dimension": ("conv1d", {"stride": 3, "padding": 2}, ((3,), (2,), (1,)), 1),
    "three dimensions": ("conv3d", {"padding": 1}, ((1, 1, 1), (1, 1, 1), (1, 1, 1)), 1),
    "kernel's gradient": ("conv2d_weight_grad", {"stride": 2, "padding": 1}, ((2, 2), (1, 1), (1, 1)), 1),
    "kernel's gradient in groups": ("conv2d_weight_grad", {"padding": 1, "groups": 2}, ((1, 1), (1, 1), (1, 1)), 2),
    "input's gradient": ("conv2d_input_grad", {"stride": 2, "padding": 1}, ((2, 2), (1, 1), (1, 1)), 1),
    "input's gradient in groups": ("conv2d_input_grad", {"padding": 1, "groups": 2}, ((1, 1), (1, 1), (1, 1)), 2),
}
SHAPE = {"N": 2, "C": 6, "H": 9, "W": 7, "K": 8, "R": 3, "S": 3}


def made(name: str, **options: Any) -> Op:
    operator, changed, _, _ = CASES[name]
    shape = {**SHAPE, **({"D": 5, "T": 3} if operator == "conv3d" else {}), **changed}
    if operator == "conv1d":
        shape = {x: n for x, n in shape.items() if x not in "HR"}
    return build_named(operator, shape, dtype="fp32", **options)


def operands(op: Op) -> dict[str, Any]:
    source = torch.Generator().manual_seed(0)
    return {
        o.name: torch.empty_strided(o.shape, o.strides).copy_(torch.randint(-3, 4, o.shape, generator=source))
        for o in op.operands
    }


def computed(op: Op, tensors: dict[str, Any]) -> Any:
    out = torch.empty_strided(op.output.shape, op.output.strides)
    with precision(op, reduced=False):
        return vendor(op)([tensors[o.name] for o in op.operands], out)


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("name", CASES)
def test_it_is_found_and_computed(name: str, layout: str) -> None:
    op = made(name, layout=layout)
    found = convolution(op, op.products[0])
    assert found is not None
    assert ((found.stride, found.padding, found.dilation), found.groups) == CASES[name][2:]
    tensors = operands(op)
    assert torch.equal(computed(op, tensors), reference(op, tensors))
    assert (vendor_name(op), usual(op)) == ("cudnn", ("cudnn", "inductor"))


@pytest.mark.parametrize("epilogue", [("bias",), ("bias", "relu"), ("relu",), ("residual", "bias")])
def test_a_bias_that_comes_first_goes_into_the_call(epilogue: tuple[str, ...]) -> None:
    op = made("dilated groups", epilogue=epilogue)
    tensors = operands(op)
    assert torch.equal(computed(op, tensors), reference(op, tensors))


def test_products_of_matrices_are_none() -> None:
    for op in (gemm(8, 16, 32), contraction("akb,kcd->acbd", {"a": 5, "k": 8, "b": 4, "c": 3, "d": 2})):
        assert convolution(op, op.products[0]) is None
        assert (vendor_name(op), usual(op)) == ("cublas", ("cublas", "inductor", "triton.autotune"))


def test_maps_that_torch_has_no_convolution_for_are_none() -> None:
    """Channels before the batch, and padding below zero, which leaves out elements."""
    op = made("strided")
    x, w = op.operands
    turned = replace(x, shape=(6, 2, 9, 7), index=(x.index[1], x.index[0], *x.index[2:]))
    cropped = replace(x, index=(*x.index[:3], Affine(x.index[3].terms, 1)))
    for other in (turned, cropped):
        assert convolution(replace(op, operands=(other, w)), op.products[0]) is None


def test_libraries_refuse_what_others_compute(tmp_path: Any) -> None:
    with (
        pytest.raises(UnsupportedError, match=r"cublas does not compute .*ask for cudnn"),
        RIVALS["cublas"].build(made("strided"), tmp_path),
    ):
        pass
    eight = build_named("conv2d", SHAPE, dtype="int8")
    with pytest.raises(UnsupportedError, match="no convolution of int8"):
        vendor(eight)


def test_settings_of_the_library_come_back() -> None:
    cudnn = torch.backends.cudnn
    before = (cudnn.allow_tf32, cudnn.benchmark, cudnn.benchmark_limit)
    with precision(made("strided"), reduced=False):
        assert (cudnn.allow_tf32, cudnn.benchmark, cudnn.benchmark_limit) == (False, True, 0)
    assert (cudnn.allow_tf32, cudnn.benchmark, cudnn.benchmark_limit) == before
