"""A row of a benchmark: a workload, what autosched made of it, and its rivals beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from autosched.benching.suite import Workload
from autosched.measure.base import Competition, Rival

#: Best latency so far in microseconds after so many seconds of tuning, a pair whenever it improved.
History = Sequence[tuple[float, float]]

#: Rivals that are the vendor's libraries; the first of them that a row has is its baseline.
VENDORS = ("cublas", "cudnn")


class EqualSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """What autosched had when it had tuned for as long as a rival took.

    Attributes:
        latency_us: The best that it had then, in microseconds; ``None`` if it had nothing valid yet.
        ratio: Rival's time over that; ``None`` likewise.
        ahead: Whether that was faster; ``None`` for a tie.
    """

    latency_us: float | None = None
    ratio: float | None = None
    ahead: bool | None = None


class RivalRow(msgspec.Struct, frozen=True, kw_only=True):
    """A rival on a workload, interleaved with autosched's choice.

    Attributes:
        latency_us: In microseconds; ``None`` where ``error`` says why.
        ratio: Rival's time over autosched's: above 1, autosched is faster.
        interval: 95% interval of ``ratio``.
        tuning_seconds: Seconds that the rival tuned for; ``None`` if it does not tune.
        error: Why it has no latency.
        ahead: Whether autosched is faster; ``None`` for a tie, when the interval holds 1, and where there is no ratio.
        equal_seconds: The same after as many seconds of tuning; ``None`` if the rival does not tune.
    """

    latency_us: float | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    tuning_seconds: float | None = None
    error: str = ""
    ahead: bool | None = None
    equal_seconds: EqualSeconds | None = None


class BenchRow(Workload, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """One workload, measured.

    Attributes:
        key: ``Op.key()``; the label of the workload where the op cannot be built.
        status: How tuning ended, ``tuned``, ``partial`` or ``all_failed``; ``error`` if it never began or broke off.
        error: What went wrong, empty if nothing did.
        latency_us: Of autosched's choice, interleaved with the rivals, in microseconds.
        baseline: Name of the vendor library.
        baseline_us: Its latency in microseconds.
        ratio: Vendor time over autosched's: above 1, autosched is faster.
        interval: 95% interval of ``ratio``.
        trials: Schedules that were measured.
        compiled: Kernels that were compiled.
        seconds: Seconds of tuning, the start of its processes and its own shoot-out included.
        schedule: The choice: the sketch's name and every knob.
        rivals: By name.
        blocks: Interleaved blocks that the figures are made of.
        clock_drift: Largest relative change of the SM clock between two neighbouring blocks; ``None`` if unknown.
        device: Name of the target.
        versions: Of what a measurement depends on.
        run: Id of the run that measured it.
        held_out: Whether the model that guided it had seen no table of the workload's iteration space.
    """

    key: str
    status: str
    run: str
    error: str = ""
    latency_us: float | None = None
    baseline: str = ""
    baseline_us: float | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    trials: int = 0
    compiled: int = 0
    seconds: float = 0.0
    schedule: dict[str, int | str] | None = None
    rivals: dict[str, RivalRow] = msgspec.field(default_factory=dict)
    blocks: int = 0
    clock_drift: float | None = None
    device: str = ""
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    held_out: bool = False

    @property
    def failed(self) -> bool:
        """Whether no valid schedule was found."""
        return self.status not in ("tuned", "partial")

    @property
    def tie(self) -> bool:
        """Whether the choice and the vendor library cannot be told apart: the interval holds 1."""
        return self.ratio is not None and _ahead(self.interval) is None

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, lists for tuples; ``group`` is called ``class``."""
        data: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return data


def rival_rows(competition: Competition, history: History, total: float, scale: float) -> dict[str, RivalRow]:
    """The rivals of a competition by name.

    Args:
        competition: Autosched's choice and its rivals, interleaved.
        history: Of the tuning run.
        total: Seconds that the run took.
        scale: The choice's latency in the competition over the one in the run: the clock is lower under steady load,
            so latencies of the run are brought to the competition's level before they are set beside a rival's.
    """
    return {
        rival.name: RivalRow(
            latency_us=rival.latency_us,
            ratio=rival.ratio,
            interval=rival.interval,
            tuning_seconds=rival.tuning_seconds,
            error=rival.error,
            ahead=_ahead(rival.interval),
            equal_seconds=_equal_seconds(rival, competition.latency_us, history, total, scale),
        )
        for rival in competition.rivals
    }


def best_at(history: History, seconds: float) -> float | None:
    """Best latency in microseconds after so many seconds; ``None`` before the first."""
    reached = [best for at, best in history if at <= seconds]
    return reached[-1] if reached else None


def _equal_seconds(
    rival: Rival, latency_us: float, history: History, total: float, scale: float
) -> EqualSeconds | None:
    """See ``rival_rows``. The ratio is the interleaved one, times how much slower the schedule of that moment was."""
    if not rival.tuning_seconds or rival.ratio is None:
        return None
    if rival.tuning_seconds >= total:
        return EqualSeconds(latency_us=latency_us, ratio=rival.ratio, ahead=_ahead(rival.interval))
    best = best_at(history, rival.tuning_seconds)
    if best is None:
        return EqualSeconds(ahead=False)
    then = best * scale
    factor = latency_us / then
    interval = None if rival.interval is None else (rival.interval[0] * factor, rival.interval[1] * factor)
    return EqualSeconds(latency_us=then, ratio=rival.ratio * factor, ahead=_ahead(interval))


def _ahead(interval: tuple[float, float] | None) -> bool | None:
    if interval is None or interval[0] <= 1.0 <= interval[1]:
        return None
    return interval[0] > 1.0
