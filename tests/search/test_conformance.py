"""What every strategy has to keep, in every space."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autosched.errors import InvalidInputError
from autosched.search import STRATEGIES, GeneratedSpace, Space, Strategy
from autosched.sketches.builders import gemm
from autosched.sketches.constraints import why_invalid
from autosched.sketches.schedule import ScheduleBatch
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import PRESETS
from tests.search.conftest import SPACES, generated_space, knob_score, table_space


@pytest.fixture(params=list(STRATEGIES))
def strategy(request: pytest.FixtureRequest, space: Space) -> Strategy:
    return STRATEGIES[request.param](space)


def rounds(strategy: Strategy, seed: int, count: int = 3, n: int = 8) -> list[ScheduleBatch]:
    """Rounds as the tuning loop runs them, every third measurement a failure."""
    seen: set[bytes] = set()
    proposals = []
    for r in range(count):
        batch = strategy.propose(n, knob_score, np.random.default_rng([seed, r]), seen)
        seen.update(batch.keys())
        latencies = np.exp(-0.1 * knob_score(batch))
        latencies[::3] = np.nan
        strategy.observe(batch, latencies)
        proposals.append(batch)
    return proposals


def fingerprint(name: str, kind: str, seed: int) -> str:
    batches = rounds(STRATEGIES[name](SPACES[kind]()), seed)
    return hashlib.sha256(b"".join(batch.values.tobytes() for batch in batches)).hexdigest()


def test_proposals_are_distinct_members_and_never_excluded(space: Space, strategy: Strategy) -> None:
    keys = ScheduleBatch.concat(rounds(strategy, seed=0)).keys()

    assert len(keys) == 24
    assert len(set(keys)) == 24
    again = strategy.propose(8, knob_score, np.random.default_rng(1), set(keys))
    assert not set(again.keys()) & set(keys)
    assert space.contains(again).all()
    assert why_invalid(gemm(4096, 4096, 4096), PRESETS["H200"], again).valid.all()


def test_the_same_seed_gives_the_same_proposals_and_another_seed_others(space: Space) -> None:
    for make in STRATEGIES.values():
        first, again, other = (rounds(make(space), seed) for seed in (0, 0, 1))

        assert [b.keys() for b in first] == [b.keys() for b in again]
        assert [b.keys() for b in first] != [b.keys() for b in other] or space.members() is not None


def test_another_process_proposes_the_same(repository: Path) -> None:
    code = (
        "import json\n"
        "from tests.search.test_conformance import SPACES, STRATEGIES, fingerprint\n"
        "print(json.dumps({f'{s} {k}': fingerprint(s, k, 3) for s in STRATEGIES for k in SPACES}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(repository), "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )

    expected = {f"{s} {k}": fingerprint(s, k, 3) for s in STRATEGIES for k in SPACES}
    assert json.loads(done.stdout) == expected
    assert len(set(expected.values())) == len(expected)


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_a_table_is_exhausted(name: str) -> None:
    space = table_space(rows=30)
    strategy = STRATEGIES[name](space)
    seen: set[bytes] = set()
    sizes = []
    for r in range(5):
        batch = strategy.propose(8, knob_score, np.random.default_rng([0, r]), seen)
        strategy.observe(batch, np.full(len(batch), np.nan))
        seen.update(batch.keys())
        sizes.append(len(batch))

    assert sizes == [8, 8, 8, 6, 0]
    assert seen == set(space.members().keys())


def pinned(sketch: Sketch, **values: tuple[int, ...]) -> Sketch:
    """The sketch with smaller domains for some knobs, and only the first value of the others."""
    knobs = tuple(replace(k, values=values.get(k.name, k.values[:1])) for k in sketch.knobs)
    return replace(sketch, knobs=knobs)


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_a_small_generated_space_is_exhausted(name: str) -> None:
    whole = generated_space()
    sketch = pinned(whole.sketches[0], block_m=(16, 32, 64), block_n=(16, 32), warps=(1,), stages=(1, 2))
    space = GeneratedSpace(gemm(4096, 4096, 4096), PRESETS["H200"], (sketch,))

    batch = STRATEGIES[name](space).propose(20, knob_score, np.random.default_rng(0), set())

    assert len(batch) == 12
    assert len(set(batch.keys())) == 12


def test_nothing_and_less_than_nothing(strategy: Strategy) -> None:
    assert len(strategy.propose(0, knob_score, np.random.default_rng(0), set())) == 0
    with pytest.raises(InvalidInputError, match="-1"):
        strategy.propose(-1, knob_score, np.random.default_rng(0), set())


def test_scores_that_are_no_numbers_do_not_stop_a_strategy(strategy: Strategy) -> None:
    def blind(batch: ScheduleBatch) -> np.ndarray:
        return np.full(len(batch), np.nan)

    batch = strategy.propose(8, blind, np.random.default_rng(0), set())

    assert len(set(batch.keys())) == 8
