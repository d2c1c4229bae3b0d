"""The physical floor, against values worked out by hand."""

from __future__ import annotations

import pytest

from autosched.measure.floor import floor_us
from autosched.sketches.builders import gemm
from autosched.sketches.target import PRESETS

H200 = PRESETS["H200"]


def test_a_large_gemm_is_bound_by_arithmetic() -> None:
    # 2 * 4096^3 flop at 4096 * 132 * 1980e6 = 1.0705e15 flop/s
    assert floor_us(gemm(4096, 4096, 4096), H200) == pytest.approx(0.9 * 128.38, rel=1e-3)


def test_a_skinny_gemm_is_bound_by_reads() -> None:
    # (64 * 8192 + 8192 * 8192) * 2 B at 4.8e12 B/s
    assert floor_us(gemm(64, 8192, 8192), H200) == pytest.approx(0.9 * 28.18, rel=1e-3)


def test_writes_count_beyond_the_cache_only() -> None:
    small, large = gemm(4096, 4096, 16), gemm(16384, 16384, 16)
    # reads: 2 * 4096 * 16 * 2 B = 262,144 B; the 32 MiB of output stay in the cache
    assert floor_us(small, H200) == pytest.approx(0.9 * max(262144 / 4.8e6, 2 * 4096**2 * 16 / 1.0705e9), rel=1e-3)
    # 512 MiB of output less 60 MiB of cache, and 1 MiB of reads
    assert floor_us(large, H200) == pytest.approx(0.9 * (512 - 60 + 1) * 2**20 / 4.8e6, rel=1e-3)


def test_both_products_of_a_gated_pair_count() -> None:
    op = gemm(4096, 4096, 4096, epilogue=["swiglu"])
    assert floor_us(op, H200) == pytest.approx(2 * floor_us(gemm(4096, 4096, 4096), H200))
    # reads of a skinny one: (64 * 8192 + 2 * 8192 * 8192) * 2 B at 4.8e12 B/s
    assert floor_us(gemm(64, 8192, 8192, epilogue=["swiglu"]), H200) == pytest.approx(0.9 * 56.14, rel=1e-3)


def test_8_bit_types_have_rates_and_sizes_of_their_own() -> None:
    for dtype in ("fp8e4m3", "int8"):
        assert floor_us(gemm(4096, 4096, 4096, dtype=dtype), H200) == pytest.approx(0.9 * 64.19, rel=1e-3)
    # (64 * 8192 + 8192 * 8192) B, and 4 * (64 + 8192) B of scales
    scaled = gemm(64, 8192, 8192, dtype="fp8e4m3", scales="row_column")
    assert floor_us(scaled, H200) == pytest.approx(0.9 * (67633152 + 33024) / 4.8e6, rel=1e-6)


def test_repeated_elements_are_read_once_and_the_clock_counts() -> None:
    op = gemm(64, 8192, 8192, strides={"b": (0, 1)})
    arithmetic = 2 * 64 * 8192**2 / (4096 * 132 * 1000e6) * 1e6
    assert floor_us(op, H200, clock_mhz=1000) == pytest.approx(0.9 * arithmetic, rel=1e-3)
