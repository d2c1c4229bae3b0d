"""``autosched bench``: its JSON, its table at two widths, merging, exit codes, and what it refuses before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosched.benching import run
from autosched.benching.row import EqualSeconds, RivalRow
from autosched.benching.shards import append_row, read_rows
from autosched.benching.suite import Workload, load_suite
from autosched.cli import bench as command
from autosched.cli.devices import Found, Gpu
from autosched.errors import UnsupportedError
from autosched.record import Status
from autosched.sketches.op import Op
from tests.benching.rivals import Pretender, row
from tests.cli.conftest import NO_GPU, Cli

ONE_GPU = Found(gpus=(Gpu("NVIDIA H200", 90, 150_000_000_000),))
KEYS = {
    "format", "op", "device", "runs", "rows", "geomean", "geomean_with_odd_strides", "geomean_by_class", "geomean_all",
    "intervals", "rivals", "failed", "goals", "seconds",
}  # fmt: skip
ROW_KEYS = {
    "op", "key", "class", "dtype", "layout", "latency_us", "baseline", "baseline_us", "ratio", "interval", "trials",
    "compiled", "seconds",
}  # fmt: skip
QUICK = ("bench", "gemm", "--only", "512,512,512", "--trials", "3")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that a pretender measures on."""
    monkeypatch.setattr(command, "find_gpus", lambda: ONE_GPU)
    monkeypatch.setattr(run, "local_measurer", Pretender)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """Rows of the whole suite, one of them failed, with a rival that tunes."""
    path = tmp_path / "suite.jsonl"
    for i, workload in enumerate(load_suite("gemm")):
        ratio = 0.97 + 0.01 * (i % 9)
        fields = {name: getattr(workload, name) for name in workload.__struct_fields__}
        made = row(None if i == 6 else ratio, **fields)
        tuned = RivalRow(
            latency_us=12.0, ratio=1.2, interval=(1.18, 1.22), tuning_seconds=9.0, ahead=True,
            equal_seconds=EqualSeconds(latency_us=10.0, ratio=1.2, ahead=True),
        )  # fmt: skip
        rivals = {**made.rivals, "inductor": tuned, "triton.autotune": RivalRow(error="no room")}
        append_row(path, row(None if i == 6 else ratio, **fields, rivals={} if i == 6 else rivals))
    return path


@pytest.mark.usefixtures("gpu")
def test_json_has_the_keys_that_programs_rely_on(cli: Cli, tmp_path: Path) -> None:
    ran = cli(*QUICK, "-o", str(tmp_path / "rows.jsonl"), "--json")
    assert (ran.code, ran.err) == (0, "")
    data = ran.json
    assert data.keys() >= KEYS
    (only,) = data["rows"]
    assert only.keys() >= ROW_KEYS
    assert (only["op"], only["class"], only["dtype"], only["layout"]) == ("gemm", "medium", "bf16", "nn")
    assert (only["baseline"], only["trials"], only["interval"]) == ("cublas", 3, [0.5, 2.0])
    assert data["geomean"] == data["geomean_by_class"]["medium"] == pytest.approx(min(only["ratio"], 1.25))
    assert data["rivals"]["inductor"]["ahead"] == 1
    assert data["rivals"]["triton.autotune"]["failed"] == {"gemm 512,512,512 bf16 nn": "out of memory"}
    assert [r.run for r in read_rows(tmp_path / "rows.jsonl")] == data["runs"]


@pytest.mark.usefixtures("gpu")
def test_people_see_each_row_as_it_comes_and_a_table(cli: Cli) -> None:
    ran = cli(*QUICK, "--rivals", "cublas,inductor")
    assert ran.code == 0
    assert ran.err.startswith("1 of 1: gemm 512,512,512 bf16 nn: ")
    assert "inductor 2.000" in ran.err
    assert "inductor autosched is ahead on 1 of 1 rows (geomean 1.250)" in " ".join(ran.out.split())
    assert "triton.autotune" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


