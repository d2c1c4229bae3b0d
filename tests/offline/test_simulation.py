"""Simulation: its arithmetic by hand, no leak between workloads and the models that guide them, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from autosched.errors import InvalidInputError, LogNotFoundError, NotRecordedError
from autosched.models import CostModel, Dataset, RandomModel, create
from autosched.offline import simulation
from autosched.offline.simulation import fractions, simulate
from autosched.offline.simulation_argmax import Scored, first_choices, refitted_choices
from autosched.offline.simulation_result import ARGMAX, REFITTED, Simulation, Workload, geometric_mean
from autosched.offline.simulation_tables import make_tables, unguided
from autosched.record import Record
from autosched.search import STRATEGIES
from autosched.sketches.builders import gemm
from autosched.sketches.constraints import why_invalid
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule, ScheduleBatch
from autosched.tune import tune_op
from tests.offline.synthetic_tables import H200, SHAPES, rows, tables, timed, write

Curve = Sequence[Sequence[Sequence[float]]]
QUICK: dict[str, Any] = {"seeds": 1, "folds": 2, "recipe": "roofline"}


def result(
    curves: Mapping[str, Curve], spaces: Sequence[str] = ("a", "b"), budgets: Sequence[int] = (1, 2)
) -> Simulation:
    """A simulation with the given fractions, ``[workloads][seeds][trials]`` by strategy."""
    arrays = {name: np.asarray(curve, np.float64) for name, curve in curves.items()}
    first = next(iter(arrays.values()))
    return Simulation(
        strategies=tuple(name for name in curves if name not in (ARGMAX, REFITTED)),
        budgets=tuple(budgets),
        seeds=first.shape[1],
        workloads=tuple(Workload(f"{s}/{i}", "H200", s, (8, 8, 8), 10, 5.0) for i, s in enumerate(spaces)),
        curves=arrays,
        guided=("annealing",) if ARGMAX in curves else (),
    )


def test_fraction_of_the_best_after_each_trial() -> None:
    assert fractions((None, 40.0, 25.0, 20.0), 10.0, 6).tolist() == [0.0, 0.25, 0.4, 0.5, 0.5, 0.5]
    assert fractions((None, 40.0, 25.0, 20.0), 10.0, 2).tolist() == [0.0, 0.25]
    assert fractions((), 10.0, 3).tolist() == [0.0, 0.0, 0.0]


def test_geometric_mean_by_hand() -> None:
    assert float(geometric_mean(np.array([0.25, 1.0]))) == pytest.approx(0.5)
    assert float(geometric_mean(np.array([0.5, 0.125]), np.array([1.0, 2.0]))) == pytest.approx((0.5 / 64) ** (1 / 3))
    assert float(geometric_mean(np.array([0.0, 1.0]))) == 0.0
    assert float(geometric_mean(np.array([0.0, 0.5]), np.array([0.0, 1.0]))) == pytest.approx(0.5), "no weight, no say"


def test_score_is_the_geometric_mean_over_workloads_of_the_mean_over_seeds() -> None:
    found = result({"random": [[[0.2, 0.4], [0.3, 0.6]], [[0.8, 1.0], [0.8, 1.0]]]})
    assert found.score("random", 1).value == pytest.approx((0.25 * 0.8) ** 0.5)
    assert found.score("random", 2).value == pytest.approx((0.5 * 1.0) ** 0.5)
    assert found.to_dict()["strategies"] == {
        "random": {"1": pytest.approx(0.2**0.5), "2": pytest.approx(0.5**0.5)},
    }


def test_a_workload_whose_runs_found_nothing_makes_the_score_zero_and_is_counted() -> None:
    found = result({"random": [[[0.0, 0.0]], [[0.5, 0.5]]]})
    assert found.score("random", 2).value == 0.0
    assert found.empty == 1
    half = result({"random": [[[0.0, 0.0], [0.5, 0.5]], [[1.0, 1.0], [1.0, 1.0]]]})
    assert half.score("random", 2).value == pytest.approx(0.25**0.5)


def test_interval_of_a_constant_is_that_constant() -> None:
    estimate = result({"random": [[[0.7, 0.9]] * 3] * 2}).score("random", 2)
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((0.9, 0.9, 0.9))


def test_interval_spans_the_workloads_and_is_the_same_each_time() -> None:
    curves = {"random": [[[v, v]] for v in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)]}
    spaces = "abcdef"
    estimate = result(curves, spaces).score("random", 1)
    assert 0.5 < estimate.low < 0.68 < estimate.value < 0.78 < estimate.high < 1.0
    assert estimate == result(curves, spaces).score("random", 1)


def test_workloads_of_one_space_are_drawn_together() -> None:
    curves = {"random": [[[v, v]] for v in (0.5, 1.0, 0.5, 1.0)]}
    together = result(curves, ("a", "a", "b", "b")).score("random", 1)
    assert (together.low, together.high) == pytest.approx((0.5**0.5, 0.5**0.5)), "both spaces have the same mean"
    alone = result(curves, "abcd").score("random", 1)
    assert alone.low < 0.55
    assert alone.high > 0.95


def test_difference_is_paired_by_workload_and_seed() -> None:
    level = np.array([[[0.5], [0.7]], [[0.6], [0.8]], [[0.4], [0.9]]])
    found = result({"random": (level * 0.5).tolist(), "annealing": level.tolist()}, "abc", (1,))
    score = found.score("annealing", 1)
    difference = found.difference("annealing", "random", 1)
    assert difference.value == pytest.approx(score.value / 2)
    assert (difference.low, difference.high) == pytest.approx((score.low / 2, score.high / 2)), "the same draws"
    assert difference.apart
    row = found.to_dict()["differences"][0]
    assert (row["strategy"], row["reference"], row["budget"], row["apart"]) == ("annealing", "random", 1, True)


def test_strategies_that_win_in_turn_are_not_apart() -> None:
    found = result({"a": [[[0.9]], [[0.5]]], "b": [[[0.5]], [[0.9]]]}, budgets=(1,))
    assert found.difference("b", "a", 1).value == pytest.approx(0.0)
    assert not found.difference("b", "a", 1).apart


def test_pairs_are_later_less_earlier_then_the_argmaxes() -> None:
    flat = [[[1.0]], [[1.0]]]
    found = result({name: flat for name in ("random", "annealing", "grid", ARGMAX, REFITTED)}, budgets=(1,))
    assert found.pairs == [
        ("annealing", "random"),
        ("grid", "random"),
        ("grid", "annealing"),
        ("annealing", "argmax"),
        ("annealing", "argmax_refitted"),
    ]


def test_rows_and_numbers_of_the_json() -> None:
    found = result({"random": [[[0.2, 0.4]], [[0.5, 1.0]]]}, ("a", "a"))
    data = found.to_dict()
    assert (data["format"], data["device"], data["workloads"], data["tables"], data["seeds"]) == (1, "H200", 1, 2, 1)
    assert data["rows"][1] == {
        "key": "a/0", "device": "H200", "strategy": "random", "budget": 2, "seed": 0, "fraction": 0.4,
    }  # fmt: skip
    assert [row["fraction"] for row in data["rows"]] == [0.2, 0.4, 0.5, 1.0]
    assert data["argmax"] is None
    assert data["by_workload"][1]["strategies"] == {"random": {"1": 0.5, "2": 1.0}}


class Told(RandomModel):
    """Scores a table's rows in a given order: the first row highest."""

    def score(self, x: Any) -> Any:
        return -np.arange(len(x), dtype=np.float64)


