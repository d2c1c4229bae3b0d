"""The suite that ships: its rows, how some are chosen, and what is refused."""

from __future__ import annotations

import pytest

from autosched.benching.suite import Workload, load_suite
from autosched.errors import InvalidInputError
from autosched.sketches.builders import conv2d


def labels(*only: str, groups: tuple[str, ...] = (), op: str | None = "gemm") -> list[str]:
    return [workload.label for workload in load_suite(op, only=only, groups=groups)]


def test_the_rows_that_ship() -> None:
    every = load_suite()
    assert {op: len(load_suite(op)) for op in ("gemm", "bmm", "conv2d")} == {"gemm": 40, "bmm": 2, "conv2d": 11}
    assert len(every) == 53
    assert len({workload.label for workload in every}) == 53, "every workload has its own label"
    assert sum(workload.headline for workload in load_suite("gemm")) == 18
    assert sum(workload.plain for workload in load_suite("gemm")) == 19
    assert sum(workload.headline for workload in load_suite("conv2d")) == 10
    assert {w.group for w in load_suite("gemm") if w.plain} == {
        "large", "medium", "skinny", "long_k", "awkward", "odd_strides",
    }  # fmt: skip


def test_a_workload_holds_what_the_file_says() -> None:
    workload = load_suite("gemm", only=["4096,4096,14336:fp8e4m3"])[0]
    assert workload == Workload(
        op="gemm", shape=(4096, 4096, 14336), group="large", dtype="fp8e4m3", layout="nt", scales="row_column"
    )
    (dynamic,) = load_suite("gemm", only=["128,4096,4096"])
    assert (dynamic.dynamic, dynamic.group) == (("M",), "dynamic")


def test_a_shape_keeps_all_its_workloads_and_words_narrow_it() -> None:
    assert labels("4096,4096,4096") == [
        "gemm 4096,4096,4096 bf16 nn",
        "gemm 4096,4096,4096 bf16 nt",
        "gemm 4096,4096,4096 fp16 nn",
        "gemm 4096,4096,4096 fp8e4m3 nt row_column",
    ]
    assert labels("4096,4096,4096:nn") == ["gemm 4096,4096,4096 bf16 nn", "gemm 4096,4096,4096 fp16 nn"]
    assert labels("4096,4096,4096:nn:fp16") == ["gemm 4096,4096,4096 fp16 nn"]
    assert labels("4096,14336,4096:bias+gelu") == ["gemm 4096,14336,4096 bf16 nt bias+gelu"]
    assert labels("2048, 4096, 4096:dynamic") == ["gemm 2048,4096,4096 bf16 nt dynamic"]


def test_the_order_is_the_suites_and_nothing_comes_twice() -> None:
    chosen = labels("512,512,512", "4096,4096,4096:bf16:nn", "512,512,512:nn")
    assert chosen == ["gemm 4096,4096,4096 bf16 nn", "gemm 512,512,512 bf16 nn"]


def test_classes() -> None:
    assert labels(groups=("odd_strides",)) == ["gemm 4095,4097,4099 bf16 nn"]
    assert {w.group for w in load_suite("gemm", groups=["long_k", "awkward"])} == {"long_k", "awkward"}
    assert labels("16,28672,4096", "512,512,512", groups=("medium",)) == ["gemm 512,512,512 bf16 nn"]


@pytest.mark.parametrize(
    ("arguments", "wrong", "remedy"),
    [
        ({"op": "gem"}, "no op 'gem'", "gemm, bmm, conv2d"),
        ({"op": "gemm", "only": ["1,2,3"]}, "no shape 1,2,3", "8192,8192,8192"),
        ({"op": "gemm", "only": ["big"]}, "'big' is no shape", "4096,4096,4096:fp16:nn"),
        ({"op": "gemm", "only": ["512,512,512:fp16"]}, "no workload 512,512,512:fp16", "512,512,512:bf16:nn"),
        ({"op": "gemm", "groups": ["huge"]}, "no class 'huge'", "large, medium, skinny"),
        ({"op": "bmm", "groups": ["large"]}, "no class 'large'", "batched"),
        ({"op": "gemm", "only": ["512,512,512"], "groups": ["large"]}, "no workload of 512,512,512", "medium"),
    ],
)
def test_unknown_names_are_refused(arguments: dict[str, object], wrong: str, remedy: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        load_suite(**arguments)  # type: ignore[arg-type]
    assert wrong in caught.value.message
    assert remedy in caught.value.remedy


def test_workloads_build() -> None:
    (workload,) = load_suite("gemm", only=["1024,4096,4096"])
    op = workload.build()
    assert (op.name, op.extents) == ("gemm", {"M": 1024, "N": 4096, "K": 4096})
    assert len(op.operands) == 4, "a, b, bias, residual"
    (batched,) = load_suite("bmm", only=["32,128,128,4096"])
    assert batched.build().extents == {"B": 32, "M": 128, "N": 128, "K": 4096}
    scaled = load_suite("gemm", only=["64,4096,14336:fp8e4m3"])[0]
    assert (
        scaled.build().key()
        != Workload(op="gemm", shape=scaled.shape, group="skinny", dtype="fp8e4m3", layout="nt").build().key()
    ), "scales are part of the op"


def test_groups_of_a_convolution_are_built() -> None:
    (depthwise,) = load_suite("conv2d", groups=["depthwise"])
    assert depthwise.label.endswith("groups=144")
    assert depthwise.build() == conv2d(32, 144, 56, 56, 144, 3, 3, 1, 1, groups=144)
