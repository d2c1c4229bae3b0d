"""Runs cases through Triton's interpreter in a process of its own, which must be told so before it imports triton.

Reads a job on stdin, ``{"options": {...}, "cases": [{"op": spec, "schedule": {...}}, ...]}``, and writes one JSON
object a case on stdout. Everything is integer-valued, so a right kernel agrees with the reference bit for bit. Tensors
lie in storage whose other elements are not numbers (or far from the values), and an explicit workspace is poisoned
where it is not promised to be zero.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autosched.sketches.op import Op, Operand
from autosched.sketches.schedule import Schedule

#: Elements of storage before and after a tensor; a multiple of 16 bytes for every type.
GUARD = 64


def interpret(
    cases: Sequence[tuple[Op, Schedule]],
    timeout: float = 240.0,
    *,
    sizes: Sequence[Mapping[str, int]] = (),
    in_place: bool = False,
) -> list[dict[str, Any]]:
    """What came of every case, launched from one generated source.

    Args:
        cases: Ops and schedules.
        timeout: Seconds for all of them.
        sizes: Extents of dynamic axes by name; the kernel is launched on each in turn. The op's own if empty.
        in_place: Whether the operand ``c`` is the output's own memory.

    Returns:
        For each case ``wrong`` (elements of the output that differ from the reference), ``outside`` (elements beside
        the tensors that were written, and of inputs that changed), ``dirty`` (bytes of the workspace that should be
        zero again and are not), ``digest`` of the last output, ``digests`` of all, and ``seconds``.

    Raises:
        AssertionError: A kernel raised, or meant to read or write an element beyond all tensors and the workspace.
    """
    jobs = [{"op": op.spec, "schedule": schedule.to_json()} for op, schedule in cases]
    options = {"sizes": [dict(s) for s in sizes], "in_place": in_place}
    done = subprocess.run(
        [sys.executable, "-m", "tests.sketches.interpret"],
        input=json.dumps({"options": options, "cases": jobs}),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"{jobs[len(results)]}\n{done.stderr[-4000:]}"
    return results


def failures(cases: Sequence[tuple[Op, Schedule]], results: Sequence[dict[str, Any]]) -> list[str]:
    """The cases that went wrong, for a person."""
    return [
        f"{op.key()}: {schedule.to_json()}: { ({k: v for k, v in r.items() if k in ('wrong', 'outside', 'dirty')}) }"
        for (op, schedule), r in zip(cases, results, strict=True)
        if r["wrong"] or r["outside"] or r["dirty"]
    ]


@dataclass(frozen=True)
class Stored:
    """A tensor and the storage that it lies in."""

    tensor: Any
    storage: Any
    before: Any

    def outside(self) -> int:
        """Elements of the storage beside the tensor's that changed."""
        import torch

        own = torch.zeros(self.storage.shape, dtype=torch.bool)
        shape, strides = self.tensor.shape, self.tensor.stride()
        own.as_strided(shape, strides, GUARD).fill_(True)
        changed = _bits(self.storage) != _bits(self.before)
        return int((changed & ~own).sum())

    def changed(self) -> int:
        """Elements of the storage that changed."""
        return int((_bits(self.storage) != _bits(self.before)).sum())


def _bits(tensor: Any) -> Any:
    import torch

    return tensor.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def _stored(operand: Operand, generator: Any) -> Stored:
    """A tensor of small integers; powers of two for factors, which are the fp32 operands of other types' ops."""
    import torch

    dtype = getattr(torch, operand.dtype.torch)
    poison = float("nan") if dtype.is_floating_point else 0x55
    storage = torch.full((operand.span + 2 * GUARD,), poison, dtype=torch.float32 if dtype.is_floating_point else dtype)
    storage = storage.to(dtype)
    values = torch.randint(-4, 5, operand.shape, generator=generator).float()
    if "scale" in operand.name:
        values = 2.0 ** values.clamp(-2, 2)
    strides = operand.strides
    tensor = storage.as_strided(operand.shape, strides, GUARD)
    for dimension, stride in enumerate(strides):  # one value for all indices that a stride of 0 holds together
        if stride == 0 and operand.shape[dimension] > 1:
            values = values.narrow(dimension, 0, 1)
    shape = values.shape
    storage.as_strided(shape, strides, GUARD).copy_(values.to(dtype))
    return Stored(tensor, storage, storage.clone())


def _cut(tensor: Any, operand: Operand, sizes: Mapping[str, int]) -> Any:
    """The tensor with its dynamic dimensions cut, which matters for sizes of 0."""
    for dimension, expression in enumerate(operand.index):
        if expression.single is not None and expression.single in sizes:
            tensor = tensor.narrow(dimension, 0, sizes[expression.single])
    return tensor


def _resized(op: Op, sizes: Mapping[str, int]) -> Op:
    """The op with other extents of its dynamic axes, at least 1."""
    from autosched.sketches.builders import BUILDERS, build

    spec = dict(op.spec)
    if spec["builder"] in BUILDERS:
        names = BUILDERS[spec["builder"]].names
        spec["shape"] = [max(1, sizes[x]) if x in sizes else n for x, n in zip(names, spec["shape"], strict=True)]
    else:
        spec["sizes"] = {x: max(1, sizes.get(x, n)) for x, n in spec["sizes"].items()}
    return build(spec)


