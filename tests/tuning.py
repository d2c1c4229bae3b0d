"""What the tests of the tuning loop share: measurers without a GPU that count, fail and pretend."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autosched.measure.base import Comparison
from autosched.measure.synthetic import SyntheticMeasurer
from autosched.record import Measurement
from autosched.sketches.builders import gemm
from autosched.sketches.knobs import KNOBS, Knob
from autosched.sketches.op import Op
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import PRESETS, Target

TARGET = PRESETS["H200"]
OP = gemm(512, 512, 512)


class Pretended(SyntheticMeasurer):
    """A synthetic measurer that says another source, and keeps what it was asked.

    Args:
        source: What it says that it is.
        seconds: That each schedule takes.
        wrong: Finalists, from the first, that fail their proof.
        arguments: Of ``SyntheticMeasurer``.
    """

    def __init__(self, *, source: str = "synthetic", seconds: float = 0.0, wrong: int = 0, **arguments: Any) -> None:
        super().__init__(TARGET, **arguments)
        self.source = source
        self.seconds = seconds
        self.wrong = wrong
        self.asked: list[Schedule] = []
        self.compared: list[Schedule] = []

    def measure(self, op: Op, schedules: Sequence[Schedule]) -> list[Measurement]:
        self.asked += schedules
        time.sleep(self.seconds * len(schedules))
        return super().measure(op, schedules)

    def compare(self, op: Op, schedules: Sequence[Schedule]) -> Comparison:
        self.compared += schedules
        found = SyntheticMeasurer(TARGET, noise=0.01).compare(op, schedules)
        good = [i >= self.wrong for i in range(len(schedules))]
        return Comparison(
            vendor=found.vendor,
            vendor_us=found.vendor_us,
            latencies_us=tuple(t if g else None for g, t in zip(good, found.latencies_us, strict=True)),
            ratios=tuple(r if g else None for g, r in zip(good, found.ratios, strict=True)),
            intervals=tuple(i if g else None for g, i in zip(good, found.intervals, strict=True)),
            errors=tuple("" if g else "wrong_result: element 7" for g in good),
            blocks=5,
        )


def plain_sketches(op: Op, target: Target) -> tuple[Sketch, ...]:
    """The op's sketches with knobs that seldom matter at their defaults, so that all schedules can be listed."""
    return tuple(
        replace(s, knobs=tuple(Knob(k.name, (KNOBS[k.name].default,)) if KNOBS[k.name].seldom else k for k in s.knobs))
        for s in derive(op, target)
    )
