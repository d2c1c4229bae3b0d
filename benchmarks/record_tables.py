"""Records a table: many schedules of one workload, measured on this machine's GPU, for replay and for learning.

    python -m benchmarks.record_tables --workload gemm:4096,4096,4096:bf16:nn --out tuning_logs/recorded/H200

A workload is OP:SHAPE[:DTYPE[:LAYOUT[:EPILOGUE[:SCALES[:GROUPS]]]]], for example
``gemm:1024,4096,4096:bf16:nt:bias,residual`` or, depthwise, ``conv2d:32,144,56,56,144,3,3,1,1:::::144``.
With ``--append`` a table that is there keeps its rows, and the new ones follow in a session of their own: so the tables
learn of structures that came later.

Strata, named in every row:

- ``uniform``: knobs drawn uniformly from every sketch, valid or not, so that a model and the constraints are judged on
  what they would meet unguided;
- ``model``: rounds of guided search that learn from the rows before them, so that the good end is covered;
- ``retimed``: rows within 10% of the best, measured again in three interleaved passes; replay pools all of a
  schedule's samples.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from autosched.log import End, TuningLog, new_session_id
from autosched.measure.local import LocalMeasurer
from autosched.record import Measurement, Record
from autosched.recorded import shipped_model
from autosched.session import header_line, vendor_line
from autosched.sketches.builders import BUILDERS, build_named
from autosched.sketches.op import Op
from autosched.sketches.rules import default_schedule, derive
from autosched.sketches.schedule import Schedule
from autosched.sketches.target import Target
from autosched.tuner import Tuner

PASSES = 3
NEAR_BEST = 1.10


def uniform(op: Op, target: Target, n: int, rng: np.random.Generator) -> list[Schedule]:
    """``n`` distinct schedules, every sketch and knob value equally likely, valid or not, but for boxes beyond a tile.

    These have no source.
    """
    sketches = derive(op, target)
    found: dict[Schedule, None] = {}
    while len(found) < n:
        sketch = sketches[int(rng.integers(len(sketches)))]
        schedule = Schedule.of(sketch, **{k.name: int(k.sample(rng, 1)[0]) for k in sketch.knobs})
        if schedule.knobs.get("box_h", 1) * schedule.knobs.get("box_w", 1) <= schedule.knobs["block_n"]:
            found.setdefault(schedule)
    return list(found)


class Table:
    """One workload's rows, written as they come."""

    def __init__(self, op: Op, measurer: LocalMeasurer, path: Path, seed: int) -> None:
        self.op, self.measurer, self.seed = op, measurer, seed
        self.session = new_session_id()
        self.log = TuningLog(path)
        self.rows: list[tuple[Schedule, Measurement]] = []
        self.trials = 0
        protocol = msgspec.to_builtins(measurer.protocol)
        self.log.append_header(header_line(self.session, op, measurer.target, protocol, seed))

    def measure(
        self, schedules: list[Schedule], stratum: str, round_: int, predicted: list[float] | None = None
    ) -> list[Measurement]:
        """Measures, writing each row as it comes."""
        first = self.trials
        self.trials += len(schedules)

        def write(i: int, measurement: Measurement) -> None:
            self.log.finish_trial(
                Record(
                    key=self.op.key(),
                    op=self.op.spec,
                    device=self.measurer.target.name,
                    schedule=schedules[i].to_json(),
                    measurement=measurement,
                    origin=stratum,
                    stratum=stratum,
                    round=round_,
                    trial=first + i,
                    predicted=None if predicted is None else predicted[i],
                    session=self.session,
                )
            )

        measurements = self.measurer.measure(self.op, schedules, on_result=write)
        self.rows += zip(schedules, measurements, strict=True)
        return measurements

    def best_us(self) -> float:
        """Lowest median so far."""
        return min(m.latency_us for _, m in self.rows if m.latency_us is not None)

    def near_best(self) -> list[Schedule]:
        """Distinct schedules within ``NEAR_BEST`` of the best."""
        limit = NEAR_BEST * self.best_us()
        return list(dict.fromkeys(s for s, m in self.rows if m.latency_us is not None and m.latency_us <= limit))


