"""The loop: rounds proposed beside the measuring, stops at any moment, and what a resumed run does with its log."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autosched.tune
from autosched.budget import Budget
from autosched.errors import NoDeviceError, StopTuning, TuningInterrupted
from autosched.log import TuningLog
from autosched.measure.base import Pipelined, Protocol
from autosched.measure.local import LocalMeasurer
from autosched.models import RooflineModel
from autosched.models.base import Matrix, Vector
from autosched.progress import Progress
from autosched.record import Measurement, Record
from autosched.result import TuningResult
from autosched.search import GeneratedSpace
from autosched.sketches.op import Op
from autosched.sketches.schedule import Schedule
from autosched.tune import tune_op
from autosched.tuner import Proposal, Tuner
from tests.measure.test_local import InstantPool, Result
from tests.tuning import OP, TARGET, Pretended


class Piped(Pretended):
    """Prepares, tells of each trial, and measures a round from its last schedule to its first."""

    workers = 2

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.prepared: list[Schedule] = []

    def prepare(self, op: Op, schedules: Sequence[Schedule]) -> None:
        self.prepared += schedules

    def measure(
        self,
        op: Op,
        schedules: Sequence[Schedule],
        *,
        on_result: Callable[[int, Measurement], None] | None = None,
        before_launch: Callable[[int], None] | None = None,
        while_waiting: Callable[[], None] | None = None,
    ) -> list[Measurement]:
        results: dict[int, Measurement] = {}
        for i in reversed(range(len(schedules))):
            if before_launch is not None:
                before_launch(i)
            results[i] = super().measure(op, [schedules[i]])[0]
            if on_result is not None:
                on_result(i, results[i])
        return [results[i] for i in range(len(schedules))]


def tune(budget: int | Budget = 24, **arguments: Any) -> TuningResult:
    return tune_op(OP, budget=budget, **{"measurer": Pretended(), "strategy": "random", "log": False, **arguments})


def local(entry: str = "handle", kind: type[LocalMeasurer] = LocalMeasurer, **arguments: Any) -> LocalMeasurer:
    arguments = {"make_pool": InstantPool, **arguments}
    return kind(protocol=Protocol(run_timeout_s=1.0), entry=f"tests.measure.fake_worker:{entry}", **arguments)


def finished(log: Path) -> list[tuple[int, str]]:
    """Number and schedule of the trials, by number."""
    return sorted((r.trial, json.dumps(r.schedule)) for r in TuningLog.read(log))


def at(trial: int, raised: BaseException) -> Callable[[Progress], None]:
    def callback(now: Progress) -> None:
        if now.trial == trial and now.last is not None:
            raise raised

    return callback


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the tuner is asked and told, in order."""
    seen: list[str] = []
    ask, tell = Tuner.ask, Tuner.tell

    def asked(self: Tuner, n: int) -> list[Proposal]:
        seen.append(f"ask {self.round}: {n}")
        return ask(self, n)

    def told(self: Tuner, schedules: Sequence[Schedule], measurements: Sequence[Measurement]) -> None:
        seen.append(f"tell {len(schedules)}")
        tell(self, schedules, measurements)

    monkeypatch.setattr(Tuner, "ask", asked)
    monkeypatch.setattr(Tuner, "tell", told)
    return seen


def test_a_round_is_asked_for_before_the_one_before_it_is_told(steps: list[str]) -> None:
    expected = ["ask 0: 4", "ask 1: 4", "tell 4", "ask 2: 4", "tell 4", "ask 3: 2", "tell 4", "tell 2"]
    plain, piped = Pretended(), Piped()
    assert [isinstance(m, Pipelined) for m in (piped, plain)] == [True, False]
    tune(14, measurer=plain)
    assert steps == expected
    tune(14, measurer=piped)
    assert steps == expected * 2
    assert piped.prepared == plain.asked
    assert set(piped.asked) == set(plain.asked)


@pytest.mark.parametrize("strategy", ["random", "annealing"])
@pytest.mark.parametrize(("trials", "rounds"), [(1, [1]), (2, [2]), (3, [3]), (5, [4, 1]), (17, [4, 4, 4, 4, 1])])
def test_small_budgets(tmp_path: Path, strategy: str, trials: int, rounds: list[int]) -> None:
    log = tmp_path / "log.jsonl"
    result = tune(trials, strategy=strategy, measurer=Piped(), log=log)
    assert (result.trials, result.status) == (trials, "tuned")
    assert [r.asked for r in TuningLog.read(log).rounds] == rounds
    assert [number for number, _ in finished(log)] == list(range(trials))


