"""Recorded tables: replayed runs, guided by a model that has not seen their workload."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosched import recorded
from autosched.errors import NotRecordedError
from autosched.log import Header, LogContents, TuningLog, Vendor, stale
from autosched.measure.replay import ReplayMeasurer
from autosched.measure.synthetic import SyntheticMeasurer
from autosched.models import Dataset
from autosched.record import Record
from autosched.search import GeneratedSpace
from autosched.sketches.builders import build, gemm
from autosched.sketches.codegen import generate
from autosched.sketches.op import Op
from autosched.sketches.rules import default_schedule, derive
from autosched.sketches.schedule import Schedule
from autosched.sketches.target import PRESETS
from autosched.tune import tune_op

TARGET = PRESETS["H200"]
OPS = [
    gemm(1024, 1024, 1024),
    gemm(1024, 1024, 1024, dtype="fp16", layout="nt"),
    gemm(256, 4096, 1024),
    gemm(64, 512, 8192),
]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of 120 schedules of each op, in a folder as they ship."""
    folder = tmp_path_factory.mktemp("recorded")
    measurer = SyntheticMeasurer(TARGET)
    for i, op in enumerate(OPS):
        space = GeneratedSpace(op, TARGET)
        drawn = space.sample(np.random.default_rng(i), 119).schedules()
        schedules = list(dict.fromkeys([default_schedule(op, TARGET, space.sketches), *drawn]))
        with TuningLog(folder / "H200" / f"{i}.jsonl") as log:
            log.append_header(Header(session=f"s{i}", key=op.key(), op=op.spec, device="H200"))
            baseline = measurer.baseline(op)
            log.append_vendor(
                Vendor(key=op.key(), device="H200", name="cublas", latency_us=baseline.latency_us, session=f"s{i}")
            )
            for trial, (schedule, measurement) in enumerate(
                zip(schedules, measurer.measure(op, schedules), strict=True)
            ):
                log.finish_trial(
                    Record(
                        key=op.key(),
                        op=op.spec,
                        device="H200",
                        schedule=schedule.to_json(),
                        measurement=measurement,
                        stratum="uniform",
                        trial=trial,
                        session=f"s{i}",
                    )
                )
    return folder


@pytest.fixture(scope="module")
def contents(tables: Path) -> LogContents:
    return TuningLog.read(tables)


