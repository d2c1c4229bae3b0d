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
)
from autosched.sketches.builders import gemm
from autosched.sketches.op import Operand

torch = pytest.importorskip("torch")


def _a(dtype: str = "bf16", strides: tuple[int, int] | None = None) -> Operand:
    return gemm(6, 8, 10, dtype=dtype, strides={"a": strides} if strides else None).operand("a")


@pytest.mark.parametrize(("dtype", "size"), [("bf16", 2), ("fp16", 2), ("fp32", 4), ("tf32", 4)])
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
    data = integer_data(gemm(16, 16, k), 0)
    assert data.magnitude == magnitude
    assert k * magnitude**2 <= 2**24


def test_sums_of_odd_launches_are_exact_in_bf16() -> None:
    length = 65536
    data = integer_data(gemm(16, 16, length), 1)
    a, b = (allocate(gemm(48, 48, length).operand(name), "cpu") for name in "ab")
    source = generator("cpu", 0)
    fill_integers(a, data, source)
    fill_integers(b, data, source)
    sums = a.tensor.float() @ b.tensor.float()
    assert 20 < float(sums.std()) < 60
    assert float(sums.abs().max()) <= 256
    assert torch.equal(sums.bfloat16().float(), sums)


def test_a_workspace_is_poisoned_or_zeroed_between_its_guards() -> None:
    made = allocate_workspace(4 * 100, "cpu")
    assert made.tensor.dtype == torch.float32
    assert made.tensor.numel() == 100
    prepare_workspace(made, zeroed=False)
    assert bool(made.tensor.isnan().all())
    prepare_workspace(made, zeroed=True)
    assert bool((made.tensor == 0).all())
    assert guards_intact(made)
    made.buffer[made.guard + 100] = 0
    assert not guards_intact(made)
