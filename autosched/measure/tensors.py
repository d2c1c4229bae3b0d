"""Operands between guard bands: what lies outside a tensor, or in the gaps of its strides, must never change.

Guards hold a NaN with a payload that no arithmetic produces (integers: a bit pattern), so that a kernel which reads
outside gets NaN in its result, and one that writes outside is found by comparing bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
from typing import TYPE_CHECKING, Literal

from autosched.sketches.dtypes import DType
from autosched.sketches.op import Op, Operand
from autosched.sketches.steps import STEPS

if TYPE_CHECKING:
    import torch

GUARD_BYTES = 4096
"""Guard before and after a tensor; a multiple of 256, so that the tensor stays as aligned as its buffer."""

_NAN_BITS = {"bf16": 0x7FD5, "fp16": 0x7ED5, "fp32": 0x7FD5_D5D5, "tf32": 0x7FD5_D5D5, "fp8e4m3": 0x7F, "fp8e5m2": 0x7E}
_INT_BITS = {"int8": 0x55, "int32": 0x5555_5555}

EXACT = 2**24
"""fp32 holds every integer up to here."""

LARGEST_INTEGER = 2.0**16
"""No value of a proof comes near it, so that fp16 does not overflow: six standard deviations are at most 60,000."""

ADDEND = 4
"""Largest magnitude of a proof's addends."""

INTEGERS = 127
"""Largest magnitude of integer types on timing data."""

FACTORS = (0.5, 1.5)
"""Range of scales on timing data, of integer products times ``INTEGER_FACTOR``."""

INTEGER_FACTOR = 2.0**-6
"""What scales of integer products are multiplied by, so that a scaled operand is about standard normal (73.6 / 64)."""

_DEVIATIONS = 6.0
_ROOM = 60_000.0
_SMALL_SUM = 40.0
_FLOAT8_SUM = 2.0**12
_LEAST = 4.0

Role = Literal["product", "factor", "addend", "ends"]


@dataclass(frozen=True, eq=False)
class Guarded:
    """A tensor in the middle of guards.

    Attributes:
        buffer: The whole allocation as integers of the element's size, guards included.
        tensor: The tensor, a view of the buffer.
        kept: Where the buffer has to keep ``bits`` (guards, gaps of the strides); ``None`` if that is the two ends.
        guard: Elements of each end.
        bits: The guards' bit pattern.
        zeroed: Elements at the beginning that are promised to be zero and have to be zero again afterwards.
    """

    buffer: torch.Tensor
    tensor: torch.Tensor
    kept: torch.Tensor | None
    guard: int
    bits: int
    zeroed: int = 0

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

    def leftover(self) -> torch.Tensor:
        """Number of elements that had to be left zero and are not, as a tensor on the device."""
        return (self.tensor.flatten()[: self.zeroed] != 0).sum()


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
    bits = {**_NAN_BITS, **_INT_BITS}[operand.dtype.name]
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[size]
    buffer = torch.full((total,), bits, dtype=integer, device=device)
    view = buffer.view(torch_dtype(operand.dtype)).as_strided(operand.shape, operand.strides, guard)
    kept = None
    if operand.span != prod(operand.shape):
        kept = torch.ones(total, dtype=torch.bool, device=device)
        shape = [1 if stride == 0 else n for n, stride in zip(operand.shape, operand.strides, strict=True)]
        kept.as_strided(shape, operand.strides, guard).fill_(False)
    return Guarded(buffer, view, kept, guard, bits)


