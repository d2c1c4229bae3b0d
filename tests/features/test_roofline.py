"""Roofline times worked out by hand."""

import pytest

from autosched.features import roofline_us
from autosched.sketches.builders import gemm
from autosched.sketches.target import PRESETS


def test_compute_bound() -> None:
    # 2 * 4096^3 flop at 4096 * 132 * 1980e6 flop/s; the traffic would take 100.7e6 B / 4.8e12 B/s = 21 us.
    assert roofline_us(gemm(4096, 4096, 4096), PRESETS["H200"]) == pytest.approx(128.385, rel=1e-4)


def test_memory_bound() -> None:
    # (1 * 4096 + 4096 * 4096 + 1 * 4096) * 2 B at 4.8e12 B/s.
    assert roofline_us(gemm(1, 4096, 4096), PRESETS["H200"]) == pytest.approx(33570816 / 4.8e6, rel=1e-9)


def test_full_precision_has_the_rate_of_the_cuda_cores() -> None:
    slow = roofline_us(gemm(4096, 4096, 4096, dtype="fp32"), PRESETS["H200"])
    assert slow == pytest.approx(2 * 4096**3 / (256 * 132 * 1980e6) * 1e6)
