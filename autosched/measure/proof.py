"""Proof of correctness, before anything is timed: elementwise, on operands for which every right kernel agrees.

Integer-valued operands make each order of summation exact, so that the output must equal the reference in every
element after the one cast. Outputs and workspaces are poisoned before each launch, operands lie between guards, and
inputs have to come back unchanged. A norm is no check: a whole column of zeros in a 4096 x 4096 output reads 0.016.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from autosched.measure.tensors import (
    Guarded,
    allocate,
    allocate_workspace,
    factor_unit,
    fill_ends,
    fill_integers,
    fill_normal,
    generator,
    integer_data,
    prepare_workspace,
    role_of,
)
from autosched.measure.tolerance import Tolerance, proof_tolerance, timing_tolerance
from autosched.sketches.op import Op
from autosched.sketches.reference import reference, reference_fp32

if TYPE_CHECKING:
    import torch


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a proof found.

    Attributes:
        ok: Whether nothing is wrong.
        reason: What is wrong, in words.
        index: The worst wrong element of the output.
        got: Its value.
        expected: What it should be.
        wrong: Number of wrong elements.
    """

    ok: bool
    reason: str = ""
    index: tuple[int, ...] = ()
    got: float | None = None
    expected: float | None = None
    wrong: int = 0


@dataclass(frozen=True)
class Kernel:
    """Something that computes an op.

    Attributes:
        launch: Called with the operands in the op's order, the output, and ``workspace=`` a tensor or ``None``.
        workspace_bytes: Bytes of the workspace that it asks for.
        workspace_zeroed: Bytes at its beginning that it is promised as zeros, and leaves zero.
    """

    launch: Callable[..., Any]
    workspace_bytes: int = 0
    workspace_zeroed: int = 0

    def workspace(self, device: str | torch.device) -> Guarded | None:
        """A workspace for it, if it asks for one."""
        size = self.workspace_bytes
        return allocate_workspace(size, device, self.workspace_zeroed) if size else None


