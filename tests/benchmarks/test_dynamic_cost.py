"""What a dynamic axis costs, from two ratios to the vendor library."""

from __future__ import annotations

import math

import pytest

from benchmarks.dynamic_cost import cost


def test_the_ratio_of_ratios_and_its_interval() -> None:
    static = 1.1, (1.1 / 1.03, 1.1 * 1.03)
    dynamic = 1.0, (1.0 / 1.04, 1.0 * 1.04)
    ratio, half = cost(static, dynamic)
    assert ratio == pytest.approx(1.1)
    assert half == pytest.approx(1.1 * math.hypot(math.log(1.03), math.log(1.04)))
