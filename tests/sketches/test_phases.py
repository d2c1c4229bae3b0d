"""The phase split of strided gradients: the op over step and phase, which sketches it has, and results."""

from __future__ import annotations

import pytest

from autosched.sketches.builders import conv2d, conv2d_input_grad, conv_transpose2d, gemm
from autosched.sketches.codegen import generate
from autosched.sketches.constraints import explain_invalid
from autosched.sketches.op import Affine, Op
from autosched.sketches.phases import phased
from autosched.sketches.rules import derive
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import PRESETS
from tests.sketches.compiled import fitting, scheduled
from tests.sketches.interpret import failures, interpret

H200 = PRESETS["H200"]
HALVED = conv2d_input_grad(4, 64, 16, 16, 64, 3, 3, 2, 1)


def sketches(op: Op) -> tuple[Sketch, ...]:
    return tuple(s for s in derive(op, H200) if s.view.prepared)


def taps(op: Op) -> tuple[int, ...]:
    found = phased(op)
    assert found is not None
    return tuple(a.extent for a in found.op.axes if a.kind == "reduce" and a.name in "RS")


def test_phases_are_columns_and_no_index_is_divided() -> None:
    """Row 2H + a meets the taps 2R + a - 1 of rows H - R + 1: R from -1 to 0, counted from 0."""
    found = phased(HALVED)
    assert found is not None
    assert (found.tag, found.copies) == ("phase", ())
    assert {a.name: a.extent for a in found.op.axes} == {
        "N": 4, "H": 8, "W": 8, "C": 64, "K": 64, "R": 2, "S": 2, "H2": 2, "W2": 2,
    }  # fmt: skip
    grad, w, out = (found.op.operand(name) for name in ("grad", "w", "out"))
    assert grad.index[2:] == (Affine((("H", 1), ("R", -1)), 1), Affine((("W", 1), ("S", -1)), 1))
    assert w.index[2] == Affine((("R", 2), ("H2", 1)), -1)
    assert w.zero_padded
    assert out.index[2:] == (Affine((("H", 2), ("H2", 1))), Affine((("W", 2), ("W2", 1))))
    assert [(o.shape, o.strides) for o in found.op.operands] == [(o.shape, o.strides) for o in HALVED.operands]
    assert next(s.view.tag for s in sketches(HALVED)) == "M=N.H.W N=H2.W2.C K=R.S.K"


def test_taps_are_those_that_some_phase_has() -> None:
    """Of 7 taps with a stride of 2 a phase has 3 or 4; of 2 without padding one; of 4, padded by 1, two beside one."""
    assert taps(conv2d_input_grad(2, 8, 16, 16, 8, 7, 7, 2, 3)) == (4, 4)
    assert taps(conv_transpose2d(2, 8, 4, 4, 8, 2, 2, 2)) == (1, 1)
    assert taps(conv_transpose2d(2, 8, 4, 4, 8, 4, 4, 2, 1)) == (3, 3)
    assert taps(conv2d_input_grad(2, 8, 15, 15, 8, 3, 3, 3, 1)) == (2, 2)
    assert taps(conv2d_input_grad(2, 8, 15, 16, 8, 3, 3, (1, 2), 1)) == (3, 2)


@pytest.mark.parametrize(
    "op",
    [
        conv2d_input_grad(2, 8, 15, 16, 8, 3, 3, 2, 1),
        conv2d_input_grad(2, 8, 16, 16, 8, 3, 3, 2, 2, dilation=2),
        conv2d_input_grad(2, 8, 16, 16, 8, 3, 3, 1, 1),
        conv2d(2, 8, 16, 16, 8, 3, 3, 2, 1),
        gemm(64, 64, 64),
    ],
    ids=["odd", "dilated", "stride 1", "not a gradient", "gemm"],
)
def test_what_is_not_split(op: Op) -> None:
    assert phased(op) is None
    assert sketches(op) == ()


def test_a_phase_of_the_gradient_is_boxes_of_an_image() -> None:
    names = {s.name for s in sketches(HALVED)}
    assert {"phase.grid.ptr-ptr.direct-ptr", "phase.swap.persistent.ptr-image.subtiled-ptr"} <= names
    source = generate(HALVED, scheduled(HALVED, "phase.swap.grid.ptr-image.direct-ptr", block_m=64)).source
    assert "grad_desc.load([grad_N, grad_H + (grad_tap // 2) * -1 + 1, grad_W + (grad_tap % 2) * -1 + 1, " in source
    assert "%" not in next(line for line in source.splitlines() if "mask=" in line)
    assert f"# conv2d_input_grad {HALVED.key()}" in source


OPS = {
    "stride 2": conv2d_input_grad(1, 16, 6, 8, 24, 3, 3, 2, 1, dtype="fp16"),
    "uneven strides": conv2d_input_grad(1, 17, 6, 9, 8, 5, 2, (2, 3), 1, dtype="fp32"),
    "transposed": conv_transpose2d(1, 16, 3, 3, 16, 4, 4, 2, 1, dtype="fp16", epilogue=["bias", "relu"]),
    "groups": conv2d_input_grad(1, 32, 6, 6, 32, 3, 3, 2, 1, groups=2, dtype="fp16"),
}


@pytest.mark.parametrize("name", OPS)
def test_results_are_the_references(name: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    op, work = OPS[name], []
    for sketch in sketches(op):
        schedule = fitting(sketch, block_m=16, block_n=16, block_k=16, box_h=2, box_w=4, split_k=2, warps=4)
        if explain_invalid(op, H200, schedule) is None:
            work.append((op, schedule))
    assert len(work) >= 4
    assert failures(work, interpret(work)) == []
