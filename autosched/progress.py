"""How far a run is: what its observers are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autosched.record import Record


@dataclass(frozen=True)
class Progress:
    """How far a run is: what a progress display needs.

    Attributes:
        phase: ``search``, ``measure``, ``shoot-out`` or ``done``.
        trial: Trials so far.
        trials: Trials of the budget.
        seconds: Since the start.
        budget_seconds: Seconds of the budget.
        best_us: Best latency so far.
        best_tflops: Its rate.
        baseline_us: The vendor library's latency.
        failures: Trials by status, without ``ok``.
        last: The trial that just ended.
    """

    phase: str
    trial: int
    trials: int | None
    seconds: float
    budget_seconds: float | None
    best_us: float | None
    best_tflops: float | None
    baseline_us: float | None
    failures: dict[str, int] = field(default_factory=dict)
    last: Record | None = None


Observer = Callable[[Progress], None]
