"""Evaluation against values worked out by hand, and on recorded tables."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import autosched
from autosched.errors import InvalidInputError, ModelMismatchError, UsageError
from autosched.log import LogContents, TuningLog
from autosched.models import Dataset, RooflineModel
from autosched.models.base import Matrix, Vector
from autosched.offline import evaluation
from autosched.offline.baselines import BASELINES
from autosched.recorded import recorded_devices
from autosched.sketches.builders import gemm
from tests.offline.tables import contents, record, schedules, table

OPS = [gemm(n, n, n) for n in (256, 512, 1024)]
TIMES = [30.0, 10.0, 20.0, 40.0]


@dataclass
class Oracle:
    """Knows the label of every row that it was not trained on, and refuses those that it was."""

    labels: dict[bytes, float]
    spaces: tuple[str, ...] = ()
    recipe: str = "oracle"
    digest: str = ""
    seen: set[bytes] = field(default_factory=set)
    fitted: list[tuple[str, ...]] = field(default_factory=list)

    def fit(self, data: Dataset) -> None:
        self.seen = {row.tobytes() for row in data.x}
        self.fitted.append(tuple(sorted(set(data.spaces))))

    def score(self, x: Matrix) -> Vector:
        rows = [row.tobytes() for row in x]
        assert self.seen.isdisjoint(rows), "a model scored a row that it was trained on"
        return np.array([self.labels[row] for row in rows])


def replaced(monkeypatch: pytest.MonkeyPatch, logs: LogContents, sign: float = 1.0) -> Oracle:
    """Puts an oracle in every recipe's place; with sign -1 one that is always wrong."""
    data = Dataset.from_records(logs.records)
    oracle = Oracle({row.tobytes(): sign * float(y) for row, y in zip(data.x, data.y, strict=True)})
    monkeypatch.setattr(evaluation, "create", lambda recipe, seed: oracle)
    return oracle