def record(op: Op, measurer: LocalMeasurer, path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Makes one table and returns what it holds."""
    start = time.perf_counter()
    table = Table(op, measurer, path, arguments.seed)
    baseline = measurer.baseline(op)
    if baseline is not None:
        table.log.append_vendor(vendor_line(table.session, op, measurer.target.name, baseline))
    target = measurer.target
    tuner = Tuner(op, target, model=shipped_model(), seed=arguments.seed)
    rng = np.random.default_rng([arguments.seed, 1])
    drawn = uniform(op, target, arguments.uniform, rng)
    default = default_schedule(op, target, derive(op, target))
    first = [default, *(s for s in drawn if s != default)]
    tuner.tell(first, table.measure(first, "uniform", 0))
    for round_ in range(1, arguments.rounds + 1):
        proposals = tuner.ask(arguments.per_round)
        schedules = [p.schedule for p in proposals]
        predicted = [p.predicted or 0.0 for p in proposals]
        tuner.tell(schedules, table.measure(schedules, "model", round_, predicted))
    tops = table.near_best()
    for turn in range(PASSES):
        shift = turn * len(tops) // PASSES
        table.measure(tops[shift:] + tops[:shift], "retimed", turn)
    if baseline is not None and (again := measurer.baseline(op)) is not None:
        table.log.append_vendor(vendor_line(table.session, op, measurer.target.name, again))
    statuses: dict[str, int] = {}
    for _, m in table.rows:
        statuses[str(m.status)] = statuses.get(str(m.status), 0) + 1
    summary = {
        "key": op.key(),
        "rows": len(table.rows),
        "distinct": len({s for s, _ in table.rows}),
        "retimed": len(tops),
        "statuses": statuses,
        "best_us": table.best_us(),
        "vendor_us": baseline.latency_us if baseline else None,
        "seconds": round(time.perf_counter() - start, 1),
    }
    table.log.finish(End(session=table.session, status="tuned", outcome=summary))
    table.log.close()
    return summary


def workload(text: str) -> tuple[str, Op]:
    """File name and op of a workload as the command line writes it."""
    kind, shape, *rest = text.split(":")
    usual = ("bf16", BUILDERS[kind].layout if kind in BUILDERS else "nn", "", "", "")
    dtype, layout, epilogue, scales, groups = (
        given or default for given, default in zip_longest(rest, usual, fillvalue="")
    )
    extents = tuple(int(x) for x in shape.split(","))
    steps = [x for x in epilogue.split(",") if x]
    extra: dict[str, Any] = {"groups": int(groups)} if groups else {}
    op = build_named(kind, extents, dtype=dtype, layout=layout, epilogue=steps, scales=scales, **extra)
    words = [kind, "x".join(map(str, extents)), dtype, layout, *steps, *([scales] if scales else [])]
    return "-".join([*words, *([f"groups{groups}"] if groups else [])]), op


def main() -> None:
    """Records the shapes given, one compressed file each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", required=True, help="may be given several times")
    parser.add_argument("--uniform", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--per-round", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--append", action="store_true", help="keep the rows of a table that is there")
    parser.add_argument("--device", type=int, default=0, help="index of the GPU")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    workloads = [workload(text) for text in arguments.workload]
    with LocalMeasurer(device=arguments.device) as measurer:
        for name, op in workloads:
            plain, packed = arguments.out / f"{name}.jsonl", arguments.out / f"{name}.jsonl.gz"
            plain.unlink(missing_ok=True)
            if arguments.append and packed.exists():
                plain.write_bytes(gzip.decompress(packed.read_bytes()))
            try:
                print(json.dumps(record(op, measurer, plain, arguments)), flush=True)
            finally:
                with gzip.GzipFile(packed, "wb", 9, mtime=0) as file:
                    file.write(plain.read_bytes())
                plain.unlink()


if __name__ == "__main__":
    main()
