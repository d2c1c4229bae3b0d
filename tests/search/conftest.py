"""Spaces to search, and a score that is a known function of the knobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from autosched.search import GeneratedSpace, Space, TableSpace
from autosched.sketches.builders import gemm
from autosched.sketches.knobs import KNOB_NAMES, KNOBS, Knob
from autosched.sketches.schedule import ScheduleBatch
from autosched.sketches.target import PRESETS


def knob_score(batch: ScheduleBatch) -> NDArray[np.float64]:
    """Worth of a schedule: best near one tile, with a ridge between stages and block_k, and by structure."""
    m, n, k = (np.log2(batch.column(x)) for x in ("block_m", "block_n", "block_k"))
    worth = -((m - 7.0) ** 2) - (n - 8.0) ** 2 - 0.5 * (k - 6.0) ** 2
    worth -= 0.3 * np.abs(batch.column("stages") * 2.0 ** (k - 6.0) - 4.0)
    worth -= 0.2 * np.abs(np.log2(batch.column("warps")) - 3.0) + 0.05 * np.abs(np.log2(batch.column("group_m")) - 3.0)
    worth += 0.5 * batch.fact("tma_a") + 0.5 * batch.fact("tma_b") + 0.2 * batch.fact("persistent")
    return np.asarray(worth + 0.1 * (batch.column("flatten") == 1) - 0.3 * (batch.column("subtile") > 1), np.float64)


def generated_space() -> GeneratedSpace:
    return GeneratedSpace(gemm(4096, 4096, 4096), PRESETS["H200"])


def plain_space() -> GeneratedSpace:
    """The generated space with knobs that seldom matter at their defaults."""
    space = generated_space()
    sketches = tuple(
        replace(s, knobs=tuple(Knob(k.name, (KNOBS[k.name].default,)) if KNOBS[k.name].seldom else k for k in s.knobs))
        for s in space.sketches
    )
    return GeneratedSpace(space.op, space.target, sketches)


def table_space(rows: int = 300) -> TableSpace:
    """The first ``rows`` distinct schedules of a sample of the generated space."""
    batch = generated_space().sample(np.random.default_rng(7), 2 * rows)
    return TableSpace(TableSpace(batch).members().take(np.arange(rows)))


SPACES: dict[str, Callable[[], GeneratedSpace | TableSpace]] = {"generated": generated_space, "table": table_space}


def family_bests(batch: ScheduleBatch, scores: NDArray[np.float64]) -> ScheduleBatch:
    """The best row of each family (rows that differ only in knobs that seldom matter), best first, without ties."""
    common = [0, *(1 + i for i, name in enumerate(KNOB_NAMES) if not KNOBS[name].seldom)]
    rows: dict[bytes, int] = {}
    for i in np.argsort(-scores, kind="stable"):
        rows.setdefault(batch.values[i][common].tobytes(), int(i))
    order = np.array(list(rows.values()))
    return batch.take(order[np.diff(scores[order], prepend=np.inf) < -1e-9])


def small_space() -> GeneratedSpace:
    """Two sketches with few values for some knobs and one for the others: 24 schedules."""
    few = {"block_m": (16, 32, 64), "block_n": (16, 32), "warps": (1,), "stages": (1, 2)}
    sketches = tuple(
        replace(s, knobs=tuple(replace(k, values=few.get(k.name, k.values[:1])) for k in s.knobs))
        for s in generated_space().sketches[:2]
    )
    return GeneratedSpace(gemm(4096, 4096, 4096), PRESETS["H200"], sketches)


SMALL_SPACES: dict[str, Callable[[], GeneratedSpace | TableSpace]] = {
    "generated": small_space,
    "table": lambda: table_space(rows=30),
    "one row": lambda: table_space(rows=1),
}


@pytest.fixture(params=list(SPACES))
def space(request: pytest.FixtureRequest) -> Space:
    """Each kind of space."""
    return SPACES[request.param]()
