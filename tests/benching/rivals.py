"""A measurer that pretends rivals, and rows made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autosched.benching.row import BenchRow, RivalRow
from autosched.errors import WorkerError
from autosched.features import roofline_us
from autosched.measure.base import Competition, Rival
from autosched.measure.synthetic import VENDOR_FACTOR, SyntheticMeasurer, latency_us
from autosched.sketches.op import Op
from autosched.sketches.schedule import Schedule
from autosched.sketches.target import PRESETS

H200 = PRESETS["H200"]


class Pretender(SyntheticMeasurer):
    """A synthetic measurer with rivals: the vendor by its factor, Inductor twice as slow, another that fails.

    Args:
        broken: Name of an op whose competition breaks off.
    """

    entered = 0
    left = 0

    def __init__(self, *, broken: str = "", **options: Any) -> None:
        super().__init__(H200, **options)
        self.broken = broken
        self.asked: list[tuple[str, ...]] = []

    def __enter__(self) -> Pretender:
        type(self).entered += 1
        return self

    def __exit__(self, *error: object) -> None:
        type(self).left += 1

    def compete(self, op: Op, schedule: Schedule, rivals: Sequence[str]) -> Competition:
        """Figures by formula."""
        self.asked.append(tuple(rivals))
        if self.broken and self.broken in op.key():
            raise WorkerError("the worker died", "try again")
        own = latency_us(op, H200, schedule)
        vendor = VENDOR_FACTOR * roofline_us(op, H200)
        known = {
            "cublas": Rival(name="cublas", latency_us=vendor, ratio=vendor / own, interval=(0.5, 2.0)),
            "inductor": Rival(name="inductor", latency_us=2 * own, ratio=2.0, interval=(1.9, 2.1), tuning_seconds=1e9),
            "triton.autotune": Rival(name="triton.autotune", error="out of memory"),
        }
        return Competition(latency_us=own, rivals=tuple(known[name] for name in rivals), blocks=5, clock_drift=0.001)


def row(ratio: float | None = 1.0, **fields: Any) -> BenchRow:
    """A measured row; with no ratio a failed one."""
    given: dict[str, Any] = {
        "op": "gemm", "shape": (512, 512, 512), "group": "medium", "dtype": "bf16", "layout": "nn", "run": "r1",
    } | fields  # fmt: skip
    if ratio is None:
        return BenchRow(**{"key": "k", "status": "error", "error": "the builder refused"} | given)
    interval = (ratio - 0.01, ratio + 0.01)
    ahead = None if interval[0] <= 1 <= interval[1] else ratio > 1
    rivals = {"cublas": RivalRow(latency_us=10.0 * ratio, ratio=ratio, interval=interval, ahead=ahead)}
    measured: dict[str, Any] = {
        "key": "k", "status": "tuned", "latency_us": 10.0, "baseline": "cublas", "baseline_us": 10.0 * ratio,
        "ratio": ratio, "interval": interval, "trials": 64, "compiled": 60, "seconds": 8.0, "rivals": rivals,
        "device": "H200", "schedule": {"sketch": "tiled", "block_m": 128},
    }  # fmt: skip
    return BenchRow(**measured | given)
