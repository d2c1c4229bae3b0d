r"""Tunes several workloads on this machine's GPU and prints what each run found and cost.

python -m benchmarks.tune_workloads --shape 4096,4096,4096 --shape 512,512,16384 --budget 64 \
    --logs tuning_logs/runs/H200
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from autosched.measure.local import LocalMeasurer
from autosched.models import load
from autosched.recorded import held_out_on
from autosched.sketches.builders import build_named
from autosched.tune import tune_op


def main() -> None:
    """One measurer for all runs; one JSON line a workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", required=True, help="M,N,K; may be given several times")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--layout", default="nn")
    parser.add_argument("--budget", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--strategy", default="annealing")
    parser.add_argument("--model", type=Path, help="a trained model; the shipped one if not given")
    parser.add_argument(
        "--held-out", action="store_true", help="train on the recorded tables of all other iteration spaces instead"
    )
    parser.add_argument("--logs", type=Path, required=True)
    arguments = parser.parse_args()
    model = load(arguments.model) if arguments.model else None
    with LocalMeasurer() as measurer:
        for text in arguments.shape:
            shape = tuple(int(x) for x in text.split(","))
            name = f"gemm-{'x'.join(map(str, shape))}-{arguments.dtype}-{arguments.layout}-{arguments.strategy}"
            op = build_named("gemm", shape, dtype=arguments.dtype, layout=arguments.layout)
            if arguments.held_out:
                model = held_out_on(measurer.target.name, op)
            result = tune_op(
                op,
                budget=arguments.budget,
                measurer=measurer,
                model=model,
                strategy=arguments.strategy,
                seed=arguments.seed,
                log=arguments.logs / f"{name}.jsonl",
            )
            print(json.dumps({"shape": shape, **result.to_dict()}), flush=True)


if __name__ == "__main__":
    main()
