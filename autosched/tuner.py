"""Ask and tell: the state of a search, which knows no measurer, file or clock."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosched.features import Extractor, roofline_us
from autosched.models import CostModel, Guided, ValidityModel
from autosched.models.prequential import Prequential
from autosched.record import Measurement, Status
from autosched.search import STRATEGIES, GeneratedSpace, Space, TableSpace, check_strategy, draw_distinct
from autosched.search.strategy import check_count
from autosched.sketches.op import Op
from autosched.sketches.rules import default_schedule, derive
from autosched.sketches.schedule import Schedule, ScheduleBatch
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import Target

#: One trial in so many explores: it is drawn at random, whatever the model says.
EXPLORE_EVERY = 8
#: The same while the model is no better than chance.
EXPLORE_AT_CHANCE = 2
#: Schedules drawn for each that explores: of these the most promising goes, by score and spread together.
EXPLORE_FROM = 8
#: A structure that was not tried yet goes before random draws, if the best of so many draws is foretold to be within
#: this much of the best of all, in log time: models are often wrong about structures by more than about tiles.
PROBE_FROM = 2048
PROBE_REACH = 0.3
#: Chances of being valid count as no less than this, so that scores stay of a size that a temperature can bridge.
LEAST_CHANCE = 0.01
#: A candidate is put behind all others when its chance of being valid is below this.
DOUBT = 0.5
#: At most this share of a round comes from one tile, as long as others are among the candidates.
TILE_SHARE = 0.25
TILE = ("block_m", "block_n", "block_k")
#: Candidates that a round is chosen from, over its size.
SPREAD_OVER = 6


@dataclass(frozen=True)
class Proposal:
    """A schedule to measure next.

    Attributes:
        schedule: What to measure.
        origin: ``default``, ``model``, ``explore`` or ``uniform``.
        predicted: The model's score, log(roofline time / measured time); ``None`` where no model was asked.
        round: Round of the search, from 0.
    """

    schedule: Schedule
    origin: str
    predicted: float | None
    round: int


class Tuner:
    """Proposes schedules of one op on one target and learns from their measurements.

    The same seed and the same measurements, told at the same places between the asking, give the same proposals, in
    another process too. A round may be asked for before the one before it was told.

    Args:
        op: What to tune.
        target: The device.
        space: A finite table to choose from, but for rows that a constraint rejects; ``None`` searches everything that
            the rules derive.
        model: Fitted model that gives the base margin; ``None`` starts from the roofline bound.
        strategy: Name of ``STRATEGIES``.
        seed: Of all choices.

    Raises:
        InvalidInputError: The strategy is unknown.
        UnsupportedError: No sketch is derived for the op.
    """

    def __init__(
        self,
        op: Op,
        target: Target,
        *,
        space: ScheduleBatch | None = None,
        model: CostModel | None = None,
        strategy: str = "annealing",
        seed: int = 0,
    ) -> None:
        check_strategy(strategy)
        self.op, self.target, self.seed, self.strategy_name = op, target, seed, strategy
        self.sketches = derive(op, target) if space is None else space.sketches
        self.space: Space = (
            GeneratedSpace(op, target, self.sketches) if space is None else TableSpace.allowed(op, target, space)
        )
        self.strategy = STRATEGIES[strategy](self.space)
        self._guided = STRATEGIES[strategy].asks_model
        self.model = Guided(model, seed)
        self.validity = ValidityModel(seed)
        self._known_failures = None if model is None else model.validity
        self.prequential = Prequential()
        self.seconds = {"search": 0.0, "features": 0.0, "model": 0.0}
        self.round = 0
        self._extract = Extractor(op, target, self.sketches)
        self._roofline = roofline_us(op, target)
        self._default = default_schedule(op, target, self.sketches)
        self._asked: set[bytes] = set()
        self._kinds = [_kind(sketch) for sketch in self.sketches]
        self._tried: set[str] = set()
        self._features: list[NDArray[np.float32]] = []
        self._labels: list[NDArray[np.float64]] = []
        self._told: list[NDArray[np.bool_]] = []
        self._predicted: dict[Schedule, float] = {}

    def ask(self, n: int) -> list[Proposal]:
        """The next ``n`` schedules, best guess first; fewer when the space has no more. One call is one round.

        Raises:
            InvalidInputError: ``n`` is negative.
        """
        check_count(n)
        start = time.perf_counter()
        inner = self.seconds["features"] + self.seconds["model"]
        rng = np.random.default_rng([self.seed, self.round])
        guided = self._guided
        proposals: list[Proposal] = []
        if self.round == 0 and n > 0:
            proposals += self._first()
        every = EXPLORE_AT_CHANCE if self.prequential.at_chance else EXPLORE_EVERY
        explorers = max(1, n // every) if guided and self.round > 0 and n > 1 else 0
        wanted = n - len(proposals) - explorers
        candidates = SPREAD_OVER * wanted if guided else wanted
        chosen = self._spread(self.strategy.propose(candidates, self.promise, rng, self._asked), wanted)
        predicted = self.score(chosen) if guided and len(chosen) else np.zeros(0)
        for i in range(len(chosen)):
            origin = "model" if guided else "uniform"
            proposals.append(Proposal(chosen[i], origin, float(predicted[i]) if guided else None, self.round))
        self._note(chosen)
        for draw in (self._probe, self._explore):
            if explorers == 0:
                break
            drawn, scores = draw(explorers, rng)
            proposals += [Proposal(drawn[i], "explore", float(scores[i]), self.round) for i in range(len(drawn))]
            self._note(drawn)
            explorers -= len(drawn)
        self._predicted.update((p.schedule, p.predicted) for p in proposals if p.predicted is not None)
        self.round += 1
        spent = time.perf_counter() - start
        self.seconds["search"] += spent - (self.seconds["features"] + self.seconds["model"] - inner)
        return proposals

    def _note(self, batch: ScheduleBatch) -> None:
        """These are proposed, and their structures tried."""
        self._asked.update(batch.keys())
        self._tried.update(self._kinds[i] for i in np.unique(batch.sketch_index))

    def take(self, schedules: Sequence[Schedule]) -> None:
        """Notes that these are being measured, whoever proposed them: they are not proposed again."""
        self._note(ScheduleBatch.of(self.sketches, schedules))

    def best_guess(self) -> Schedule:
        """The schedule with the highest score of a round, left out those that the base model's validity doubts.

        The failures of other workloads count here, since nothing will be measured that could correct the choice.
        """
        proposals = self.ask(8)
        ranked = sorted(proposals, key=lambda p: -np.inf if p.predicted is None else p.predicted, reverse=True)
        batch = ScheduleBatch.of(self.sketches, [p.schedule for p in ranked])
        return ranked[int(np.argmin(self._doubted(batch, self._known_failures)))].schedule

    def tell(self, schedules: Sequence[Schedule], measurements: Sequence[Measurement]) -> None:
        """Takes note of what came out, and refits the models on all of this run's measurements.

        Before that the model's predictions for them, made when they were proposed, are judged (``prequential``).
        """
        batch = ScheduleBatch.of(self.sketches, schedules)
        self._note(batch)
        latencies = np.asarray([m.latency_us if m.latency_us is not None else np.nan for m in measurements], np.float64)
        self.strategy.observe(batch, latencies)
        if not self._guided or not len(batch):
            return
        start = time.perf_counter()
        labels = np.log(self._roofline / latencies)
        self._judge(schedules, labels)
        self._features.append(self._extract(batch))
        self._labels.append(labels)
        # A timing below the floor says nothing about the kernel.
        self._told.append(np.asarray([m.status is not Status.BELOW_FLOOR for m in measurements], np.bool_))
        x, y, told = np.concatenate(self._features), np.concatenate(self._labels), np.concatenate(self._told)
        ok = ~np.isnan(y)
        self.validity.fit(x[told], ok[told])
        self.model.refit(x[ok], y[ok])
        self.seconds["model"] += time.perf_counter() - start

    def _judge(self, schedules: Sequence[Schedule], labels: NDArray[np.float64]) -> None:
        """Holds the predictions of a round against its measurements."""
        foretold = [self._predicted.pop(schedule, np.nan) for schedule in schedules]
        judged = np.isfinite(foretold) & np.isfinite(labels)
        self.prequential.add(np.asarray(foretold)[judged], labels[judged])

    def score(self, batch: ScheduleBatch) -> NDArray[np.float64]:
        """The model's score of each row, log(roofline time / measured time)."""
        return self._timed(self.model.score, self._features_of(batch))

    def promise(self, batch: ScheduleBatch) -> NDArray[np.float64]:
        """What the search climbs: the score and, once this run has seen failures, the log of the chance to be valid.

        It is the log of the speed that is expected of a row. By the score alone chains would stay where no kernel of
        this op runs.
        """
        x = self._features_of(batch)
        return self._timed(self.model.score, x) + self._timed(self._log_chance, x)

    def _log_chance(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Log of the chance that each row is valid, 0 while nothing is known against any."""
        if not self.validity.fitted or not len(x):
            return np.zeros(len(x))
        chance: NDArray[np.float64] = np.log(np.maximum(self.validity.predict(x), LEAST_CHANCE))
        return chance

    def _features_of(self, batch: ScheduleBatch) -> NDArray[np.float32]:
        start = time.perf_counter()
        x = self._extract(batch)
        self.seconds["features"] += time.perf_counter() - start
        return x

    def _timed(
        self, model: Callable[[NDArray[np.float32]], NDArray[np.float64]], x: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        start = time.perf_counter()
        answer = model(x)
        self.seconds["model"] += time.perf_counter() - start
        return answer

    def _probe(self, n: int, rng: np.random.Generator) -> tuple[ScheduleBatch, NDArray[np.float64]]:
        """The most promising draw of each structure that was not tried yet, best first, and their scores."""
        nothing = self.space.sample(rng, 0), np.zeros(0)
        if self._tried >= set(self._kinds):
            return nothing
        drawn = draw_distinct(self.space, PROBE_FROM, rng, self._asked)
        if not len(drawn):
            return nothing
        x = self._features_of(drawn)
        scores = self._timed(self.model.score, x)
        promise = scores + self._timed(self._log_chance, x)
        best: dict[str, int] = {}
        for i in np.argsort(-promise, kind="stable"):
            best.setdefault(self._kinds[int(drawn.sketch_index[i])], int(i))
        reach = float(promise.max()) - PROBE_REACH
        rows = [i for kind, i in best.items() if kind not in self._tried and promise[i] >= reach][:n]
        return drawn.take(np.asarray(rows, np.intp)), scores[rows]

    def _explore(self, n: int, rng: np.random.Generator) -> tuple[ScheduleBatch, NDArray[np.float64]]:
        """Schedules drawn at random, and their scores; while the model is trusted, the most promising of several draws.

        Promising is a high score or a wide spread: mean + spread, an upper confidence bound, less what doubt takes.
        """
        drawn = draw_distinct(self.space, n * (1 if self.prequential.at_chance else EXPLORE_FROM), rng, self._asked)
        if not len(drawn):
            return drawn, np.zeros(0)
        x = self._extract(drawn)
        mean, spread = self.model.predict(x)
        best = np.argsort(-(mean + spread + self._log_chance(x)), kind="stable")[:n]
        return drawn.take(best), mean[best]

    def _spread(self, candidates: ScheduleBatch, n: int) -> ScheduleBatch:
        """The first ``n`` candidates; those of a tile that has had its share come later, those in doubt last."""
        most = max(1, round(TILE_SHARE * n))
        doubted = self._doubted(candidates, self.validity)
        taken: Counter[tuple[int, ...]] = Counter()
        first: list[int] = []
        later: list[int] = []
        for row, tile in enumerate(zip(*(candidates.column(knob).tolist() for knob in TILE), strict=True)):
            if not doubted[row]:
                taken[tile] += 1
                (first if taken[tile] <= most else later).append(row)
        return candidates.take(np.asarray((first + later + np.flatnonzero(doubted).tolist())[:n], np.intp))

    def _doubted(self, batch: ScheduleBatch, validity: ValidityModel | None) -> NDArray[np.bool_]:
        """Rows that will probably fail, as the failures tell that the model knows of."""
        if validity is None or not validity.fitted or not len(batch):
            return np.zeros(len(batch), np.bool_)
        doubted: NDArray[np.bool_] = validity.predict(self._extract(batch)) < DOUBT
        return doubted

    def _first(self) -> list[Proposal]:
        """The default schedule, where the space holds it."""
        batch = ScheduleBatch.of(self.sketches, [self._default])
        if self.space.members() is not None and not self.space.contains(batch)[0]:
            return []
        self._note(batch)
        return [Proposal(self._default, "default", float(self.score(batch)[0]), 0)]


def _kind(sketch: Sketch) -> str:
    """What a sketch is but for its paths of loads and stores: work, combine, finish, view, whether it copies."""
    view, copied = sketch.view, any(load.copied for load in sketch.loads)
    seen = f"{view.prepared.tag if view.prepared else ''} {view.in_runs} {view.swapped}"
    return f"{sketch.work.tag} {sketch.combine.tag} {sketch.finish.tag} {seen} {copied}"
