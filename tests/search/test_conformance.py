"""Every strategy in every space, and that the kit notices what is broken."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from autosched.errors import InvalidInputError
from autosched.search import STRATEGIES, RandomSearch, Space, check_strategy
from autosched.search.conformance import (
    CHECKS,
    SMALL_CHECKS,
    Check,
    check_another_process,
    check_exhausted,
    check_proposals,
    check_repeatable,
    fingerprint,
    run_rounds,
)
from autosched.search.strategy import Score
from autosched.sketches.builders import gemm
from autosched.sketches.constraints import why_invalid
from autosched.sketches.schedule import ScheduleBatch
from autosched.sketches.target import PRESETS
from tests.search.conftest import SMALL_SPACES, SPACES

#: Strategies whose proposals do not depend on the seed.
FIXED = ("grid", "exhaustive")
#: What a strategy needs that a plain installation does not hold.
NEEDS = {"tpe": "optuna"}
#: A new strategy's line in ``STRATEGIES`` is its line here.
NAMES = [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(NEEDS.get(name, "numpy")) is None, reason="needs optuna"))
    for name in STRATEGIES
]


def fingerprints() -> dict[str, str]:
    """Of every strategy that can be made here, in every space."""
    usable = [name for name in STRATEGIES if find_spec(NEEDS.get(name, "numpy")) is not None]
    return {f"{name} {kind}": fingerprint(STRATEGIES[name], SPACES[kind]()) for name in usable for kind in SPACES}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_keeps_its_contract(name: str, check: Check, space: Space) -> None:
    check(STRATEGIES[name], space)


@pytest.mark.parametrize("check", SMALL_CHECKS.values(), ids=SMALL_CHECKS)
@pytest.mark.parametrize("kind", list(SMALL_SPACES))
@pytest.mark.parametrize("name", NAMES)
def test_a_small_space_is_exhausted(name: str, kind: str, check: Check) -> None:
    check(STRATEGIES[name], SMALL_SPACES[kind]())


def test_another_process_proposes_the_same(repository: Path) -> None:
    expected = fingerprints()

    check_another_process(expected, "tests.search.test_conformance:fingerprints", repository)
    # On a table annealing and evolutionary search are both the argmax.
    assert expected["annealing table"] == expected["evolutionary table"]
    assert len(set(expected.values())) == len(expected) - 1


@pytest.mark.parametrize("name", NAMES)
def test_proposals_are_valid_and_another_seed_gives_others(name: str) -> None:
    space = SPACES["generated"]()
    first, other = (ScheduleBatch.concat(run_rounds(STRATEGIES[name], space, seed)) for seed in (0, 1))

    assert why_invalid(gemm(4096, 4096, 4096), PRESETS["H200"], first).valid.all()
    assert (first.keys() == other.keys()) == (name in FIXED)


@pytest.mark.parametrize("name", NAMES)
def test_only_who_asks_the_model_is_told_scores(name: str, space: Space) -> None:
    def refused(batch: ScheduleBatch) -> np.ndarray:
        raise AssertionError("a score was asked for")

    if STRATEGIES[name].asks_model:
        with pytest.raises(AssertionError, match="asked for"):
            run_rounds(STRATEGIES[name], space, score=refused)
    else:
        assert len(run_rounds(STRATEGIES[name], space, score=refused)) == 3


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"'gradient'.*evolutionary"):
        check_strategy("gradient")


class Forgetful(RandomSearch):
    """Leaves the exclusions out."""

    def propose(self, n: int, score: Score, rng: np.random.Generator, exclude: AbstractSet[bytes]) -> ScheduleBatch:
        return super().propose(n, score, np.random.default_rng(0), set())


class Unseeded(RandomSearch):
    """Draws from a generator of its own."""

    def propose(self, n: int, score: Score, rng: np.random.Generator, exclude: AbstractSet[bytes]) -> ScheduleBatch:
        return super().propose(n, score, np.random.default_rng(), exclude)


class Lazy(RandomSearch):
    """Gives up early."""

    def propose(self, n: int, score: Score, rng: np.random.Generator, exclude: AbstractSet[bytes]) -> ScheduleBatch:
        return super().propose(n if len(exclude) < 16 else 0, score, rng, exclude)


@pytest.mark.parametrize(
    ("broken", "check", "message"),
    [
        (Forgetful, check_proposals, "twice"),
        (Unseeded, check_repeatable, "other proposals"),
        (Lazy, check_exhausted, "0 proposals where 8 of 30"),
    ],
)
def test_the_kit_notices_a_broken_strategy(
    broken: type[RandomSearch], check: Callable[[type[RandomSearch], Space], None], message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        check(broken, SMALL_SPACES["table"]())


def test_the_kit_notices_another_process_that_differs(repository: Path) -> None:
    with pytest.raises(AssertionError, match="otherwise: random here"):
        check_another_process({"random here": "0"}, "tests.search.test_exhaustive:nothing", repository)