def test_first_choices_are_the_highest_scored_rows() -> None:
    (table,), _ = make_tables(timed(gemm(256, 256, 256), (30.0, None, 20.0, 25.0, 10.0)))
    assert table.workload.best_us == 10.0
    assert first_choices(Scored.of(table), Told(), 4) == [30.0, 30.0, 20.0, 20.0]
    (table,), _ = make_tables(timed(gemm(256, 256, 256), (None, 20.0)))
    assert first_choices(Scored.of(table), Told(), 4) == [None, 20.0]


def test_refitted_choices_take_every_row_once() -> None:
    (table,), _ = make_tables(rows(gemm(256, 256, 256), 40))
    scored = Scored.of(table)
    curve = refitted_choices(scored, create("roofline"), [4] * 20, 0)
    assert len(curve) == table.workload.schedules
    assert curve[-1] == table.workload.best_us
    assert curve[:4] == first_choices(scored, create("roofline"), 4), "nothing is learnt before the first round"


def test_a_smaller_budget_is_the_first_part_of_the_run() -> None:
    found = simulate(tables(SHAPES[:2]), strategies=("random",), budgets=(64, 4, 16, 4), seeds=2)
    assert found.budgets == (4, 16, 64)
    op, best = gemm(*SHAPES[0]), found.workloads[0].best_us
    (table, _), _ = make_tables(tables(SHAPES[:2]))
    run = tune_op(op, budget=64, measurer=table.measurer, model=create("random"), strategy="random", seed=1, log=False)
    for n in (4, 16):
        latency = run.curve[n - 1]
        assert latency is not None
        assert found.fractions("random", n)[0, 1] == pytest.approx(best / latency)
    assert found.fractions("random", 64)[0, 1] == 1.0, "the whole table was measured"


