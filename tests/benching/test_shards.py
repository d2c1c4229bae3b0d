"""Files of rows: appending, merging, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from autosched.benching.result import Bench
from autosched.benching.shards import append_row, check_appendable, merge_rows, read_rows
from autosched.errors import InvalidInputError
from tests.benching.rivals import row

LARGE = {"shape": (4096, 4096, 4096), "group": "large"}


def write(path: Path, *ratios: float | None, **fields: object) -> Path:
    for ratio in ratios:
        append_row(path, row(ratio, **fields))
    return path


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", 1.1, None)
    assert read_rows(path) == (row(1.1), row(None))
    assert len(path.read_bytes().splitlines()) == 2


def test_a_line_without_an_end_is_not_run_into(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", 1.1)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    write(path, 1.2)
    assert [r.ratio for r in read_rows(path)] == [1.1, 1.2]


def test_what_json_prints_merges_too(tmp_path: Path) -> None:
    path = tmp_path / "printed.json"
    for indent in (2, 0):
        path.write_bytes(msgspec.json.format(msgspec.json.encode(Bench("gemm", (row(1.1),)).to_dict()), indent=indent))
        assert read_rows(path) == (row(1.1),)


def test_the_later_row_of_a_workload_wins_and_each_keeps_its_run(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", 1.1, run="a")
    write(first, 1.0, run="a", **LARGE)
    second = write(tmp_path / "b.jsonl", 1.2, run="b")
    merged = merge_rows([first, second])
    assert [(r.shape[0], r.ratio, r.run) for r in merged] == [(4096, 1.0, "a"), (512, 1.2, "b")], "the suite's order"
    assert [r.ratio for r in merge_rows([second, first])] == [1.0, 1.1]
    assert Bench.merge([first, second], "gemm").runs == ("a", "b")


def test_dtype_layout_and_dynamic_sizes_make_other_workloads(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for fields in ({}, {"dtype": "fp16"}, {"layout": "nt"}, {"epilogue": ("bias",)}, {"dynamic": ("M",)}):
        write(path, 1.1, **fields)
    assert len(merge_rows([path])) == 5


def test_rows_of_other_ops_are_left_out(tmp_path: Path) -> None:
    path = write(write(tmp_path / "rows.jsonl", 1.1), 1.2, op="bmm", shape=(1, 2, 3, 4))
    assert [r.op for r in merge_rows([path], "bmm")] == ["bmm"]
    with pytest.raises(InvalidInputError, match="no row of conv2d"):
        merge_rows([path], "conv2d")


def test_devices_are_not_mixed(tmp_path: Path) -> None:
    path = write(write(tmp_path / "rows.jsonl", 1.1), 1.2, device="H100", **LARGE)
    with pytest.raises(InvalidInputError, match="several devices: H100, H200"):
        merge_rows([path])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}", "no rows of autosched bench"),
        ("hello\n", "no rows of autosched bench"),
        ("", "no row of gemm"),
        ('{"type":"header","schema":1}\n', "no rows of autosched bench"),
        ('{"format":2,"rows":[]}', "format 2"),
        ('{"format":1,"rows":[{"op":"gemm"}]}', "no rows of autosched bench"),
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidInputError, match=said):
        merge_rows([path], "gemm")


def test_a_torn_line_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", 1.1, 1.2)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InvalidInputError, match=r"rows\.jsonl:2: "):
        read_rows(path)
    with pytest.raises(InvalidInputError, match=r"rows\.jsonl:2: "):
        check_appendable(path)
    wrong = json.loads(path.read_bytes().splitlines()[0])
    wrong["row"]["ratio"] = "fast"
    path.write_text(json.dumps(wrong))
    with pytest.raises(InvalidInputError, match=r"rows\.jsonl:1: .*row\.ratio"):
        read_rows(path)


def test_what_cannot_be_appended_to(tmp_path: Path) -> None:
    printed = tmp_path / "printed.json"
    printed.write_text(json.dumps(Bench("gemm", (row(1.1),)).to_dict()))
    for path, said in (
        (tmp_path, "is a folder"),
        (tmp_path / "missing" / "rows.jsonl", "its folder is not there"),
        (printed, "printed by --json"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            check_appendable(path)
    check_appendable(tmp_path / "new.jsonl")
    assert not (tmp_path / "new.jsonl").exists()
    with pytest.raises(InvalidInputError, match="No such file"):
        read_rows(tmp_path / "new.jsonl")
