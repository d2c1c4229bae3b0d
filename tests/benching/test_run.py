"""The whole benchmark on a measurer that pretends rivals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import autosched
from autosched import recorded
from autosched.benching.row import BenchRow
from autosched.benching.run import BenchProgress, bench, new_run_id
from autosched.benching.shards import read_rows
from autosched.benching.suite import Workload
from autosched.errors import InvalidInputError, NoDeviceError, TuningInterrupted, UnsupportedError, WorkerError
from autosched.features import roofline_us
from autosched.log import TuningLog
from autosched.measure.synthetic import VENDOR_FACTOR, latency_us
from autosched.record import Status
from autosched.sketches.builders import gemm
from autosched.sketches.op import Op
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule
from tests.benching.rivals import H200, Pretender

TWO = ("512,512,512", "1024,1024,1024:nn")


def in_turn(*makers: Callable[[], Pretender]) -> Callable[[], Pretender]:
    """A maker that is each of ``makers`` once."""
    left = list(makers)

    def make() -> Pretender:
        return left.pop(0)()

    return make


def test_rows_hold_what_was_measured(tmp_path: Path) -> None:
    entered = Pretender.entered
    made: list[Pretender] = []
    told: list[BenchRow] = []
    steps: list[BenchProgress] = []

    def make() -> Pretender:
        made.append(Pretender())
        return made[-1]

    result = bench(
        "gemm", only=TWO, trials=6, measurer_factory=make, output=tmp_path / "rows.jsonl", run="run-1",
        log=tmp_path / "log.jsonl", on_row=told.append, progress=steps.append,
    )  # fmt: skip
    assert [row.shape for row in result.rows] == [(512, 512, 512), (1024, 1024, 1024)]
    for row, n in zip(result.rows, (512, 1024), strict=True):
        op = gemm(n, n, n)
        assert (row.key, row.group, row.status, row.error) == (op.key(), "medium", "tuned", "")
        assert row.schedule is not None
        own = latency_us(op, H200, Schedule.from_json(row.schedule, derive(op, H200)))
        vendor = VENDOR_FACTOR * roofline_us(op, H200)
        assert row.latency_us == pytest.approx(own)
        assert row.baseline == "cublas"
        assert row.baseline_us == pytest.approx(vendor)
        assert row.ratio == pytest.approx(vendor / own)
        assert row.interval == (0.5, 2.0)
        assert (row.trials, row.device, row.run, row.blocks) == (6, "H200", "run-1", 5)
        assert 0 < row.seconds < 60
        assert "autosched" in row.versions
        inductor = row.rivals["inductor"]
        assert (inductor.ratio, inductor.ahead) == (2.0, True)
        assert inductor.equal_seconds is not None
        assert inductor.equal_seconds.latency_us == row.latency_us
        assert row.rivals["cublas"].ahead is None
        assert row.rivals["triton.autotune"].error == "out of memory"
    assert Pretender.entered - entered == 2, "a measurer a workload"
    assert Pretender.left == Pretender.entered
    assert [m.asked for m in made] == [[("cublas", "inductor", "triton.autotune")]] * 2
    assert told == list(result.rows)
    assert read_rows(tmp_path / "rows.jsonl") == result.rows
    assert len(TuningLog.read(tmp_path / "log.jsonl")) == 12
    assert [(s.index, s.workloads) for s in (steps[0], steps[-1])] == [(0, 2), (1, 2)]
    assert [s.phase for s in steps if s.index == 0][-1] == "compete"
    assert max(s.tuning.trial for s in steps if s.tuning) == 6
    assert result.seconds >= sum(row.seconds for row in result.rows)


def test_the_same_seed_gives_the_same_choice() -> None:
    runs = [bench("gemm", only=TWO[:1], trials=4, seed=3, measurer_factory=Pretender, log=False) for _ in range(2)]
    assert runs[0].rows[0].schedule == runs[1].rows[0].schedule
    assert runs[0].rows[0].run != runs[1].rows[0].run


def test_one_workloads_failure_is_its_rows_error_and_the_run_goes_on(tmp_path: Path) -> None:
    def dying() -> Pretender:
        raise WorkerError("the worker did not start", "try again")

    result = bench("gemm", only=TWO, trials=2, measurer_factory=in_turn(dying, Pretender), log=False)
    assert [(row.status, row.error) for row in result.rows] == [("error", "the worker did not start"), ("tuned", "")]
    assert result.rows[0].rivals["inductor"].error == "the worker did not start"
    assert list(result.summary.failed) == ["gemm 512,512,512 bf16 nn"]
    assert result.device == "H200"


def test_a_comparison_that_breaks_off_keeps_the_tuning() -> None:
    key = gemm(512, 512, 512).key()
    result = bench(
        "gemm", only=TWO, trials=2, measurer_factory=lambda: Pretender(broken=key), log=False, rivals=["inductor"]
    )
    broken, whole = result.rows
    assert (broken.status, broken.error) == ("tuned", "the comparison with rivals failed: the worker died")
    assert broken.latency_us is not None
    assert broken.rivals["inductor"].error == broken.error
    assert broken.ratio is None, "a ratio that was not interleaved is none"
    assert list(whole.rivals) == ["inductor"]


def test_nothing_valid() -> None:
    result = bench(
        "gemm",
        only=TWO[:1],
        trials=3,
        measurer_factory=lambda: Pretender(failures={Status.WRONG_RESULT: 1.0}),
        log=False,
    )
    (row,) = result.rows
    assert (row.status, row.latency_us, row.failed) == ("all_failed", None, True)
    assert "synthetic wrong_result" in row.error


def test_workloads_that_cannot_be_built_are_failed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(workload: Workload) -> Op:
        raise UnsupportedError(f"{workload.label}: groups are not served", "measure others")

    monkeypatch.setattr(Workload, "build", refuse)
    result = bench("conv2d", groups=["depthwise"], trials=2, measurer_factory=Pretender, log=False)
    (row,) = result.rows
    assert (row.status, row.key) == ("error", row.label)
    assert "groups" in row.error
    assert len(result.summary.failed) == 1


def test_an_interrupted_run_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"

    def interrupt(now: BenchProgress) -> None:
        if now.index == 1 and now.tuning is not None and now.tuning.trial == 1:
            raise KeyboardInterrupt

    with pytest.raises(TuningInterrupted) as caught:
        bench("gemm", only=TWO, trials=4, measurer_factory=Pretender, output=path, log=False, progress=interrupt)
    assert [row.shape for row in caught.value.result.rows] == [(512, 512, 512)]
    assert read_rows(path) == caught.value.result.rows
    assert Pretender.left == Pretender.entered


def test_without_a_device_the_run_ends_at_once() -> None:
    def none() -> Pretender:
        raise NoDeviceError("no GPU", "get one")

    with pytest.raises(NoDeviceError):
        bench("gemm", only=TWO, trials=2, measurer_factory=none, log=False)
    result = bench("gemm", only=TWO, trials=2, measurer_factory=in_turn(Pretender, none), log=False)
    assert [row.status for row in result.rows] == ["tuned", "error"], "what was measured before it went is kept"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"trials": 0}, "0 trials"),
        ({"seed": -1}, "seed -1"),
        ({"rivals": []}, "rivals none"),
        ({"rivals": ["cublas", "cublas"]}, "rivals cublas, cublas"),
        ({"rivals": ["helion"]}, "unknown rival 'helion'"),
        ({"only": ["1,2,3"]}, "no shape 1,2,3"),
        ({"groups": ["huge"]}, "no class 'huge'"),
        ({"output": "missing/rows.jsonl"}, "its folder is not there"),
    ],
)
def test_bad_input_is_refused_before_any_work(arguments: dict[str, object], said: str) -> None:
    def make() -> Pretender:
        raise AssertionError("work was begun")

    with pytest.raises(InvalidInputError, match=said):
        bench("gemm", measurer_factory=make, log=False, **arguments)  # type: ignore[arg-type]


def test_public_names() -> None:
    assert autosched.bench is bench
    assert {"bench", "Bench"} <= set(autosched.__all__)
    assert len({new_run_id() for _ in range(50)}) == 50


def test_a_held_out_run_says_so_and_its_model_has_not_seen_the_space(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xgboost")
    asked: list[str] = []

    def held_out(records: object, space: str, seed: int = 0) -> None:
        asked.append(space)

    monkeypatch.setattr(recorded, "held_out_model", held_out)
    rows = bench("gemm", only=["512,512,512"], trials=4, measurer_factory=Pretender, log=False, held_out=True).rows
    assert asked == ["M512.N512.K512"]
    assert [row.held_out for row in rows] == [True]
    rows = bench("gemm", only=["512,512,512"], trials=4, measurer_factory=Pretender, log=False).rows
    assert (len(asked), rows[0].held_out) == (1, False)
