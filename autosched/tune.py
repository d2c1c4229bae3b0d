"""``tune_op``: propose, measure, learn, choose among finalists. The loop is on one screen; its parts are elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from autosched.choice import Outcome, choose
from autosched.errors import InvalidInputError, StopTuning, TuningInterrupted, UsageError, WorkerError
from autosched.measure.base import Comparison, Measurer
from autosched.measure.local import LocalMeasurer
from autosched.measure.replay import ReplayMeasurer
from autosched.models import CostModel
from autosched.record import Measurement, Record
from autosched.recorded import base_model, shipped_model
from autosched.result import TuningResult
from autosched.session import Session
from autosched.sketches.builders import build_named
from autosched.sketches.op import Op
from autosched.sketches.schedule import Schedule
from autosched.sketches.target import Target, parse_target
from autosched.tuner import Proposal, Tuner

#: Schedules that are compared with the vendor library at the end.
FINALISTS = 3
#: Rounds of ``FIRST_ROUND`` for the first ``FIRST_TRIALS`` trials: what the first ones teach is worth most.
FIRST_ROUND, FIRST_TRIALS = 4, 16


@dataclass(frozen=True)
class Budget:
    """When to stop: after ``trials``, or before the trial that would end after ``seconds``, whichever comes first."""

    trials: int | None = 64
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("trials", self.trials), ("seconds", self.seconds)):
            if value is not None and not value >= 0:
                raise InvalidInputError(f"budget of {value} {name}", "give 0 or more")
        if self.trials is None and self.seconds is None:
            raise InvalidInputError("a budget without trials and seconds", "give one of them")


@dataclass(frozen=True)
class Progress:
    """How far a run is: what a progress display needs.

    Attributes:
        phase: ``search``, ``measure``, ``shoot-out`` or ``done``.
        trial: Trials so far.
        trials: Trials of the budget.
        seconds: Since the start.
        budget_seconds: Seconds of the budget.
        best_us: Best latency so far.
        best_tflops: Its rate.
        baseline_us: The vendor library's latency.
        failures: Trials by status, without ``ok``.
        last: The trial that just ended.
    """

    phase: str
    trial: int
    trials: int | None
    seconds: float
    budget_seconds: float | None
    best_us: float | None
    best_tflops: float | None
    baseline_us: float | None
    failures: dict[str, int]
    last: Record | None = None


Observer = Callable[[Progress], None]
T = TypeVar("T")


def tune_op(
    op: Op | str,
    shape: Sequence[int] | Mapping[str, int] | None = None,
    budget: int | Budget = 64,
    *,
    dtype: Any = None,
    layout: str | None = None,
    epilogue: Sequence[str] | None = None,
    target: Target | str | None = None,
    measurer: Measurer | None = None,
    model: CostModel | None = None,
    strategy: str | None = None,
    log: str | Path | bool | None = None,
    resume: bool = False,
    seed: int = 0,
    callbacks: Sequence[Observer] = (),
    progress: Observer | None = None,
) -> TuningResult:
    """Finds a fast schedule of an operator and proves it right.

    Args:
        op: A name of ``BUILDERS`` (then ``shape`` says its size), or an ``Op``.
        shape: ``(M, N, K)`` for gemm, or a dict with those names.
        budget: Trials, or a ``Budget``; 0 asks the model alone and measures nothing.
        dtype: Element type of the inputs, bf16 if not given.
        layout: Layout of the inputs, ``nn`` if not given.
        epilogue: Steps on the result.
        target: The device; the measurer's own if not given.
        measurer: What answers how fast a schedule is; this machine's GPU if not given.
        model: A fitted cost model to start from; the shipped one if not given.
        strategy: Name of a search strategy, ``annealing`` if not given.
        log: Where trials are kept; ``None`` the data folder, ``False`` nowhere.
        resume: Continue the session that the log holds; the budget is then the total.
        seed: Of the search.
        callbacks: Called after each trial; one may raise ``StopTuning``.
        progress: Called after each trial and when the phase changes.

    Raises:
        UsageError: Shape, dtype, layout or epilogue given beside an ``Op``.
        InvalidInputError: A value that no op or budget has.
        NoDeviceError: No GPU is there and no measurer was given.
        TuningInterrupted: Ctrl-C; it carries the result so far.
    """
    started = time.perf_counter()
    op = _resolve(op, shape, dtype, layout, epilogue)
    budget = budget if isinstance(budget, Budget) else Budget(trials=budget)
    with ExitStack() as stack:
        aim = _aim(target, measurer)
        if budget.trials == 0 and aim is not None:
            return _unmeasured(op, aim, model, seed)
        if measurer is None:
            measurer = stack.enter_context(LocalMeasurer(aim))
        table = measurer.space(op)
        if model is None:
            model = base_model(op, measurer, seed)
        learnt = time.perf_counter()
        tuner = Tuner(op, measurer.target, space=table, model=model, strategy=strategy or "annealing", seed=seed)
        tuner.seconds["model"] += learnt - started
        run = _Run(op, tuner, measurer, budget, (*callbacks, *((progress,) if progress else ())), started)
        opened = Session.open(
            op, measurer, log, resume=resume, seed=seed, strategy=tuner.strategy_name, sketches=tuner.sketches
        )
        run.session = stack.enter_context(opened)
        stopped = ""
        try:
            run.search()
        except StopTuning as stop:
            stopped = str(stop) or "a callback stopped it"
        except KeyboardInterrupt:
            raise TuningInterrupted(run.result(stopped="interrupted")) from None
        return run.result(stopped)


class _Run:
    """One tuning run: the loop and what it has found so far."""

    session: Session

    def __init__(
        self,
        op: Op,
        tuner: Tuner,
        measurer: Measurer,
        budget: Budget,
        observers: Sequence[Observer],
        started: float,
    ) -> None:
        self.op, self.tuner, self.measurer, self.budget, self.observers = op, tuner, measurer, budget, observers
        self.records: list[Record] = []
        self.schedules: list[Schedule] = []
        self.curve: list[float | None] = []
        self.baseline_us: float | None = None
        self.baseline_name = ""
        self.comparison: Comparison | None = None
        self.finalists: list[Schedule] = []
        self.measuring = self.comparing = 0.0
        self.exhausted = False
        self.started = started
        self.troubles: list[str] = []

    def search(self) -> None:
        """Rounds until the budget is spent, then the shoot-out."""
        baseline = self._attempt(lambda: self.measurer.baseline(self.op))
        if baseline is not None:
            self.baseline_name, self.baseline_us = baseline.name, baseline.latency_us
            self.session.vendor(baseline)
        while (n := self._round_size()) > 0:
            self._tell_observers("search")
            proposals = self.session.with_resumed(self.tuner.ask(n), self.tuner.round - 1)[: self._left()]
            if not proposals:
                self.exhausted = True
                break
            measurements = self._measure(proposals)
            self.tuner.tell([p.schedule for p in proposals], measurements)
        self.finalists = self._best_schedules(FINALISTS)
        if self.finalists and self.measurer.source == "measured":
            self._tell_observers("shoot-out")
            before = self.measuring
            self.comparison = self._attempt(lambda: self._timed(lambda: self.measurer.compare(self.op, self.finalists)))
            self.comparing = self.measuring - before
            errors = self.comparison.errors if self.comparison else ()
            for finalist, error in zip(self.finalists, errors, strict=False):
                if error:
                    self.session.reject(self.records[self.schedules.index(finalist)], error)

    def _attempt(self, call: Callable[[], T]) -> T | None:
        """What the vendor library or the shoot-out says; where they fail, the trials are kept and the reason told."""
        try:
            return call()
        except WorkerError as error:
            self.troubles.append(error.message)
            return None

    def _measure(self, proposals: list[Proposal]) -> list[Measurement]:
        """Sends a round to the measurer; what a resumed log already holds is not measured again."""
        self._tell_observers("measure")
        known = [self.session.known(p.schedule) for p in proposals]
        numbers = self.session.number(proposals)
        fresh = [(p, n) for p, m, n in zip(proposals, known, numbers, strict=True) if m is None]
        launched, at = [p for p, _ in fresh], [n for _, n in fresh]
        for proposal, old, number in zip(proposals, known, numbers, strict=True):
            if old is not None:
                self._finished(proposal, old, self.session.record(proposal, old, number))
        answers = iter(self._timed(lambda: self.session.measure(self.measurer, launched, at, self._finished)))
        return [m if m is not None else next(answers) for m in known]

    def _finished(self, proposal: Proposal, measurement: Measurement, record: Record) -> None:
        self.records.append(record)
        self.schedules.append(proposal.schedule)
        best = self.curve[-1] if self.curve else None
        latency = measurement.latency_us
        self.curve.append(latency if best is None or (latency is not None and latency < best) else best)
        self._tell_observers("measure", record)

    def _round_size(self) -> int:
        """Trials of the next round: 8 to 16, never past the budget in trials or, by the pace so far, in seconds."""
        done, left = len(self.records), self._left()
        if resumed := self.session.round_size(self.tuner.round):
            return resumed if left is None else min(resumed, left)
        n = FIRST_ROUND if done < FIRST_TRIALS else max(8, min(16, (self.budget.trials or 0) // 8))
        n = n if left is None else min(left, n)
        if self.budget.seconds is not None:
            n = n if done else min(n, 2)  # the pace is not known yet
            spent = time.perf_counter() - self.started
            pace = spent / done if done else 0.0
            n = min(n, int((self.budget.seconds - spent) / pace) if pace else n) if spent < self.budget.seconds else 0
        return n

    def _left(self) -> int | None:
        """Trials that the budget still allows; ``None`` for any number."""
        return None if self.budget.trials is None else self.budget.trials - len(self.records)

    def _best_schedules(self, n: int) -> list[Schedule]:
        """The ``n`` fastest, and the default if it is not among them."""
        ok = [(r.measurement.latency_us, i) for i, r in enumerate(self.records) if r.measurement.latency_us is not None]
        chosen = [self.schedules[i] for _, i in sorted(ok)[:n]]
        default = [self.schedules[i] for _, i in ok if self.records[i].origin == "default"]
        return chosen + [s for s in default if s not in chosen]

    def _timed(self, call: Callable[[], T]) -> T:
        start = time.perf_counter()
        try:
            return call()
        finally:
            self.measuring += time.perf_counter() - start

    def _tell_observers(self, phase: str, last: Record | None = None) -> None:
        best = self.curve[-1] if self.curve else None
        now = Progress(
            phase,
            len(self.records),
            self.budget.trials,
            time.perf_counter() - self.started,
            self.budget.seconds,
            best,
            None if best is None else self.op.flops / best / 1e6,
            self.baseline_us,
            self.failures(),
            last,
        )
        for observer in self.observers:
            observer(now)

    def failures(self) -> dict[str, int]:
        """Trials by status, without ``ok``."""
        return dict(Counter(str(r.measurement.status) for r in self.records if not r.measurement.ok))

    def result(self, stopped: str = "") -> TuningResult:
        """What the run found, written to the log and the store."""
        outcome = choose(self.records, self.schedules, self.finalists, self.comparison)
        spent = self.budget.trials is None or len(self.records) >= self.budget.trials
        status = (
            "all_failed"
            if outcome.schedule is None
            else "partial"
            if stopped or not (spent or self.exhausted)
            else "tuned"
        )
        ok_errors = Counter(r.measurement.error.splitlines()[0][:200] for r in self.records if r.measurement.error)
        result = TuningResult(
            op=self.op,
            device=self.measurer.target.name,
            origin=self.measurer.source,
            status=status,
            schedule=outcome.schedule,
            latency_us=outcome.latency_us,
            baseline_name=self.baseline_name,
            baseline_us=outcome.vendor_us or self.baseline_us,
            ratio=outcome.ratio,
            interval=outcome.interval,
            trials=len(self.records),
            compiled=sum(bool(r.measurement.compiled) for r in self.records),
            failures=self.failures(),
            errors=ok_errors.most_common(5),
            seconds=self._seconds(),
            fraction_of_recorded_best=self._fraction(outcome),
            reason="; ".join([*([f"stopped: {stopped}"] if stopped else []), outcome.reason, *self.troubles]),
            log=self.session.path,
            curve=tuple(self.curve),
        )
        self.session.end(
            status, {k: v for k, v in result.to_dict().items() if k in ("best", "baseline", "trials", "seconds")}
        )
        if outcome.schedule is not None and self.measurer.source == "measured":
            best = self.records[self.schedules.index(outcome.schedule)]
            self.session.store(best, self.baseline_us, self.baseline_name)
        return result

    def _seconds(self) -> dict[str, float]:
        """Wall seconds by phase; measuring hides part of compiling, so what is left of both is called compiling."""
        phases = dict(self.tuner.seconds)
        measure = self.measuring
        if self.measurer.source == "measured":
            measure = min(sum(r.measurement.measure_seconds for r in self.records) + self.comparing, self.measuring)
        return {
            "total": time.perf_counter() - self.started,
            **phases,
            "compile": self.measuring - measure,
            "measure": measure,
        }

    def _fraction(self, outcome: Outcome) -> float | None:
        if not isinstance(self.measurer, ReplayMeasurer) or outcome.latency_us is None:
            return None
        best = self.measurer.best(self.op)
        return None if best is None else best[1] / outcome.latency_us


def _resolve(
    op: Op | str,
    shape: Sequence[int] | Mapping[str, int] | None,
    dtype: Any,
    layout: str | None,
    epilogue: Sequence[str] | None,
) -> Op:
    if isinstance(op, Op):
        given = {"shape": shape, "dtype": dtype, "layout": layout, "epilogue": epilogue}
        if extra := [name for name, value in given.items() if value is not None]:
            raise UsageError(f"{extra[0]} given beside an Op", "the op has its own; leave it out")
        return op
    if shape is None:
        raise UsageError(f"op {op!r} without a shape", "give shape=(M, N, K)")
    return build_named(op, shape, dtype=dtype or "bf16", layout=layout or "nn", epilogue=epilogue or ())


def _aim(target: Target | str | None, measurer: Measurer | None) -> Target | None:
    """The device that is meant; ``None`` where only this machine can tell.

    Raises:
        UsageError: The measurer answers for another one.
    """
    aim = None if target is None else parse_target(target)
    if measurer is None:
        return aim
    if aim is not None and aim.name != measurer.target.name:
        raise UsageError(f"target {aim.name} with a measurer of {measurer.target.name}", "leave target out")
    return measurer.target


def _unmeasured(op: Op, target: Target, model: CostModel | None, seed: int) -> TuningResult:
    """Budget 0: the model's own pick, which needs no device."""
    tuner = Tuner(op, target, model=model or shipped_model(), seed=seed)
    pick = max(tuner.ask(8), key=lambda p: p.predicted if p.predicted is not None else float("-inf"))
    seconds = {"total": sum(tuner.seconds.values()), **tuner.seconds, "compile": 0.0, "measure": 0.0}
    return TuningResult(
        op, target.name, "predicted", "tuned", pick.schedule, seconds=seconds, reason="the model's pick, not measured"
    )
