"""Seconds to featurise and score candidates, and for one annealing round, alone and beside busy compile workers.

    python benchmarks/scoring_speed.py [--json] [--repeats 5]

Each repeat also runs a fixed numpy loop, so that figures of machines and of moments can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from autosched.features import COLUMN, Extractor
from autosched.models import Dataset, Guided, create
from autosched.search import STRATEGIES
from autosched.search.space import GeneratedSpace
from autosched.sketches.builders import gemm
from autosched.sketches.schedule import ScheduleBatch
from autosched.sketches.target import PRESETS

OP = gemm(4096, 4096, 4096)
TARGET = PRESETS["H200"]
CANDIDATES = 10_000
PROPOSALS = 16
BUSY_WORKERS = 2


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=int, default=5, help="runs that each median is of")
    parser.add_argument("--load", choices=sorted(LOADS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        LOADS[arguments.load]()
        return
    tasks = make_tasks()
    result: dict[str, Any] = {
        "format": 1,
        "cpus": os.cpu_count(),
        "candidates": CANDIDATES,
        "chains": 128,
        "steps": 500,
    }
    result["alone"] = measure(tasks, arguments.repeats)
    load = "compile" if find_spec("triton") and find_spec("autosched.measure.compiling") else "spin"
    with busy(load):
        result["busy"] = measure(tasks, arguments.repeats)
    result["busy_with"] = load
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{'seconds (median)':28}{'alone':>10}{f'beside {load}':>18}")
    for name in tasks:
        print(f"{name:28}{result['alone'][name]:10.4f}{result['busy'][name]:18.4f}")


def make_tasks() -> dict[str, Callable[[], object]]:
    """What is timed, by name; the reference comes first."""
    space = GeneratedSpace(OP, TARGET)
    rng = np.random.default_rng(0)
    candidates = space.sample(rng, CANDIDATES)
    extractor = Extractor(OP, TARGET, candidates.sketches)
    model = trained(extractor(candidates))
    x = extractor(candidates)

    def score(batch: ScheduleBatch) -> np.ndarray:
        return model.score(extractor(batch))

    def anneal() -> object:
        strategy = STRATEGIES["annealing"](space)
        return strategy.propose(PROPOSALS, score, np.random.default_rng([0, 1]), set())

    small = candidates.take(np.arange(128))
    return {
        "reference": reference,
        "features_10000": lambda: extractor(candidates),
        "score_10000": lambda: model.score(x),
        "features_and_score_10000": lambda: score(candidates),
        "features_and_score_128": lambda: score(small),
        "annealing_round": anneal,
    }


def trained(x: np.ndarray) -> Guided:
    """A model as a run has it: a base of full size, and a residual of 64 measurements."""
    rng = np.random.default_rng(0)
    n = len(x)
    y = -np.log(2.0) * x[:, COLUMN["log2_bound_time"]] + 0.1 * x[:, COLUMN["stages"]] * x[:, COLUMN["wgmma"]]
    y = y.astype(np.float64) + 0.02 * rng.normal(size=n)
    base = create("xgboost", 0)
    base.fit(
        Dataset(
            x=x,
            y=y,
            spaces=[f"part{i % 5}" for i in range(n)],
            keys=[f"part{i % 5}" for i in range(n)],
            devices=[TARGET.name] * n,
            strata=[""] * n,
            noise=np.full(n, 0.02),
        )
    )
    guided = Guided(base)
    guided.refit(x[:64], y[:64] + 0.1 * x[:64, COLUMN["log2_warps"]])
    return guided


def reference() -> float:
    """A fixed numpy loop of about the same kinds of work; its result only keeps it from being skipped."""
    values = np.random.default_rng(0).random((70, 128), dtype=np.float32)
    total = 0.0
    for _ in range(50):
        for row in values[:40]:
            np.log2(row + np.float32(1.0)).sum()
        total += float(np.sort(values, axis=1).sum()) + float(values[:, values[0] > 0.5].sum())
    return total


def measure(tasks: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each task; the tasks take turns, after one warm-up each."""
    samples: dict[str, list[float]] = {name: [] for name in tasks}
    for repeat in range(-1, repeats):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            if repeat >= 0:
                samples[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in samples.items()}


@contextmanager
def busy(load: str) -> Iterator[None]:
    """``BUSY_WORKERS`` processes that compile, or spin, for the time of the block."""
    count = 1 if load == "compile" else BUSY_WORKERS
    command = [sys.executable, str(Path(__file__).resolve()), "--load", load]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for child in children:
            if child.stdout is None or not child.stdout.readline():
                raise RuntimeError(f"the {load} load did not start: {' '.join(command)}")
        yield
        if any(child.poll() is not None for child in children):
            raise RuntimeError(f"the {load} load ended before the measurements did")
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()


def spin() -> None:
    """Keep one core busy until terminated."""
    print("busy", flush=True)
    values = np.random.default_rng(0).random(10_000)
    while True:
        values = np.sort(np.sin(values))


def compile_for_ever() -> None:
    """Keep a pool of compile workers busy until terminated."""
    from autosched.measure.compiling import CompilePool
    from autosched.sketches.codegen import generate

    def stop(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, stop)
    batch = GeneratedSpace(OP, TARGET).sample(np.random.default_rng(1), 5000)
    with (
        tempfile.TemporaryDirectory() as cache,
        CompilePool(workers=BUSY_WORKERS, capability=TARGET.capability, cache_dir=Path(cache), timeout=60.0) as pool,
    ):
        waiting = 0
        for i in range(len(batch)):
            pool.submit(i, generate(OP, batch[i]))
            waiting += 1
            if i == BUSY_WORKERS:
                print("busy", flush=True)
            while waiting > 2 * BUSY_WORKERS:
                waiting -= len(pool.ready(1.0))


LOADS = {"compile": compile_for_ever, "spin": spin}

if __name__ == "__main__":
    main()
