"""The loop: propose, measure, learn, until the budget is spent; then the shoot-out. It keeps what was found so far."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from autosched.budget import Budget
from autosched.choice import Outcome, choose
from autosched.errors import WorkerError
from autosched.measure.base import Comparison, Measurer, Pipelined, StopMeasuring
from autosched.measure.replay import ReplayMeasurer
from autosched.progress import Observer, Progress
from autosched.record import Measurement, Record
from autosched.result import TuningResult
from autosched.session import Session
from autosched.sketches.op import Op
from autosched.sketches.schedule import Schedule
from autosched.tuner import Proposal, Tuner

#: Schedules that are compared with the vendor library at the end.
FINALISTS = 3
#: Seconds of a budget in seconds that are kept for the shoot-out on a device: its load, its blocks, its long proof.
SHOOT_OUT_S = 5.0

T = TypeVar("T")


@dataclass(frozen=True)
class Round:
    """A round that was proposed.

    Attributes:
        asked: Schedules that were asked for.
        proposals: Those that came.
    """

    asked: int
    proposals: tuple[Proposal, ...]


class Run:
    """One tuning run.

    Round r+1 is proposed from the results of the rounds up to r-1, before r is measured. A measurer that can prepare
    (``Pipelined``) does both at once: one thread proposes the next round and hands it to the compile workers, while
    this one measures. The order of asking and telling is the same for every measurer, so that a run repeats itself.

    Args:
        op: What is tuned.
        tuner: Proposes and learns.
        measurer: Answers.
        session: Where trials are written, and what a resumed run already knows.
        budget: When to stop.
        observers: Told of each trial and phase.
        started: ``time.perf_counter()`` when the run began.
    """

    def __init__(
        self,
        op: Op,
        tuner: Tuner,
        measurer: Measurer,
        session: Session,
        budget: Budget,
        observers: Sequence[Observer],
        started: float,
    ) -> None:
        self.op, self.tuner, self.measurer, self.session = op, tuner, measurer, session
        self.budget, self.observers, self.started = budget, observers, started
        self.records: list[Record] = []
        self.schedules: list[Schedule] = []
        self.curve: list[float | None] = []
        self.baseline_us: float | None = None
        self.baseline_name = ""
        self.comparison: Comparison | None = None
        self.finalists: list[Schedule] = []
        self.exhausted = False
        self.troubles: list[str] = []
        self._asked = 0
        self._searching = self._measuring = self._comparing = 0.0
        self._ready = 0.0

    def search(self) -> None:
        """Rounds until the budget is spent, then the shoot-out."""
        baseline = self._attempt(lambda: self.measurer.baseline(self.op))
        if baseline is not None:
            self.baseline_name, self.baseline_us = baseline.name, baseline.latency_us
            self.session.vendor(baseline)
        begun = self._ready = time.perf_counter()
        try:
            self._rounds()
        except StopMeasuring:
            pass  # the seconds are spent
        finally:
            self._searching = time.perf_counter() - begun
        self.finalists = self._best_schedules(FINALISTS)
        if self.finalists and self.measurer.source == "measured":
            self._tell_observers("shoot-out")
            begun = time.perf_counter()
            self.comparison = self._attempt(lambda: self.measurer.compare(self.op, self.finalists))
            self._comparing = time.perf_counter() - begun
            errors = self.comparison.errors if self.comparison else ()
            for finalist, error in zip(self.finalists, errors, strict=False):
                if error:
                    self.session.reject(self.records[self.schedules.index(finalist)], error)
        self._tell_observers("done")

    def _rounds(self) -> None:
        with ThreadPoolExecutor(1, thread_name_prefix="propose") as proposer:
            self._tell_observers("search")
            current = self._propose(*self._round_size())
            while current.proposals:
                upcoming: Future[Round] = proposer.submit(self._propose, *self._round_size())
                if not isinstance(self.measurer, Pipelined):
                    upcoming.result()
                measurements = self._measure(current)
                following = upcoming.result()
                self.tuner.tell([p.schedule for p in current.proposals], measurements)
                current = following
        self.exhausted = current.asked > 0

    def _propose(self, asked: int, kept: int) -> Round:
        """The next round's ``kept`` schedules, handed to the compile workers where there are any."""
        if not kept:
            return Round(0, ())
        number = self.tuner.round
        proposals = self.session.with_resumed(self.tuner.ask(asked), number, kept)
        self.tuner.take([p.schedule for p in proposals])
        if isinstance(self.measurer, Pipelined):
            self.measurer.prepare(self.op, [p.schedule for p in proposals if self.session.known(p.schedule) is None])
        return Round(asked, tuple(proposals))

    def _round_size(self) -> tuple[int, int]:
        """What to ask for in the next round, as an earlier part of the session did, and how much of it to measure."""
        kept = self.budget.round_size(self._asked)
        asked = self.session.rounds.get(self.tuner.round, kept)
        if asked != kept and kept:
            kept = asked if self.budget.trials is None else min(asked, self.budget.trials - self._asked)
        self._asked += kept
        return asked, kept

    def _measure(self, current: Round) -> list[Measurement]:
        """Sends a round to the measurer; what a resumed log already holds is not measured again.

        Raises:
            StopMeasuring: The seconds are spent.
        """
        self._tell_observers("measure")
        proposals = current.proposals
        self.session.begin_round(proposals[0].round, current.asked, self.tuner.prequential, proposals)
        known = [self.session.known(p.schedule) for p in proposals]
        numbers = self.session.number(proposals)
        fresh = [(p, n) for p, m, n in zip(proposals, known, numbers, strict=True) if m is None]
        launched, at = [p for p, _ in fresh], [n for _, n in fresh]
        for proposal, old, number in zip(proposals, known, numbers, strict=True):
            if old is not None:
                self._finished(proposal, old, self.session.record(proposal, old, number))
        begun = time.perf_counter()
        try:
            answers = iter(self.session.measure(self.measurer, launched, at, self._finished, self._check_time))
        finally:
            self._measuring += time.perf_counter() - begun
        return [m if m is not None else next(answers) for m in known]

    def _check_time(self) -> None:
        """Refuses the next launch if it would end after the budget, by the pace of the launches so far."""
        if self.budget.seconds is None:
            return
        now = time.perf_counter()
        allowed = self.budget.seconds
        if self.measurer.source == "measured":
            allowed -= min(SHOOT_OUT_S, allowed / 2)
        done = len(self.records)
        pace = (now - self._ready) / done if done else 0.0
        if now - self.started + pace > allowed:
            raise StopMeasuring

    def _finished(self, proposal: Proposal, measurement: Measurement, record: Record) -> None:
        best = self.curve[-1] if self.curve else None
        latency = measurement.latency_us
        self.curve.append(latency if best is None or (latency is not None and latency < best) else best)
        self.schedules.append(proposal.schedule)
        self.records.append(record)
        self._tell_observers("measure", record)

    def _best_schedules(self, n: int) -> list[Schedule]:
        """The ``n`` fastest, and the default if it is not among them."""
        ok = [(r.measurement.latency_us, i) for i, r in enumerate(self.records) if r.measurement.latency_us is not None]
        chosen = [self.schedules[i] for _, i in sorted(ok)[:n]]
        default = [self.schedules[i] for _, i in ok if self.records[i].origin == "default"]
        return chosen + [s for s in default if s not in chosen]

    def _attempt(self, call: Callable[[], T]) -> T | None:
        """What the vendor library or the shoot-out says; where they fail, the trials are kept and the reason told."""
        try:
            return call()
        except WorkerError as error:
            self.troubles.append(error.message)
            return None

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
        if outcome.schedule is None:
            status = "all_failed"
        else:
            status = "partial" if stopped or not (spent or self.exhausted) else "tuned"
        errors = Counter(r.measurement.error.splitlines()[0][:200] for r in self.records if r.measurement.error)
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
            errors=errors.most_common(5),
            seconds=self._seconds(),
            busy=self._busy(),
            prequential=self.tuner.prequential.accuracy,
            fraction_of_recorded_best=self._fraction(outcome),
            reason=self._reason(outcome, stopped),
            log=self.session.path,
            curve=tuple(self.curve),
        )
        kept = ("best", "baseline", "trials", "seconds", "busy", "prequential")
        self.session.end(status, {k: v for k, v in result.to_dict().items() if k in kept})
        if outcome.schedule is not None and self.measurer.source == "measured":
            best = self.records[self.schedules.index(outcome.schedule)]
            self.session.store(best, self.baseline_us, self.baseline_name)
        return result

    def _reason(self, outcome: Outcome, stopped: str) -> str:
        parts = [f"stopped: {stopped}"] if stopped else []
        parts.append(outcome.reason)
        score = self.tuner.prequential
        if score.at_chance:
            parts.append(
                f"the model ranked no better than chance ({score.accuracy:.2f} of {score.pairs} pairs), "
                "so that half of the later rounds was drawn at random"
            )
        return "; ".join([*parts, *self.troubles])

    def _seconds(self) -> dict[str, float]:
        """Wall seconds by phase. Those of search, features and model pass in part while a round is measured."""
        measure = self._measuring + self._comparing
        if self.measurer.source == "measured":
            measure = min(self._on_device() + self._comparing, measure)
        return {
            "total": time.perf_counter() - self.started,
            **self.tuner.seconds,
            "compile": self._measuring + self._comparing - measure,
            "measure": measure,
        }

    def _busy(self) -> dict[str, float]:
        """Share of the rounds' time that the device and the compile workers worked; empty where nothing was run."""
        if self.measurer.source != "measured" or not self._searching:
            return {}
        busy = {"gpu": self._on_device() / self._searching}
        if isinstance(self.measurer, Pipelined):
            compiling = sum(m.compile_seconds for m in self._launched())
            busy["compile"] = compiling / self._searching / self.measurer.workers
        return busy

    def _on_device(self) -> float:
        return sum(m.measure_seconds for m in self._launched())

    def _launched(self) -> Iterator[Measurement]:
        """Measurements that were made in this run, not in an earlier part of the session."""
        held = self.session.resumed
        return (r.measurement for r, s in zip(self.records, self.schedules, strict=False) if s not in held)

    def _fraction(self, outcome: Outcome) -> float | None:
        if not isinstance(self.measurer, ReplayMeasurer) or outcome.latency_us is None:
            return None
        best = self.measurer.best(self.op)
        return None if best is None else best[1] / outcome.latency_us
