"""The generic reference against torch's own functions: generator and reference share the maps, torch shares nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from autosched.sketches.builders import BUILDERS, EPILOGUES, LAYOUTS, bmm, build, contraction, gemm
from autosched.sketches.op import Op, Operand
from autosched.sketches.reference import reference, reference_fp32
from autosched.sketches.steps import GATED

torch = pytest.importorskip("torch")

DTYPES = ("bf16", "fp16", "fp32", "tf32")


def stored(operand: Operand, generator: Any, *, integers: bool = True) -> Any:
    """A tensor with the operand's shape, strides and dtype: integers of -4 to 4, or normal values."""
    dtype = getattr(torch, operand.dtype.torch)
    memory = torch.zeros(operand.span, dtype=dtype)
    tensor = memory.as_strided(operand.shape, operand.strides)
    if integers:
        tensor.copy_(torch.randint(-4, 5, operand.shape, generator=generator))
    else:
        tensor.copy_(torch.randn(operand.shape, generator=generator))
    return tensor


def inputs(op: Op, *, integers: bool = True, seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {o.name: stored(o, generator, integers=integers) for o in op.operands}


def matrices(layout: str, t: dict[str, Any]) -> tuple[Any, Any]:
    """``a`` and ``b`` as ``[M, K]`` and ``[K, N]``."""
    a, b = t["a"].float(), t["b"].float()
    return (a if layout[0] == "n" else a.T), (b if layout[1] == "n" else b.T)


@pytest.mark.parametrize(("layout", "dtype"), list(itertools.product(LAYOUTS, DTYPES)))
def test_gemm_is_matmul_exactly_on_integers(layout: str, dtype: str) -> None:
    op = gemm(13, 7, 33, dtype=dtype, layout=layout)
    t = inputs(op)
    a, b = matrices(layout, t)
    found = reference(op, t)
    assert found.dtype == getattr(torch, op.output.dtype.torch)
    assert torch.equal(found, torch.matmul(a, b).to(found.dtype))
    assert torch.equal(reference_fp32(op, t), torch.matmul(a, b))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bmm_is_bmm_exactly_on_integers(layout: str) -> None:
    op = bmm(3, 13, 7, 33, layout=layout, epilogue=["residual"])
    t = inputs(op)
    a = t["a"].float() if layout[0] == "n" else t["a"].float().mT
    b = t["b"].float() if layout[1] == "n" else t["b"].float().mT
    expected = torch.baddbmm(t["residual"].float(), a, b)
    assert torch.equal(reference_fp32(op, t), expected)
    assert torch.equal(reference(op, t), expected.to(torch.bfloat16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_nt_is_linear(dtype: str) -> None:
    op = gemm(13, 7, 33, dtype=dtype, layout="nt", epilogue=["bias"], out_dtype="fp32")
    t = inputs(op)
    assert tuple(t["b"].shape) == (7, 33)
    expected = torch.nn.functional.linear(t["a"].float(), t["b"].float(), t["bias"].float())
    assert torch.equal(reference(op, t), expected)


def test_rounding_happens_once_after_the_epilogue() -> None:
    """512 + 1 + 2 is 515, and 516 in bf16; rounding 513 to 512 first would give 514, and 512."""
    op = gemm(1, 1, 2, epilogue=["bias"])
    t = {
        "a": torch.tensor([[256.0, 1.0]], dtype=torch.bfloat16),
        "b": torch.tensor([[2.0], [1.0]], dtype=torch.bfloat16),
        "bias": torch.tensor([2.0], dtype=torch.bfloat16),
    }
    assert reference_fp32(op, t).item() == 515.0
    assert reference(op, t).item() == 516.0


#: torch's function of each step: accumulator, operand of the step (if it has one) to the next accumulator.
STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "bias": lambda x, operand: x + operand,
    "residual": lambda x, operand: x + operand,
    "relu": lambda x, _: torch.clamp(x, min=0),
    "gelu": lambda x, _: 0.5 * x * (1 + torch.erf(x / 2**0.5)),
    "gelu_tanh": lambda x, _: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": lambda x, _: x / (1 + torch.exp(-x)),
    "row_scale": lambda x, operand: torch.diag(operand) @ x,
    "column_scale": lambda x, operand: x @ torch.diag(operand),
    "scale": lambda x, operand: x * operand.item(),
}

CHAINS = [(name,) for name in EPILOGUES if name not in GATED] + [
    ("bias", "relu"),
    ("bias", "gelu", "residual"),
    ("residual", "bias", "silu"),
    ("bias", "gelu_tanh", "bias"),
    ("residual", "relu", "residual"),
    ("row_scale", "column_scale", "bias", "scale"),
]


def test_every_step_has_its_function_here() -> None:
    assert {*STEPS, *GATED} == set(EPILOGUES)
    gradients = {"conv2d_weight_grad", "conv2d_input_grad"}
    # these are held against torch in test_convolutions.py
    convolutions = {"conv1d", "conv2d", "conv3d", "conv_transpose2d"} | gradients
    assert set(BUILDERS) == {"gemm", "bmm", "grouped_gemm"} | convolutions, "add the new builder to these tests"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chain", CHAINS, ids="+".join)
def test_epilogues_in_their_order(chain: tuple[str, ...], layout: str) -> None:
    op = gemm(9, 12, 20, dtype="fp32", layout=layout, epilogue=chain)
    t = inputs(op, integers=False)
    a, b = matrices(layout, t)
    expected = (a.double() @ b.double()).float()
    taken = iter(o.name for o in op.operands[2:])
    for step in chain:
        operand = t[next(taken)] if EPILOGUES[step] is not None else None
        expected = STEPS[step](expected, operand)
    torch.testing.assert_close(reference_fp32(op, t), expected, rtol=1e-5, atol=1e-5)


def test_a_repeated_step_has_an_operand_of_its_own() -> None:
    op = gemm(3, 4, 5, dtype="fp32", epilogue=["bias", "bias"])
    t = inputs(op)
    assert len(t) == 4
    first, second = list(t)[2:]
    assert torch.equal(reference(op, t), t["a"] @ t["b"] + t[first] + t[second])


EQUATIONS = [
    ("mk,kn->mn", {"m": 5, "k": 6, "n": 7}),
    ("mk,nk->nm", {"m": 5, "k": 6, "n": 7}),
    ("bmk,bkn->bmn", {"b": 3, "m": 5, "k": 6, "n": 7}),
    ("bmk,kn->bmn", {"b": 3, "m": 5, "k": 6, "n": 7}),
    ("bhqd,bhkd->bhqk", {"b": 2, "h": 3, "q": 4, "k": 5, "d": 6}),
    ("bqhd,bkhd->bhqk", {"b": 2, "h": 3, "q": 4, "k": 5, "d": 6}),
    ("abxy,xycd->acbd", {"a": 2, "b": 3, "x": 4, "y": 5, "c": 6, "d": 7}),
    ("ij,ij->ij", {"i": 4, "j": 5}),
    ("i,j->ij", {"i": 4, "j": 5}),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("equation", "sizes"), EQUATIONS, ids=[e for e, _ in EQUATIONS])
def test_contractions_are_einsum(equation: str, sizes: dict[str, int], dtype: str) -> None:
    op = contraction(equation, sizes, dtype=dtype)
    t = inputs(op)
    expected = torch.einsum(equation, t["a"].float(), t["b"].float())
    assert torch.equal(reference_fp32(op, t), expected)
    assert tuple(reference(op, t).shape) == op.output.shape


@pytest.mark.parametrize("equation", ["bmk,bkn->bmn", "bmk,bkn->nbm"])
def test_epilogue_operands_follow_the_order_of_the_output(equation: str) -> None:
    op = contraction(equation, {"b": 3, "m": 5, "k": 6, "n": 7}, dtype="fp32", epilogue=["bias", "residual", "relu"])
    t = inputs(op)
    assert t["bias"].shape == op.output.shape[-1:]
    expected = torch.relu(torch.einsum(equation, t["a"], t["b"]) + t["bias"] + t["residual"])
    assert torch.equal(reference(op, t), expected)


def test_strides_and_broadcasts_are_read_as_stored() -> None:
    op = gemm(6, 8, 10, dtype="fp32", strides={"a": (24, 2), "b": (0, 1)})
    a = stored(op.operand("a"), torch.Generator().manual_seed(0))
    assert a.stride() == (24, 2)
    row = torch.arange(8.0)
    assert torch.equal(reference(op, {"a": a, "b": row.expand(10, 8)}), a.sum(1, keepdim=True) * row)


def test_dynamic_extents_are_the_tensors_own() -> None:
    op = gemm(8, 16, 32, dtype="fp32", dynamic=["M"])
    generator = torch.Generator().manual_seed(0)
    for m in (1, 5, 19):
        a = torch.randint(-4, 5, (m, 32), generator=generator).float()
        b = torch.randint(-4, 5, (32, 16), generator=generator).float()
        assert torch.equal(reference(op, {"a": a, "b": b}), a @ b)


def test_settings_of_torch_are_left_as_they_were() -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    op = gemm(2, 2, 2)
    for value in (True, False):
        torch.backends.cuda.matmul.allow_tf32 = value
        reference(op, inputs(op))
        assert torch.backends.cuda.matmul.allow_tf32 is value
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["fp8e4m3", "fp8e5m2"])
def test_products_of_8_bit_floats_are_those_of_their_values(dtype: str, layout: str) -> None:
    op = gemm(13, 7, 33, dtype=dtype, layout=layout)
    t = inputs(op, integers=False)
    assert t["a"].dtype == t["b"].dtype == getattr(torch, op.operands[0].dtype.torch)
    a, b = matrices(layout, t)
    assert torch.equal(reference_fp32(op, t), a @ b)
    assert reference(op, t).dtype == torch.bfloat16
    assert reference(gemm(13, 7, 33, dtype=dtype, layout=layout, out_dtype="fp16"), t).dtype == torch.float16


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sums_of_int8_are_exact_where_fp32_would_round(layout: str) -> None:
    op = gemm(3, 5, 4097, dtype="int8", layout=layout)
    generator = torch.Generator().manual_seed(0)
    t = {o.name: torch.randint(100, 128, o.shape, generator=generator, dtype=torch.int8) for o in op.operands}
    a = t["a"].long() if layout[0] == "n" else t["a"].long().T
    b = t["b"].long() if layout[1] == "n" else t["b"].long().T
    expected = a @ b
    assert int(expected.min()) > 2**24
    assert not torch.equal(expected.float().long(), expected)
    found = reference(op, t)
    assert found.dtype == torch.int32
    assert torch.equal(found.long(), expected)
    assert torch.equal(reference_fp32(op, t).long(), expected)


@pytest.mark.parametrize("dtype", ["int8", "fp8e4m3", "fp32"])
def test_scales_of_rows_and_columns_multiply_the_dequantised_operands(dtype: str) -> None:
    op = gemm(9, 12, 20, dtype=dtype, scales="row_column", epilogue=["bias"], out_dtype="fp32")
    t = inputs(op, integers=False)
    assert (tuple(t["a_scale"].shape), tuple(t["b_scale"].shape)) == ((9,), (12,))
    assert t["a_scale"].dtype == t["b_scale"].dtype == torch.float32
    a, b = t["a"].double() * t["a_scale"][:, None], t["b"].double() * t["b_scale"]
    torch.testing.assert_close(reference(op, t), (a @ b + t["bias"]).float(), rtol=1e-5, atol=1e-5)


def test_scales_of_tensors_are_one_number_each() -> None:
    op = gemm(9, 12, 20, dtype="fp32", layout="nt", scales="tensor")
    t = inputs(op, integers=False)
    assert t["a_scale"].shape == t["b_scale"].shape == ()
    expected = torch.nn.functional.linear(t["a"] * t["a_scale"], t["b"] * t["b_scale"])
    torch.testing.assert_close(reference(op, t), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("equation", ["bmk,bkn->bmn", "bmk,bkn->nbm"])
def test_scales_of_a_contraction_follow_the_axes_of_their_operands(equation: str) -> None:
    op = contraction(equation, {"b": 3, "m": 5, "k": 6, "n": 7}, dtype="fp32", scales="row_column")
    t = inputs(op, integers=False)
    order = equation.partition("->")[2]
    for name, letters in (("a_scale", "bm"), ("b_scale", "bn")):
        assert t[name].shape == tuple({"b": 3, "m": 5, "n": 7}[x] for x in order if x in letters)
    left, right = ("".join(x for x in order if x in letters) for letters in ("bm", "bn"))
    expected = torch.einsum(f"bmk,{left},bkn,{right}->{order}", t["a"], t["a_scale"], t["b"], t["b_scale"])
    torch.testing.assert_close(reference(op, t), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("step", list(GATED))
def test_gated_pairs(step: str, layout: str) -> None:
    op = gemm(9, 12, 20, dtype="fp32", layout=layout, epilogue=["bias", step, "residual"])
    t = inputs(op, integers=False)
    assert [o.name for o in op.operands] == ["a", "b", "up", "bias", "residual"]
    a, b = matrices(layout, t)
    up = t["up"] if layout[1] == "n" else t["up"].T
    function = {"swiglu": torch.nn.functional.silu, "geglu": torch.nn.functional.gelu}[step]
    expected = function(a @ b + t["bias"]) * (a @ up) + t["residual"]
    torch.testing.assert_close(reference(op, t), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch", [(), (3,)], ids=["gemm", "bmm"])
@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.0), (1.0, -2.0), (-0.3, 0.7)])
def test_alpha_and_beta_are_addmms(batch: tuple[int, ...], alpha: float, beta: float) -> None:
    spec = {"builder": "bmm" if batch else "gemm", "shape": (*batch, 9, 12, 20), "dtype": "fp32"}
    op = build({**spec, "alpha": alpha, "beta": beta, "epilogue": ["relu"]})
    t = inputs(op, integers=False)
    assert ("c" in t) == (beta != 0)
    c = t.get("c", torch.zeros(*batch, 9, 12))
    expected = (torch.baddbmm if batch else torch.addmm)(c, t["a"], t["b"], alpha=alpha, beta=beta).relu()
    torch.testing.assert_close(reference(op, t), expected, rtol=1e-5, atol=1e-5)


def test_scales_come_first_then_alpha_then_c_then_the_epilogue() -> None:
    op = gemm(2, 2, 3, dtype="fp32", scales="tensor", alpha=3.0, beta=2.0, epilogue=["bias"])
    t = {o.name: torch.ones(o.shape) for o in op.operands}
    t["a_scale"].fill_(5.0)
    t["c"].fill_(7.0)
    assert torch.equal(reference(op, t), torch.full((2, 2), 3.0 * 5 * 3 + 2 * 7 + 1))