@pytest.fixture
def shipped(tables: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The small tables in the place of those that ship."""
    monkeypatch.setattr(recorded, "recorded_devices", lambda: {p.name: p for p in tables.iterdir()})
    recorded.recorded_log.cache_clear()
    yield
    recorded.recorded_log.cache_clear()


@pytest.mark.usefixtures("shipped")
def test_devices_are_found_by_name_in_any_case(contents: LogContents) -> None:
    assert len(recorded.recorded_log("h200")) == len(contents)
    assert recorded.recorded_measurer().keys == tuple(op.key() for op in OPS)
    assert recorded.recorded_measurer("H200").target == TARGET
    with pytest.raises(NotRecordedError, match=r"'A100' .recorded: H200"):
        recorded.recorded_measurer("A100")


def test_nothing_recorded_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "recorded_devices", dict)
    with pytest.raises(NotRecordedError, match="no recorded device ships"):
        recorded.recorded_measurer()


class Spy:
    """Stands in for a cost model and keeps what it was fitted on."""

    def __init__(self) -> None:
        self.data: Dataset | None = None

    def fit(self, data: Dataset) -> None:
        self.data = data


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.key())
def test_the_guide_has_not_seen_the_workload(contents: LogContents, op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor the same loops with another dtype or layout."""
    monkeypatch.setattr(recorded, "create", lambda recipe, seed: Spy())
    model: Any = recorded.base_model(op, ReplayMeasurer(contents), 0)
    seen = set(model.data.spaces)
    assert op.iteration_space() not in seen
    assert seen == {other.iteration_space() for other in OPS} - {op.iteration_space()}
    assert len(model.data) == sum(r.op != op.spec for r in contents) - (len(contents) // 4 if op in OPS[:2] else 0)


def test_a_held_out_guide_learns_from_runs_too(
    contents: LogContents, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of a device with tables teach; the workload's own rows do not, nor do runs of a device without tables."""
    alone = OPS[0].key()
    kept = tmp_path / "runs" / "H200"
    kept.mkdir(parents=True)
    (tmp_path / "runs" / "A100").mkdir()
    for path in tables.rglob("*.jsonl*"):
        (kept / path.name).write_bytes(path.read_bytes())
    folders = {"recorded": {p.name: p for p in tables.iterdir()}}
    folders["runs"] = {p.name: p for p in (tmp_path / "runs").iterdir()}
    monkeypatch.setattr(recorded, "_devices", folders.__getitem__)
    recorded.teaching_log.cache_clear()
    assert recorded.teaching_folders() == {"H200": (folders["recorded"]["H200"], kept)}
    assert len(recorded.teaching_log("h200")) == 2 * len(contents)
    monkeypatch.setattr(recorded, "create", lambda recipe, seed: Spy())
    model: Any = recorded.held_out_on("H200", OPS[0])
    assert set(model.data.spaces) == {op.iteration_space() for op in OPS} - {OPS[0].iteration_space()}
    assert alone not in {r.key for r in contents if r.key in model.data.groups}
    recorded.teaching_log.cache_clear()


def test_the_only_workload_is_guided_by_none_of_its_rows(contents: LogContents) -> None:
    alone = [r for r in contents if r.key == OPS[0].key()]
    assert recorded.held_out_model(alone, OPS[0].iteration_space()) is None
    assert recorded.base_model(OPS[0], ReplayMeasurer(alone), 0) is None


def test_a_synthetic_run_is_guided_by_no_shipped_model() -> None:
    assert recorded.base_model(OPS[0], SyntheticMeasurer(TARGET), 0) is None


def test_a_recorded_run_stays_in_its_table(contents: LogContents, tmp_path: Path) -> None:
    pytest.importorskip("xgboost")
    measurer = ReplayMeasurer(contents)
    best = measurer.best(OPS[2])
    assert best is not None
    found = []
    for strategy in ("annealing", "random"):
        result = tune_op(OPS[2], budget=16, measurer=measurer, log=tmp_path / f"{strategy}.jsonl", strategy=strategy)
        assert (result.origin, result.status, result.trials) == ("recorded", "tuned", 16)
        fraction = result.fraction_of_recorded_best
        assert fraction is not None
        assert 0 < fraction <= 1
        assert result.latency_us is not None
        assert result.latency_us == pytest.approx(best[1] / fraction)
        assert result.schedule is not None
        assert measurer.holds(OPS[2], result.schedule)
        baseline = measurer.baseline(OPS[2])
        assert baseline is not None
        assert (result.baseline_name, result.baseline_us) == ("cublas", baseline.latency_us)
        assert result.speedup == pytest.approx(baseline.latency_us / result.latency_us)
        found.append(fraction)
    assert found[0] > 0.9


def test_the_whole_table_holds_its_best(contents: LogContents) -> None:
    measurer = ReplayMeasurer(contents)
    result = tune_op(OPS[3], budget=500, measurer=measurer, log=False, strategy="random")
    assert (result.status, result.fraction_of_recorded_best) == ("tuned", 1.0)
    assert (result.schedule, result.latency_us) == measurer.best(OPS[3])


def test_what_is_not_recorded_is_refused_before_a_log_is_made(contents: LogContents, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with pytest.raises(NotRecordedError, match=r"M7,N7,K7.* is not recorded on H200"):
        tune_op(gemm(7, 7, 7), budget=8, measurer=ReplayMeasurer(contents), log=log)
    assert not log.exists()


def test_the_shipped_model_loads_where_one_ships() -> None:
    pytest.importorskip("xgboost")
    if recorded.shipped_model() is None:
        pytest.skip("no pretrained model ships")
    assert tune_op(OPS[0], budget=0, target="H200").schedule is not None


@pytest.fixture(scope="module")
def tables_that_ship() -> ReplayMeasurer:
    return recorded.recorded_measurer("H200")


def test_shipped_tables_are_whole(tables_that_ship: ReplayMeasurer) -> None:
    contents = recorded.recorded_log("H200")
    assert (contents.damaged, contents.crashed) == ([], [])
    assert len(tables_that_ship.keys) >= 7
    assert {r.stratum for r in contents} == {"uniform", "model", "retimed", "sweep"}
    for spec in {r.key: r.op for r in contents}.values():
        op = build(spec)
        assert op.key() in tables_that_ship.keys
        assert tables_that_ship.stale(op) == 0
        assert tables_that_ship.baseline(op) is not None
        best = tables_that_ship.best(op)
        assert best is not None
        assert len(tables_that_ship.measure(op, [best[0]])[0].samples_us) >= 36, "the best of a table is re-timed"


#: Beginnings of sketches whose source was mended after they were recorded: their copies read beyond the operand.
MENDED = ("window.",)


def test_shipped_rows_are_those_of_todays_source(tables_that_ship: ReplayMeasurer) -> None:
    """A share of the rows: a change of the generator that touches recorded source has to be known."""

    def hash_of(record: Record) -> str:
        op = build(record.op)
        return generate(op, Schedule.from_json(record.schedule, derive(op, tables_that_ship.target))).source_hash

    rows = [r for r in tables_that_ship.records if r.measurement.ok]
    found = stale([r for r in rows if not str(r.schedule["sketch"]).startswith(MENDED)][::101], hash_of)
    assert found.checked >= 40
    assert (found.stale, found.unhashed) == (0, 0)
    mended = stale([r for r in rows if str(r.schedule["sketch"]).startswith(MENDED)][::101], hash_of)
    assert mended.stale == mended.checked > 0  # or the list says too much


@pytest.mark.parametrize("strategy", ["annealing", "random"])
def test_a_run_on_a_shipped_table(tables_that_ship: ReplayMeasurer, strategy: str) -> None:
    pytest.importorskip("xgboost")
    op = gemm(64, 4096, 14336)
    results = [tune_op(op, budget=16, measurer=tables_that_ship, log=False, strategy=strategy) for _ in range(2)]
    assert results[0].curve == results[1].curve
    assert results[0].schedule == results[1].schedule
    fraction = results[0].fraction_of_recorded_best
    assert fraction is not None
    assert 0.6 < fraction <= 1
    assert results[0].source().count("@triton.jit") >= 1
