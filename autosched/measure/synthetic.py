"""Synthetic: a measurer for tests, whose latencies follow from a formula and whose failures are ordered."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from math import ceil, hypot

import numpy as np

from autosched.errors import InvalidInputError
from autosched.features import roofline_us
from autosched.measure.base import Baseline, Comparison, Processless
from autosched.record import Measurement, Status
from autosched.sketches.constraints import explain_invalid
from autosched.sketches.op import Op
from autosched.sketches.schedule import Schedule, ScheduleBatch
from autosched.sketches.target import Target

#: Vendor time over roofline time, of every op.
VENDOR_FACTOR = 1.25


class SyntheticMeasurer(Processless):
    """Answers at once and the same in every process: a formula's latency, noise, and failures at stated rates.

    Args:
        target: The device that is pretended.
        seed: Of noise and failures.
        failures: Share of schedules that end in each status; which ones depends on the seed and the schedule alone.
        noise: Relative standard deviation of a sample.
        samples: Samples of a measurement.
        table: Schedules that can be asked about; ``None`` for any.

    Raises:
        InvalidInputError: Shares that are no shares, or a share of ``ok``.
    """

    source = "synthetic"

    def __init__(
        self,
        target: Target,
        seed: int = 0,
        *,
        failures: Mapping[Status, float] | None = None,
        noise: float = 0.01,
        samples: int = 12,
        table: ScheduleBatch | None = None,
    ) -> None:
        self._failures = dict(failures or {})
        shares = self._failures.values()
        if Status.OK in self._failures or any(not 0 <= s <= 1 for s in shares) or sum(shares) > 1:
            raise InvalidInputError(f"failures {self._failures}", "shares of 0 to 1, in all at most 1, none of ok")
        if not 0 <= noise < 0.2 or samples < 1:
            raise InvalidInputError(f"noise {noise} with {samples} samples", "noise of 0 to 0.2, at least one sample")
        self._target = target
        self._seed = seed
        self._noise = noise
        self._samples = samples
        self._space = table

    @property
    def target(self) -> Target:
        """The device that is pretended."""
        return self._target

    def space(self, op: Op) -> ScheduleBatch | None:
        """The table that was given, if any."""
        return self._space

    def measure(self, op: Op, schedules: Sequence[Schedule]) -> list[Measurement]:
        """One measurement a schedule, in the same order."""
        return [self._measure(op, schedule) for schedule in schedules]

    def baseline(self, op: Op) -> Baseline:
        """``VENDOR_FACTOR`` times the roofline time."""
        latency = VENDOR_FACTOR * roofline_us(op, self._target)
        return Baseline(name="synthetic", latency_us=latency, samples_us=(latency,))

    def compare(self, op: Op, schedules: Sequence[Schedule]) -> Comparison:
        """The formula's latencies beside the baseline, with intervals as wide as the noise."""
        vendor = self.baseline(op).latency_us
        measured = self.measure(op, schedules)
        ratios = tuple(
            vendor / latency_us(op, self._target, s) if m.ok else None for m, s in zip(measured, schedules, strict=True)
        )
        return Comparison(
            vendor="synthetic",
            vendor_us=vendor,
            latencies_us=tuple(None if r is None else vendor / r for r in ratios),
            ratios=ratios,
            intervals=tuple(None if r is None else (r * (1 - self._noise), r * (1 + self._noise)) for r in ratios),
            errors=tuple(m.error for m in measured),
            blocks=5,
            clock_drift=0.0,
        )

    def _measure(self, op: Op, schedule: Schedule) -> Measurement:
        identity = f"{self._seed}|{op.key()}|{sorted(schedule.to_json().items())}"
        digest = hashlib.sha256(identity.encode()).digest()
        rng = np.random.default_rng(list(digest))
        reason = explain_invalid(op, self._target, schedule)
        if reason is not None:
            return Measurement(status=Status.INVALID, error=reason)
        chance = rng.random()
        for status, share in self._failures.items():
            if chance < share:
                return Measurement(status=status, error=f"synthetic {status}", source_hash=digest.hex())
            chance -= share
        factors = np.exp(self._noise * rng.standard_normal(self._samples))
        return Measurement(
            status=Status.OK,
            samples_us=tuple(float(f) for f in latency_us(op, self._target, schedule) * factors),
            compile_seconds=0.5,
            measure_seconds=0.005,
            source_hash=digest.hex(),
        )


def latency_us(op: Op, target: Target, schedule: Schedule) -> float:
    """A kernel's latency in microseconds after a formula that has the shape of a real one, and no more.

    Compute time at the padded tiles, over an efficiency that grows with the tile, the depth of the pipeline and warps
    that fit the tile, in whole waves over the SMs; joined with the roofline time, which is never beaten; a split adds
    the pass over its workspace. Its minimum lies inside the space, not at a corner.
    """
    view, facts, knobs = schedule.sketch.view, schedule.sketch.facts(), schedule.knobs
    block_m, block_n, block_k = knobs["block_m"], knobs["block_n"], knobs["block_k"]
    parts = knobs.get("split_k", 1)
    steps = ceil(ceil(view.extent("k") / block_k) / parts)
    tiles = view.extent("batch") * ceil(view.extent("m") / block_m) * ceil(view.extent("n") / block_n) * parts
    waves = ceil(tiles / target.sms)
    operand = op.operand(op.products[0].left)
    rate = target.peak_flops(operand.dtype.name) / target.sms / 1e6
    reuse = block_m * block_n / (block_m + block_n)
    efficiency = reuse / (reuse + 12.0)
    efficiency *= 1.0 - 0.3 * 2.0 ** -knobs["stages"] - 0.01 * knobs["stages"]
    efficiency *= 1.0 - 0.05 * abs(float(np.log2(block_m * block_n / knobs["warps"] / 4096)))
    efficiency *= 1.0 + 0.03 * (facts["tma_a"] + facts["tma_b"]) + 0.02 * facts["persistent"]
    efficiency *= 1.0 - 0.01 * abs(float(np.log2(knobs.get("group_m", 8) / 8)))
    one_tile = 2.0 * len(op.products) * block_m * block_n * block_k * (steps + 1.5) / rate
    outputs = len(op.products) * view.extent("m") * view.extent("n") * view.extent("batch")
    workspace = 4e6 * parts * outputs / target.l2_bandwidth
    latency = waves * one_tile / max(efficiency, 0.02) + (2.0 + workspace if facts["split"] else 0.0)
    return hypot(latency, roofline_us(op, target)) + 1.5
