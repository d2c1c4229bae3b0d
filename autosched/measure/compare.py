"""Ratios that hold: candidates and the vendor library in interleaved blocks, clock drift watched, with an interval.

Clock and power move by more than what is to be told apart (one vendor kernel read 1401, 1587 and 1587 us in one run),
so that only what ran within the same milliseconds is compared: each block gives one ratio, and the interval is over
blocks. Everything here is arithmetic; what runs on the device is passed in.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from autosched.measure.base import Comparison, Competition, Rival

CONFIDENCE = 0.95

# Two-sided 95% quantiles of Student's t for 1 to 30 degrees of freedom; above, the normal distribution's is within 4%.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_NORMAL95 = 1.960


class Block(msgspec.Struct, frozen=True):
    """One interleaved block: vendor, candidates, candidates in reverse, vendor.

    Attributes:
        vendor_us: The vendor library's samples of both halves, in microseconds.
        candidates_us: Each candidate's samples of both halves, in microseconds.
        clock_mhz: SM clock while it ran, ``None`` if unknown.
    """

    vendor_us: tuple[float, ...]
    candidates_us: tuple[tuple[float, ...], ...]
    clock_mhz: float | None = None


@dataclass(frozen=True)
class Blocks:
    """What :func:`collect` kept.

    Attributes:
        kept: The blocks that count.
        drift: Largest relative change of the clock into a kept block; ``None`` if the clock is unknown.
        steady: Whether every kept block was free of drift.
    """

    kept: tuple[Block, ...]
    drift: float | None
    steady: bool


def interleave(count: int) -> list[int]:
    """Order of one block, A-B-B-A: -1 is the vendor library, 0 to ``count - 1`` are the candidates."""
    forth = [-1, *range(count)]
    return forth + forth[::-1]


def collect(
    run: Callable[[], Block], *, blocks: int, most: int, drift: float, clock_mhz: float | None = None
) -> Blocks:
    """Run blocks until ``blocks`` of them are free of clock drift, at most ``most``.

    A block counts if the SM clock changed by less than ``drift`` since the block before it, whether that counted or
    not: a step from boost to steady clock costs one block, not all that follow. If too few are steady, the last ones
    are kept, and the drift says so.

    Args:
        run: Runs one block.
        blocks: Steady blocks wanted.
        most: Blocks after which to give up.
        drift: Largest relative change of the clock.
        clock_mhz: Clock under load before the first block.
    """
    history: list[tuple[Block, float | None]] = []
    steady: list[tuple[Block, float | None]] = []
    before = clock_mhz
    while len(steady) < blocks and len(history) < max(most, blocks):
        block = run()
        change = None
        if before and block.clock_mhz is not None:
            change = abs(block.clock_mhz - before) / before
        before = block.clock_mhz if block.clock_mhz is not None else before
        history.append((block, change))
        if change is None or change < drift:
            steady.append(history[-1])
    enough = len(steady) >= blocks
    kept = steady if enough else history[-blocks:]
    changes = [change for _, change in kept if change is not None]
    return Blocks(tuple(block for block, _ in kept), max(changes, default=None), enough)


def ratio_interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of the blocks' ratios and its 95% interval (Student's t over the logarithms).

    Args:
        ratios: One a block; at least two for an interval of finite width.

    Returns:
        Mean, lower end, upper end.
    """
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), 0.0, math.inf
    freedom = len(logs) - 1
    t = _T95[freedom - 1] if freedom <= len(_T95) else _NORMAL95
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def summarize(vendor: str, blocks: Blocks, errors: Sequence[str] = ()) -> Comparison:
    """The comparison that the blocks amount to.

    Args:
        vendor: Name of the vendor library.
        blocks: At least one.
        errors: Why each candidate could not run, empty where it did; the blocks hold only those that did. None given
            means that all ran.
    """
    kept = blocks.kept
    ran = len(kept[0].candidates_us)
    errors = tuple(errors) or ("",) * ran
    latencies: list[float | None] = []
    ratios: list[float | None] = []
    intervals: list[tuple[float, float] | None] = []
    at = 0
    for error in errors:
        if error:
            latencies.append(None)
            ratios.append(None)
            intervals.append(None)
            continue
        own = [statistics.median(block.candidates_us[at]) for block in kept]
        base = [statistics.median(block.vendor_us) for block in kept]
        mean, low, high = ratio_interval([b / o for b, o in zip(base, own, strict=True)])
        latencies.append(statistics.median(own))
        ratios.append(mean)
        intervals.append((low, high))
        at += 1
    return Comparison(
        vendor=vendor,
        vendor_us=statistics.median(statistics.median(block.vendor_us) for block in kept),
        latencies_us=tuple(latencies),
        ratios=tuple(ratios),
        intervals=tuple(intervals),
        errors=tuple(errors),
        blocks=len(kept),
        clock_drift=blocks.drift,
    )


def standings(blocks: Blocks, rivals: Sequence[Rival]) -> Competition:
    """The competition that the blocks amount to.

    Args:
        blocks: At least one; the kernel of ours has the vendor library's place.
        rivals: In the order asked for, without figures; the blocks' candidates are those without an error.
    """
    own = [statistics.median(block.vendor_us) for block in blocks.kept]
    ran = iter(range(len(blocks.kept[0].candidates_us)))
    return Competition(
        latency_us=statistics.median(own),
        rivals=tuple(rival if rival.error else _standing(rival, blocks, own, next(ran)) for rival in rivals),
        blocks=len(blocks.kept),
        clock_drift=blocks.drift,
    )


def _standing(rival: Rival, blocks: Blocks, own: Sequence[float], at: int) -> Rival:
    """A rival with its figures; it is candidate ``at`` of each block."""
    times = [statistics.median(block.candidates_us[at]) for block in blocks.kept]
    mean, low, high = ratio_interval([time / us for time, us in zip(times, own, strict=True)])
    return msgspec.structs.replace(rival, latency_us=statistics.median(times), ratio=mean, interval=(low, high))
