"""The choice, worked out by hand: by interleaved ratio, else by median; what failed its proof is never chosen."""

from __future__ import annotations

import pytest

from autosched.choice import Outcome, choose
from autosched.measure.base import Comparison
from autosched.record import Measurement, Record, Status
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule
from tests.tuning import OP, TARGET

SKETCH = derive(OP, TARGET)[0]
A, B, C = (Schedule.of(SKETCH, block_m=m) for m in (32, 64, 128))


def record(schedule: Schedule, *samples: float) -> Record:
    status = Status.OK if samples else Status.LAUNCH_ERROR
    measurement = Measurement(status=status, samples_us=samples)
    return Record(key=OP.key(), op=OP.spec, device="H200", schedule=schedule.to_json(), measurement=measurement)


def comparison(*ratios: float | None, half: float = 0.001, vendor_us: float = 10.0) -> Comparison:
    return Comparison(
        vendor="cublas",
        vendor_us=vendor_us,
        latencies_us=tuple(None if r is None else vendor_us / r for r in ratios),
        ratios=ratios,
        intervals=tuple(None if r is None else (r - half, r + half) for r in ratios),
        errors=tuple("wrong_result" if r is None else "" for r in ratios),
        blocks=5,
    )


ROWS = [record(A, 9.0, 9.2, 9.1), record(B, 8.0, 8.2, 8.1), record(C)]


def test_without_a_comparison_the_lowest_median_is_taken() -> None:
    outcome = choose(ROWS, [A, B, C], [], None)
    assert (outcome.schedule, outcome.latency_us, outcome.ratio, outcome.vendor_us) == (B, 8.1, None, None)
    assert outcome.reason == "lowest median of 2 valid trials"


def test_one_lucky_sample_does_not_win() -> None:
    lucky = record(A, 1.0, 9.1, 9.2)
    assert choose([lucky, ROWS[1]], [A, B], [], None).schedule == B


def test_of_equal_medians_the_first_trial_is_taken() -> None:
    assert choose([record(A, 5.0), record(B, 5.0)], [A, B], [], None).schedule == A
    assert "1 more within the noise of 1.0%" in choose([record(A, 5.0), record(B, 5.0)], [A, B], [], None).reason


def test_near_ones_are_counted_by_the_noise_of_the_best() -> None:
    """1.25 * 0.1 / sqrt(3) / 8.1 = 0.89%: 8.2 lies within twice that, 9.1 does not."""
    near = record(C, 8.2, 8.2)
    reason = choose([*ROWS[:2], near], [A, B, C], [], None).reason
    assert reason == "lowest median of 3 valid trials; 1 more within the noise of 0.9%"


def test_nothing_valid_is_no_choice() -> None:
    assert choose([record(A)], [A], [], None) == Outcome(None, reason="no schedule was valid")
    assert choose([], [], [], None).schedule is None


def test_the_interleaved_ratio_outweighs_the_medians_of_the_search() -> None:
    outcome = choose(ROWS, [A, B, C], [B, A], comparison(1.05, 1.10))
    assert (outcome.schedule, outcome.ratio, outcome.vendor_us) == (A, 1.10, 10.0)
    assert outcome.latency_us == pytest.approx(10.0 / 1.10)
    assert outcome.interval == pytest.approx((1.099, 1.101))
    assert outcome.reason == "best of 2 finalists in 5 interleaved blocks with cublas"


def test_ties_are_told() -> None:
    outcome = choose(ROWS, [A, B, C], [B, A], comparison(1.0, 1.001, half=0.01))
    assert outcome.schedule == A
    assert "1 of them not told apart from it" in outcome.reason
    assert "not told apart from cublas" in outcome.reason
    assert choose(ROWS, [A, B, C], [B, A], comparison(1.0, 1.0)).schedule == B  # of equals the faster in the search


def test_a_finalist_that_failed_its_proof_is_not_chosen() -> None:
    outcome = choose(ROWS, [A, B, C], [B, A], comparison(None, 0.9))
    assert (outcome.schedule, outcome.ratio) == (A, 0.9)
    assert "1 finalists failed their proof" in outcome.reason
    everything_but_a = choose(ROWS, [A, B, C], [B], comparison(None))
    assert (everything_but_a.schedule, everything_but_a.latency_us) == (A, 9.1)
    assert "1 finalists failed their proof" in everything_but_a.reason
    none_left = choose(ROWS, [A, B, C], [B, A], comparison(None, None))
    assert none_left.schedule is None
    assert none_left.reason == "all 2 valid trials failed their proof as finalists"