class _Workspace:
    """A workspace of the size that the generated source asks for, or none."""

    def __init__(self, generated: Any) -> None:
        import torch

        self.tensor: Any = None
        self.zeroed = generated.workspace_zeroed // 4
        if generated.workspace_bytes:
            self.tensor = torch.full((-(-generated.workspace_bytes // 4),), float("nan"))
            self.tensor[: self.zeroed] = 0.0

    def dirty(self) -> int:
        """Bytes that should be zero and are not."""
        import torch

        return 0 if self.tensor is None else int((self.tensor[: self.zeroed].view(torch.uint8) != 0).sum())


class Watch:
    """Refuses loads and stores of elements beyond all tensors: guards tell of what is written there, not of reads."""

    def __init__(self) -> None:
        from triton.runtime.interpreter import InterpreterBuilder

        self._ranges: list[tuple[int, int]] = []
        self._wrap(InterpreterBuilder, "create_masked_load", mask=2)
        self._wrap(InterpreterBuilder, "create_masked_store", mask=3)

    def allow(self, *tensors: Any) -> None:
        """Lets kernels touch these tensors, from the first element of each to its last, and nothing else."""
        self._ranges = []
        for tensor in tensors:
            last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            start = tensor.data_ptr()
            self._ranges.append((start, start + (last + 1) * tensor.element_size()))

    def _wrap(self, builder: Any, name: str, mask: int) -> None:
        import numpy as np

        known = getattr(builder, name)

        def watched(*arguments: Any, **keywords: Any) -> Any:
            places = arguments[1].data
            meant = np.asarray(getattr(arguments[mask], "data", arguments[mask]), bool)
            used = places[np.broadcast_to(meant, places.shape)].astype(np.int64)
            if used.size and not any(start <= used.min() and used.max() < end for start, end in self._ranges):
                for start, end in self._ranges:  # or in several of them
                    used = used[(used < start) | (used >= end)]
                assert not used.size, f"{name}: {used.size} elements lie beyond all tensors"
            return known(*arguments, **keywords)

        setattr(builder, name, watched)


def _run(job: dict[str, Any], options: dict[str, Any], watch: Watch) -> dict[str, Any]:
    from autosched.result import load_source
    from autosched.sketches.builders import build
    from autosched.sketches.codegen import generate
    from autosched.sketches.rules import derive
    from autosched.sketches.target import PRESETS

    start = time.perf_counter()
    op = build(job["op"])
    generated = generate(op, Schedule.from_json(job["schedule"], derive(op, PRESETS["H200"])))
    lines = generated.source.splitlines(keepends=True)
    kept = [line for line in lines if "tl.extra.cuda.gdc_" not in line]  # kernels run one after the other here
    generated = replace(generated, source="".join(kept))
    launch = load_source(generated)["launch"]
    workspace = _Workspace(generated)
    found: dict[str, Any] = {"wrong": 0, "outside": 0, "dirty": 0, "digests": []}
    for sizes in options["sizes"] or [{}]:
        for _ in range(2 if generated.workspace_zeroed else 1):  # the second launch finds what the first one left
            wrong, outside, digest = _launched(
                _resized(op, sizes), sizes, launch, workspace.tensor, watch, in_place=options["in_place"]
            )
            found["wrong"] += wrong
            found["outside"] += outside
            found["dirty"] += workspace.dirty()
            found["digests"].append(digest)
    return {**found, "digest": found["digests"][-1], "seconds": time.perf_counter() - start}


def _launched(
    op: Op, sizes: Mapping[str, int], launch: Any, workspace: Any, watch: Watch | None, *, in_place: bool
) -> tuple[int, int, str]:
    """One launch on fresh tensors: elements that are wrong, elements written elsewhere, digest of the output."""
    import hashlib

    import torch

    from autosched.sketches.reference import reference_fp32
    from autosched.sketches.steps import STEPS

    generator = torch.Generator().manual_seed(0)
    inputs = {o.name: _stored(o, generator) for o in op.operands}
    tensors = {o.name: _cut(inputs[o.name].tensor, o, sizes) for o in op.operands}
    expected = _cut(reference_fp32(op, {name: stored.tensor for name, stored in inputs.items()}), op.output, sizes)
    if in_place:
        result = inputs.pop("c")
    else:
        result = _stored(op.output, generator)
        result.tensor.fill_(float("nan") if result.tensor.is_floating_point() else 0x55555555)
    out = _cut(result.tensor, op.output, sizes)
    given = [*(stored.tensor for stored in inputs.values()), result.tensor]
    if watch is not None:
        watch.allow(*given, *([] if workspace is None else [workspace]))
    launch(*tensors.values(), out, workspace=workspace)
    if any(STEPS[s.kind].transcendental for s in op.epilogue):
        expected = expected.to(out.dtype).float()  # infinite where the output would be
        slack = 2e-3 * (1 + expected.abs()) + (0 if out.is_floating_point() else 1)  # integers are cut off
        wrong = ~((out.float() == expected) | ((out.float() - expected).abs() <= slack))
    else:
        wrong = ~(out == expected.to(out.dtype))
    outside = result.outside() + sum(stored.changed() for stored in inputs.values())
    digest = hashlib.sha256(out.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
    return int(wrong.sum()), outside, digest


if __name__ == "__main__":
    everything = json.load(sys.stdin)
    watching = Watch()
    for one in everything["cases"]:
        print(json.dumps(_run(one, everything["options"], watching)), flush=True)
