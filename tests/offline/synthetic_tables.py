"""Small recorded tables of synthetic measurements."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from autosched.log import TuningLog
from autosched.measure.synthetic import SyntheticMeasurer
from autosched.record import Measurement, Record, Status
from autosched.search import GeneratedSpace
from autosched.sketches.builders import gemm
from autosched.sketches.op import Op
from autosched.sketches.target import PRESETS

H200 = PRESETS["H200"]
SHAPES = ((256, 256, 256), (512, 256, 128), (128, 512, 256), (512, 512, 512))


def rows(op: Op, n: int = 60, *, stratum: str = "uniform", failures: float = 0.0) -> list[Record]:
    """Rows of up to ``n`` schedules of an op, as a table holds them."""
    batch = GeneratedSpace(op, H200).sample(np.random.default_rng(3), n)
    schedules = list(dict.fromkeys(batch.schedules()))
    measurements = SyntheticMeasurer(H200, failures={Status.LAUNCH_ERROR: failures}).measure(op, schedules)
    return [
        Record(key=op.key(), op=op.spec, device="H200", schedule=s.to_json(), measurement=m, stratum=stratum, trial=i)
        for i, (s, m) in enumerate(zip(schedules, measurements, strict=True))
    ]


def timed(op: Op, latencies: Iterable[float | None]) -> list[Record]:
    """Rows with these latencies in microseconds; ``None`` is a failure."""
    failure = Measurement(status=Status.LAUNCH_ERROR, error="no")
    given = [failure if t is None else Measurement(status=Status.OK, samples_us=(t,)) for t in latencies]
    made = rows(op, 2 * len(given))[: len(given)]
    assert len(made) == len(given)
    return [
        Record(key=r.key, op=r.op, device=r.device, schedule=r.schedule, measurement=m, stratum="uniform", trial=i)
        for i, (r, m) in enumerate(zip(made, given, strict=True))
    ]


def tables(shapes: Iterable[tuple[int, int, int]] = SHAPES, n: int = 60) -> list[Record]:
    """The rows of several gemms."""
    return [record for shape in shapes for record in rows(gemm(*shape), n)]


def write(path: Path, records: Iterable[Record]) -> Path:
    """A log of these rows."""
    with TuningLog(path) as log:
        for record in records:
            log.finish_trial(record)
    return path
