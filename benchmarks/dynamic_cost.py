"""What a dynamic axis costs: the same GEMM tuned with M known and with M left to run time, each beside cuBLAS.

    python -m benchmarks.dynamic_cost --shape 128,4096,4096 --shape 2048,4096,4096

Both runs are interleaved with the vendor library, so that the ratio of their ratios compares them; its interval adds
the variances of both.
"""

from __future__ import annotations

import argparse
import json
import math

from autosched.measure.local import LocalMeasurer
from autosched.sketches.builders import gemm
from autosched.tune import tune_op


def cost(static: tuple[float, tuple[float, float]], dynamic: tuple[float, tuple[float, float]]) -> tuple[float, float]:
    """Dynamic time over static time, and half the width of its 95% interval, from two ratios with intervals."""
    ratio = static[0] / dynamic[0]
    halves = [math.log(high / low) / 2 for _, (low, high) in (static, dynamic)]
    return ratio, ratio * math.hypot(*halves)


def main() -> None:
    """One JSON line a shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", required=True, help="M,N,K; may be given several times")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--layout", default="nt")
    parser.add_argument("--budget", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with LocalMeasurer() as measurer:
        for text in arguments.shape:
            m, n, k = (int(x) for x in text.split(","))
            found = {}
            for name, axes in (("static", ()), ("dynamic", ("M",))):
                op = gemm(m, n, k, dtype=arguments.dtype, layout=arguments.layout, dynamic=axes)
                result = tune_op(op, budget=arguments.budget, measurer=measurer, seed=arguments.seed, log=False)
                found[name] = result
            line: dict[str, object] = {"shape": [m, n, k]}
            for name, result in found.items():
                line[name] = {"latency_us": result.latency_us, "ratio": result.ratio, "interval": result.interval}
            pair = [found[name] for name in ("static", "dynamic")]
            if all(r.ratio is not None and r.interval is not None for r in pair):
                static, dynamic = ((float(r.ratio or 0), r.interval or (0.0, 0.0)) for r in pair)
                line["dynamic_over_static"], line["plus_minus"] = cost(static, dynamic)
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
