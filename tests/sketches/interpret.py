"""Runs cases through Triton's interpreter in a process of its own, which must be told so before it imports triton.

Reads ``[{"op": spec, "schedule": {...}}, ...]`` on stdin, writes one JSON object a case on stdout. Everything is
integer-valued, so a right kernel agrees with the reference bit for bit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from autosched.sketches.op import Op, Operand
from autosched.sketches.schedule import Schedule


def interpret(cases: list[tuple[Op, Schedule]], timeout: float = 240.0) -> list[dict[str, Any]]:
    """The outcome of every case: ``{"wrong": elements that differ, "digest": of the output, "seconds"}``."""
    jobs = [{"op": op.spec, "schedule": schedule.to_json()} for op, schedule in cases]
    done = subprocess.run(
        [sys.executable, "-m", "tests.sketches.interpret"],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"{jobs[len(results)]}\n{done.stderr[-4000:]}"
    return results


def _tensor(operand: Operand, generator: Any) -> Any:
    import torch

    dtype = getattr(torch, operand.dtype.torch)
    tensor = torch.empty_strided(operand.shape, operand.strides, dtype=dtype)
    tensor.copy_(torch.randint(-4, 5, operand.shape, generator=generator).to(dtype))
    return tensor


def _run(job: dict[str, Any]) -> dict[str, Any]:
    import hashlib

    import torch

    from autosched.result import load_source
    from autosched.sketches.builders import build
    from autosched.sketches.codegen import generate
    from autosched.sketches.reference import reference_fp32
    from autosched.sketches.rules import derive
    from autosched.sketches.target import PRESETS

    start = time.perf_counter()
    op = build(job["op"])
    schedule = Schedule.from_json(job["schedule"], derive(op, PRESETS["H200"]))
    generator = torch.Generator().manual_seed(0)
    tensors = {o.name: _tensor(o, generator) for o in op.operands}
    dtype = getattr(torch, op.output.dtype.torch)
    out = torch.empty_strided(op.output.shape, op.output.strides, dtype=dtype).fill_(float("nan"))
    load_source(generate(op, schedule))["launch"](*tensors.values(), out)
    expected = reference_fp32(op, tensors)
    tolerance = 0.0 if not any(s.kind in ("gelu", "gelu_tanh", "silu") for s in op.epilogue) else 2e-3
    if tolerance:
        wrong = ~((out.float() - expected).abs() <= tolerance * (1 + expected.abs()))
    else:
        wrong = ~(out == expected.to(dtype))
    digest = hashlib.sha256(out.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
    return {"wrong": int(wrong.sum()), "digest": digest, "seconds": time.perf_counter() - start}


if __name__ == "__main__":
    for one in json.load(sys.stdin):
        print(json.dumps(_run(one)), flush=True)
