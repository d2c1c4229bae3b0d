"""The choice among what was measured: which schedule a run hands out, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median, stdev

from autosched.measure.base import Comparison
from autosched.record import Record
from autosched.sketches.schedule import Schedule


@dataclass(frozen=True)
class Outcome:
    """The choice.

    Attributes:
        schedule: ``None`` if nothing valid was found.
        latency_us: Its latency in microseconds.
        vendor_us: The vendor library's latency in the same comparison.
        ratio: Vendor time over its time, from interleaved blocks.
        interval: 95% interval of ``ratio``.
        reason: For a person.
    """

    schedule: Schedule | None
    latency_us: float | None = None
    vendor_us: float | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    reason: str = "no schedule was valid"


def choose(
    records: Sequence[Record],
    schedules: Sequence[Schedule],
    finalists: Sequence[Schedule],
    comparison: Comparison | None,
) -> Outcome:
    """The finalist with the best interleaved ratio, or the fastest trial where there was no comparison.

    Args:
        records: All trials.
        schedules: Their schedules.
        finalists: Who was compared, fastest in the search first; of equals the first is taken.
        comparison: Their figures; ``None`` if there was none.
    """
    if comparison is not None:
        entered = [i for i, ratio in enumerate(comparison.ratios) if ratio is not None]
        if entered:
            return _by_comparison(finalists, comparison, entered)
    failed = () if comparison is None else comparison.errors
    wrong = {s for s, error in zip(finalists, failed, strict=False) if error}
    ok = [i for i, record in enumerate(records) if record.measurement.ok and schedules[i] not in wrong]
    if not ok and wrong:
        return Outcome(None, reason=f"all {len(wrong)} valid trials failed their proof as finalists")
    if not ok:
        return Outcome(None)
    best = min(ok, key=lambda i: (records[i].measurement.latency_us, i))
    latency = records[best].measurement.latency_us
    assert latency is not None
    near = [
        i
        for i in ok
        if i != best and (records[i].measurement.latency_us or 0) <= latency * (1 + 2 * _noise(records[best]))
    ]
    reason = f"lowest median of {len(ok)} valid trials"
    if near:
        reason += f"; {len(near)} more within the noise of {_noise(records[best]):.1%}"
    if wrong:
        reason += f"; {len(wrong)} finalists failed their proof"
    return Outcome(schedules[best], latency, reason=reason)


def _by_comparison(finalists: Sequence[Schedule], comparison: Comparison, entered: list[int]) -> Outcome:
    def ratio(i: int) -> float:
        value = comparison.ratios[i]
        assert value is not None
        return value

    best = max(entered, key=lambda i: (ratio(i), -i))
    interval = comparison.intervals[best]
    rivals = [i for i in entered if i != best and _overlap(comparison.intervals[i], interval)]
    reason = f"best of {len(entered)} finalists in {comparison.blocks} interleaved blocks with {comparison.vendor}"
    if rivals:
        reason += f"; {len(rivals)} of them not told apart from it"
    if comparison.tie(best):
        reason += f"; not told apart from {comparison.vendor}"
    failed = [error for error in comparison.errors if error]
    if failed:
        reason += f"; {len(failed)} finalists failed their proof"
    return Outcome(finalists[best], comparison.latencies_us[best], comparison.vendor_us, ratio(best), interval, reason)


def _overlap(a: tuple[float, float] | None, b: tuple[float, float] | None) -> bool:
    return a is not None and b is not None and a[0] <= b[1] and b[0] <= a[1]


def _noise(record: Record) -> float:
    """Relative standard error of a trial's median, 1.25 times that of a mean; 1% where one sample is all there is."""
    samples = record.measurement.samples_us
    if len(samples) < 2:
        return 0.01
    return 1.25 * stdev(samples) / sqrt(len(samples)) / median(samples)
