"""What is done with one workload: tuned by a measurer of its own, then measured beside its rivals."""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from autosched.benching.row import VENDORS, BenchRow, RivalRow, rival_rows
from autosched.benching.suite import Workload
from autosched.errors import AutoschedError, NoDeviceError
from autosched.measure.base import Competition, Measurer
from autosched.measure.rivals import usual
from autosched.models import CostModel
from autosched.progress import Progress
from autosched.recorded import held_out_on
from autosched.result import TuningResult
from autosched.session import versions
from autosched.sketches.op import Op
from autosched.sketches.schedule import Schedule
from autosched.tune import tune_op

logger = logging.getLogger(__name__)


class Competing(Measurer, Protocol):
    """A measurer that can set a schedule beside other programs."""

    def compete(self, op: Op, schedule: Schedule, rivals: Sequence[str]) -> Competition:
        """The schedule and its rivals, interleaved in one process."""
        ...


@dataclass
class Watch:
    """What a tuning run showed while it went: called with each ``Progress``.

    Attributes:
        now: The latest.
        history: Best latency so far in microseconds after so many seconds, whenever it improved.
        latencies: Of each valid trial, in microseconds, by its schedule.
    """

    now: Progress | None = None
    history: list[tuple[float, float]] = field(default_factory=list)
    latencies: dict[str, float] = field(default_factory=dict)

    def __call__(self, now: Progress) -> None:
        """Notes what is new."""
        self.now = now
        if now.best_us is not None and (not self.history or now.best_us < self.history[-1][1]):
            self.history.append((now.seconds, now.best_us))
        if now.last is not None and now.last.measurement.ok:
            self.latencies[_text(now.last.schedule)] = statistics.median(now.last.measurement.samples_us)

    def scale(self, schedule: Schedule, latency_us: float) -> float:
        """A schedule's latency over the one that the run read; 1 if the run did not tell."""
        return latency_us / self.latencies.get(_text(schedule.to_json()), latency_us)


@dataclass(frozen=True)
class Task:
    """What is done with each workload.

    Attributes:
        trials: Schedules to measure.
        seed: Of the search.
        rivals: Names of what to measure beside; ``None`` for what is usual for each op.
        make: Makes a measurer, not started.
        run: Id of the run.
        log: Where trials are kept, as ``tune_op`` takes it.
        held_out: Whether the model that guides a run is trained on the tables and runs of all other iteration spaces.
            The shipped model knows the tables of all, so that it has seen most of the suite.
    """

    trials: int
    seed: int
    rivals: tuple[str, ...] | None
    make: Callable[[], Competing]
    run: str
    log: str | Path | bool | None
    held_out: bool = False

    def measure(self, workload: Workload, tell: Callable[[str, Progress | None], None]) -> BenchRow:
        """The workload's row.

        Raises:
            NoDeviceError: There is no GPU.
        """
        tell("tune", None)
        watch = Watch()

        def observe(now: Progress) -> None:
            watch(now)
            tell("tune", now)

        try:
            op = workload.build()
            with self.make() as measurer:
                model = self._model(op, measurer)
                tuned = tune_op(
                    op,
                    budget=self.trials,
                    measurer=measurer,
                    model=model,
                    seed=self.seed,
                    log=self.log,
                    progress=observe,
                )
                if tuned.schedule is None:
                    return self._tuned(workload, tuned)
                tell("compete", watch.now)
                try:
                    competition = measurer.compete(op, tuned.schedule, self._rivals(workload))
                except AutoschedError as error:
                    logger.warning("%s: the comparison with rivals failed: %s", workload.label, error)
                    return self._tuned(workload, tuned, f"the comparison with rivals failed: {error.message}")
        except NoDeviceError:
            raise
        except AutoschedError as error:
            logger.warning("%s: %s", workload.label, error)
            return self.failed(workload, error)
        return self._competed(workload, tuned, competition, watch)

    def _model(self, op: Op, measurer: Measurer) -> CostModel | None:
        """What guides the run; ``None`` is the shipped model."""
        if not self.held_out:
            return None
        return held_out_on(measurer.target.name, op, self.seed)

    def _rivals(self, workload: Workload) -> tuple[str, ...]:
        """What to measure beside; nothing is usual for what cannot be built."""
        if self.rivals is not None:
            return self.rivals
        try:
            return usual(workload.build())
        except AutoschedError:
            return ()

    def failed(self, workload: Workload, error: AutoschedError) -> BenchRow:
        """The row of a workload that could not be tuned."""
        return BenchRow(
            **_fields(workload),
            key=_key(workload),
            status="error",
            error=error.message,
            rivals=dict.fromkeys(self._rivals(workload), RivalRow(error=error.message)),
            run=self.run,
            versions=versions(),
            held_out=self.held_out,
        )

    def _tuned(self, workload: Workload, tuned: TuningResult, error: str = "") -> BenchRow:
        """The row of a workload as its tuning run left it, the vendor library's figures from its own shoot-out."""
        if tuned.schedule is None:
            error = "; ".join(f"{n} x {text}" for text, n in tuned.errors[:2]) or tuned.reason
        ratio = tuned.ratio if tuned.interval is not None else None  # a ratio that was not interleaved is none
        return BenchRow(
            **_fields(workload),
            key=tuned.key,
            status=tuned.status,
            error=error,
            latency_us=tuned.latency_us,
            baseline=tuned.baseline_name,
            baseline_us=tuned.baseline_us,
            ratio=ratio,
            interval=tuned.interval,
            trials=tuned.trials,
            compiled=tuned.compiled,
            seconds=round(tuned.seconds.get("total", 0.0), 3),
            schedule=None if tuned.schedule is None else tuned.schedule.to_json(),
            rivals=dict.fromkeys(self._rivals(workload), RivalRow(error=error)),
            device=tuned.device,
            versions=versions(),
            run=self.run,
            held_out=self.held_out,
        )

    def _competed(self, workload: Workload, tuned: TuningResult, competition: Competition, watch: Watch) -> BenchRow:
        """The row of a workload whose choice was measured beside the rivals."""
        assert tuned.schedule is not None
        row = msgspec.structs.replace(
            self._tuned(workload, tuned),
            latency_us=competition.latency_us,
            blocks=competition.blocks,
            clock_drift=competition.clock_drift,
            rivals=rival_rows(
                competition,
                watch.history,
                tuned.seconds.get("total", 0.0),
                watch.scale(tuned.schedule, competition.latency_us),
            ),
        )
        vendor = next((r for r in competition.rivals if r.name in VENDORS and r.ratio is not None), None)
        if vendor is None:
            return row
        return msgspec.structs.replace(
            row, baseline=vendor.name, baseline_us=vendor.latency_us, ratio=vendor.ratio, interval=vendor.interval
        )


def _fields(workload: Workload) -> dict[str, Any]:
    return {name: getattr(workload, name) for name in Workload.__struct_fields__}


def _key(workload: Workload) -> str:
    try:
        return workload.build().key()
    except AutoschedError:
        return workload.label


def _text(schedule: Mapping[str, int | str]) -> str:
    return json.dumps(schedule, sort_keys=True)
