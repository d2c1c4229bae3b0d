"""A synthetic data set whose latencies are a known function of the features, with noise and a level a workload."""

from collections.abc import Callable

import numpy as np
import pytest

from autosched.features import COLUMN, extract
from autosched.models import Dataset
from autosched.sketches.builders import gemm
from autosched.sketches.knobs import KNOB_NAMES
from autosched.sketches.op import Op
from autosched.sketches.rules import derive
from autosched.sketches.schedule import ScheduleBatch
from autosched.sketches.target import PRESETS

SHAPES = ((4096, 4096, 4096), (1024, 1024, 1024), (64, 4096, 14336), (2048, 4096, 1000), (512, 512, 16384))


def random_batch(op: Op, n: int, rng: np.random.Generator) -> ScheduleBatch:
    """``n`` schedules drawn from the knobs' domains, not checked for validity."""
    sketches = derive(op, PRESETS["H200"])
    values = np.full((n, 1 + len(KNOB_NAMES)), -1, np.int32)
    values[:, 0] = rng.integers(0, len(sketches), n)
    for i, sketch in enumerate(sketches):
        rows = np.flatnonzero(values[:, 0] == i)
        for knob in sketch.knobs:
            values[rows, 1 + KNOB_NAMES.index(knob.name)] = knob.sample(rng, len(rows))
    return ScheduleBatch(sketches, values)


def workload(shape: tuple[int, int, int], n: int, rng: np.random.Generator) -> Dataset:
    """One workload: softened maximum of three times, spills, loads without TMA slower, small interactions."""
    op = gemm(*shape)
    x = extract(op, PRESETS["H200"], random_batch(op, n, rng))

    def column(name: str) -> np.ndarray:
        return x[:, COLUMN[name]].astype(np.float64)

    compute = column("log2_compute_time") + 0.15 * (column("tma_a") == 0)
    slow = np.logaddexp2(compute, np.logaddexp2(column("log2_dram_time"), column("log2_latency_time") - 1.0))
    y = -np.log(2.0) * slow
    y -= 0.6 * np.maximum(column("register_fraction") - 0.9, 0.0)
    y -= 0.05 * np.abs(column("log2_block_k") - 6.0) + 0.05 * np.abs(column("stages") - 4.0)
    y += 0.2 * rng.normal() + 0.01 * rng.normal(size=n)
    return Dataset(
        x=x,
        y=y,
        spaces=[op.iteration_space()] * n,
        keys=[op.key()] * n,
        devices=["H200"] * n,
        strata=["uniform"] * n,
        noise=np.full(n, 0.01),
    )


@pytest.fixture(scope="session")
def data() -> Dataset:
    """Five workloads of 200 rows."""
    rng = np.random.default_rng(0)
    return Dataset.concat([workload(shape, 200, rng) for shape in SHAPES])


@pytest.fixture(scope="session")
def make_batch() -> Callable[[Op, int, np.random.Generator], ScheduleBatch]:
    """``random_batch`` for tests that need schedules."""
    return random_batch
