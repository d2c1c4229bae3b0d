"""Gathers as features: what is computed and read lies inside, and a matrix product in disguise is that product."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.features import COLUMN, extract, roofline_us
from autosched.features.workload import distinct
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


def test_what_neighbouring_windows_share_comes_from_memory_once() -> None:
    """Each element of x is read by nine taps: tiles index nine times as many elements as there are, padding and all."""
    op = conv2d(32, 64, 56, 56, 64, 3, 3, 1, 1)
    plain = derive(op, H200)[0]
    assert distinct(op, plain, "x") == 1 / 9
    assert distinct(op, plain, "w") == 1.0
    schedule = Schedule.of(plain, block_m=128, block_n=64, block_k=64, group_m=8)
    found = extract(op, H200, ScheduleBatch.of((plain,), [schedule]))[0]
    resident = 132 * 3  # three CTAs of 3 stages of (128 + 64) * 64 * 2 bytes an SM, one column of tiles
    wave = (resident * 128 / 9 + 64) * 576 * 2
    assert 2 ** found[COLUMN["log2_wave_over_l2"]] == pytest.approx(wave / H200.l2_bytes, rel=1e-5)
    strided = conv2d(32, 64, 56, 56, 64, 1, 1, 2)
    assert distinct(strided, derive(strided, H200)[0], "x") == 1.0


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
