"""Tree-structured Parzen estimator: Optuna's sampler over sketch and knobs, where Optuna is installed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from autosched.errors import UnsupportedError
from autosched.search.landing import Landing
from autosched.search.strategy import Score, check_count, check_observed, filled_up
from autosched.sketches.knobs import KNOB_NAMES
from autosched.sketches.schedule import ABSENT

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import TPESampler

    from autosched.search.space import Space
    from autosched.sketches.schedule import ScheduleBatch

#: Draws in a row that may land nowhere before what is missing is drawn at random (a listed space is full after one).
DRAWS = 32


class TPE:
    """Proposes what Optuna's TPE draws, told of every observation; asks no model.

    The parameters are the sketch, a category, and each knob that the sketch has, as a position among the values that
    the knob has in any sketch; the sketch takes its nearest value. So sketches share what is learnt of a knob. The
    sampler is multivariate and grouped by the conditions; what was proposed and not observed yet counts as bad, and so
    does a failure. Draws that are invalid, or proposed or excluded already, are rejected, counted in ``rejected``, and
    drawn again; in a listed space a draw lands on the nearest member that is free (see ``Landing``), and it is that
    member which TPE is told of.

    Args:
        space: Where to search.

    Raises:
        UnsupportedError: Optuna is not installed.
    """

    asks_model: ClassVar[bool] = False

    def __init__(self, space: Space) -> None:
        if find_spec("optuna") is None:
            raise UnsupportedError(
                "the strategy tpe needs optuna, which is not installed", "pip install autosched[tpe]"
            )
        self.space = space
        self.rejected = 0
        self._landing = Landing(space)
        self._study = _study()
        self._pending: dict[bytes, int] = {}

    def propose(self, n: int, score: Score, rng: np.random.Generator, exclude: AbstractSet[bytes]) -> ScheduleBatch:
        """Draw ``n`` distinct members; see ``Strategy.propose`` and the class."""
        check_count(n)
        self._study.sampler = _sampler(int(rng.integers(2**31)))
        chosen = self.space.sample(rng, 0)
        taken = set(exclude)
        missed, most = 0, DRAWS if self.space.members() is None else 1
        with _quiet():
            while len(chosen) < n and missed < most:
                landed = self._landing.land(self._draw()[None], taken)
                missed = 0 if len(landed) else missed + 1
                self.rejected += not len(landed)
                taken.update(landed.keys())
                self._begin(landed)
                chosen = type(chosen).concat([chosen, landed])
        drawn = len(chosen)
        chosen = filled_up(chosen, self.space, n, rng, exclude)
        self._begin(chosen.take(np.arange(drawn, len(chosen))))
        return chosen

    def observe(self, batch: ScheduleBatch, latencies: NDArray[np.float64]) -> None:
        """Tell the sampler; see ``Strategy.observe``. Rows with values that no sketch has are left out."""
        from optuna.trial import TrialState

        check_observed(self.space, batch, latencies)
        batch = batch.take(known := np.flatnonzero(self._landing.domains.contains(batch.values)))
        for key, row, latency in zip(batch.keys(), batch.values, latencies[known].tolist(), strict=True):
            number = self._pending.pop(key) if key in self._pending else self._add(row)
            if np.isfinite(latency):
                self._study.tell(number, latency)
            else:
                self._study.tell(number, state=TrialState.PRUNED)

    def _draw(self) -> NDArray[np.int32]:
        """One row as TPE draws it. The trial itself ends at once: what is proposed is the row that it lands on."""
        from optuna.trial import TrialState

        domains = self._landing.domains
        trial = self._study.ask()
        names = [sketch.name for sketch in self.space.sketches]
        sketch = names.index(trial.suggest_categorical("sketch", names)) if len(names) > 1 else 0
        row = np.full(domains.columns, ABSENT, np.int32)
        row[0] = sketch
        for k in np.flatnonzero(domains.counts[sketch]):
            last = int((domains.union[k] >= 0).sum()) - 1
            place = trial.suggest_int(KNOB_NAMES[k], 0, last) if last > 0 else 0
            row[1 + k] = domains.nearest[sketch, k, place]
        self._study.tell(trial, state=TrialState.FAIL)
        return row

    def _begin(self, batch: ScheduleBatch) -> None:
        """Note rows as proposed."""
        for key, row in zip(batch.keys(), batch.values, strict=True):
            self._pending[key] = self._add(row)

    def _add(self, row: NDArray[np.int32]) -> int:
        """Number of a new trial of a row, which waits for its value."""
        from optuna.distributions import CategoricalDistribution, IntDistribution
        from optuna.trial import TrialState, create_trial

        domains = self._landing.domains
        names = [sketch.name for sketch in self.space.sketches]
        params: dict[str, int | str] = {}
        distributions: dict[str, BaseDistribution] = {}
        if len(names) > 1:
            params["sketch"], distributions["sketch"] = names[row[0]], CategoricalDistribution(names)
        for k in np.flatnonzero(domains.counts[row[0]]):
            last = int((domains.union[k] >= 0).sum()) - 1
            if last > 0:
                params[KNOB_NAMES[k]] = int(np.flatnonzero(domains.union[k] == row[1 + k])[0])
                distributions[KNOB_NAMES[k]] = IntDistribution(0, last)
        self._study.add_trial(create_trial(state=TrialState.RUNNING, params=params, distributions=distributions))
        return len(self._study.get_trials(deepcopy=False)) - 1


def _study() -> Study:
    """A study in memory."""
    import optuna

    with _quiet():
        return optuna.create_study(direction="minimize", sampler=_sampler(0))


def _sampler(seed: int) -> TPESampler:
    from optuna.samplers import TPESampler

    with _quiet():
        return TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Optuna's lines about new studies, parameters drawn alone, and options that may change."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)