def allocate_workspace(size: int, device: str | torch.device, zeroed: int = 0) -> Guarded:
    """A poisoned fp32 workspace of ``size`` bytes between guards, the first ``zeroed`` of them for zeros."""
    import torch

    guard = GUARD_BYTES // 4
    bits = _NAN_BITS["fp32"]
    elements = -(-size // 4)
    buffer = torch.full((elements + 2 * guard,), bits, dtype=torch.int32, device=device)
    inner = buffer.view(torch.float32)[guard : guard + elements]
    return Guarded(buffer, inner, None, guard, bits, -(-zeroed // 4))


def prepare_workspace(workspace: Guarded) -> None:
    """Poison a workspace but for what its kernel is promised as zeros."""
    workspace.poison()
    workspace.tensor[: workspace.zeroed].zero_()


def guards_intact(guarded: Guarded) -> bool:
    """Whether guards and stride gaps hold what they were filled with, bit for bit."""
    return int(guarded.damage()) == 0


def torch_dtype(dtype: DType) -> torch.dtype:
    """The element type as torch has it."""
    import torch

    found = getattr(torch, dtype.torch)
    assert isinstance(found, torch.dtype)
    return found


def role_of(op: Op, operand: Operand) -> Role:
    """What an operand is to the op, which its data follow from.

    A ``product`` is multiplied and summed, a ``factor`` (a scale) multiplies terms or the value, an ``addend`` is added
    to it; ``ends`` are those of the groups of ragged rows.
    """
    if operand.name in op.factors:
        return "factor"
    if op.ragged and operand.name == op.ragged.offsets:
        return "ends"
    if any(operand.name in (product.left, product.right) for product in op.products):
        return "product"
    step = next(step for step in op.epilogue if step.operand == operand.name)
    return "factor" if STEPS[step.kind].does == "multiply" else "addend"


@dataclass(frozen=True, slots=True)
class IntegerData:
    """Distribution of an operand's integers.

    Attributes:
        magnitude: Values are uniform in [-magnitude, magnitude].
        density: Share of them that is kept; the others are zero.
        powers: Whether the operand holds 2 to the power of them.
    """

    magnitude: int
    density: float = 1.0
    powers: bool = False


def integer_data(op: Op, operand: Operand, launch: int) -> IntegerData:
    """Data on which every order of summation is exact, for an operand in the proof's launch number ``launch``.

    Even launches use products of magnitude 4, or less where ``K * magnitude^2`` would pass 2^24. They are made sparse
    where six standard deviations of a value before the cast would pass 60,000: fp16 does not overflow, and fp32 is
    exact. The output is then rounded once, which may hide an error of less than its unit in the last place; so odd
    launches use sparse values of magnitude 1 whose sums have a standard deviation of at most 40: these are exact in
    every output dtype, and a single missing or repeated term shows.

    8-bit floats have magnitude 1 in all launches. The tensor cores of Hopper and Ada sum them with 13 fraction bits, so
    that integers are exact below 2^14; six standard deviations are at most 2^12, and 2^14 is twenty-four of them.
    Scales are 1/2, 1 or 2: they change exponents alone. Addends are integers of magnitude 4 (1 in odd launches).

    With n factors of a product (``Product.factors``), sums are of multiples of 2^-n that are up to 2^n larger: then
    ``K * magnitude^2 * 2^n`` stays below 2^(24 - n), and the 60,000 hold for sums 2^n times as large. Sums of odd
    launches are so sparse that, with the two factors of scales of blocks, their standard deviation is at most 7, or 28
    quarters (4 times 1.75, the root mean square of such a product).

    Args:
        op: Its reduction length, element type and epilogue are what matters.
        operand: One of its inputs.
        launch: Number of the launch, from 0.
    """
    small, role = launch % 2 == 1, role_of(op, operand)
    if role == "factor":
        return IntegerData(1, powers=True)
    if role == "addend":
        return IntegerData(1 if small else ADDEND)
    length, room, stretch = reduction_length(op), _room(op), largest_factor(op)
    magnitude = next((m for m in (4, 2, 1) if length * (m * stretch) ** 2 <= EXACT), 1)
    if operand.dtype.is_float8:
        magnitude, room = 1, min(room, _FLOAT8_SUM / _DEVIATIONS)
    if small:
        magnitude, room = 1, min(room, max(_SMALL_SUM / stretch**2, _LEAST))
    deviation = magnitude * (magnitude + 1) / 3 * sqrt(length)
    return IntegerData(magnitude, min(1.0, room / deviation))


def _room(op: Op) -> float:
    """Standard deviation that a sum may have, given what the epilogue makes of it; below 4 a proof would say little."""
    stretch, sums = largest_factor(op), 1
    for step in op.epilogue:
        does = STEPS[step.kind].does
        stretch *= {"multiply": 2.0, "scale": abs(step.factor)}.get(does, 1.0)
        sums += does == "gate"
    return max(float((_ROOM / max(stretch, 1.0)) ** (1 / sums)) / _DEVIATIONS, _LEAST)


def largest_factor(op: Op) -> float:
    """Largest product of a term's factors on the proof's data; its reciprocal is the smallest."""
    return 2.0 ** max(len(product.factors) for product in op.products)


def reduction_length(op: Op) -> int:
    """Terms that are summed into one output element."""
    return prod(axis.extent for axis in op.axes if axis.kind == "reduce")


def fill_integers(guarded: Guarded, data: IntegerData, generator: torch.Generator) -> None:
    """Fill a tensor with small integers, or with powers of two.

    Args:
        guarded: What to fill.
        data: Their distribution.
        generator: Source of randomness, on the tensor's device.
    """
    import torch

    count, device = guarded.buffer.numel() - 2 * guarded.guard, guarded.tensor.device
    low, high = -data.magnitude, data.magnitude + 1
    values = torch.randint(low, high, (count,), generator=generator, device=device, dtype=torch.int8)
    if data.density < 1.0:
        values *= torch.rand(count, generator=generator, device=device) < data.density
    if data.powers:
        values = (torch.ones_like(values) << (values + data.magnitude)).float() * 2.0**-data.magnitude
    guarded.fill(values.to(guarded.tensor.dtype))


def fill_normal(guarded: Guarded, generator: torch.Generator, role: Role = "product", unit: float = 1.0) -> None:
    """Fill a tensor with what timings use: power draw depends on the data.

    Products and addends are standard normal numbers, or uniform in [-127, 127] if they are integers; factors are
    uniform in ``FACTORS``.

    Args:
        guarded: What to fill.
        generator: Source of randomness, on the tensor's device.
        role: What the tensor is to its op.
        unit: What factors are multiplied by.
    """
    import torch

    count, device = guarded.buffer.numel() - 2 * guarded.guard, guarded.tensor.device
    dtype = guarded.tensor.dtype
    if not dtype.is_floating_point:
        values = torch.randint(-INTEGERS, INTEGERS + 1, (count,), generator=generator, device=device, dtype=dtype)
    elif role == "factor":
        low, high = FACTORS
        values = (torch.rand(count, generator=generator, device=device) * (high - low) + low) * unit
    else:
        values = torch.randn(count, generator=generator, device=device)
        if dtype.itemsize == 1:  # some versions of torch make NaN of what an 8-bit float cannot hold
            values.clamp_(-torch.finfo(dtype).max, torch.finfo(dtype).max)
    guarded.fill(values.to(dtype))


def fill_ends(op: Op, guarded: Guarded, generator: torch.Generator, *, even: bool) -> None:
    """Fill the ends of the groups of ragged rows: never falling, the last one is the number of rows.

    Args:
        op: Its numbers of rows and groups are what matters.
        guarded: What to fill.
        generator: Source of randomness, on the tensor's device.
        even: Whether each row is as likely in any group, and as many groups as possible have one, as in timings.
            Otherwise ends are uniform, and one group at least is empty if there are two.
    """
    import torch

    assert op.ragged is not None
    groups, rows = op.extents[op.ragged.groups], op.extents[op.ragged.rows]
    device = guarded.tensor.device
    if even:
        some = torch.randperm(groups, generator=generator, device=device)[:rows]
        rest = torch.randint(groups, (max(rows - groups, 0),), generator=generator, device=device)
        ends = torch.bincount(torch.cat([some, rest]), minlength=groups).cumsum(0)
    else:
        ends = torch.randint(rows + 1, (groups,), generator=generator, device=device).sort().values
        ends[-1] = rows
        if groups > 1:
            empty = int(torch.randint(groups - 1, (), generator=generator, device=device))
            ends[empty] = ends[empty - 1] if empty else 0
    guarded.fill(ends.to(guarded.tensor.dtype))


def factor_unit(op: Op) -> float:
    """What the op's scales are multiplied by on timing data."""
    return INTEGER_FACTOR if op.operand(op.products[0].left).dtype.accumulator == "int32" else 1.0


def generator(device: str | torch.device, *seeds: int) -> torch.Generator:
    """A generator on ``device``, seeded with all of ``seeds``."""
    import numpy as np
    import torch

    seed = int(np.random.SeedSequence(seeds).generate_state(1, np.uint64)[0] >> np.uint64(1))
    return torch.Generator(device=device).manual_seed(seed)
