"""Sessions: what a run writes, and that a run cut short anywhere and resumed is the run uninterrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosched.budget import Budget
from autosched.errors import LogError, TuningInterrupted
from autosched.log import TuningLog
from autosched.measure.base import Protocol
from autosched.measure.local import LocalMeasurer
from autosched.progress import Progress
from autosched.record import Status
from autosched.result import TuningResult
from autosched.settings import load
from autosched.sketches.builders import gemm
from autosched.store import Store
from autosched.tune import tune_op
from tests.measure.test_local import InstantPool
from tests.tuning import OP, Pretended

#: What has to be equal after a resumed run.
SAME = ("status", "schedule", "latency_us", "trials", "failures", "errors", "curve", "reason")


def tune(log: Path | bool, budget: int | Budget = 24, **arguments: Any) -> TuningResult:
    chosen = {"measurer": Pretended(failures={Status.COMPILE_ERROR: 0.2}), "strategy": "random", **arguments}
    return tune_op(OP, budget=budget, log=log, **chosen)


def same(a: TuningResult, b: TuningResult) -> None:
    assert {name: getattr(a, name) for name in SAME} == {name: getattr(b, name) for name in SAME}


def trials(log: Path) -> list[dict[str, Any]]:
    """Number, schedule and status of the trials, in the order of their numbers."""
    rows = [(r.trial, r.schedule, str(r.measurement.status), r.origin, r.round) for r in TuningLog.read(log)]
    assert len({row[0] for row in rows}) == len(rows), "a number was given twice"
    assert len({json.dumps(row[1], sort_keys=True) for row in rows}) == len(rows), "a schedule was measured twice"
    return [
        dict(zip(("trial", "schedule", "status", "origin", "round"), row, strict=True))
        for row in sorted(rows, key=lambda r: r[0])
    ]


def cuts(log: Path, n: int) -> list[int]:
    """Places after the header: at random bytes, so in the midst of lines too, and right after a line."""
    data = log.read_bytes()
    lines = [i + 1 for i, c in enumerate(data) if c == ord("\n")]
    rng = np.random.default_rng(7)
    return [lines[0], lines[1], lines[2], *(int(c) for c in rng.integers(lines[0], len(data), size=n)), len(data)]


@pytest.mark.parametrize("strategy", ["random", "annealing"])
def test_resumed_anywhere_it_is_the_run_uninterrupted(tmp_path: Path, strategy: str) -> None:
    whole = tmp_path / "whole.jsonl"
    expected = tune(whole, strategy=strategy)
    for i, cut in enumerate(cuts(whole, 8 if strategy == "random" else 3)):
        log = tmp_path / f"{i}.jsonl"
        log.write_bytes(whole.read_bytes()[:cut])
        held = len(TuningLog.read(log))
        measurer = Pretended(failures={Status.COMPILE_ERROR: 0.2})
        result = tune(log, strategy=strategy, measurer=measurer, resume=True)
        same(result, expected)
        assert len(measurer.asked) == 24 - held
        assert trials(log) == trials(whole)
        assert len(TuningLog.read(log).vendors) == 1
        assert len(TuningLog.read(log).sessions) == 1


def test_resumed_twice_and_resumed_when_done(tmp_path: Path) -> None:
    whole, log = tmp_path / "whole.jsonl", tmp_path / "log.jsonl"
    expected = tune(whole)
    data = whole.read_bytes()
    log.write_bytes(data[: len(data) // 4])
    tune(log, 16, resume=True)
    same(tune(log, 24, resume=True), expected)
    measurer = Pretended(failures={Status.COMPILE_ERROR: 0.2})
    same(tune(log, 24, resume=True, measurer=measurer), expected)
    assert measurer.asked == []
    assert len(trials(log)) == 24


@pytest.mark.parametrize(("first", "total"), [(16, 64), (20, 24), (11, 160), (64, 128), (3, 8)])
def test_a_larger_total_adds_trials_and_repeats_none(tmp_path: Path, first: int, total: int) -> None:
    log = tmp_path / "log.jsonl"
    before = tune(log, first)
    measurer = Pretended(failures={Status.COMPILE_ERROR: 0.2})
    result = tune(log, total, resume=True, measurer=measurer)
    assert (result.trials, len(measurer.asked)) == (total, total - first)
    rows = trials(log)
    assert [row["trial"] for row in rows] == list(range(total))
    assert len(TuningLog.read(log).sessions) == 1
    assert before.latency_us is not None
    assert result.latency_us is not None
    assert result.latency_us <= before.latency_us


def test_a_smaller_total_measures_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    tune(log, 24)
    measurer = Pretended()
    result = tune(log, 10, resume=True, measurer=measurer)
    assert (result.trials, measurer.asked) == (10, [])


def test_a_launch_that_ended_the_process_is_not_launched_again(tmp_path: Path) -> None:
    whole = tmp_path / "log.jsonl"
    tune(whole, measurer=Pretended(source="measured"))
    lines = whole.read_bytes().splitlines(keepends=True)
    starts = [i for i, line in enumerate(lines) if line.startswith(b'{"type":"start"')]
    whole.write_bytes(b"".join(lines[: starts[5] + 1]))
    crashed = TuningLog.read(whole).crashed
    assert [r.trial for r in crashed] == [5]
    measurer = Pretended(source="measured")
    result = tune(whole, resume=True, measurer=measurer)
    assert crashed[0].schedule not in [s.to_json() for s in measurer.asked]
    assert (result.trials, len(measurer.asked), result.failures) == (24, 18, {"worker_crash": 1})
    rows = trials(whole)
    assert [row["trial"] for row in rows] == list(range(24))
    assert rows[5]["status"] == "worker_crash"


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"seed": 1}, "seed is 0 in the log and 1 in this run"),
        ({"strategy": "annealing"}, "protocol"),
        ({"measurer": Pretended(source="measured")}, "protocol"),
    ],
)
def test_another_run_is_not_continued(tmp_path: Path, changed: dict[str, Any], field: str) -> None:
    log = tmp_path / "log.jsonl"
    tune(log, 8)
    before = log.read_bytes()
    with pytest.raises(LogError, match=field):
        tune(log, 8, resume=True, **changed)
    assert log.read_bytes() == before


def test_another_op_is_not_continued(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    tune(log, 8)
    with pytest.raises(LogError, match=r"op key is 'M512.* in the log and 'M64"):
        tune_op(gemm(64, 64, 64), budget=8, log=log, resume=True, measurer=Pretended(), strategy="random")


def test_resuming_needs_a_log_and_begins_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="resume=True without a log"):
        tune(False, resume=True)
    log = tmp_path / "new.jsonl"
    assert tune(log, 8, resume=True).trials == 8
    assert len(trials(log)) == 8


def test_a_file_that_is_no_log_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "notes.jsonl"
    log.write_text("buy milk\n")
    measurer = Pretended()
    for resume in (False, True):
        with pytest.raises(LogError, match="no tuning log"):
            tune(log, resume=resume, measurer=measurer)
    assert (log.read_text(), measurer.asked) == ("buy milk\n", [])


def test_the_header_says_how_it_was_measured(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    tune(log, 8, seed=3)
    (header,) = TuningLog.read(log).sessions.values()
    assert (header.key, header.op, header.device, header.seed) == (OP.key(), OP.spec, "H200", 3)
    assert header.protocol == {"source": "synthetic", "strategy": "random"}
    assert header.target["sms"] == 132
    records = TuningLog.read(log).records
    assert [r.origin for r in records] == ["default", *["uniform"] * 7]
    assert all(len(r.measurement.source_hash) == 64 for r in records if r.measurement.ok)


def test_guided_trials_are_logged_with_their_prediction(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    tune(log, 24, strategy="annealing")
    records = TuningLog.read(log).records
    assert [r.round for r in records] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4 + [4] * 8
    assert all(r.predicted is not None and np.isfinite(r.predicted) for r in records)
    assert [r.origin for r in records if r.round == 0] == ["default", *["model"] * 3]
    assert [r.origin for r in records if r.round == 1] == [*["model"] * 3, "explore"]
    assert [r.origin for r in records if r.round == 4] == [*["model"] * 7, "explore"]


def local() -> LocalMeasurer:
    """The measurer of this machine, with a worker that crashes, hangs and errs by ``group_m`` and no compiler."""
    return LocalMeasurer(
        protocol=Protocol(run_timeout_s=1.0), entry="tests.measure.fake_worker:handle", make_pool=InstantPool
    )


def test_a_run_of_processes_is_interrupted_and_resumed(tmp_path: Path) -> None:
    """Results come out of order and some workers die; numbers stay those of the proposals all the same."""
    log, whole = tmp_path / "log.jsonl", tmp_path / "whole.jsonl"

    def interrupt(now: Progress) -> None:
        if now.trial == 14:
            raise KeyboardInterrupt

    with local() as measurer, pytest.raises(TuningInterrupted) as caught:
        tune(log, 16, measurer=measurer, progress=interrupt)
    assert (caught.value.result.status, caught.value.result.trials) == ("partial", 14)
    held = TuningLog.read(log)
    assert (len(held), held.crashed, held.damaged) == (14, [], [])
    with local() as measurer:
        result = tune(log, 16, measurer=measurer, resume=True)
        expected = tune(whole, 16, measurer=measurer)
    assert (result.trials, result.status, result.failures) == (16, "tuned", expected.failures)
    assert set(result.failures) & {"worker_crash", "run_timeout", "wrong_result", "launch_error", "compile_error"}
    assert trials(log) == trials(whole)
    assert [row["trial"] for row in trials(log)] == list(range(16))
    assert (result.baseline_name, result.schedule) == ("cublas", expected.schedule)
    assert result.ratio == pytest.approx(10.0 / 8.0)
    assert Store(load().store).best(OP.key(), "H200") is not None


def test_a_trial_has_a_line_before_its_launch(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with local() as measurer:
        tune(log, 8, measurer=measurer)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["type"] for line in lines[:3]] == ["session", "vendor", "round"]
    assert [line["round"] for line in lines if line["type"] == "round"] == [0, 1]
    assert lines[-1]["type"] == "end"
    started: set[int] = set()
    for line in lines[2:-1]:
        number = line.get("trial", 0)
        if line["type"] == "start":
            started.add(number)
        elif line["type"] == "trial" and line["measurement"]["status"] not in ("compile_error", "invalid"):
            assert number in started
    assert len(started) >= 4