def test_a_space_smaller_than_the_first_round() -> None:
    table = GeneratedSpace(OP, TARGET).sample(np.random.default_rng(0), 3)
    result = tune(64, measurer=Piped(table=table), strategy="annealing")
    assert (result.status, result.trials) == ("tuned", 3)


def test_what_the_proposing_thread_raises_is_raised_after_its_round_was_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Tuner.ask

    def failing(self: Tuner, n: int) -> list[Proposal]:
        if self.round == 2:
            raise RuntimeError("no more ideas")
        return ask(self, n)

    log, whole = tmp_path / "log.jsonl", tmp_path / "whole.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(Tuner, "ask", failing)
        with pytest.raises(RuntimeError, match="no more ideas"):
            tune(measurer=Piped(), log=log)
    read = TuningLog.read(log)
    assert (len(read), read.crashed, read.damaged) == (8, [], [])
    tune(measurer=Piped(), log=log, resume=True)
    tune(measurer=Piped(), log=whole)
    assert finished(log) == finished(whole)


def test_interrupted_while_it_waits_for_the_proposing_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, main = Tuner.ask, threading.main_thread().ident
    assert main is not None

    def slow(self: Tuner, n: int) -> list[Proposal]:
        if self.round == 2:
            time.sleep(0.5)  # the other thread has measured its round by then, and waits
            signal.pthread_kill(main, signal.SIGINT)
        return ask(self, n)

    monkeypatch.setattr(Tuner, "ask", slow)
    log = tmp_path / "log.jsonl"
    with pytest.raises(TuningInterrupted) as caught:
        tune(measurer=Piped(), log=log)
    assert (caught.value.result.status, caught.value.result.trials) == ("partial", 8)
    read = TuningLog.read(log)
    assert (len(read), read.crashed, [e.status for e in read.ends.values()]) == (8, [], ["partial"])
    assert not [t for t in threading.enumerate() if t.name.startswith("propose")]