def test_a_perfect_model(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = contents(*(table(op, TIMES) for op in OPS))
    oracle = replaced(monkeypatch, logs)
    found = autosched.evaluate(logs)
    assert oracle.fitted == [
        ("M256.N256.K256", "M512.N512.K512"),
        ("M1024.N1024.K1024", "M512.N512.K512"),
        ("M1024.N1024.K1024", "M256.N256.K256"),
    ]
    data = found.to_dict()
    assert (data["format"], data["split"], data["workloads"], data["seen"], data["rows"]) == (
        1,
        "by-workload",
        3,
        0,
        12,
    )
    for figure in ("pairwise_accuracy", "spearman", "top1", "top5", "top8", "top16", "top64"):
        assert data[figure] == pytest.approx(1.0), figure
        assert data["intervals"][figure] == pytest.approx([1.0, 1.0]), figure
    assert tuple(data["baselines"]) == BASELINES
    by_default = data["baselines"]["default"]
    assert by_default["top1"] == pytest.approx(1 / 3), "the default takes 30, the best 10"
    by_chance = data["baselines"]["random"]["top1"]
    assert by_chance == pytest.approx((1 / 3 * 1 / 2 * 1 / 4) ** (1 / 4))
    assert data["advantage"]["default"]["top1"] == pytest.approx({"mean": 2 / 3, "low": 2 / 3, "high": 2 / 3})
    assert data["advantage"]["random"]["top1"]["mean"] == pytest.approx(1 - by_chance)
    assert data["uniform"]["top1"] == data["top1"]
    assert [w["space"] for w in data["by_workload"]] == [op.iteration_space() for op in OPS]
    assert data["by_workload"][0]["baselines"]["default"]["top1"] == pytest.approx(1 / 3)
    assert found.predictions.measured_us == pytest.approx(TIMES * 3)
    assert found.predictions.predicted_us == pytest.approx(TIMES * 3)


def test_a_model_that_is_always_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = contents(*(table(op, TIMES) for op in OPS))
    replaced(monkeypatch, logs, sign=-1.0)
    data = autosched.evaluate(logs).to_dict()
    assert data["pairwise_accuracy"] == 0.0
    assert data["spearman"] == pytest.approx(-1.0)
    assert data["top1"] == pytest.approx(1 / 4)
    assert data["top5"] == pytest.approx(1.0)
    assert data["advantage"]["default"]["top1"]["mean"] == pytest.approx(1 / 4 - 1 / 3)


def test_only_stated_strata_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule's retimed rows are pooled with it; what a run left behind does not count."""
    chosen = schedules(OPS[0], 3)
    tuned = [record(OPS[0], chosen[2], 1.0, stratum="")]
    first = [record(OPS[0], s, t) for s, t in zip(chosen[:2], (10.0, 12.0), strict=True)]
    again = [record(OPS[0], chosen[0], t, stratum="retimed") for t in (14.0, 15.0)]
    model = [record(OPS[1], s, t, stratum="model") for s, t in zip(schedules(OPS[1], 2), (5.0, 8.0), strict=True)]
    logs = contents(tuned, again, first, model)
    replaced(monkeypatch, contents(again, first, model))
    found = autosched.evaluate(logs)
    data = found.to_dict()
    assert (data["rows"], data["unstated"]) == (4, 1)
    assert sorted(found.predictions.measured_us) == pytest.approx([5.0, 8.0, 12.0, 14.0])
    assert found.uniform is not None
    assert found.uniform.rows == 2
    assert data["uniform"]["baselines"]["default"]["top1"] == pytest.approx(12 / 14)
    assert [w["uniform"] is None for w in data["by_workload"]] == [False, True]
    with pytest.raises(InvalidInputError, match="none of 1 trials states its stratum"):
        autosched.evaluate(contents(tuned))


@pytest.mark.parametrize("split", ["by-workload", "by-family", "by-dtype", "by-device"])
def test_no_model_scores_a_workload_that_it_was_trained_on(monkeypatch: pytest.MonkeyPatch, split: str) -> None:
    """The oracle asserts it row by row, and spaces are compared here."""
    ops = [gemm(*shape, dtype=d) for shape in ((256, 256, 256), (16, 512, 512)) for d in ("bf16", "fp16")]
    logs = contents(*(table(op, TIMES, device=device) for op in ops for device in ("H200", "A100")))
    oracle = replaced(monkeypatch, logs)
    found = autosched.evaluate(logs, split=split)
    assert len(oracle.fitted) == found.parts
    assert all(len(spaces) == 1 for spaces in oracle.fitted), "the other of the two spaces"
    top = found.all.figures.values["top1"]
    assert list(top.values()) == pytest.approx([1.0] * 8), "every workload is judged once"


def test_within_says_half_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = contents(*(table(op, TIMES) for op in OPS))
    oracle = replaced(monkeypatch, logs)
    found = autosched.evaluate(logs, split="within")
    assert oracle.fitted == [tuple(sorted(op.iteration_space() for op in OPS))]
    assert (found.parts, found.all.rows, found.spaces) == (1, 6, 3)


def test_a_trained_model_is_judged_on_what_it_has_not_seen(tmp_path: Path) -> None:
    tables = [table(op, TIMES) for op in OPS]
    model = autosched.train(contents(tables[0]), recipe="roofline")
    model.save(tmp_path / "model.json")
    found = autosched.evaluate(contents(*tables), model=tmp_path / "model.json")
    data = found.to_dict()
    assert (data["seen"], data["workloads"], data["rows"], data["parts"]) == (1, 2, 8, 0)
    assert data["model"] == str(tmp_path / "model.json")
    assert OPS[0].iteration_space() not in {w["space"] for w in data["by_workload"]}
    data_of = Dataset.from_records([r for rows in tables for r in rows])
    labels = {row.tobytes(): float(y) for row, y in zip(data_of.x, data_of.y, strict=True)}
    knowing: Any = Oracle(labels, spaces=(OPS[0].iteration_space(), "M7.N7.K7"))
    assert autosched.evaluate(contents(*tables), model=knowing).all.figures.means["top1"] == pytest.approx(1.0)
    assert knowing.fitted == []
    assert data["baselines"]["nearest"]["top1"] is not None
    with pytest.raises(InvalidInputError, match="was trained on all 1 iteration spaces"):
        autosched.evaluate(contents(tables[0]), model=model)
    other = table(gemm(256, 256, 256, dtype="fp16"), TIMES)
    with pytest.raises(InvalidInputError, match="was trained on all 1"):
        autosched.evaluate(contents(other), model=model)


def test_without_another_workload_nearest_has_no_figures(tmp_path: Path) -> None:
    model = RooflineModel()
    data = autosched.evaluate(contents(table(OPS[0], TIMES)), model=model).to_dict()
    assert data["baselines"]["nearest"]["top1"] is None
    assert data["advantage"]["nearest"]["top1"] == {"mean": None, "low": None, "high": None}
    assert data["advantage"]["default"]["top1"]["mean"] is not None


def test_model_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    logs = contents(*(table(op, TIMES) for op in OPS))
    path = tmp_path / "model.json"
    autosched.train(logs, recipe="roofline").save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelMismatchError, match="truncated"):
        autosched.evaluate(logs, model=path)
    content = msgspec.json.decode(whole)
    path.write_bytes(msgspec.json.encode({**content, "schema": "0-other"}))
    with pytest.raises(ModelMismatchError):
        autosched.evaluate(logs, model=path)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"recipe": "oracle"}, InvalidInputError, "recipe 'oracle'"),
        ({"split": "by-moon"}, InvalidInputError, "split 'by-moon'"),
        ({"folds": 1}, InvalidInputError, "1 folds"),
        ({"seed": -1}, InvalidInputError, "seed -1"),
        ({"recipe": "xgboost", "model": RooflineModel()}, UsageError, "beside a trained model"),
        ({"split": "within", "model": RooflineModel()}, UsageError, "with a trained model"),
    ],
)
def test_bad_arguments_are_refused_before_logs_are_read(
    arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        autosched.evaluate("nothing", **arguments)


def test_the_learned_model_beats_random_on_recorded_workloads_that_it_has_not_seen() -> None:
    """Trained and judged on the uniform rows of five tables, two of them held out at a time."""
    pytest.importorskip("xgboost")
    names = ("1024x1024x1024", "16x28672x4096", "2048x2048x2048", "512x512x16384", "64x4096x14336")
    files = [recorded_devices()["H200"] / f"gemm-{name}-bf16-nn.jsonl.gz" for name in names]
    read = TuningLog.read(files)
    uniform = LogContents(records=[r for r in read if r.stratum == "uniform"])
    progress: list[tuple[int, int]] = []
    found = autosched.evaluate(uniform, folds=2, progress=lambda *at: progress.append(at))
    assert progress == [(0, 2), (1, 2), (2, 2)]
    assert found.spaces == 5
    ahead = found.all.advantage["random"]["top8"]
    assert ahead.low > 0.1
    assert found.all.figures.means["top8"] > 0.9
    assert found.all.figures.means["pairwise_accuracy"] > 0.75
