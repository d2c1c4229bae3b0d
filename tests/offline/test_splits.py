"""Which rows are learnt from and which are judged."""

import numpy as np
import pytest

from autosched.errors import InvalidInputError
from autosched.models import Dataset
from autosched.offline.splits import Part, Workload, describe, family_of, make_parts
from autosched.record import Record
from autosched.sketches.builders import contraction, gemm
from tests.offline.tables import table

TIMES = [10.0, 11.0, 12.0, 13.0]


def made(*tables: list[Record]) -> tuple[Dataset, dict[str, Workload]]:
    records = [r for rows in tables for r in rows]
    data = Dataset.from_records(records)
    return data, describe(data, records)


def spaces(data: Dataset, rows: np.ndarray) -> set[str]:
    return {data.spaces[i] for i in rows}


@pytest.mark.parametrize(
    ("sizes", "family"),
    [
        ((4096, 4096, 4096), "large"),
        ((2048, 2048, 2048), "large"),  # 2^33 multiplications
        ((1024, 1024, 1024), "medium"),
        ((256, 4096, 4096), "medium"),
        ((1000, 1000, 1000), "awkward"),
        ((2048, 4096, 1000), "awkward"),
        ((16, 28672, 4096), "skinny"),
        ((128, 6144, 4096), "skinny"),
        ((64, 4096, 14336), "skinny"),
        ((512, 512, 16384), "long-k"),
        ((128, 128, 65536), "long-k"),
        ((128, 128, 1024), "long-k"),
        ((128, 128, 1016), "skinny"),
        ((64, 1024, 1024, 8), "batched"),
    ],
)
def test_families(sizes: tuple[int, ...], family: str) -> None:
    assert family_of(*sizes) == family


def test_workloads_are_described_by_their_ops() -> None:
    nt = gemm(256, 512, 1024, dtype="fp16", layout="nt", epilogue=["bias", "gelu"])
    batched = contraction("bmk,bkn->bmn", {"b": 4, "m": 128, "n": 256, "k": 512})
    _, workloads = made(table(nt, TIMES), table(batched, TIMES))
    first, second = workloads.values()
    assert (first.sizes, first.dtype, first.layout, first.device) == ((256, 512, 1024, 1), "fp16", (0, 1), "H200")
    assert first.label == "256x512x1024 fp16 nt bias+gelu"
    assert (second.sizes, second.family, second.label) == ((128, 256, 512, 4), "batched", "4x128x256x512 bf16 nn")


def test_scales_factors_and_accumulation_tell_workloads_apart() -> None:
    ops = [
        gemm(256, 512, 1024, dtype="fp8e4m3", layout="nt", scales="row_column", fast_accumulate=True),
        gemm(256, 512, 1024, dtype="fp8e4m3", layout="nt", scales="row_column"),
        gemm(256, 512, 1024, alpha=0.5, beta=2.0),
        gemm(256, 512, 1024, alpha=0.25, beta=2.0),
    ]
    data, workloads = made(*(table(op, TIMES) for op in ops))
    assert [w.label for w in workloads.values()] == [
        "256x512x1024 fp8e4m3 nt row_scale+column_scale fast",
        "256x512x1024 fp8e4m3 nt row_scale+column_scale",
        "256x512x1024 bf16 nn alpha0.5+residual2",
        "256x512x1024 bf16 nn alpha0.25+residual2",
    ]
    assert len(set(data.spaces)) == 1


def test_by_workload_holds_out_whole_iteration_spaces() -> None:
    half = gemm(256, 256, 256, dtype="fp16")
    data, workloads = made(*(table(gemm(n, n, n), TIMES) for n in (128, 256, 512)), table(half, TIMES))
    parts = make_parts(data, workloads, "by-workload", 5, 0)
    assert len(parts) == 3
    assert sorted(i for part in parts for i in part.test) == list(range(16))
    for part in parts:
        assert spaces(data, part.train).isdisjoint(spaces(data, part.test))
        assert len(part.train) + len(part.test) == 16
    assert len(make_parts(data, workloads, "by-workload", 2, 0)) == 2