def test_a_measurer_that_ctrl_c_has_closed_stays_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proposing thread hands its round over after that."""
    closed = threading.Event()
    ask = Tuner.ask

    class Told(LocalMeasurer):
        def close(self) -> None:
            super().close()
            closed.set()

    def slow(self: Tuner, n: int) -> list[Proposal]:
        if self.round == 2:
            assert closed.wait(20)
        return ask(self, n)

    monkeypatch.setattr(Tuner, "ask", slow)
    measurer = local(kind=Told)
    with pytest.raises(TuningInterrupted) as caught:
        tune(measurer=measurer, callbacks=[at(6, KeyboardInterrupt())])
    try:
        assert caught.value.result.trials == 6
        assert measurer._worker is None
    finally:
        measurer.close()


def test_a_measurer_outlives_a_callback_that_stops_the_run() -> None:
    with local() as measurer:
        assert tune(measurer=measurer, callbacks=[at(6, StopTuning("enough"))]).trials == 6
        worker = measurer._worker
        assert worker is not None
        assert tune(measurer=measurer).trials == 24
        assert measurer._worker is worker


def test_seconds_that_end_within_a_round_keep_it_and_it_is_resumed(tmp_path: Path) -> None:
    log, whole = tmp_path / "log.jsonl", tmp_path / "whole.jsonl"
    result = tune(Budget(trials=24, seconds=2.0), measurer=Piped(seconds=0.1), log=log)
    read = TuningLog.read(log)
    assert 0 < result.trials < 24
    assert (len(read), read.crashed, result.status) == (result.trials, [], "partial")
    expected = tune(measurer=Piped(), log=whole)
    measurer = Piped()
    resumed = tune(measurer=measurer, log=log, resume=True)
    assert len(measurer.asked) == 24 - result.trials
    assert (resumed.schedule, resumed.trials) == (expected.schedule, 24)
    assert finished(log) == finished(whole)


def test_seconds_are_kept_while_nothing_is_compiled() -> None:
    class Stuck(InstantPool):
        def ready(self, timeout: float) -> Sequence[tuple[int, Result]]:
            time.sleep(timeout)
            return []

    with local(make_pool=Stuck) as measurer:
        measurer.space(OP)
        begun = time.monotonic()
        result = tune(Budget(trials=8, seconds=1.0), measurer=measurer)
        assert time.monotonic() - begun < 5.0
    assert (result.trials, result.status) == (0, "all_failed")


def test_without_a_gpu_a_run_for_a_named_target_writes_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with local("no_device", target=TARGET) as measurer, pytest.raises(NoDeviceError, match="no CUDA device"):
        tune(8, measurer=measurer, log=log)
    assert not log.exists()


def test_budget_0_on_this_device_is_the_models_pick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autosched.tune, "LocalMeasurer", local)
    result = tune_op(OP, budget=0)
    assert (result.status, result.trials, result.device, result.log) == ("tuned", 0, "H200", "")
    assert result.schedule == tune_op(OP, budget=0, target="H200").schedule


def test_one_compile_worker_is_the_fewest() -> None:
    with local(workers=0) as measurer:
        result = tune(4, measurer=measurer)
    assert (measurer.workers, result.trials) == (1, 4)


def test_a_resumed_run_counts_only_its_own_launches_as_busy(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with local() as measurer:
        first = tune(8, measurer=measurer, log=log)
        resumed = tune(8, measurer=measurer, log=log, resume=True)
    assert first.busy["gpu"] > 0
    assert resumed.trials == 8
    assert resumed.busy == {"gpu": 0.0, "compile": 0.0}


class Contrary(RooflineModel):
    """Wants something else than the roofline model does."""

    def predict(self, x: Matrix) -> tuple[Vector, Vector]:
        mean, spread = super().predict(x)
        return 3.0 * np.sin(7.0 * x.sum(axis=1, dtype=np.float64)) - mean, spread


def resumed(log: Path, total: int, **arguments: Any) -> tuple[TuningResult, list[Schedule]]:
    """The result, and what was measured anew; no trial may come twice."""
    seen: list[Record] = []
    measurer = arguments.setdefault("measurer", Pretended())

    def note(now: Progress) -> None:
        if now.last is not None:
            seen.append(now.last)

    result = tune(total, log=log, resume=True, callbacks=[note], **arguments)
    assert len({json.dumps(r.schedule) for r in seen}) == len({r.trial for r in seen}) == len(seen) == total
    return result, measurer.asked


@pytest.mark.parametrize("total", [24, 40])
def test_another_model_loses_no_trial_of_the_log(tmp_path: Path, total: int) -> None:
    log = tmp_path / "log.jsonl"
    tune(24, strategy="annealing", model=RooflineModel(), log=log)
    result, fresh = resumed(log, total, strategy="annealing", model=Contrary())
    assert (result.trials, len(fresh)) == (total, total - 24)
    assert [number for number, _ in finished(log)] == list(range(total))


@pytest.mark.parametrize("total", [24, 40])
def test_finalists_that_failed_their_proof_lose_no_trial_of_the_log(tmp_path: Path, total: int) -> None:
    log = tmp_path / "log.jsonl"
    tune(24, strategy="annealing", measurer=Pretended(source="measured", wrong=4), log=log)
    measurer = Pretended(source="measured")
    result, fresh = resumed(log, total, strategy="annealing", measurer=measurer)
    assert (result.trials, len(fresh)) == (total, total - 24)
    assert result.failures["wrong_result"] == 4


@pytest.mark.parametrize("strategy", ["random", "annealing"])
@pytest.mark.parametrize("total", [24, 40])
def test_a_log_without_round_lines_loses_no_trial(tmp_path: Path, strategy: str, total: int) -> None:
    """Such logs were written in rounds of other sizes."""
    log = tmp_path / "log.jsonl"
    tune(24, strategy=strategy, log=log)
    lines = []
    for text in log.read_text().splitlines():
        line = json.loads(text)
        if line["type"] in ("session", "vendor"):
            lines.append(text)
        elif line["type"] == "trial":
            line["round"] = line.get("trial", 0) // 7
            lines.append(json.dumps(line, separators=(",", ":")))
    log.write_text("".join(f"{line}\n" for line in lines))
    result, fresh = resumed(log, total, strategy=strategy)
    assert (result.trials, len(fresh)) == (total, total - 24)
    assert [number for number, _ in finished(log)] == list(range(total))


def test_a_smaller_total_takes_what_was_measured_of_a_round(tmp_path: Path) -> None:
    """Of the last round only the last two schedules were reached."""
    log = tmp_path / "log.jsonl"
    with pytest.raises(TuningInterrupted):
        tune(24, measurer=Piped(), log=log, callbacks=[at(18, KeyboardInterrupt())])
    held = finished(log)
    assert [number for number, _ in held] == [*range(16), 22, 23]
    result, fresh = resumed(log, 18, measurer=Piped())
    assert (result.trials, fresh) == (18, [])
    assert finished(log) == held
