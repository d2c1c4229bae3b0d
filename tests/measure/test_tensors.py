"""Guard bands, stride gaps, data that sums exactly, poison."""

from __future__ import annotations

import pytest

from autosched.measure.tensors import (
    GUARD_BYTES,
    IntegerData,
    allocate,
    allocate_workspace,
    fill_integers,
    fill_normal,
    generator,
    guards_intact,
    integer_data,
    prepare_workspace,
    reduction_length,
    role_of,
)
from autosched.sketches.builders import gemm
from autosched.sketches.op import Op, Operand
from autosched.sketches.reference import reference_fp32

torch = pytest.importorskip("torch")


def _a(dtype: str = "bf16", strides: tuple[int, int] | None = None) -> Operand:
    return gemm(6, 8, 10, dtype=dtype, strides={"a": strides} if strides else None).operand("a")


@pytest.mark.parametrize(
    ("dtype", "size"), [("bf16", 2), ("fp16", 2), ("fp32", 4), ("tf32", 4), ("fp8e4m3", 1), ("fp8e5m2", 1)]
)
def test_a_tensor_lies_between_guards_of_nan(dtype: str, size: int) -> None:
    made = allocate(_a(dtype), "cpu")
    assert tuple(made.tensor.shape) == (6, 10)
    assert made.tensor.stride() == (10, 1)
    assert made.guard * size == GUARD_BYTES >= 4096
    assert GUARD_BYTES % 256 == 0
    assert made.buffer.numel() == 60 + 2 * made.guard
    assert (made.tensor.data_ptr() - made.buffer.data_ptr()) == GUARD_BYTES
    assert bool(made.buffer.view(made.tensor.dtype).isnan().all())
    assert made.kept is None
    assert guards_intact(made)


@pytest.mark.parametrize("place", ["first", "last", "before", "after"])
def test_a_write_outside_is_found_even_if_it_is_nan(place: str) -> None:
    made = allocate(_a(), "cpu")
    made.tensor.fill_(1.0)
    assert guards_intact(made)
    position = {"first": 0, "last": -1, "before": made.guard - 1, "after": made.guard + 60}[place]
    made.buffer.view(torch.bfloat16)[position] = float("nan")  # torch's NaN has other bits than the guards'
    assert int(made.damage()) == 1
    assert not guards_intact(made)


def test_a_write_into_a_gap_of_the_strides_is_found() -> None:
    made = allocate(_a(strides=(13, 1)), "cpu")
    fill_normal(made, generator("cpu", 0))
    assert guards_intact(made)
    assert not bool(made.tensor.isnan().any())
    gap = made.guard + 2 * 13 + 10
    assert bool(made.buffer.view(torch.bfloat16)[gap].isnan())
    made.buffer[gap] = 0
    assert int(made.damage()) == 1


def test_repeated_elements_are_filled_once() -> None:
    made = allocate(_a(strides=(0, 1)), "cpu")
    fill_integers(made, IntegerData(4), generator("cpu", 0))
    assert made.buffer.numel() == 10 + 2 * made.guard
    assert bool((made.tensor == made.tensor[0]).all())
    assert guards_intact(made)


def test_integers_stay_within_their_magnitude_and_come_from_the_seed() -> None:
    made, again, other = (allocate(_a(), "cpu") for _ in range(3))
    fill_integers(made, IntegerData(4), generator("cpu", 7, 0))
    fill_integers(again, IntegerData(4), generator("cpu", 7, 0))
    fill_integers(other, IntegerData(4), generator("cpu", 7, 1))
    assert torch.equal(made.tensor, again.tensor)
    assert not torch.equal(made.tensor, other.tensor)
    values = made.tensor.float()
    assert bool((values == values.round()).all())
    assert 2 <= float(values.abs().max()) <= 4


@pytest.mark.parametrize(("k", "magnitude"), [(64, 4), (2**20, 4), (2**20 + 16, 2), (2**22, 2), (2**23, 1)], ids=str)
def test_every_partial_sum_is_exact_in_fp32(k: int, magnitude: int) -> None:
    op = gemm(16, 16, k)
    data = integer_data(op, op.operand("a"), 0)
    assert data.magnitude == magnitude
    assert k * magnitude**2 <= 2**24


