"""The synthetic measurer repeats itself, fails as ordered, and has an optimum inside the space."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from autosched.errors import InvalidInputError
from autosched.features import roofline_us
from autosched.measure.base import Measurer
from autosched.measure.synthetic import SyntheticMeasurer, latency_us
from autosched.record import Status
from autosched.search.space import GeneratedSpace
from autosched.sketches.builders import gemm
from autosched.sketches.rules import default_schedule, derive
from autosched.sketches.schedule import Schedule
from autosched.sketches.target import PRESETS

TARGET = PRESETS["H200"]
OP = gemm(4096, 4096, 4096)
SCHEDULES = GeneratedSpace(OP, TARGET).sample(np.random.default_rng(0), 400).schedules()


def test_same_seed_same_answers() -> None:
    with SyntheticMeasurer(TARGET, 5, failures={Status.COMPILE_ERROR: 0.2}) as measurer:
        assert isinstance(measurer, Measurer)
        once = measurer.measure(OP, SCHEDULES)
    assert SyntheticMeasurer(TARGET, 5, failures={Status.COMPILE_ERROR: 0.2}).measure(OP, SCHEDULES[::-1]) == once[::-1]
    assert SyntheticMeasurer(TARGET, 6, failures={Status.COMPILE_ERROR: 0.2}).measure(OP, SCHEDULES) != once


def test_another_process_gives_the_same_answer(repository: Path) -> None:
    script = (
        "from tests.measure.test_synthetic import *\n"
        "print(SyntheticMeasurer(TARGET, 5).measure(OP, SCHEDULES[:1])[0].samples_us[0])"
    )
    answer = subprocess.run([sys.executable, "-c", script], cwd=repository, capture_output=True, text=True, check=True)
    assert float(answer.stdout) == SyntheticMeasurer(TARGET, 5).measure(OP, SCHEDULES[:1])[0].samples_us[0]


def test_failures_come_at_their_rates() -> None:
    rates = {Status.WRONG_RESULT: 0.25, Status.WORKER_CRASH: 0.5}
    statuses = Counter(m.status for m in SyntheticMeasurer(TARGET, 1, failures=rates).measure(OP, SCHEDULES))
    assert statuses[Status.WORKER_CRASH] / 400 == pytest.approx(0.5, abs=0.08)
    assert statuses[Status.WRONG_RESULT] / 400 == pytest.approx(0.25, abs=0.07)
    assert set(statuses) == {*rates, Status.OK}


def test_an_invalid_schedule_says_why() -> None:
    sketch = default_schedule(OP, TARGET, derive(OP, TARGET)).sketch
    bad = Schedule.of(sketch, block_m=256, block_n=256, warps=1)
    (measurement,) = SyntheticMeasurer(TARGET).measure(OP, [bad])
    assert measurement.status is Status.INVALID
    assert "registers" in measurement.error


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (16, 4096, 4096), (128, 128, 65536), (1000, 1000, 1000)])
def test_latency_never_beats_the_roofline_and_tells_schedules_apart(shape: tuple[int, int, int]) -> None:
    op = gemm(*shape)
    schedules = GeneratedSpace(op, TARGET).sample(np.random.default_rng(0), 200).schedules()
    latencies = np.array([latency_us(op, TARGET, s) for s in schedules])
    assert latencies.min() > roofline_us(op, TARGET)
    assert len(np.unique(latencies)) > 100
    assert latencies.max() > 1.3 * latencies.min()


def test_noise_is_of_the_stated_size() -> None:
    quiet, loud = (
        SyntheticMeasurer(TARGET, noise=noise, samples=400).measure(OP, SCHEDULES[:1])[0].samples_us
        for noise in (0.0, 0.05)
    )
    assert set(quiet) == {latency_us(OP, TARGET, SCHEDULES[0])}
    assert np.std(np.log(loud)) == pytest.approx(0.05, rel=0.2)


def test_compare_has_an_interval_around_each_ratio() -> None:
    measurer = SyntheticMeasurer(TARGET)
    comparison = measurer.compare(OP, SCHEDULES[:2])
    for ratio, interval, schedule in zip(comparison.ratios, comparison.intervals, SCHEDULES, strict=False):
        assert ratio is not None
        assert interval is not None
        assert ratio == pytest.approx(measurer.baseline(OP).latency_us / latency_us(OP, TARGET, schedule))
        assert interval[0] < ratio < interval[1]


@pytest.mark.parametrize(
    "failures", [{Status.OK: 0.1}, {Status.INVALID: 1.5}, {Status.INVALID: 0.6, Status.LAUNCH_ERROR: 0.6}]
)
def test_shares_that_are_none(failures: dict[Status, float]) -> None:
    with pytest.raises(InvalidInputError, match="failures"):
        SyntheticMeasurer(TARGET, failures=failures)