@dataclass(frozen=True, eq=False)
class Case:
    """One set of operands with the answer to it.

    Attributes:
        operands: In the op's order.
        pristine: Copies of their buffers, guards included.
        expected: The output: in its own dtype for integers and where equality is asked for, else in fp32.
        tolerance: How close a right kernel comes.
    """

    operands: tuple[Guarded, ...]
    pristine: tuple[torch.Tensor, ...]
    expected: torch.Tensor
    tolerance: Tolerance

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The operands as a kernel takes them."""
        return tuple(operand.tensor for operand in self.operands)

    def restore(self) -> None:
        """Undo what a kernel did to its inputs."""
        for operand, copy in zip(self.operands, self.pristine, strict=True):
            operand.buffer.copy_(copy)


def integer_case(op: Op, device: str | torch.device, seed: int, launch: int) -> Case:
    """Integer-valued operands number ``launch`` of ``seed``, with the exact answer."""
    source = generator(device, seed, launch)
    operands = tuple(allocate(operand, device) for operand in op.operands)
    for operand, made in zip(op.operands, operands, strict=True):
        if role_of(op, operand) == "ends":
            fill_ends(op, made, source, even=False)
        else:
            fill_integers(made, integer_data(op, operand, launch), source)
    named = {operand.name: made.tensor for operand, made in zip(op.operands, operands, strict=True)}
    pristine = tuple(operand.buffer.clone() for operand in operands)
    return Case(operands, pristine, reference(op, named), proof_tolerance(op, named))


def normal_case(op: Op, device: str | torch.device, seed: int) -> Case:
    """Standard normal operands, as timings use them (integers are uniform, scales near 1), with the answer."""
    source = generator(device, seed, 2**31)
    operands = tuple(allocate(operand, device) for operand in op.operands)
    for operand, made in zip(op.operands, operands, strict=True):
        role = role_of(op, operand)
        if role == "ends":
            fill_ends(op, made, source, even=True)
        else:
            fill_normal(made, source, role, factor_unit(op))
    named = {operand.name: made.tensor for operand, made in zip(op.operands, operands, strict=True)}
    pristine = tuple(operand.buffer.clone() for operand in operands)
    tolerance = timing_tolerance(op, named)
    expected = reference(op, named) if tolerance.exact else reference_fp32(op, named)
    return Case(operands, pristine, expected, tolerance)


def run_case(kernel: Kernel, case: Case, out: Guarded, workspace: Guarded | None) -> None:
    """Poison the output and the workspace, then launch."""
    out.poison()
    if workspace is not None:
        prepare_workspace(workspace)
    kernel.launch(*case.tensors, out.tensor, workspace=None if workspace is None else workspace.tensor)


def inspect(op: Op, case: Case, out: Guarded, workspace: Guarded | None) -> Verdict:
    """Judge a finished launch: its output, the guards of everything, the inputs. One synchronisation if all is well.

    Inputs that the kernel changed are restored.
    """
    import torch

    counts = [_wrong(out.tensor, case.expected, case.tolerance).sum(), out.damage()]
    counts += [workspace.damage(), workspace.leftover()] if workspace is not None else []
    counts += [(operand.buffer != copy).sum() for operand, copy in zip(case.operands, case.pristine, strict=True)]
    found = [int(count) for count in torch.stack(counts).tolist()]
    if not any(found):
        return Verdict(ok=True)
    wrong, outside, changed = found[0], found[1], found[-len(case.operands) :]
    reasons = []
    for operand, guarded, count in zip(op.operands, case.operands, changed, strict=True):
        if count:
            where = "the memory around input" if int(guarded.damage()) else "input"
            reasons.append(f"{where} {operand.name} was changed ({count} elements)")
    if outside:
        reasons.append(f"{outside} elements outside the output were written")
    if workspace is not None and found[2]:
        reasons.append(f"{found[2]} elements outside the workspace were written")
    if workspace is not None and found[3]:
        reasons.append(f"{found[3]} elements of the workspace that had to be left zero are not")
    if any(changed):
        case.restore()
    if not wrong:
        return Verdict(ok=False, reason="; ".join(reasons))
    index, got, expected = _worst(out.tensor, case.expected, case.tolerance)
    what = f"{wrong} of {out.tensor.numel()} elements are wrong, at worst {index}: {got:.9g} instead of {expected:.9g}"
    if got != got:
        what += " (NaN: not written, or read from outside)"
    return Verdict(ok=False, reason="; ".join([what, *reasons]), index=index, got=got, expected=expected, wrong=wrong)


def prove(
    op: Op,
    kernel: Kernel | Callable[..., Any],
    *,
    device: str | torch.device = "cuda",
    seed: int = 0,
    launches: int = 2,
    cases: Sequence[Case] = (),
    out: Guarded | None = None,
) -> Verdict:
    """Whether ``kernel`` computes ``op``, on ``launches`` different sets of integers.

    Args:
        op: What it should compute.
        kernel: What is to be proved; a plain function needs no workspace.
        device: Where it runs.
        seed: Seed of the operands.
        launches: How many launches, each with operands of its own.
        cases: The first operands, if they are there already; others are made and dropped again.
        out: Memory for the output, if it is there already.

    Returns:
        The first failure, or an ok verdict.
    """
    if not isinstance(kernel, Kernel):
        kernel = Kernel(kernel)
    out = allocate(op.output, device) if out is None else out
    workspace = kernel.workspace(device)
    for launch in range(launches):
        case = cases[launch] if launch < len(cases) else integer_case(op, device, seed, launch)
        run_case(kernel, case, out, workspace)
        verdict = inspect(op, case, out, workspace)
        if not verdict.ok:
            return msgspec.structs.replace(verdict, reason=f"launch {launch}: {verdict.reason}")
    return Verdict(ok=True)


def prove_many(
    op: Op,
    kernels: Sequence[Kernel | Callable[..., Any]],
    *,
    device: str | torch.device = "cuda",
    seed: int = 1,
    launches: int = 100,
) -> list[Verdict]:
    """What finalists have to survive: many launches, each on fresh operands, which all of them share.

    Races and hazards show in some launches only. A kernel's first failure ends its part.

    Args:
        op: What they should compute.
        kernels: Those that a choice is made from.
        device: Where they run.
        seed: Seed of the operands.
        launches: Of each kernel.

    Returns:
        One verdict a kernel.
    """
    made = [kernel if isinstance(kernel, Kernel) else Kernel(kernel) for kernel in kernels]
    verdicts = [Verdict(ok=True) for _ in made]
    out = allocate(op.output, device)
    for launch in range(launches):
        case = integer_case(op, device, seed, launch)
        for index, kernel in enumerate(made):
            if verdicts[index].ok:
                workspace = kernel.workspace(device)
                run_case(kernel, case, out, workspace)
                verdict = inspect(op, case, out, workspace)
                if not verdict.ok:
                    reason = f"launch {launch}: {verdict.reason}"
                    verdicts[index] = msgspec.structs.replace(verdict, reason=reason)
    return verdicts


def check_timing_output(op: Op, case: Case, out: Guarded, workspace: Guarded | None = None) -> Verdict:
    """Judge the output of the last timed launch on normal data against the fp32 reference, elementwise."""
    verdict = inspect(op, case, out, workspace)
    return verdict if verdict.ok else msgspec.structs.replace(verdict, reason=f"timed launch: {verdict.reason}")


def _wrong(got: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    """Which elements are not what they should be; NaN always is wrong."""
    if tolerance.exact:
        return got != expected
    found, wide = _held(got, got.dtype), _held(expected, got.dtype)
    near = (found - wide).abs() <= tolerance.absolute + tolerance.relative * wide.abs()
    return ~(near | (got == expected))


def _held(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``values`` in fp32, no larger than fp16 holds if ``dtype`` is that: its infinity is a sum beyond 65,504."""
    import torch

    wide = values.float()
    if dtype != torch.float16:
        return wide
    largest = torch.finfo(dtype).max
    return wide.clamp(-largest, largest)


def _worst(got: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance) -> tuple[tuple[int, ...], float, float]:
    """Index, value and expected value of the wrong element that is furthest off."""
    import torch

    error = (got.double() - expected.double()).abs().nan_to_num(nan=torch.inf)
    error = torch.where(_wrong(got, expected, tolerance), error, -1.0)
    place = torch.unravel_index(error.argmax(), error.shape)
    index = tuple(int(i) for i in place)
    return index, float(got[index]), float(expected[index])
