"""``autosched simulate``: its JSON, its tables in 80 columns, and what it refuses before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosched.cli import simulate
from autosched.features import SCHEMA
from autosched.models import Dataset, create
from autosched.record import Record
from autosched.sketches.builders import gemm
from tests.cli.conftest import Cli
from tests.offline.synthetic_tables import SHAPES, tables, timed, write


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log of four workloads."""
    folder = tmp_path_factory.mktemp("logs")
    write(folder / "table.jsonl", tables())
    return folder


QUICK = ("--seeds", "2", "--folds", "2", "--recipe", "roofline", "--budgets", "4,12")


def test_json_has_the_keys_that_programs_rely_on(cli: Cli, recorded: Path) -> None:
    ran = cli("simulate", str(recorded), "--strategies", "random,annealing", *QUICK, "--json")
    assert (ran.code, ran.err) == (0, "")
    data = ran.json
    assert (data["format"], data["workloads"], data["seeds"], data["device"]) == (1, 4, 2, "H200")
    assert list(data["strategies"]) == ["random", "annealing"]
    for name, scores in data["strategies"].items():
        assert list(scores) == ["4", "12"]
        for budget, score in scores.items():
            low, high = data["intervals"][name][budget]
            assert 0.0 < low <= score <= high <= 1.0
        assert scores["4"] <= scores["12"]
    assert len(data["rows"]) == 4 * 2 * 2 * 2
    assert set(data["rows"][0]) == {"key", "device", "strategy", "budget", "seed", "fraction"}
    assert list(data["argmax"]) == ["4", "12"]
    pairs = [(d["strategy"], d["reference"], d["budget"]) for d in data["differences"]]
    assert pairs[:3] == [("annealing", "random", 4), ("annealing", "random", 12), ("annealing", "argmax", 4)]
    assert data["seconds"]["total"] > 0.0


def test_people_get_tables_that_fit(cli: Cli, recorded: Path) -> None:
    strategies = "random,annealing,evolutionary"
    ran = cli("simulate", str(recorded), "--strategies", strategies, *QUICK, "--by-workload")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in ran.out, "nothing is cut"
    assert "2 base models (roofline), none guides a workload that it has seen" in ran.out
    assert sum(line.startswith(("random ", "annealing  ", "evolutionary  ")) for line in lines) == 3 + 4 * 3
    assert sum(line.startswith("annealing - random") for line in lines) == 1
    assert "evolutionary - annealing" not in ran.out
    assert "--json holds every pair" in ran.out
    assert sum(line.startswith(gemm(*shape).key()) for shape in SHAPES for line in lines) == 4


def test_only_and_the_picture(cli: Cli, recorded: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    only = [part for shape in SHAPES[:2] for part in ("--only", ",".join(map(str, shape)))]
    ran = cli("simulate", str(recorded), *only, *QUICK, "--plot", str(tmp_path / "found.png"), "--json")
    assert ran.code == 0
    assert ran.json["workloads"] == 2
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")


def test_a_model_that_has_seen_a_workload(cli: Cli, recorded: Path, tmp_path: Path) -> None:
    model = create("roofline")
    model.fit(Dataset.from_records(tables(SHAPES[:1])))
    model.save(tmp_path / "model.json")
    ran = cli("simulate", str(recorded), "--model", str(tmp_path / "model.json"), "--budgets", "4", "--seeds", "1")
    assert ran.code == 0
    assert "1 workloads: 1 the model has seen them" in ran.out
    seen = write(tmp_path / "seen.jsonl", tables(SHAPES[:1]))
    ran = cli("simulate", str(seen), "--model", str(tmp_path / "model.json"), "--json")
    assert ran.code == 2
    assert "trained on all 1 workloads" in ran.json["error"]["message"]


def test_damaged_and_foreign_models_are_refused(cli: Cli, recorded: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    model = create("roofline")
    model.fit(Dataset.from_records(tables(SHAPES[:1])))
    model.save(path)
    whole = path.read_text()
    for text in (whole[: len(whole) // 2], whole.replace(SCHEMA, "other")):
        path.write_text(text)
        assert cli("simulate", str(recorded), "--model", str(path)).code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--strategies", "random,best"), "unknown strategy 'best'"),
        (("--strategies", ""), "no strategy"),
        (("--budgets", "0,8"), "budgets of 0, 8 trials"),
        (("--budgets", "8;16"), "--budgets '8;16' is no list of numbers"),
        (("--seeds", "0"), "0 seeds"),
        (("--folds", "1"), "1 folds"),
        (("--recipe", "oracle"), "unknown recipe 'oracle'"),
        (("--only", "1,2,3"), "workload 1,2,3 is not recorded"),
        (("--only", "big"), "--only 'big' is no list of numbers"),
        (("--table", "model"), "unknown table 'model'"),
        (("--model", "missing.json"), "missing.json"),
        (("--model", "a.json", "--recipe", "xgboost"), "--recipe xgboost beside --model a.json"),
        (("--plot", "found.doc"), "unknown kind of picture"),
        (("--plot", "missing/found.png"), "its folder is not there"),
    ],
)
def test_bad_input_is_refused_before_any_work(
    cli: Cli, recorded: Path, arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(records: list[Record]) -> Dataset:
        raise AssertionError("work was begun")

    monkeypatch.setattr(Dataset, "from_records", fail)
    ran = cli("simulate", str(recorded), *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert "remedy:" in ran.err


def test_no_log(cli: Cli, tmp_path: Path) -> None:
    assert cli("simulate").code == 2
    assert cli("simulate", str(tmp_path)).code == 2
    (tmp_path / "text.txt").write_text("no log")
    ran = cli("simulate", str(tmp_path / "text.txt"), "--json")
    assert (ran.code, ran.json["error"]["type"]) == (2, "LogError")


def test_nothing_valid_in_the_budget(cli: Cli, tmp_path: Path) -> None:
    path = write(tmp_path / "table.jsonl", timed(gemm(256, 256, 256), (None,) * 30 + (5.0,)))
    ran = cli("simulate", str(path), "--strategies", "random", "--budgets", "1", "--seeds", "1", "--json")
    assert (ran.code, ran.json["strategies"], ran.json["empty"]) == (1, {"random": {"1": 0.0}}, 1)


def test_the_bar_is_for_terminals_only(cli: Cli, recorded: Path) -> None:
    ran = cli("simulate", str(recorded), "--strategies", "random", "--budgets", "4", "--seeds", "1")
    assert ran.err == ""
    assert simulate.SimulateOptions([recorded]).strategies == "random,annealing"
