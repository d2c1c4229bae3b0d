"""The oracle surrogate: a measurer that answers with what a fitted cost model predicts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autosched.errors import NotRecordedError
from autosched.features import Extractor, roofline_us
from autosched.measure.base import Baseline, Comparison, Processless
from autosched.models.base import CostModel
from autosched.record import Measurement, Status
from autosched.sketches.constraints import why_invalid
from autosched.sketches.op import Op
from autosched.sketches.schedule import Schedule, ScheduleBatch
from autosched.sketches.target import Target


class SurrogateMeasurer(Processless):
    """Answers for every schedule of the generated space, at once, without noise and the same in every process.

    A search is judged by it: fitted on all recorded data, the model stands for the device, and the best schedule of the
    whole space can be worked out. It says nothing about a device, and must never guide the search that it judges.

    Args:
        model: A fitted model; its mean is the answer.
        target: The device that it stands for.
    """

    source = "synthetic"

    def __init__(self, model: CostModel, target: Target) -> None:
        self._model = model
        self._target = target

    @property
    def target(self) -> Target:
        """The device that the model stands for."""
        return self._target

    def space(self, op: Op) -> ScheduleBatch | None:
        """Nothing: any schedule can be asked about."""
        return None

    def measure(self, op: Op, schedules: Sequence[Schedule]) -> list[Measurement]:
        """One measurement of one sample a schedule, in the same order; ``invalid`` where a constraint holds."""
        if not schedules:
            return []
        batch = ScheduleBatch.of(tuple(dict.fromkeys(s.sketch for s in schedules)), schedules)
        verdict = why_invalid(op, self._target, batch)
        scores = self._model.score(Extractor(op, self._target, batch.sketches)(batch))
        latencies = roofline_us(op, self._target) * np.exp(-scores)
        return [
            Measurement(status=Status.OK, samples_us=(float(latency),))
            if valid
            else Measurement(status=Status.INVALID, error=verdict.reasons[code])
            for valid, code, latency in zip(verdict.valid, verdict.codes, latencies, strict=True)
        ]

    def baseline(self, op: Op) -> Baseline | None:
        """Nothing: the model knows no vendor library."""
        return None

    def compare(self, op: Op, schedules: Sequence[Schedule]) -> Comparison:
        """Always refused.

        Raises:
            NotRecordedError: The model knows no vendor library to compare with.
        """
        raise NotRecordedError("a surrogate has no vendor library to compare with", "compare on the device")
