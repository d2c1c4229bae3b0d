"""Measures a grid of schedules that someone chose by hand and adds them to a workload's table.

    python -m benchmarks.sweep --workload gemm:512,512,16384 --sketch split.tma-tma.workspace \
        --knob block_m=64,128 --knob block_n=64,128 --knob split_k=8,16 --most 200 --out tuning_logs/recorded/H200

Knobs that are not named keep their defaults. The rows' stratum is ``sweep``: they teach the model, and are no sample of
the space by which it could be judged.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
from pathlib import Path

import msgspec
import numpy as np

from autosched.log import End
from autosched.measure.local import LocalMeasurer
from autosched.session import vendor_line
from autosched.sketches.constraints import why_invalid
from autosched.sketches.op import Op
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule, ScheduleBatch
from autosched.sketches.target import Target
from benchmarks.record_tables import Table, workload


def grid(op: Op, target: Target, names: list[str], knobs: dict[str, list[int]], most: int, seed: int) -> list[Schedule]:
    """Every valid schedule of the sketches called ``names`` with the given knob values, or ``most`` of them."""
    found: dict[Schedule, None] = {}
    sketches = derive(op, target)
    for sketch in sketches:
        if sketch.name not in names:
            continue
        domains = {knob.name: knob for knob in sketch.knobs}
        chosen = {
            name: [v for v in values if v in domains[name].values] for name, values in knobs.items() if name in domains
        }
        for values in itertools.product(*chosen.values()):
            found.setdefault(Schedule.of(sketch, **dict(zip(chosen, values, strict=True))))
    everything = list(found)
    valid = why_invalid(op, target, ScheduleBatch.of(sketches, everything)).valid
    kept = [schedule for schedule, ok in zip(everything, valid, strict=True) if ok]
    order = np.random.default_rng(seed).permutation(len(kept))
    return [kept[i] for i in order[:most]]


def main() -> None:
    """Measures, appends, and prints the ten best."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--sketch", action="append", required=True, help="may be given several times")
    parser.add_argument("--knob", action="append", default=[], help="NAME=V1,V2; may be given several times")
    parser.add_argument("--most", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    name, op = workload(arguments.workload)
    knobs = {k: [int(v) for v in values.split(",")] for k, _, values in (x.partition("=") for x in arguments.knob)}
    plain, packed = arguments.out / f"{name}.jsonl", arguments.out / f"{name}.jsonl.gz"
    plain.write_bytes(gzip.decompress(packed.read_bytes()) if packed.exists() else b"")
    with LocalMeasurer() as measurer:
        schedules = grid(op, measurer.target, arguments.sketch, knobs, arguments.most, arguments.seed)
        table = Table(op, measurer, plain, arguments.seed)
        try:
            baseline = measurer.baseline(op)
            if baseline is not None:
                table.log.append_vendor(vendor_line(table.session, op, measurer.target.name, baseline))
            table.measure(schedules, "sweep", 0)
        finally:
            rows = sorted(
                ((m.latency_us, s) for s, m in table.rows if m.latency_us is not None), key=lambda row: row[0]
            )
            outcome = {"rows": len(table.rows), "best_us": rows[0][0] if rows else None}
            table.log.finish(End(session=table.session, status="tuned", outcome=outcome))
            table.log.close()
            with gzip.GzipFile(packed, "wb", 9, mtime=0) as file:
                file.write(plain.read_bytes())
            plain.unlink()
    vendor_us = None if baseline is None else baseline.latency_us
    print(json.dumps({"key": op.key(), "vendor_us": vendor_us, **msgspec.to_builtins(outcome)}))
    for latency, schedule in rows[:10]:
        print(f"  {latency:8.2f}  {schedule.to_json()}")


if __name__ == "__main__":
    main()
