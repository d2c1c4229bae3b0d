"""Operands between guard bands: what lies outside a tensor, or in the gaps of its strides, must never change.

Guards hold a NaN with a payload that no arithmetic produces (integers: a bit pattern), so that a kernel which reads
outside gets NaN in its result, and one that writes outside is found by comparing bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt, prod
from typing import TYPE_CHECKING

from autosched.sketches.dtypes import DType
from autosched.sketches.op import Op, Operand

if TYPE_CHECKING:
    import torch

GUARD_BYTES = 4096
"""Guard before and after a tensor; a multiple of 256, so that the tensor stays as aligned as its buffer."""

_NAN_BITS = {"bf16": 0x7FD5, "fp16": 0x7ED5, "fp32": 0x7FD5_D5D5, "tf32": 0x7FD5_D5D5, "fp8e4m3": 0x7F, "fp8e5m2": 0x7E}
_INT_BITS = 0x55
_EXACT_SUM = 2**24
_SMALL_SUM = 40


@dataclass(frozen=True, eq=False)
class Guarded:
    """A tensor in the middle of guards.

    Attributes:
        buffer: The whole allocation as integers of the element's size, guards included.
        tensor: The tensor, a view of the buffer.
        kept: Where the buffer has to keep ``bits`` (guards, gaps of the strides); ``None`` if that is the two ends.
        guard: Elements of each end.
        bits: The guards' bit pattern.
    """

    buffer: torch.Tensor
    tensor: torch.Tensor
    kept: torch.Tensor | None
    guard: int
    bits: int

    def poison(self) -> None:
        """Fill tensor and guards with the pattern (NaN for floats)."""
        self.buffer.fill_(self.bits)

    def fill(self, values: torch.Tensor) -> None:
        """Store ``values``, one for each element of the span in memory order; gaps and guards keep the pattern."""
        self.buffer.fill_(self.bits)
        inner = self.buffer[self.guard : self.buffer.numel() - self.guard]
        inner.copy_(values.contiguous().view(self.buffer.dtype))
        if self.kept is not None:
            self.buffer.masked_fill_(self.kept, self.bits)

    def damage(self) -> torch.Tensor:
        """Number of guard elements whose bits changed, as a tensor on the device (no synchronisation)."""
        if self.kept is not None:
            return ((self.buffer != self.bits) & self.kept).sum()
        end = self.buffer.numel() - self.guard
        return (self.buffer[: self.guard] != self.bits).sum() + (self.buffer[end:] != self.bits).sum()


def allocate(operand: Operand, device: str | torch.device) -> Guarded:
    """A poisoned tensor of the operand's shape and strides between guards.

    Args:
        operand: Shape, strides and dtype.
        device: Where it lives.
    """
    import torch

    size = operand.dtype.bytes
    guard = GUARD_BYTES // size
    total = operand.span + 2 * guard
    bits = _NAN_BITS.get(operand.dtype.name, _INT_BITS)
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[size]
    buffer = torch.full((total,), bits, dtype=integer, device=device)
    view = buffer.view(torch_dtype(operand.dtype)).as_strided(operand.shape, operand.strides, guard)
    kept = None
    if operand.span != prod(operand.shape):
        kept = torch.ones(total, dtype=torch.bool, device=device)
        shape = [1 if stride == 0 else n for n, stride in zip(operand.shape, operand.strides, strict=True)]
        kept.as_strided(shape, operand.strides, guard).fill_(False)
    return Guarded(buffer, view, kept, guard, bits)


def allocate_workspace(size: int, device: str | torch.device) -> Guarded:
    """A poisoned fp32 workspace of ``size`` bytes between guards."""
    import torch

    guard = GUARD_BYTES // 4
    bits = _NAN_BITS["fp32"]
    elements = -(-size // 4)
    buffer = torch.full((elements + 2 * guard,), bits, dtype=torch.int32, device=device)
    return Guarded(buffer, buffer.view(torch.float32)[guard : guard + elements], None, guard, bits)


def prepare_workspace(workspace: Guarded, zeroed: bool) -> None:
    """Poison a workspace, or zero it between its guards if its kernel is promised zeros."""
    workspace.poison()
    if zeroed:
        workspace.tensor.zero_()


def guards_intact(guarded: Guarded) -> bool:
    """Whether guards and stride gaps hold what they were filled with, bit for bit."""
    return int(guarded.damage()) == 0


def torch_dtype(dtype: DType) -> torch.dtype:
    """The element type as torch has it."""
    import torch

    found = getattr(torch, dtype.torch)
    assert isinstance(found, torch.dtype)
    return found


@dataclass(frozen=True, slots=True)
class IntegerData:
    """Distribution of the product operands' integers.

    Attributes:
        magnitude: Values are uniform in [-magnitude, magnitude].
        density: Share of them that is kept; the others are zero.
    """

    magnitude: int
    density: float = 1.0


def integer_data(op: Op, launch: int) -> IntegerData:
    """Integers on which every order of summation is exact in fp32, for the proof's launch number ``launch``.

    Even launches use magnitude 4, or less where ``K * magnitude^2`` would pass 2^24; six standard deviations of such a
    sum are at most 41,000 (K = 2^20, magnitude 4), so that fp16 does not overflow. The output is then rounded once,
    which may hide an error of less than its unit in the last place; so odd launches use sparse values of magnitude 1
    whose sums have a standard deviation of at most 40: these are exact in every output dtype, and a single missing or
    repeated term shows.

    Args:
        op: Its reduction length is what matters.
        launch: Number of the launch, from 0.
    """
    length = reduction_length(op)
    if launch % 2:
        return IntegerData(1, min(1.0, _SMALL_SUM * 1.5 / max(1, isqrt(length))))
    magnitude = next((m for m in (4, 2, 1) if length * m * m <= _EXACT_SUM), 1)
    return IntegerData(magnitude, 1.0 if length <= _EXACT_SUM else (_EXACT_SUM / length) ** 0.5 / 2)


def reduction_length(op: Op) -> int:
    """Terms that are summed into one output element."""
    return prod(axis.extent for axis in op.axes if axis.kind == "reduce")


def fill_integers(guarded: Guarded, data: IntegerData, generator: torch.Generator) -> None:
    """Fill a tensor with small integers.

    Args:
        guarded: What to fill.
        data: Their distribution.
        generator: Source of randomness, on the tensor's device.
    """
    import torch

    count, device = guarded.buffer.numel() - 2 * guarded.guard, guarded.tensor.device
    dtype = guarded.tensor.dtype
    values = torch.randint(
        -data.magnitude, data.magnitude + 1, (count,), generator=generator, device=device, dtype=torch.int8
    ).to(dtype)
    if data.density < 1.0:
        values *= torch.rand(count, generator=generator, device=device) < data.density
    guarded.fill(values)


def fill_normal(guarded: Guarded, generator: torch.Generator) -> None:
    """Fill a tensor with standard normal numbers, what timings use: power draw depends on the data."""
    import torch

    count, device = guarded.buffer.numel() - 2 * guarded.guard, guarded.tensor.device
    dtype = guarded.tensor.dtype
    if dtype.is_floating_point:
        values = torch.randn(count, generator=generator, device=device).to(dtype)
    else:
        values = torch.randint(-127, 128, (count,), generator=generator, device=device, dtype=dtype)
    guarded.fill(values)


def generator(device: str | torch.device, *seeds: int) -> torch.Generator:
    """A generator on ``device``, seeded with all of ``seeds``."""
    import numpy as np
    import torch

    seed = int(np.random.SeedSequence(seeds).generate_state(1, np.uint64)[0] >> np.uint64(1))
    return torch.Generator(device=device).manual_seed(seed)
