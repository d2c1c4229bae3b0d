"""Gathers as features: what is computed and read lies inside, and a matrix product in disguise is that product."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.features import extract, roofline_us
from autosched.sketches.builders import conv2d, conv2d_input_grad, conv2d_weight_grad, gemm
from autosched.sketches.op import Op
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule, ScheduleBatch
from autosched.sketches.target import PRESETS

H200 = PRESETS["H200"]


def features(op: Op) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Those of every sketch's default schedule."""
    sketches = derive(op, H200)
    found = extract(op, H200, ScheduleBatch.of(sketches, [Schedule.of(s) for s in sketches]))
    return found.reshape(len(sketches), -1)


def test_an_unpadded_kernel_of_one_element_has_the_gemms_features() -> None:
    same = gemm(32 * 56 * 56, 256, 64, layout="nt")
    assert np.array_equal(features(conv2d(32, 64, 56, 56, 256, 1, 1)), features(same))


def test_flops_and_bytes_of_the_roofline_lie_inside() -> None:
    op = conv2d(32, 64, 14, 14, 64, 3, 3, 1, 1)
    flops = 2 * 32 * 64 * 64 * (14 + 13 + 13) ** 2  # the middle tap reads 14 of 14 rows, the others 13
    moved = 2 * (32 * 64 * 14 * 14 + 64 * 64 * 9 + 32 * 64 * 14 * 14)
    assert (op.flops, sum(op.compulsory_bytes)) == (flops, moved)
    bound = 1e6 * max(flops / H200.peak_flops("bf16"), moved / H200.bandwidth)
    assert roofline_us(op, H200) == pytest.approx(bound)


@pytest.mark.parametrize(
    "op",
    [
        conv2d(32, 3, 224, 224, 64, 7, 7, 2, 3),
        conv2d(32, 144, 56, 56, 144, 3, 3, 1, 1, groups=144),
        conv2d(2, 1280, 16, 16, 1280, 3, 3, 1, 1, layout="nchw"),
        conv2d_weight_grad(32, 64, 56, 56, 64, 3, 3, 1, 1),
        conv2d_input_grad(32, 64, 56, 56, 64, 3, 3, 2, 1),
    ],
    ids=lambda op: str(op.key()),
)
def test_every_value_is_finite(op: Op) -> None:
    assert np.isfinite(features(op)).all()
