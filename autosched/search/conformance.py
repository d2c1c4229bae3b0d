"""What every strategy has to keep, as functions that a new one is tested with.

Each takes a strategy's class (or anything else that makes one for a space) and a space, and raises ``AssertionError``
where the contract of ``Strategy`` is broken. ``CHECKS`` suit any space, ``SMALL_CHECKS`` one of some hundred members:

    @pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
    def test_it_keeps_the_contract(check, space):
        check(MyStrategy, space)
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autosched.errors import InvalidInputError
from autosched.search.strategy import Score
from autosched.sketches.knobs import KNOB_NAMES

if TYPE_CHECKING:
    from autosched.search.space import Space
    from autosched.search.strategy import Strategy
    from autosched.sketches.schedule import ScheduleBatch

Factory = Callable[["Space"], "Strategy"]
Check = Callable[[Factory, "Space"], None]

#: Proposals of a round.
ASKED = 8
ROUNDS = 3


def smooth_score(batch: ScheduleBatch) -> NDArray[np.float64]:
    """A score with one summit: each knob has a best value inside its range, and sketches differ a little."""
    worth = -0.1 * batch.sketch_index.astype(np.float64)
    for k, name in enumerate(KNOB_NAMES):
        worth -= (np.log2(np.maximum(batch.column(name), 1)) - (6.0 if k < 3 else 2.0)) ** 2
    return worth


def run_rounds(
    make: Factory, space: Space, seed: int = 0, *, score: Score = smooth_score, rounds: int = ROUNDS, n: int = ASKED
) -> list[ScheduleBatch]:
    """Rounds as the tuning loop runs them: what was proposed is excluded, and every third measurement is a failure."""
    strategy = make(space)
    seen: set[bytes] = set()
    proposals = []
    for r in range(rounds):
        batch = strategy.propose(n, score, np.random.default_rng([seed, r]), seen)
        seen.update(batch.keys())
        latencies = np.exp(-0.01 * smooth_score(batch))
        latencies[::3] = np.nan
        strategy.observe(batch, latencies)
        proposals.append(batch)
    return proposals


def check_proposals(make: Factory, space: Space) -> None:
    """Proposals are distinct members, as many as asked for, and nothing that is excluded comes back."""
    batches = run_rounds(make, space)
    keys = type(batches[0]).concat(batches).keys()
    _require([len(b) for b in batches] == [ASKED] * ROUNDS, f"{[len(b) for b in batches]} proposals for {ASKED} each")
    _require(len(set(keys)) == len(keys), "a schedule was proposed twice, though it was excluded")
    _require(all(bool(space.contains(b).all()) for b in batches), "a proposal is no member of the space")
    again = make(space).propose(ASKED, smooth_score, np.random.default_rng(1), set(keys))
    _require(not set(again.keys()) & set(keys), "what was excluded from the first round on was proposed")


def check_repeatable(make: Factory, space: Space) -> None:
    """The same seed and the same measurements give the same proposals."""
    first, again = ([b.keys() for b in run_rounds(make, space, seed=3)] for _ in range(2))
    _require(first == again, "the same seed gave other proposals")


def check_counts(make: Factory, space: Space) -> None:
    """Nothing is proposed where nothing is asked for, and less than nothing is refused."""
    strategy = make(space)
    rng = np.random.default_rng(0)
    empty = strategy.propose(0, smooth_score, rng, set())
    _require(len(empty) == 0 and empty.sketches == space.sketches, f"{len(empty)} proposals for 0")
    _refuses(lambda: strategy.propose(-1, smooth_score, rng, set()), "-1 proposals")


def check_scores(make: Factory, space: Space) -> None:
    """Scores that are no numbers, infinite or all alike do not stop a strategy."""
    for value in (np.nan, -np.inf, np.inf, 0.0):

        def constant(batch: ScheduleBatch, value: float = value) -> NDArray[np.float64]:
            return np.full(len(batch), value)

        batches = run_rounds(make, space, score=constant, rounds=2)
        count = len(set(type(batches[0]).concat(batches).keys()))
        _require(count == 2 * ASKED, f"{count} distinct proposals of {2 * ASKED}, all scores {value}")
        _require(all(bool(space.contains(b).all()) for b in batches), f"no member of the space, all scores {value}")


def check_observations(make: Factory, space: Space) -> None:
    """Measurements of rows that it did not propose, failed or not, are taken; those that fit no row are refused."""
    strategy = make(space)
    strategy.observe(space.sample(np.random.default_rng(8), 0), np.zeros(0))
    foreign = space.sample(np.random.default_rng(9), ASKED)
    strategy.observe(foreign, np.linspace(1.0, 2.0, ASKED))
    strategy.observe(foreign, np.full(ASKED, np.nan))
    values = foreign.values.copy()
    values[:, 1:] = 7
    strategy.observe(foreign.with_values(values), np.full(ASKED, 0.5))
    batch = strategy.propose(ASKED, smooth_score, np.random.default_rng(0), set(foreign.keys()))
    _require(bool(space.contains(batch).all()), "a row outside the space was proposed because it was observed")
    _require(len(batch) == ASKED, f"{len(batch)} proposals for {ASKED} after observations of other rows")
    _require(not set(batch.keys()) & set(foreign.keys()), "an excluded row was proposed because it was observed")
    _refuses(lambda: strategy.observe(batch, np.zeros(len(batch) + 1)), "a latency more than there are rows")
    other = type(batch)(space.sketches[:-1], batch.values[:0])
    _refuses(lambda: strategy.observe(other, np.zeros(0)), "a batch over other sketches")


def check_exhausted(make: Factory, space: Space) -> None:
    """Round after round the whole space is proposed, each member once, and then nothing."""
    everything = _everything(space)
    strategy = make(space)
    seen: set[bytes] = set()
    for r in range(len(everything) // ASKED + 2):
        batch = strategy.propose(ASKED, smooth_score, np.random.default_rng([0, r]), seen)
        wanted = min(ASKED, len(everything) - len(seen))
        _require(len(batch) == wanted, f"{len(batch)} proposals where {wanted} of {len(everything)} could be made")
        strategy.observe(batch, np.full(len(batch), np.nan))
        seen.update(batch.keys())
    _require(seen == everything, f"{len(seen & everything)} of the {len(everything)} members were proposed")


def check_leftovers(make: Factory, space: Space) -> None:
    """Where fewer are left than asked for, all of these are proposed."""
    everything = sorted(_everything(space))
    left = set(everything[:: max(1, len(everything) // 3)][:3])
    batch = make(space).propose(ASKED, smooth_score, np.random.default_rng(0), set(everything) - left)
    _require(set(batch.keys()) == left and len(batch) == len(left), f"{len(batch)} proposals of the {len(left)} left")


#: Checks for any space.
CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "proposals": check_proposals,
        "repeatable": check_repeatable,
        "counts": check_counts,
        "scores": check_scores,
        "observations": check_observations,
    }
)
#: Checks for a space of some hundred members: they list it.
SMALL_CHECKS: Mapping[str, Check] = MappingProxyType({"exhausted": check_exhausted, "leftovers": check_leftovers})


def fingerprint(make: Factory, space: Space, seed: int = 3) -> str:
    """Digest of all rows that rounds propose."""
    return hashlib.sha256(b"".join(b.values.tobytes() for b in run_rounds(make, space, seed))).hexdigest()


def check_another_process(expected: Mapping[str, str], entry: str, folder: str | os.PathLike[str] = ".") -> None:
    """The same fingerprints come out of a fresh interpreter with another hash seed.

    Args:
        expected: ``fingerprint`` of each case, by any name, as worked out in this process.
        entry: ``package.module:function``: it takes nothing and returns that mapping.
        folder: Where the module is imported from.
    """
    module, _, function = entry.partition(":")
    code = f"import json, {module} as m; print(json.dumps(m.{function}()))"
    done = subprocess.run(
        ["env", f"PYTHONPATH={os.fspath(folder)}", "PYTHONHASHSEED=12345", sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    _require(done.returncode == 0, f"{entry} failed in another process: {done.stderr[-2000:]}")
    found = json.loads(done.stdout)
    differing = [name for name in expected if found.get(name) != expected[name]]
    _require(not differing, f"another process proposes otherwise: {', '.join(differing)}")


def _everything(space: Space) -> set[bytes]:
    return set().union(*(chunk.keys() for chunk in space.enumerate(np.random.default_rng(0))))


def _refuses(call: Callable[[], object], what: str) -> None:
    try:
        call()
    except InvalidInputError:
        return
    raise AssertionError(f"not refused: {what}")


def _require(kept: bool, otherwise: str) -> None:
    if not kept:
        raise AssertionError(otherwise)