def test_sums_of_odd_launches_are_exact_in_bf16() -> None:
    length = 65536
    op = gemm(48, 48, length)
    data = integer_data(op, op.operand("a"), 1)
    a, b = (allocate(op.operand(name), "cpu") for name in "ab")
    source = generator("cpu", 0)
    fill_integers(a, data, source)
    fill_integers(b, data, source)
    sums = a.tensor.float() @ b.tensor.float()
    assert 20 < float(sums.std()) < 60
    assert float(sums.abs().max()) <= 256
    assert torch.equal(sums.bfloat16().float(), sums)


def test_a_workspace_is_poisoned_but_for_the_zeros_that_are_promised() -> None:
    made = allocate_workspace(4 * 100, "cpu", 4 * 60)
    assert made.tensor.dtype == torch.float32
    assert made.tensor.numel() == 100
    prepare_workspace(made)
    assert bool((made.tensor[:60] == 0).all())
    assert bool(made.tensor[60:].isnan().all())
    assert guards_intact(made)
    assert int(made.leftover()) == 0
    made.tensor[58:62] = 1.0
    assert int(made.leftover()) == 2
    made.buffer[made.guard + 100] = 0
    assert not guards_intact(made)


@pytest.mark.parametrize(("dtype", "bits"), [("int8", 0x55), ("int32", 0x55555555)])
def test_integers_lie_between_guards_that_a_write_shows_in(dtype: str, bits: int) -> None:
    op = gemm(16, 16, 16, dtype="int8")
    made = allocate(op.operand("a" if dtype == "int8" else "out"), "cpu")
    assert made.tensor.dtype == getattr(torch, dtype)
    assert bool((made.tensor == bits).all())
    made.tensor.fill_(3)
    assert guards_intact(made)
    made.buffer[0] = 3
    assert int(made.damage()) == 1


SCALED = gemm(16, 24, 64, dtype="fp8e4m3", scales="row_column", epilogue=["bias", "residual", "scale"])
GATED = gemm(16, 24, 64, dtype="fp16", alpha=0.5, beta=2.0, epilogue=["bias", "swiglu"])


def test_an_operand_is_filled_by_its_role() -> None:
    assert {o.name: role_of(SCALED, o) for o in SCALED.operands} == {
        "a": "product",
        "b": "product",
        "a_scale": "factor",
        "b_scale": "factor",
        "bias": "addend",
        "residual": "addend",
        "scale": "factor",
    }
    assert [role_of(GATED, o) for o in GATED.operands] == ["product"] * 3 + ["addend"] * 2


BLOCKED = gemm(16, 128, 4096, dtype="fp16", scales="block", epilogue=["bias", "column_scale"])


def test_factors_of_products_are_factors() -> None:
    assert [role_of(BLOCKED, o) for o in BLOCKED.operands] == ["product"] * 2 + ["factor"] * 2 + ["addend", "factor"]


@pytest.mark.parametrize(("k", "magnitude"), [(2**16, 4), (2**16 + 128, 2), (2**18, 2), (2**19, 1)], ids=str)
def test_every_partial_sum_of_scaled_blocks_is_exact_in_fp32(k: int, magnitude: int) -> None:
    """Multiples of a quarter, up to four times as large."""
    op = gemm(16, 128, k, scales="block")
    data = integer_data(op, op.operand("a"), 0)
    assert data.magnitude == magnitude
    assert 4 * k * magnitude**2 <= 2**24 / 4


def test_sums_of_scaled_blocks_of_odd_launches_are_exact_in_bf16() -> None:
    op = gemm(128, 128, 8192, scales="block")
    made = {o.name: allocate(o, "cpu") for o in op.operands}
    source = generator("cpu", 0)
    for operand in op.operands:
        fill_integers(made[operand.name], integer_data(op, operand, 1), source)
    sums = reference_fp32(op, {name: tensor.tensor for name, tensor in made.items()})
    assert 4 < float(sums.std()) < 8
    assert torch.equal(4 * sums, (4 * sums).round())
    assert torch.equal(sums.bfloat16().float(), sums)


@pytest.mark.parametrize("launch", [0, 1])
def test_proof_data_of_each_role(launch: int) -> None:
    for operand in SCALED.operands:
        made, role = allocate(operand, "cpu"), role_of(SCALED, operand)
        fill_integers(made, integer_data(SCALED, operand, launch), generator("cpu", 0))
        assert guards_intact(made)
        allowed = {
            "product": {-1.0, 0.0, 1.0},
            "factor": {0.5, 1.0, 2.0},
            "addend": set(map(float, range(-1, 2) if launch else range(-4, 5))),
        }[role]
        found = set(made.tensor.float().flatten().tolist())
        assert found <= allowed
        assert len(found) > 1 or made.tensor.numel() == 1


