"""Ragged rows where kernels are measured: ends of groups, the proof, and the vendor library's call."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from autosched.errors import UnsupportedError
from autosched.measure.proof import integer_case, normal_case, prove
from autosched.measure.tensors import allocate, fill_ends, generator, guards_intact, role_of
from autosched.measure.vendor import vendor
from autosched.sketches.builders import gemm, grouped_gemm
from autosched.sketches.op import Op
from autosched.sketches.reference import reference

torch = pytest.importorskip("torch")


def filled(op: Op, seed: int, *, even: bool) -> list[int]:
    made = allocate(op.operand("offsets"), "cpu")
    fill_ends(op, made, generator("cpu", seed), even=even)
    assert guards_intact(made)
    assert made.tensor.dtype == torch.int32
    ends: list[int] = made.tensor.tolist()
    return ends


def sizes(ends: list[int]) -> list[int]:
    return [end - begin for begin, end in pairwise([0, *ends])]


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize(("groups", "rows"), [(1, 5), (2, 1), (3, 100), (64, 8), (8, 8), (17, 1000)])
def test_ends_are_valid_and_follow_the_seed(groups: int, rows: int, even: bool) -> None:
    op = grouped_gemm(groups, rows, 8, 8)
    for seed in range(20):
        ends = filled(op, seed, even=even)
        assert len(ends) == groups
        assert ends[-1] == rows
        assert min(sizes(ends)) >= 0
        assert ends == filled(op, seed, even=even)
        if even:
            assert sum(n > 0 for n in sizes(ends)) == min(groups, rows)
        elif groups > 1:
            assert 0 in sizes(ends)


@pytest.mark.parametrize("even", [False, True])
def test_seeds_differ(even: bool) -> None:
    op = grouped_gemm(17, 1000, 8, 8)
    assert len({tuple(filled(op, seed, even=even)) for seed in range(20)}) == 20


def test_even_groups_differ_by_little() -> None:
    found = sizes(filled(grouped_gemm(8, 8000, 8, 8), 0, even=True))
    assert len(set(found)) > 1
    assert all(850 < n < 1150 for n in found)  # five standard deviations of 30


def test_roles() -> None:
    op = grouped_gemm(4, 16, 8, 8, dtype="fp16", scales="row_column", epilogue=["bias"])
    assert {o.name: role_of(op, o) for o in op.operands} == {
        "a": "product",
        "b": "product",
        "offsets": "ends",
        "a_scale": "factor",
        "b_scale": "factor",
        "bias": "addend",
    }


def test_cases_hold_ends() -> None:
    op = grouped_gemm(4, 100, 8, 8, dtype="fp32")
    proof, again, timing = integer_case(op, "cpu", 0, 0), integer_case(op, "cpu", 0, 1), normal_case(op, "cpu", 0)
    ends = [case.tensors[2].tolist() for case in (proof, again, timing)]
    assert all(e[-1] == 100 for e in ends)
    assert ends[0] != ends[1]
    assert [0 in sizes(e) for e in ends] == [True, True, False]


def kernel(op: Op, moved: Callable[[Any], Any]) -> Callable[..., None]:
    """The reference, on other ends than those given."""

    def launch(*tensors: Any, workspace: Any) -> None:
        *inputs, out = tensors
        named = {operand.name: tensor for operand, tensor in zip(op.operands, inputs, strict=True)}
        out.copy_(reference(op, {**named, "offsets": moved(named["offsets"])}))

    return launch


def one_row_late(ends: Any) -> Any:
    late = torch.clamp(ends + 1, max=int(ends[-1]))
    return torch.where(ends == 0, ends, late)


def without_empty_groups(ends: Any) -> Any:
    """The groups that have rows, as if they were the first."""
    some = torch.unique(ends[ends > 0])
    return torch.cat([some, some[-1].expand(len(ends) - len(some))])


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_the_proof_finds_rows_in_the_wrong_group(dtype: str) -> None:
    op = grouped_gemm(6, 60, 16, 32, dtype=dtype, epilogue=["bias"])
    assert prove(op, kernel(op, lambda ends: ends), device="cpu").ok
    for moved in (one_row_late, without_empty_groups):
        assert prove(op, kernel(op, moved), device="cpu").wrong > 0


def test_the_proof_finds_ends_that_were_changed() -> None:
    op = grouped_gemm(4, 60, 16, 32, dtype="fp32")
    right = kernel(op, lambda ends: ends)

    def launch(*tensors: Any, workspace: Any) -> None:
        right(*tensors, workspace=workspace)
        tensors[2][0] += 1

    assert "input offsets was changed" in prove(op, launch, device="cpu").reason


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped products")
@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"layout": "nt"},
        {"epilogue": ["bias", "relu"]},
        {"scales": "row_column"},
        {"scales": "tensor", "alpha": 0.5, "epilogue": ["residual"]},
    ],
    ids=str,
)
def test_the_vendors_call_computes_the_op(keywords: dict[str, Any]) -> None:
    op = grouped_gemm(4, 50, 24, 32, **keywords)
    call = vendor(op)

    def launch(*tensors: Any, workspace: Any) -> None:
        *inputs, out = tensors
        found = call(inputs, out)
        if found is not out:
            out.copy_(found)

    assert prove(op, launch, device="cpu", launches=4).ok


@pytest.mark.parametrize("keywords", [{"dtype": "fp16"}, {"dtype": "fp32"}, {"out_dtype": "fp32"}, {"dtype": "int8"}])
def test_the_vendor_takes_bf16_alone(keywords: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="only in bf16"):
        vendor(grouped_gemm(4, 50, 24, 32, **keywords))


def test_other_ops_have_no_ends() -> None:
    op = gemm(8, 8, 8, epilogue=["bias"])
    assert {role_of(op, o) for o in op.operands} == {"product", "addend"}
