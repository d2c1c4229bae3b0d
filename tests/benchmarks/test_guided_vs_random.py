"""The comparison of guided and random search: its arithmetic by hand, and a run over a small recorded table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from autosched.errors import NotRecordedError
from autosched.log import TuningLog
from autosched.measure.replay import ReplayMeasurer
from autosched.measure.synthetic import SyntheticMeasurer
from autosched.record import Record, Status
from autosched.search import GeneratedSpace
from autosched.sketches.builders import gemm
from autosched.sketches.op import Op
from autosched.sketches.target import PRESETS
from benchmarks import guided_vs_random
from benchmarks.guided_vs_random import (
    GUIDED,
    RANDOM,
    Run,
    best_of,
    bootstrap,
    fraction,
    run,
    summarize,
    table,
    unguided,
)

H200 = PRESETS["H200"]


def recorded(op: Op, failures: dict[Status, float] | None = None) -> list[Record]:
    """Rows of up to 120 schedules, as a table holds them."""
    batch = GeneratedSpace(op, H200).sample(np.random.default_rng(3), 120)
    schedules = list(dict.fromkeys(batch[i] for i in range(len(batch))))
    measurements = SyntheticMeasurer(H200, failures=failures).measure(op, schedules)
    return [
        Record(key=op.key(), op=op.spec, device="H200", schedule=s.to_json(), measurement=m, stratum="uniform", trial=i)
        for i, (s, m) in enumerate(zip(schedules, measurements, strict=True))
    ]


def test_fraction_is_of_the_best_so_far() -> None:
    curve = (None, 40.0, 25.0, 20.0)
    assert [fraction(10.0, curve, n) for n in (1, 2, 3, 4, 64)] == [0.0, 0.25, 0.4, 0.5, 0.5]
    assert fraction(10.0, (), 16) == 0.0


def test_bootstrap_holds_the_mean_and_is_the_same_each_time() -> None:
    values = [0.90, 0.92, 0.94, 0.96, 0.98]
    found = bootstrap(values)
    assert found.mean == pytest.approx(0.94)
    assert 0.90 < found.low < 0.93 < 0.95 < found.high < 0.98
    assert found == bootstrap(values)
    assert bootstrap([0.5] * 4) == guided_vs_random.Mean(0.5, 0.5, 0.5)


def test_rows_by_workload_then_over_all() -> None:
    runs = [
        Run(key, strategy, seed, {16: value})
        for key, seed, guided, random in (("a/x", 0, 0.9, 0.8), ("a/x", 1, 1.0, 0.8), ("b/x", 0, 1.0, 0.7))
        for strategy, value in ((RANDOM, random), (GUIDED, guided))
    ]
    a, b, both = summarize(runs, (16,))
    assert [(r.workload, r.trials, r.runs) for r in (a, b, both)] == [("a/x", 16, 2), ("b/x", 16, 1), ("all", 16, 3)]
    assert [a.guided.mean, a.random.mean] == pytest.approx([0.95, 0.8])
    assert a.difference.mean == pytest.approx(0.15)
    assert [a.difference.low, a.difference.high] == pytest.approx([0.1, 0.2])
    assert both.difference.mean == pytest.approx((0.1 + 0.2 + 0.3) / 3)
    assert a.apart
    lines = table([a, b, both]).splitlines()
    assert lines[2].startswith("| a ")
    assert len({len(line) for line in lines}) == 1
    assert "| a/x " in table(summarize([*runs, *(Run("a/y", s, 0, {16: 1.0}) for s in (GUIDED, RANDOM))], (16,)))


def test_overlapping_intervals_are_not_apart() -> None:
    values = {GUIDED: (0.9, 1.0), RANDOM: (0.8, 0.95)}
    runs = [Run("a", name, seed, {64: v}) for name, both in values.items() for seed, v in enumerate(both)]
    assert [row.apart for row in summarize(runs, (64,))] == [False, False]


def test_a_prefix_of_one_run_gives_the_smaller_budget() -> None:
    op = gemm(256, 256, 256)
    measurer = ReplayMeasurer(recorded(op))
    found = run(op, measurer, RANDOM, 0, (4, 8, 200))
    assert 0.0 < found.fractions[4] <= found.fractions[8] <= found.fractions[200]
    assert found.fractions[200] == 1.0, "random search that has seen the whole table has found its best"
    assert found == run(op, measurer, RANDOM, 0, (4, 8, 200))


def test_a_workload_without_a_valid_row_is_named() -> None:
    op = gemm(256, 256, 256)
    measurer = ReplayMeasurer(recorded(op, {Status.LAUNCH_ERROR: 1.0}))
    with pytest.raises(NotRecordedError, match="M256,N256,K256"):
        run(op, measurer, GUIDED, 0)


def test_unguided_keeps_the_uniform_stratum_and_the_best_is_of_both() -> None:
    op = gemm(256, 256, 256)
    rows = recorded(op)
    fastest = min(rows, key=lambda r: r.measurement.latency_us or np.inf)
    proposed = msgspec.structs.replace(fastest, stratum="model")
    whole = ReplayMeasurer([proposed if r is fastest else r for r in rows])
    drawn = unguided(whole)
    assert len(drawn.space(op)) == len(whole.space(op)) - 1
    both = best_of(op, [drawn, whole])
    assert both == whole.best(op)
    assert both is not None
    assert both[1] == fastest.measurement.latency_us
    assert best_of(op, [drawn]) == drawn.best(op) != both


def test_the_command_prints_every_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.jsonl"
    with TuningLog(path) as log:
        for shape in ((256, 256, 256), (512, 256, 128)):
            for record in recorded(gemm(*shape)):
                log.finish_trial(record)
    monkeypatch.setattr(sys, "argv", ["guided_vs_random", "--json", "--seeds", "1", "--log", str(path)])
    guided_vs_random.main()
    data = json.loads(capsys.readouterr().out)
    assert (data["device"], data["seeds"]) == ("H200", 1)
    assert [(r["workload"].partition("/")[0], r["trials"]) for r in data["rows"]] == [
        (name, n) for name in ("M256,N256,K256", "M512,N256,K128", "all") for n in (16, 64)
    ]
    assert len(data["runs"]) == 4
    assert all(0.0 < f <= 1.0 for r in data["runs"] for f in r["fractions"].values())