@pytest.mark.parametrize(
    "op",
    [
        gemm(16, 16, 2**26, dtype="fp8e4m3"),
        gemm(16, 16, 2**20, dtype="fp8e5m2", scales="row_column"),
        gemm(16, 16, 256, dtype="fp8e4m3", epilogue=["swiglu"]),
        gemm(16, 16, 2**20),
        gemm(16, 16, 2**26, dtype="int8", scales="tensor", out_dtype="fp16"),
        gemm(16, 16, 4096, dtype="fp16", epilogue=["geglu"]),
        gemm(16, 16, 4096, dtype="fp16", alpha=16.0, epilogue=["scale"]),
        gemm(16, 128, 2**20, dtype="fp16", scales="block"),
        BLOCKED,
    ],
    ids=lambda op: op.key(),
)
@pytest.mark.parametrize("launch", [0, 1])
def test_six_deviations_of_proof_data_overflow_neither_fp16_nor_the_tensor_cores(op: Op, launch: int) -> None:
    operand = op.operand("a")
    data = integer_data(op, operand, launch)
    # a value of {-m, ..., m} has a variance of m (m + 1) / 3, and a share of it is kept
    deviation = data.magnitude * (data.magnitude + 1) / 3 * data.density * reduction_length(op) ** 0.5
    value = 6 * deviation
    if operand.dtype.is_float8:
        assert value <= 2**12 * 1.0001
    value *= 2.0 ** len(op.factors)
    for step in op.epilogue:
        value *= {"alpha": step.factor, "gate": value}.get(step.kind, 2.0 if "scale" in step.kind else 1.0)
    assert value <= 65504
    assert deviation >= 4


def test_partial_sums_of_float8_data_stay_where_the_tensor_cores_are_exact() -> None:
    op = gemm(96, 96, 2**15, dtype="fp8e4m3")
    a, b = (allocate(op.operand(name), "cpu") for name in "ab")
    source = generator("cpu", 0)
    for made, operand in zip((a, b), op.operands, strict=True):
        fill_integers(made, integer_data(op, operand, 0), source)
    sums, largest = torch.zeros(96, 96), 0.0
    for start in range(0, 2**15, 512):
        sums += a.tensor[:, start : start + 512].float() @ b.tensor[start : start + 512].float()
        largest = max(largest, float(sums.abs().max()))
    assert 400 < largest < 2**12 - 512


def test_timing_data_of_each_role() -> None:
    op = gemm(64, 64, 64, dtype="int8", scales="row_column", epilogue=["bias"])
    expected = {"a": (-127, 127), "b": (-127, 127), "a_scale": (2**-7, 1.5 * 2**-6), "bias": (-127, 127)}
    for name, (low, high) in expected.items():
        made = allocate(op.operand(name), "cpu")
        fill_normal(made, generator("cpu", 0), role_of(op, op.operand(name)), 2.0**-6)
        assert guards_intact(made)
        values = made.tensor.double()
        assert low <= float(values.min()) < 0.5 * (low + high) < float(values.max()) <= high
    assert op.operand("bias").dtype.name == "int32"


@pytest.mark.parametrize("dtype", ["fp8e4m3", "fp8e5m2"])
def test_timing_data_of_8_bit_floats_are_normal_and_finite(dtype: str) -> None:
    made = allocate(gemm(512, 16, 512, dtype=dtype).operand("a"), "cpu")
    fill_normal(made, generator("cpu", 0))
    values = made.tensor.float()
    assert float(values.std()) == pytest.approx(1.0, rel=0.02)
    assert 4 <= float(values.abs().max()) <= 8
    assert guards_intact(made)


def test_a_float8_tensor_with_gaps_keeps_them() -> None:
    made = allocate(_a("fp8e4m3", strides=(13, 1)), "cpu")
    fill_integers(made, IntegerData(1, 0.5), generator("cpu", 0))
    assert guards_intact(made)
    assert not bool(made.tensor.isnan().any())
    assert bool(made.buffer.view(torch.float8_e4m3fn)[made.guard + 10].isnan())
