"""Arithmetic of interleaved blocks on made-up numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from autosched.measure.compare import Block, Blocks, collect, interleave, ratio_interval, summarize


def _blocks(clocks: Sequence[float | None]) -> list[Block]:
    return [Block((float(i + 1),), ((1.0,),), clock) for i, clock in enumerate(clocks)]


def _collect(clocks: Sequence[float | None], first: float | None = None, most: int = 8) -> Blocks:
    source = iter(_blocks(clocks))
    return collect(lambda: next(source), blocks=3, most=most, drift=0.01, clock_mhz=first)


def test_a_block_goes_forth_and_back() -> None:
    assert interleave(1) == [-1, 0, 0, -1]
    assert interleave(3) == [-1, 0, 1, 2, 2, 1, 0, -1]


def test_steady_blocks_all_count() -> None:
    found = _collect([1700, 1705, 1710], first=1702)
    assert [block.vendor_us[0] for block in found.kept] == [1, 2, 3]
    assert found.steady
    assert found.drift == pytest.approx(5 / 1700)


def test_a_step_of_the_clock_costs_one_block() -> None:
    found = _collect([1980, 1700, 1705, 1700], first=1980)
    assert [block.vendor_us[0] for block in found.kept] == [1, 3, 4]
    assert found.steady


def test_a_clock_that_never_holds_still_ends_and_is_reported() -> None:
    found = _collect([1500, 1700] * 10, first=1700, most=6)
    assert [block.vendor_us[0] for block in found.kept] == [4, 5, 6]
    assert not found.steady
    assert found.drift == pytest.approx(200 / 1500)


def test_an_unknown_clock_is_no_drift() -> None:
    found = _collect([None, None, None])
    assert found.drift is None
    assert len(found.kept) == 3


def test_the_interval_is_students() -> None:
    ratios = [1.0, 1.02, 1.04, 1.01, 1.03]
    mean, low, high = ratio_interval(ratios)
    logs = [math.log(r) for r in ratios]
    centre = sum(logs) / 5
    deviation = math.sqrt(sum((x - centre) ** 2 for x in logs) / 4)
    assert mean == pytest.approx(math.exp(centre))
    assert math.log(high / mean) == pytest.approx(2.776 * deviation / math.sqrt(5), rel=1e-3)
    assert low == pytest.approx(mean**2 / high)


def test_the_interval_holds_the_truth_about_95_times_in_100() -> None:
    rng = random.Random(0)
    held = 0
    for _ in range(2000):
        _, low, high = ratio_interval([1.05 * math.exp(rng.gauss(0, 0.01)) for _ in range(5)])
        held += low <= 1.05 <= high
    assert 0.93 < held / 2000 < 0.97


def test_one_block_has_no_finite_interval() -> None:
    mean, low, high = ratio_interval([1.1])
    assert mean == pytest.approx(1.1)
    assert (low, high) == (0.0, math.inf)


def test_drift_common_to_a_block_cancels_and_failures_keep_their_place() -> None:
    speeds = (1.0, 1.3, 0.9, 1.1, 1.2)
    kept = tuple(
        Block((100 * s, 101 * s, 99 * s), ((80 * s, 80 * s, 300 * s), (100 * s * w, 100 * s * w)), 1700.0)
        for s, w in zip(speeds, (1.001, 0.999, 1.0, 1.002, 0.998), strict=True)
    )
    found = summarize("cublas", Blocks(kept, 0.002, True), ["", "wrong_result: one element", ""])
    assert found.ratios[0] == pytest.approx(1.25)
    interval = found.intervals[0]
    assert interval is not None
    assert interval == pytest.approx((1.25, 1.25))
    assert [latency and round(latency) for latency in found.latencies_us] == [88, None, 110]
    assert found.vendor_us == pytest.approx(110.0)
    assert (found.ratios[1], found.intervals[1], found.errors[1]) == (None, None, "wrong_result: one element")
    assert [found.tie(i) for i in range(3)] == [False, False, True]
    assert (found.blocks, found.clock_drift) == (5, 0.002)