@pytest.mark.parametrize("columns", [80, 100])
def test_the_table_fits(cli: Cli, shard: Path, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    ran = cli("bench", "gemm", "--merge", str(shard))
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= columns
    assert "…" not in ran.out, "nothing is cut"
    assert "measured  39 of 40 workloads" in ran.out
    told = " ".join(ran.out.split())
    assert "4096,4096,4096 large 10 0.970 ±.010 1.200 - 64 8.0" in told
    assert "65536,256,256 large 10 1.020 ±.010 1.200 - 64 8.0" in told
    assert "4096,4096,14336 large 10 1.010~ ±.010" in told
    assert "failed: 512,512,512: the builder refused" in told
    assert "inductor autosched is ahead on 39 of 39 rows (geomean 1.200)" in told
    assert "at equal seconds of tuning, autosched is ahead on 39 of 39 rows" in told
    assert "triton.autotune autosched is ahead on 0 of 39 rows no figure on 39" in told
    assert "behind on" in told
    assert "large 6 0.995" in told.replace("against the vendor library", "")
    assert "1.03 no" in told


def test_merging_shards(cli: Cli, tmp_path: Path) -> None:
    first, second, merged = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "merged.jsonl"
    append_row(first, row(1.1, run="a"))
    append_row(first, row(1.0, run="a", shape=(8192, 8192, 8192), group="large"))
    append_row(second, row(1.2, run="b"))
    ran = cli("bench", "gemm", "--merge", str(first), str(second), "-o", str(merged), "--json")
    assert ran.code == 0
    assert [(r["shape"][0], r["ratio"], r["run"]) for r in ran.json["rows"]] == [(8192, 1.0, "a"), (512, 1.2, "b")]
    assert [r.ratio for r in read_rows(merged)] == [1.0, 1.2]
    (tmp_path / "printed.json").write_text(ran.out)
    again = cli("bench", "gemm", "--merge", str(tmp_path / "printed.json"), "--json")
    assert again.json["rows"] == ran.json["rows"]
    refused = cli("bench", "gemm", "--merge", str(first), "-o", str(merged))
    assert (refused.code, "is there already" in refused.err) == (2, True)


def test_the_picture(cli: Cli, shard: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for ending, head in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        picture = tmp_path / f"bench{ending}"
        assert cli("bench", "gemm", "--merge", str(shard), "--plot", str(picture)).code == 0
        assert picture.read_bytes().startswith(head)


def test_exit_code_when_nothing_was_valid(cli: Cli, gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(run, "local_measurer", lambda: Pretender(failures={Status.COMPILE_ERROR: 1.0}))
    ran = cli(*QUICK, "--plot", str(tmp_path / "none.png"))
    assert ran.code == 1
    assert "measured  0 of 1 workloads" in ran.out
    assert "failed: 512,512,512: " in ran.out
    assert not (tmp_path / "none.png").exists()


def test_exit_code_when_nothing_could_be_built(cli: Cli, gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(workload: Workload) -> Op:
        raise UnsupportedError(f"{workload.label}: groups are not served", "measure others")

    monkeypatch.setattr(Workload, "build", refuse)
    depthwise = cli("bench", "conv2d", "--class", "depthwise", "--trials", "2", "--json")
    assert depthwise.code == 1
    assert depthwise.json["rows"][0]["status"] == "error"


def test_interrupted(cli: Cli, gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [Pretender]

    def make() -> Pretender:
        if not left:
            raise KeyboardInterrupt
        return left.pop()()

    monkeypatch.setattr(run, "local_measurer", make)
    path = tmp_path / "rows.jsonl"
    ran = cli(*QUICK, "--only", "1024,1024,1024", "-o", str(path))
    assert ran.code == 130
    assert "1 of 1 workloads, interrupted" in ran.out
    assert len(read_rows(path)) == 1
    nothing = cli(*QUICK)
    assert (nothing.code, nothing.out) == (130, ""), "there is no row to show"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gem",), "no op 'gem'"),
        (("gemm", "--only", "1,2,3"), "no shape 1,2,3"),
        (("gemm", "--only", "big"), "'big' is no shape"),
        (("gemm", "--class", "huge"), "no class 'huge'"),
        (("gemm", "--trials", "0"), "0 trials"),
        (("gemm", "--seed", "-1"), "seed -1"),
        (("gemm", "--rivals", "helion"), "unknown rival 'helion'"),
        (("gemm", "--rivals", ""), "rivals none"),
        (("gemm", "--on", "moon"), "no place to measure"),
        (("gemm", "-o", "missing/rows.jsonl"), "its folder is not there"),
        (("gemm", "--plot", "bench.doc"), "'.doc'"),
        (("gemm", "rows.jsonl"), "without --merge"),
        (("gemm", "--merge"), "--merge without files"),
        (("gemm", "--merge", "missing.jsonl"), "No such file"),
        (("gemm", "--merge", "missing.jsonl", "--only", "512,512,512"), "beside --merge"),
    ],
)
def test_bad_input_is_refused_before_any_work(
    cli: Cli, gpu: None, arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> Pretender:
        raise AssertionError("work was begun")

    monkeypatch.setattr(run, "local_measurer", make)
    ran = cli("bench", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert "remedy:" in ran.err


@pytest.mark.parametrize(
    ("place", "said"), [("recorded", "cannot run them"), ("gpu", "no NVIDIA driver"), ("auto", "no NVIDIA driver")]
)
def test_rivals_need_a_gpu(cli: Cli, place: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_gpus", lambda: NO_GPU)
    ran = cli(*QUICK, "--on", place, "--json")
    assert (ran.code, ran.json["error"]["type"]) == (2, "NoDeviceError")
    assert said in ran.json["error"]["message"]
    assert "NVIDIA GPU" in ran.json["error"]["remedy"]