def test_by_family_learns_from_the_other_families() -> None:
    shapes = ((1024, 1024, 1024), (512, 512, 512), (1000, 1000, 1000), (16, 4096, 4096))
    data, workloads = made(*(table(gemm(*shape), TIMES) for shape in shapes))
    parts = make_parts(data, workloads, "by-family", 5, 0)
    assert [part.name for part in parts] == ["awkward", "medium", "skinny"]
    assert [len(part.test) for part in parts] == [4, 8, 4]
    assert [len(part.train) for part in parts] == [12, 8, 12]


def test_by_dtype_learns_from_other_types_and_other_iteration_spaces() -> None:
    both = [table(gemm(n, n, n, dtype=dtype), TIMES) for n in (256, 512, 1024) for dtype in ("bf16", "fp16")]
    data, workloads = made(*both)
    parts = make_parts(data, workloads, "by-dtype", 2, 0)
    assert [part.name for part in parts] == ["bf16", "bf16", "fp16", "fp16"]
    assert sorted(i for part in parts for i in part.test) == list(range(24))
    for part in parts:
        assert spaces(data, part.train).isdisjoint(spaces(data, part.test))
        judged = {workloads[data.workloads[i]].dtype for i in part.test}
        learnt = {workloads[data.workloads[i]].dtype for i in part.train}
        assert judged == {part.name}
        assert learnt == {"bf16", "fp16"} - judged


def test_by_device() -> None:
    shapes = ((256, 256, 256), (512, 512, 512))
    data, workloads = made(*(table(gemm(*s), TIMES, device=d) for s in shapes for d in ("H200", "A100")))
    parts = make_parts(data, workloads, "by-device", 5, 0)
    assert [part.name for part in parts] == ["A100", "A100", "H200", "H200"]
    for part in parts:
        assert {data.devices[i] for i in part.test} == {part.name}
        assert {data.devices[i] for i in part.train} == {"A100", "H200"} - {part.name}
        assert spaces(data, part.train).isdisjoint(spaces(data, part.test))


def test_within_halves_each_workload() -> None:
    data, workloads = made(table(gemm(256, 256, 256), TIMES), table(gemm(512, 512, 512), [*TIMES, 14.0]))
    (part,) = make_parts(data, workloads, "within", 5, 0)
    assert sorted([*part.train, *part.test]) == list(range(9))
    assert [sum(part.test < 4), sum(part.test >= 4)] == [2, 2]
    (again,) = make_parts(data, workloads, "within", 5, 0)
    assert list(again.test) == list(part.test)
    others = [make_parts(data, workloads, "within", 5, seed)[0].test.tolist() for seed in range(5)]
    assert len({tuple(o) for o in others}) > 1


@pytest.mark.parametrize(
    ("split", "says"),
    [
        ("by-workload", "one iteration space only: M256.N256.K256"),
        ("by-family", "one family only: medium"),
        ("by-dtype", "one dtype only: bf16"),
        ("by-device", "one device only: H200"),
        ("by-colour", "unknown split 'by-colour'"),
    ],
)
def test_what_the_data_cannot_make_is_refused_by_what_they_hold(split: str, says: str) -> None:
    data, workloads = made(table(gemm(256, 256, 256), TIMES))
    with pytest.raises(InvalidInputError, match=says):
        make_parts(data, workloads, split, 5, 0)


def test_one_shared_space_leaves_nothing_to_learn_from() -> None:
    data, workloads = made(*(table(gemm(256, 256, 256, dtype=d), TIMES) for d in ("bf16", "fp16")))
    with pytest.raises(InvalidInputError, match=r"by-dtype leaves nothing to learn from: 1 of bf16, 1 of fp16"):
        make_parts(data, workloads, "by-dtype", 5, 0)


def test_parts_without_training_rows_are_left_out() -> None:
    """256 in both types: bf16 at 256 has no other fp16 to learn from, bf16 at 512 has."""
    tables = [table(gemm(256, 256, 256, dtype=d), TIMES) for d in ("bf16", "fp16")]
    data, workloads = made(*tables, table(gemm(512, 512, 512), TIMES))
    parts: list[Part] = make_parts(data, workloads, "by-dtype", 5, 0)
    assert {(part.name, *spaces(data, part.test)) for part in parts} == {
        ("bf16", "M512.N512.K512"),
        ("fp16", "M256.N256.K256"),
    }


def test_one_fold_is_refused() -> None:
    data, workloads = made(table(gemm(256, 256, 256), TIMES))
    with pytest.raises(InvalidInputError, match="1 folds"):
        make_parts(data, workloads, "by-workload", 1, 0)