def test_no_guide_has_seen_the_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    guides: list[tuple[str, str, tuple[str, ...]]] = []

    def spy(op: Any, **arguments: Any) -> Any:
        model: CostModel = arguments["model"]
        guides.append((arguments["strategy"], op.iteration_space(), model.spaces))
        return tune_op(op, **arguments)

    monkeypatch.setattr(simulation, "tune_op", spy)
    records = [*tables(), *rows(gemm(*SHAPES[0], dtype="fp16"))]
    found = simulate(records, budgets=(4,), **QUICK)
    assert (found.folds, found.guide, found.spaces, len(found.workloads)) == (2, "roofline", 4, 5)
    asked = [(space, spaces) for strategy, space, spaces in guides if strategy == "annealing"]
    assert len(asked) == 5
    assert all(space not in spaces and len(spaces) == 2 for space, spaces in asked)
    assert all(not spaces for strategy, _, spaces in guides if strategy == "random"), "an untrained model stands in"


def test_no_model_is_trained_where_none_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> Dataset:
        raise AssertionError("features were read")

    monkeypatch.setattr(Dataset, "from_records", fail)
    found = simulate(tables(SHAPES[:1]), strategies=("random",), budgets=(4,))
    assert (found.folds, found.guide, list(found.curves)) == (0, "", ["random"])


def test_what_a_given_model_has_seen_is_left_out_and_counted(tmp_path: Path) -> None:
    model = create("roofline")
    model.fit(Dataset.from_records(tables(SHAPES[:1])))
    model.save(tmp_path / "model.json")
    records = tables(SHAPES[:2])
    for given in (model, tmp_path / "model.json"):
        found = simulate(records, model=given, budgets=(4,), seeds=1)
        assert [w.shape for w in found.workloads] == [SHAPES[1]]
        assert (found.seen, found.guide, found.folds) == (1, "model", 0)
        assert found.to_dict()["left_out"] == [
            {"key": gemm(*SHAPES[0]).key(), "device": "H200", "reason": "seen"},
        ]
    with pytest.raises(NotRecordedError, match="trained on all 1 workloads"):
        simulate(tables(SHAPES[:1]), model=model)


def test_the_same_seeds_give_the_same_rows() -> None:
    first, second = (simulate(tables(), budgets=(4, 12), **QUICK).to_dict() for _ in range(2))
    assert first["rows"] == second["rows"]
    assert first["intervals"] == second["intervals"]
    assert len({row["seed"] for row in simulate(tables(SHAPES[:2]), strategies=["random"]).to_dict()["rows"]}) == 3


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_runs(name: str) -> None:
    if name == "tpe":
        pytest.importorskip("optuna")
    found = simulate(tables(SHAPES[:2], 24), strategies=(name,), budgets=(2, 8, 24), **QUICK)
    curve = found.curves[name]
    assert (np.diff(curve, axis=2) >= 0).all()
    assert 0.0 < found.score(name, 8).value <= 1.0
    assert found.score(name, 24).value == pytest.approx(1.0), "every row was measured"
    assert (ARGMAX in found.curves) == STRATEGIES[name].asks_model


def test_only_chooses_what_is_simulated_but_not_what_is_learnt_from() -> None:
    alone = simulate(tables(), budgets=(8,), only=[SHAPES[2]], **QUICK)
    assert [w.shape for w in alone.workloads] == [SHAPES[2]]
    assert alone.folds == 1
    every = simulate(tables(), budgets=(8,), **QUICK)
    assert alone.curves["annealing"][0].tolist() == every.curves["annealing"][2].tolist()
    with pytest.raises(NotRecordedError, match="1,2,3 is not recorded"):
        simulate(tables(), only=[(1, 2, 3)])


def test_rows_without_a_stratum_do_not_count(tmp_path: Path) -> None:
    op = gemm(*SHAPES[0])
    stated = timed(op, (30.0, 20.0))
    faster = msgspec.structs.replace(timed(op, (30.0, 20.0, 1.0))[2], stratum="")
    write(tmp_path / "table.jsonl", [*stated, faster])
    found = simulate(tmp_path, strategies=("random",), budgets=(2,), seeds=1)
    assert (found.workloads[0].schedules, found.workloads[0].best_us) == (2, 20.0)
    with pytest.raises(NotRecordedError, match="none of the 1 rows states its stratum"):
        simulate([faster])


