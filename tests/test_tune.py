"""``tune_op``: budgets, stops, failures, what it writes, and that it repeats itself."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosched.budget import Budget
from autosched.errors import (
    InvalidInputError,
    NoDeviceError,
    StopTuning,
    TuningInterrupted,
    UnsupportedError,
    UsageError,
    WorkerError,
)
from autosched.log import TuningLog
from autosched.measure.synthetic import SyntheticMeasurer
from autosched.progress import Progress
from autosched.record import Status
from autosched.search import GeneratedSpace
from autosched.settings import load
from autosched.sketches.builders import build_named, gemm
from autosched.sketches.target import PRESETS
from autosched.store import Store
from autosched.tune import tune_op
from tests.tuning import OP, TARGET, Pretended


def tune(budget: int | Budget = 16, **arguments: Any) -> Any:
    """A run of random search, which needs no model, on a synthetic device."""
    arguments = {"measurer": Pretended(), "log": False, "strategy": "random", **arguments}
    return tune_op(OP, budget=budget, **arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"trials": -1}, "-1 trials"),
        ({"trials": 2.5}, "2.5 trials"),
        ({"trials": "8"}, "'8' trials"),
        ({"seconds": -0.5}, "-0.5 seconds"),
        ({"seconds": float("nan")}, "nan seconds"),
        ({"trials": None}, "without trials and seconds"),
    ],
)
def test_a_budget_that_is_none_is_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        Budget(**arguments)


def test_bad_input_is_refused_before_any_work(tmp_path: Path) -> None:
    measurer, log = Pretended(), tmp_path / "log.jsonl"
    calls: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (UsageError, "dtype given beside an Op", {"op": OP, "dtype": "fp16"}),
        (UsageError, "shape given beside an Op", {"op": OP, "shape": (1, 2, 3)}),
        (UsageError, "layout given beside an Op", {"op": OP, "layout": "nn"}),
        (UsageError, "epilogue given beside an Op", {"op": OP, "epilogue": ()}),
        (UsageError, "scales given beside an Op", {"op": OP, "scales": ""}),
        (InvalidInputError, "unknown scales 'rows'", {"op": "gemm", "shape": (8, 8, 8), "scales": "rows"}),
        (UsageError, "'gemm' without a shape", {"op": "gemm"}),
        (InvalidInputError, "unknown op 'gem'", {"op": "gem", "shape": (1, 2, 3)}),
        (InvalidInputError, "2 entries", {"op": "gemm", "shape": (1, 2)}),
        (InvalidInputError, "N is 0", {"op": "gemm", "shape": (1, 0, 2)}),
        (InvalidInputError, "bf17", {"op": "gemm", "shape": (1, 1, 2), "dtype": "bf17"}),
        (InvalidInputError, "-1 trials", {"op": OP, "budget": -1}),
        (InvalidInputError, "unknown strategy 'luck'", {"op": OP, "strategy": "luck"}),
    ]
    for error, text, arguments in calls:
        with pytest.raises(error, match=text):
            tune_op(**{"measurer": measurer, "log": log, **arguments})
    assert measurer.asked == []
    assert not log.exists()


def test_names_and_values_mean_the_same_op() -> None:
    by_name = tune_op(
        "gemm",
        {"M": 64, "N": 128, "K": 256},
        8,
        dtype="fp16",
        layout="nt",
        epilogue=["bias"],
        measurer=Pretended(),
        log=False,
        strategy="random",
    )
    assert by_name.key == "M64,N128,K256/a[MK]fp16,b[NK]fp16,bias[N]fp16,out[MN]fp16/bias"
    assert by_name.trials == 8


@pytest.mark.parametrize("trials", [1, 7, 8, 9, 20])
def test_the_budget_in_trials_is_kept_exactly(trials: int) -> None:
    measurer = Pretended()
    result = tune(trials, measurer=measurer)
    assert (result.trials, len(measurer.asked), len(set(measurer.asked))) == (trials, trials, trials)
    assert (result.status, len(result.curve)) == ("tuned", trials)
    assert result.latency_us == min(t for t in result.curve if t is not None)


def test_the_budget_in_seconds_is_kept() -> None:
    result = tune(Budget(trials=None, seconds=0.6), measurer=Pretended(seconds=0.02))
    assert result.status == "tuned"
    assert 1 <= result.trials <= 30
    assert result.seconds["measure"] >= 0.02 * result.trials
    short = tune(Budget(trials=64, seconds=0.3), measurer=Pretended(seconds=0.02))
    assert short.trials < 64
    assert short.status == "partial"


@pytest.mark.parametrize("name", ["conv2d", "conv2d_weight_grad", "conv2d_input_grad"])
def test_convolutions_are_tuned_like_any_op(name: str) -> None:
    sizes: dict[str, int | tuple[int, int]] = {"N": 2, "C": 16, "H": 14, "W": 14, "K": 32, "R": 3, "S": 3}
    shape = {**sizes, "stride": 2, "padding": (1, 0), "groups": 2}
    result = tune_op(name, shape, budget=8, measurer=SyntheticMeasurer(TARGET), strategy="random", log=False)
    assert result.status == "tuned"
    assert result.op == build_named(name, shape)


def test_scales_by_name_are_the_ops_own() -> None:
    result = tune_op("gemm", (64, 128, 256), 8, scales="row_column", measurer=Pretended(), log=False, strategy="random")
    assert result.key == gemm(64, 128, 256, scales="row_column").key()


def test_a_type_that_the_device_does_not_multiply_is_refused() -> None:
    measurer = SyntheticMeasurer(PRESETS["A100"])
    with pytest.raises(UnsupportedError, match="A100 does not multiply fp8e4m3"):
        tune_op("gemm", (64, 128, 256), 8, dtype="fp8e4m3", measurer=measurer, log=False, strategy="random")


def test_budget_0_is_the_models_pick_and_needs_no_device() -> None:
    first = tune_op("gemm", (4096, 4096, 4096), 0, target="H200")
    assert (first.status, first.trials, first.latency_us, first.log) == ("tuned", 0, None, "")
    assert first.schedule is not None
    assert first.schedule == tune_op("gemm", (4096, 4096, 4096), 0, target="H200").schedule
    assert "tl.dot" in first.source()
    assert not load().home.joinpath("logs").exists()


def test_without_a_gpu_it_says_what_to_do() -> None:
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
    with pytest.raises(NoDeviceError, match="recorded"):
        tune_op("gemm", (64, 64, 64), 4)
    assert not load().home.joinpath("logs").exists()


def test_a_table_that_is_used_up_is_a_run_that_is_done() -> None:
    table = GeneratedSpace(OP, TARGET).sample(np.random.default_rng(0), 12)
    result = tune(64, measurer=Pretended(table=table))
    assert (result.status, result.trials) == ("tuned", len(set(table.keys())))


def test_a_callback_may_stop_the_run(tmp_path: Path) -> None:
    def enough(now: Progress) -> None:
        if now.trial == 5 and now.last is not None:
            raise StopTuning("fast enough")

    log = tmp_path / "log.jsonl"
    result = tune(16, callbacks=[enough], log=log)
    assert (result.status, result.trials) == ("partial", 5)
    assert "fast enough" in result.reason
    assert result.latency_us == min(result.curve)
    read = TuningLog.read(log)
    assert (len(read), read.crashed, read.damaged) == (5, [], [])
    assert [end.status for end in read.ends.values()] == ["partial"]


def test_interrupting_carries_the_result_and_leaves_the_log_whole(tmp_path: Path) -> None:
    def interrupt(now: Progress) -> None:
        if now.trial == 11:
            raise KeyboardInterrupt

    log = tmp_path / "log.jsonl"
    with pytest.raises(TuningInterrupted) as caught:
        tune(32, progress=interrupt, log=log)
    result = caught.value.result
    assert isinstance(caught.value, KeyboardInterrupt)
    assert (result.status, result.trials) == ("partial", 11)
    assert result.schedule is not None
    read = TuningLog.read(log)
    assert ([r.trial for r in read], read.crashed, read.damaged) == (list(range(11)), [], [])
    assert result.latency_us == min(r.measurement.latency_us for r in read if r.measurement.latency_us is not None)
    assert [end.status for end in read.ends.values()] == ["partial"]


def test_interrupted_before_anything_was_measured(tmp_path: Path) -> None:
    def interrupt(now: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(TuningInterrupted) as caught:
        tune(progress=interrupt, log=tmp_path / "log.jsonl")
    assert (caught.value.result.status, caught.value.result.schedule) == ("all_failed", None)


def test_all_failing_is_told_with_reasons() -> None:
    shares = {Status.COMPILE_ERROR: 0.5, Status.WRONG_RESULT: 0.5}
    result = tune(16, measurer=Pretended(failures=shares))
    assert (result.status, result.schedule, result.latency_us, result.tflops) == ("all_failed", None, None, None)
    assert set(result.failures) <= {"compile_error", "wrong_result"}
    assert sum(result.failures.values()) == 16
    assert dict(result.errors) == {f"synthetic {status}": n for status, n in result.failures.items()}
    assert result.curve == (None,) * 16
    assert json.loads(json.dumps(result.to_dict()))["best"] is None
    with pytest.raises(InvalidInputError, match=r"no schedule of .* was valid"):
        result.source()


def test_guided_runs_survive_failures_and_never_choose_one() -> None:
    measurer = Pretended(failures={Status.COMPILE_ERROR: 0.3, Status.WRONG_RESULT: 0.2})
    result = tune(24, measurer=measurer, strategy="annealing")
    assert result.status == "tuned"
    assert sum(result.failures.values()) == sum(t is None for t in _latencies(measurer))
    assert measurer.measure(OP, [result.schedule])[0].ok


def _latencies(measurer: Pretended) -> list[float | None]:
    return [m.latency_us for m in measurer.measure(OP, list(measurer.asked))]


def test_progress_counts_up_and_names_each_trial() -> None:
    seen: list[Progress] = []
    result = tune(10, progress=seen.append, measurer=Pretended(failures={Status.COMPILE_ERROR: 0.4}))
    ended = [now for now in seen if now.last is not None]
    assert [now.trial for now in ended] == list(range(1, 11))
    assert [now.best_us for now in ended] == list(result.curve)
    assert ended[-1].failures == result.failures
    assert {now.trials for now in seen} == {10}
    assert all(now.baseline_us == result.baseline_us for now in ended)
    assert sorted(now.seconds for now in seen) == [now.seconds for now in seen]


PROPOSALS = """
import json
from tests.tuning import OP, Pretended
from autosched.tune import tune_op
measurer = Pretended()
tune_op(OP, budget=24, measurer=measurer, log=False, seed=0)
print(json.dumps([s.to_json() for s in measurer.asked]))
"""


def test_the_same_seed_proposes_the_same_in_another_process(repository: Path) -> None:
    here = Pretended()
    tune(24, measurer=here, strategy=None, seed=0)
    there = subprocess.run(
        [sys.executable, "-c", PROPOSALS], cwd=repository, capture_output=True, text=True, check=True, timeout=120
    )
    assert json.loads(there.stdout) == [s.to_json() for s in here.asked]
    other = Pretended()
    tune(24, measurer=other, strategy=None, seed=1)
    assert other.asked[0] == here.asked[0]  # the default schedule
    assert len(set(other.asked) & set(here.asked)) < 12


def test_guided_search_beats_random_search() -> None:
    """On the formula of the synthetic device, by the median of three seeds."""
    op = gemm(4096, 4096, 4096)
    found = {
        strategy: [
            tune_op(op, budget=32, measurer=Pretended(), log=False, strategy=strategy, seed=seed).latency_us
            for seed in range(3)
        ]
        for strategy in ("annealing", "random")
    }
    guided, random = (np.median([t for t in found[s] if t is not None]) for s in ("annealing", "random"))
    assert guided < 0.98 * random


def test_logs_lie_in_the_data_folder_unless_told_otherwise(autosched_home: Path, tmp_path: Path) -> None:
    nowhere = tune(8)
    assert nowhere.log == ""
    assert not list(autosched_home.rglob("*"))
    result = tune(8, log=None)
    assert Path(result.log) == autosched_home / "logs" / "H200" / "gemm-M512.N512.K512.jsonl"
    assert len(TuningLog.read(result.log)) == 8
    own = tune(8, log=str(tmp_path / "own.jsonl"))
    assert own.log == str(tmp_path / "own.jsonl")


def test_a_second_run_is_another_session_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    tune(8, log=log)
    tune(8, log=log, seed=1)
    read = TuningLog.read(log)
    assert len(read.sessions) == len(read.ends) == 2
    assert [len(read.of_session(s)) for s in read.sessions] == [8, 8]


def test_only_measured_and_logged_runs_reach_the_store(tmp_path: Path) -> None:
    store = Store(load().store)
    for arguments in ({"log": tmp_path / "a.jsonl"}, {"measurer": Pretended(source="measured"), "log": False}):
        tune(8, **arguments)
        assert store.entries("H200") == {}
    result = tune(16, measurer=Pretended(source="measured"), log=tmp_path / "b.jsonl")
    best = store.best(OP.key(), "H200")
    assert best is not None
    assert best.record.schedule == result.schedule.to_json()
    assert best.vendor == "synthetic"
    assert best.vendor_us == pytest.approx(result.baseline_us)
    assert best.record.measurement.source_hash


def test_a_store_that_cannot_be_written_costs_no_result(autosched_home: Path, tmp_path: Path) -> None:
    (autosched_home / "store").write_text("a file in the way")
    result = tune(8, measurer=Pretended(source="measured"), log=tmp_path / "log.jsonl")
    assert result.status == "tuned"


def test_finalists_are_compared_and_a_wrong_one_is_not_chosen(tmp_path: Path) -> None:
    measurer = Pretended(source="measured", wrong=1)
    result = tune(16, measurer=measurer)
    default = measurer.asked[0]
    assert default in measurer.compared
    assert 3 <= len(measurer.compared) <= 4
    assert result.schedule in measurer.compared[1:]
    assert result.interval is not None
    assert result.ratio == pytest.approx(result.baseline_us / result.latency_us)
    everyone = Pretended(source="measured", wrong=99)
    result = tune(16, measurer=everyone)
    assert result.schedule not in everyone.compared
    assert "failed their proof" in result.reason


def test_budget_0_with_a_measurer_is_the_models_pick() -> None:
    measurer = Pretended()
    result = tune(0, measurer=measurer)
    assert result.status == "tuned"
    assert result.schedule is not None
    assert result.latency_us is None
    assert measurer.asked == []


def test_a_target_that_the_measurer_is_not_for_is_refused() -> None:
    with pytest.raises(UsageError, match="A100"):
        tune(target="A100")


def test_a_failing_shoot_out_loses_nothing() -> None:
    class Failing(Pretended):
        def compare(self, op: Any, schedules: Any) -> Any:
            raise WorkerError("the comparison timed out")

    result = tune(measurer=Failing(source="measured"))
    assert result.status == "tuned"
    assert result.latency_us is not None
    assert "the comparison timed out" in result.reason


@pytest.mark.parametrize("good", [0, 6])
def test_a_measurer_that_can_no_longer_measure_loses_nothing(good: int) -> None:
    class Failing(Pretended):
        def measure(self, op: Any, schedules: Any) -> Any:
            if len(self.asked) >= good:
                raise WorkerError("the operands could not be made")
            return super().measure(op, schedules)

    if not good:
        with pytest.raises(WorkerError, match="operands"):
            tune(measurer=Failing())
        return
    result = tune(measurer=Failing())
    assert (result.status, result.trials) == ("partial", good)
    assert result.reason.startswith("stopped: the operands could not be made")


def test_a_finalist_that_fails_its_long_proof_is_wrong_in_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    result = tune(measurer=Pretended(source="measured", wrong=1), log=path)
    (wrong,) = [r for r in TuningLog.read(path) if r.measurement.status is Status.WRONG_RESULT]
    assert wrong.schedule != result.schedule.to_json()
    assert wrong.measurement.error == "wrong_result: element 7"
