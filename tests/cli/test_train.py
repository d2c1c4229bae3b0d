"""``autosched train``: its JSON, its words, and what it refuses."""

from pathlib import Path

import pytest

from autosched.features import FEATURES, SCHEMA
from autosched.models import load
from autosched.sketches.builders import gemm
from tests.cli.conftest import Cli
from tests.offline.tables import table, write


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    for n in (256, 512):
        write(folder / f"{n}.jsonl", table(gemm(n, n, n), [10.0, 12.0, None, 14.0]))
    return folder


def test_json(cli: Cli, logs: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    ran = cli("train", str(logs), "-o", str(path), "--recipe", "roofline", "--json")
    assert ran.code == 0
    data = ran.json
    assert data.keys() >= {"format", "model", "workloads", "records", "features", "schema", "seconds"}
    assert (data["format"], data["model"], data["workloads"], data["records"]) == (1, str(path), 2, 6)
    assert (data["features"], data["schema"], data["failed"]) == (len(FEATURES), SCHEMA, 2)
    assert load(path).spaces == ("M256.N256.K256", "M512.N512.K512")


def test_words(cli: Cli, logs: Path, tmp_path: Path) -> None:
    pytest.importorskip("xgboost")
    path = tmp_path / "m.json"
    ran = cli("train", str(logs / "256.jsonl"), str(logs), "--output", str(path), "--seed", "3")
    assert ran.code == 0
    assert "2 iteration spaces" in ran.out
    assert "6, which are 6 schedules" in ran.out
    assert "2 failed" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    model = load(path)
    assert (model.recipe, model.seed) == ("xgboost", 3)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("{logs}", "-o", "{tmp}/none/model.json"), "its folder is not there"),
        (("{logs}", "-o", "{logs}"), "is a folder"),
        (("{logs}", "-o", "{logs}/256.jsonl"), "is one of the logs"),
        (("{logs}", "-o", "{tmp}/m.json", "--recipe", "oracle"), "recipe 'oracle'"),
        (("{logs}", "-o", "{tmp}/m.json", "--seed", "-1"), "seed -1"),
        (("{tmp}/gone.jsonl", "-o", "{tmp}/m.json"), "there is no log"),
        (("{tmp}/empty", "-o", "{tmp}/m.json"), "no tuning log in"),
        (("{tmp}/failed.jsonl", "-o", "{tmp}/m.json"), "none of 2 trials can be learnt from"),
        (("{tmp}/notes.jsonl", "-o", "{tmp}/m.json"), "is no tuning log"),
        (("-o", "{tmp}/m.json"), "Missing argument"),
        (("{logs}",), "Missing option"),
    ],
)
def test_refused_and_nothing_written(
    cli: Cli, logs: Path, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.jsonl").write_text("words\n")
    write(tmp_path / "failed.jsonl", table(gemm(256, 256, 256), [None, None]))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    filled = [a.format(logs=logs, tmp=tmp_path) for a in arguments]
    ran = cli("train", *filled, "--json")
    assert ran.code == 2
    assert says in ran.json["error"]["message"]
    assert ran.json["error"]["remedy"]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_folder_is_asked_for_before_any_log_is_read(cli: Cli, tmp_path: Path) -> None:
    ran = cli("train", str(tmp_path / "gone.jsonl"), "-o", str(tmp_path / "none" / "m.json"))
    assert ran.code == 2
    assert "its folder is not there" in ran.err