def test_what_cannot_be_replayed_is_left_out() -> None:
    failed = timed(gemm(*SHAPES[1]), (None, None))
    unknown = [msgspec.structs.replace(r, key="other/key") for r in timed(gemm(*SHAPES[2]), (1.0,))]
    found = simulate([*timed(gemm(*SHAPES[0]), (2.0,)), *failed, *unknown], strategies=("random",), budgets=(1,))
    assert [(w.key, w.reason) for w in found.left_out] == [
        (gemm(*SHAPES[1]).key(), "no valid row"),
        ("other/key", "not rebuilt"),
    ]
    assert found.seen == 0
    with pytest.raises(NotRecordedError, match="no recorded workload can be simulated"):
        simulate(failed, strategies=("random",))


def test_the_uniform_table_is_an_unguided_draw_with_all_its_samples() -> None:
    op = gemm(*SHAPES[0])
    drawn = rows(op, 20)
    proposed = msgspec.structs.replace(drawn[0], stratum="model")
    retimed = msgspec.structs.replace(drawn[1], stratum="retimed")
    kept = unguided([proposed, *drawn[1:], retimed])
    assert kept == [*drawn[1:], retimed]
    found = simulate([proposed, *drawn[1:], retimed], table="uniform", strategies=("random",), budgets=(1,))
    assert (found.table, found.workloads[0].schedules) == ("uniform", len(drawn) - 1)
    with pytest.raises(NotRecordedError, match="uniform stratum"):
        simulate([proposed], table="uniform", strategies=("random",))


def test_the_uniform_table_leaves_out_what_a_constraint_rejects() -> None:
    op = gemm(*SHAPES[0])
    good = rows(op, 10)
    sketch = derive(op, H200)[0]
    largest = Schedule.of(sketch, **{knob.name: max(knob.values) for knob in sketch.knobs})
    assert not why_invalid(op, H200, ScheduleBatch.of((sketch,), [largest])).valid[0]
    rejected = msgspec.structs.replace(good[0], schedule=largest.to_json())
    assert unguided([*good, rejected]) == good


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"strategies": ()}, "no strategy"),
        ({"strategies": ("random", "best")}, "unknown strategy 'best'"),
        ({"budgets": ()}, "budgets of no trials"),
        ({"budgets": (8, 0)}, "budgets of 0, 8 trials"),
        ({"seeds": 0}, "0 seeds"),
        ({"folds": 1}, "1 folds"),
        ({"recipe": "oracle"}, "unknown recipe 'oracle'"),
        ({"table": "model"}, "unknown table 'model'"),
    ],
)
def test_bad_arguments_are_refused_before_a_log_is_read(arguments: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=said):
        simulate(tmp_path / "missing.jsonl", **arguments)


def test_one_space_leaves_nothing_to_train_on() -> None:
    with pytest.raises(InvalidInputError, match="only one iteration space is recorded"):
        simulate(tables(SHAPES[:1]), budgets=(4,))


def test_no_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LogNotFoundError):
        simulate([])
    with pytest.raises(LogNotFoundError):
        simulate(tmp_path / "missing.jsonl")


def test_progress_counts_every_run() -> None:
    told: list[simulation.SimulationProgress] = []
    simulate(tables(SHAPES[:2]), budgets=(4,), progress=told.append, **QUICK)
    assert [t.done for t in told] == sorted(t.done for t in told)
    assert (told[0].done, told[-1].done, told[-1].runs) == (0, 4, 4)
    assert {t.doing.partition(" ")[0] for t in told} >= {"reading", "training", "random", "annealing", "argmax"}


def test_devices_are_apart() -> None:
    op = gemm(*SHAPES[0])
    elsewhere: list[Record] = [msgspec.structs.replace(r, device="H100") for r in timed(op, (40.0, 8.0))]
    found = simulate([*timed(op, (30.0, 20.0)), *elsewhere], strategies=("random",), budgets=(2,), seeds=1)
    assert [(w.device, w.best_us) for w in found.workloads] == [("H200", 20.0), ("H100", 8.0)]
    assert found.to_dict()["device"] == "H200, H100"


def test_the_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = result({"random": [[[0.2, 0.4]], [[0.5, 1.0]]], "annealing": [[[0.2, 0.4]], [[0.5, 1.0]]]})
    assert found.plot(tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")
    svg = found.plot(tmp_path / "found.svg").read_text()
    assert svg.count("<path") > 10
    one = result({"random": [[[0.2]], [[0.5]]]}, budgets=(1,))
    assert one.plot(tmp_path / "one.png").stat().st_size > 0
