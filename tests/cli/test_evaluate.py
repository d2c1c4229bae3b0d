"""``autosched evaluate``: its JSON, its words, its picture, and what it refuses."""

import importlib.util
from pathlib import Path

import pytest

from autosched.sketches.builders import gemm
from tests.cli.conftest import Cli
from tests.offline.tables import table, write

KEYS = {
    "format",
    "split",
    "workloads",
    "seen",
    "pairwise_accuracy",
    "pairwise_top_quarter",
    "pairwise_ceiling",
    "spearman",
    "top1",
    "top5",
    "top8",
    "top16",
    "top64",
    "intervals",
    "baselines",
    "advantage",
    "uniform",
    "by_workload",
}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    for n, m in ((256, 256), (512, 64), (1024, 1024)):
        write(folder / f"{n}.jsonl", table(gemm(m, n, n), [10.0, 12.0, 30.0, 14.0, None, 9.0]))
    return folder


def test_json(cli: Cli, logs: Path) -> None:
    ran = cli("evaluate", str(logs), "--recipe", "roofline", "--json")
    assert ran.code == 0
    data = ran.json
    assert data.keys() >= KEYS
    assert (data["format"], data["split"], data["workloads"], data["seen"], data["rows"]) == (
        1,
        "by-workload",
        3,
        0,
        15,
    )
    assert list(data["baselines"]) == ["random", "roofline", "default", "nearest"]
    assert data["baselines"]["default"]["top1"] == pytest.approx(0.9)
    assert data["baselines"]["default"]["intervals"]["top1"] == pytest.approx([0.9, 0.9])
    assert data["top5"] == data["top64"] == pytest.approx(1.0)
    assert data["advantage"]["default"]["top1"].keys() == {"mean", "low", "high"}


@pytest.mark.parametrize("split", ["by-workload", "by-family", "within"])
def test_words_fit_80_columns(cli: Cli, logs: Path, split: str) -> None:
    ran = cli("evaluate", str(logs), "--recipe", "roofline", "--split", split)
    assert ran.code == 0
    assert "3 iteration spaces" in ran.out
    for word in ("top8", "nearest", "0.900", "64x512x512 bf16 nn", "skinny"):
        assert word in ran.out or split == "within", word
    assert ("flatters" in ran.out) == (split == "within")
    assert max(map(len, ran.out.splitlines())) <= 80


def test_a_trained_model_leaves_out_what_it_has_seen(cli: Cli, logs: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    assert cli("train", str(logs / "512.jsonl"), "-o", str(path), "--recipe", "roofline").code == 0
    data = cli("evaluate", str(logs), "--model", str(path), "--json").json
    assert (data["seen"], data["workloads"], data["model"]) == (1, 2, str(path))
    words = cli("evaluate", str(logs), "--model", str(path))
    assert "1 iteration spaces that it was trained on are left out" in words.out
    ran = cli("evaluate", str(logs / "512.jsonl"), "--model", str(path), "--json")
    assert ran.code == 2
    assert "was trained on all 1 iteration spaces" in ran.json["error"]["message"]


def test_a_model_file_that_is_cut_short_is_refused(cli: Cli, logs: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    assert cli("train", str(logs), "-o", str(path), "--recipe", "roofline").code == 0
    path.write_bytes(path.read_bytes()[:-40])
    ran = cli("evaluate", str(logs), "--model", str(path), "--json")
    assert ran.code == 2
    assert ran.json["error"]["type"] == "ModelMismatchError"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--split", "by-dtype"), "one dtype only: bf16"),
        (("--split", "by-device"), "one device only: H200"),
        (("--split", "by-moon"), "split 'by-moon'"),
        (("--recipe", "oracle"), "recipe 'oracle'"),
        (("--recipe", "roofline", "--model", "m.json"), "beside a trained model"),
        (("--folds", "1"), "1 folds"),
        (("--plot", "curves.txt"), "ends in '.txt'"),
        (("--plot", "nowhere/curves.png"), "its folder is not there"),
    ],
)
def test_refused(cli: Cli, logs: Path, arguments: tuple[str, ...], says: str) -> None:
    ran = cli("evaluate", str(logs), *arguments, "--json")
    assert ran.code == 2
    assert says in ran.json["error"]["message"]
    assert ran.json["error"]["remedy"]


@pytest.mark.parametrize(("ending", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_picture(cli: Cli, logs: Path, tmp_path: Path, ending: str, begins: bytes) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"curves.{ending}"
    ran = cli("evaluate", str(logs), "--recipe", "roofline", "--plot", str(path), "--json")
    assert ran.code == 0, ran.out
    assert path.read_bytes().startswith(begins)
    if ending == "svg":
        text = path.read_text()
        assert "<svg" in text
        assert "Predicted against measured" in text or "path" in text


def test_without_matplotlib_the_remedy_is_told(
    cli: Cli, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    ran = cli("evaluate", str(logs), "--plot", str(tmp_path / "a.png"), "--json")
    assert ran.code == 2
    assert "matplotlib is not installed" in ran.json["error"]["message"]
    assert "autosched[plot]" in ran.json["error"]["remedy"]
    assert not (tmp_path / "a.png").exists()
